//! The machine: its cores, and the versions of what runs on it.

use std::fs::read_to_string;
use std::process::Command;

use crate::arm::{Arm, Kit};
use crate::install::run;
use crate::{Outcome, here, repository};

/// What the document says of the machine.
pub(crate) struct Machine {
    /// The core of the servers, and the core of the client.
    pub(crate) cores: [usize; 2],
    /// Each line of the description: what it is, and its value.
    pub(crate) lines: Vec<(&'static str, String)>,
}

impl Machine {
    /// Reads the description of this machine.
    ///
    /// # Errors
    /// If this process may not use two cores.
    pub(crate) fn read() -> Outcome<Self> {
        let status = read_to_string("/proc/self/status")?;
        let allowed = allowed_cores(&status);
        let [server, client, ..] = allowed[..] else {
            return Err("two cores are needed: one for the servers, and one for the client".into());
        };
        let changes = output("git", &["status", "--porcelain", "--untracked-files=no"]);
        let state = if changes.is_empty() { "" } else { ", with changes" };
        let lines = vec![
            ("processor", processor()),
            ("cores", allowed.len().to_string()),
            ("kernel", read_to_string("/proc/sys/kernel/osrelease")?.trim().to_owned()),
            ("date", output("date", &["-u", "+%Y-%m-%d"])),
            ("commit", output("git", &["rev-parse", "--short=8", "HEAD"]) + state),
            ("rustc", output("rustc", &["--version"])),
            ("axum", locked("axum")),
            ("Node", output("node", &["--version"])),
            ("Python", output("python3", &["--version"])),
        ];
        Ok(Machine { cores: [server, client], lines })
    }

    /// Moves this process to the core of the client, and lets it and the servers open enough connections.
    pub(crate) fn pin_client(&self) -> Outcome<()> {
        let id = std::process::id().to_string();
        run(Command::new("taskset").args(["-a", "-c", "-p", &self.cores[1].to_string(), &id]))?;
        run(Command::new("prlimit").args(["--nofile=4096:", "--pid", &id]))
    }
}

/// Returns the version of a peer, as its lock file has it.
pub(crate) fn version_of(arm: &Arm) -> Option<String> {
    let version = match arm.kit {
        Kit::Ours => return None,
        Kit::Crate { peer, .. } => locked(peer),
        Kit::Node { folder, peer } => {
            let lock = read_to_string(here().join(folder).join("package-lock.json")).ok()?;
            let lock: serde_json::Value = serde_json::from_str(&lock).ok()?;
            lock["packages"][format!("node_modules/{peer}")]["version"].as_str()?.to_owned()
        }
        Kit::Python { folder, peer } => {
            let lock = read_to_string(here().join(folder).join("requirements.txt")).ok()?;
            let mut versions = lock.lines().filter_map(|line| line.split_once("=="));
            versions.find(|(name, _)| *name == peer)?.1.to_owned()
        }
    };
    Some(version)
}

/// Returns the version of a crate in the lock file of this workspace.
fn locked(name: &str) -> String {
    let lock = read_to_string(here().join("Cargo.lock")).unwrap_or_default();
    let begin = format!("name = \"{name}\"\nversion = \"");
    let rest = lock.split_once(&begin).map_or("", |(_, rest)| rest);
    rest.split('"').next().unwrap_or_default().to_owned()
}

/// Reads `Cpus_allowed_list`, for example `0-1,4`.
fn allowed_cores(status: &str) -> Vec<usize> {
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let ranges = list.unwrap_or_default().trim().split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.parse().ok()?..=last.parse().ok()?)
    });
    ranges.flatten().collect()
}

fn processor() -> String {
    let text = read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("model name"));
    line.and_then(|line| line.split_once(": ")).map_or("unknown", |(_, name)| name).to_owned()
}

/// Returns what a command prints, or that it is not installed.
fn output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).current_dir(repository()).output();
    output.map_or("not installed".to_owned(), |output| {
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    })
}
