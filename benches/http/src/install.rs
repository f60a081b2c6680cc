//! Builds the arms and installs the peers.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::arm::{Arm, Kit};
use crate::{Outcome, here};

/// An arm that can be started.
pub(crate) struct Installed {
    pub(crate) arm: &'static Arm,
    /// The program and its first arguments. The port follows.
    pub(crate) program: Vec<String>,
    /// What follows the port.
    pub(crate) last_arguments: Vec<String>,
}

/// A peer that could not be installed, and why.
pub(crate) struct Missing {
    pub(crate) arm: &'static Arm,
    pub(crate) reason: String,
}

impl Missing {
    /// Reports an arm that is left out. The reason names no folder of this machine outside of the repository.
    pub(crate) fn new(arm: &'static Arm, error: &dyn Error) -> Self {
        eprintln!("{} is left out: {error}", arm.name);
        let folders = [(here(), "benches/http"), (target().unwrap_or_default(), "target")];
        let reason = folders.iter().fold(error.to_string(), |reason, (folder, name)| {
            reason.replace(&*folder.to_string_lossy(), name)
        });
        Missing { arm, reason }
    }
}

/// Installs what these arms need.
///
/// # Errors
/// If the arms of this repository cannot be built. A peer that cannot be installed is returned as [`Missing`].
pub(crate) fn install(arms: &[&'static Arm]) -> Outcome<(Vec<Installed>, Vec<Missing>)> {
    let answers = programs()?.join("answers.json");
    let text = serde_json::json!({ "text": bench_work::text(), "outputs": bench_work::outputs() });
    std::fs::write(&answers, text.to_string())?;
    build("bench-arms")?;
    let (mut installed, mut missing) = (Vec::new(), Vec::new());
    for arm in arms {
        let program = match arm.kit {
            Kit::Ours => Ok(vec![path("bench-arms")?, arm.name.to_owned()]),
            Kit::Crate { package, .. } => build(package).and_then(|()| Ok(vec![path(package)?])),
            Kit::Node { folder, .. } => node(&here().join(folder)),
            Kit::Python { folder, .. } => python(&here().join(folder)),
        };
        let last_arguments = match arm.kit {
            Kit::Ours | Kit::Crate { .. } => Vec::new(),
            Kit::Node { .. } | Kit::Python { .. } => vec![answers.display().to_string()],
        };
        match program {
            Ok(program) => installed.push(Installed { arm, program, last_arguments }),
            Err(error) => missing.push(Missing::new(arm, &*error)),
        }
    }
    Ok((installed, missing))
}

/// Returns the folder of the programs that cargo has built.
fn programs() -> Outcome<PathBuf> {
    let program = std::env::current_exe()?;
    Ok(program.parent().expect("a program is in a folder").to_owned())
}

/// Returns the target folder, in which this program was built.
pub(crate) fn target() -> Outcome<PathBuf> {
    let programs = programs()?;
    Ok(programs.parent().expect("the folder of a profile is in the target folder").to_owned())
}

fn path(package: &str) -> Outcome<String> {
    Ok(programs()?.join(package).display().to_string())
}

/// Builds a package of this workspace where this program was built.
fn build(package: &str) -> Outcome<()> {
    let mut command = Command::new(env!("CARGO"));
    command.args(["build", "--release", "--package", package, "--target-dir"]);
    run(command.arg(target()?).current_dir(here()))
}

fn node(folder: &Path) -> Outcome<Vec<String>> {
    run(Command::new("npm").args(["ci", "--no-audit", "--no-fund"]).current_dir(folder))?;
    Ok(vec!["node".to_owned(), folder.join("server.mjs").display().to_string()])
}

fn python(folder: &Path) -> Outcome<Vec<String>> {
    let environment = programs()?.join("python");
    run(Command::new("python3").args(["-m", "venv"]).arg(&environment))?;
    let program = environment.join("bin/python");
    let requirements = folder.join("requirements.txt");
    let mut command = Command::new(&program);
    run(command.args(["-m", "pip", "install", "--quiet", "--requirement"]).arg(requirements))?;
    Ok([program, folder.join("server.py")].map(|path| path.display().to_string()).into())
}

/// Runs a command to its end. The error holds the command, and the last lines that it has printed.
pub(crate) fn run(command: &mut Command) -> Outcome<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let arguments: Vec<_> = command.get_args().map(|one| one.to_string_lossy()).collect();
    let line = format!("{} {}", name.rsplit('/').next().unwrap_or(&name), arguments.join(" "));
    eprintln!("{line}");
    let output = command.output().map_err(|error| format!("`{line}`: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    let lines: Vec<&str> = printed.lines().filter(|line| !line.trim().is_empty()).collect();
    Err(format!("`{line}` failed: {}", lines[lines.len().saturating_sub(5)..].join(" ")).into())
}
