//! The options of the command line.

use std::path::PathBuf;
use std::time::Duration;

use crate::arm::{ARMS, Arm};
use crate::stage::{OUTPUTS, PACED, TEXT};
use crate::{Outcome, repository};

/// What is measured, and for how long.
pub(crate) struct Options {
    pub(crate) rounds: usize,
    /// How long one arm is measured in one round.
    pub(crate) time: Duration,
    pub(crate) arms: Vec<&'static Arm>,
    stages: Option<Vec<String>>,
    pub(crate) out: PathBuf,
    /// The options as they were given.
    pub(crate) given: String,
}

impl Options {
    pub(crate) fn parse(arguments: impl Iterator<Item = String>) -> Outcome<Self> {
        let arguments: Vec<String> = arguments.collect();
        let mut options = Options {
            rounds: 15,
            time: Duration::from_millis(300),
            arms: ARMS.iter().collect(),
            stages: None,
            out: repository().join("docs"),
            given: arguments.join(" "),
        };
        for pair in arguments.chunks(2) {
            let [name, value] = pair else {
                return Err(format!("{} has no value", pair[0]).into());
            };
            match name.as_str() {
                "--rounds" => options.rounds = value.parse::<usize>()?.max(1),
                "--seconds" => options.time = Duration::try_from_secs_f64(value.parse()?)?,
                "--arms" => options.arms = arms(value)?,
                "--stages" => options.stages = Some(stages(value)?),
                "--out" => options.out = PathBuf::from(value),
                _ => return Err(format!("there is no option {name}").into()),
            }
        }
        Ok(options)
    }

    /// Returns whether this stage is measured.
    pub(crate) fn measures(&self, stage: &str) -> bool {
        self.stages.as_ref().is_none_or(|stages| stages.iter().any(|one| one == stage))
    }

    /// Returns the number of deltas of a paced response: enough for the ramp and for the time that is measured.
    pub(crate) fn paced_deltas(&self) -> usize {
        (50.0 * (self.paced_time().as_secs_f64() + 1.5)) as usize
    }

    pub(crate) fn paced_time(&self) -> Duration {
        10 * self.time
    }
}

/// The name of the stage without a server.
pub(crate) const IN_PROCESS: &str = "in-process";

/// Returns the names of these stages.
fn stages(names: &str) -> Outcome<Vec<String>> {
    let known = TEXT.iter().chain([&OUTPUTS, &PACED]).map(|stage| stage.name).chain([IN_PROCESS]);
    Ok(known_names("stage", names, known)?.into_iter().map(String::from).collect())
}

/// Returns the arms with these names, and the first one.
fn arms(names: &str) -> Outcome<Vec<&'static Arm>> {
    let names = known_names("arm", names, ARMS.iter().map(|arm| arm.name))?;
    let is_chosen = |arm: &&Arm| arm.name == ARMS[0].name || names.contains(&arm.name);
    Ok(ARMS.iter().filter(is_chosen).collect())
}

/// Returns each of these names.
///
/// # Errors
/// If one of them is not known.
fn known_names<'n>(
    what: &str,
    names: &'n str,
    known: impl Iterator<Item = &'static str>,
) -> Outcome<Vec<&'n str>> {
    let known: Vec<&str> = known.collect();
    let names: Vec<&str> = names.split(',').collect();
    match names.iter().find(|name| !known.contains(name)) {
        None => Ok(names),
        Some(name) => {
            Err(format!("there is no {what} {name}; the {what}s are {}", known.join(", ")).into())
        }
    }
}
