//! Measures this crate and its peers over HTTP, and writes `docs/performance.md` and `docs/performance.svg`:
//!
//! ```sh
//! cargo run --release --manifest-path benches/http/Cargo.toml
//! ```
//!
//! It needs Linux, two cores, Rust, `taskset` and `prlimit`, and for two of the peers Node 20 and Python 3.10. It builds
//! the arms and installs the peers. A peer that cannot be installed is reported in the document.
//!
//! An arm is a server: a process of its own, on one core. This process is the client, on another core. In each round
//! the arms take turns, so that a change of the clock, or another process, reaches all of them.
//!
//! | option | meaning | default |
//! |---|---|---|
//! | `--rounds N` | the rounds of each stage; a fifth of them for what takes long | 15 |
//! | `--seconds S` | the time of one arm in one round; ten times as long if the text is paced | 0.3 |
//! | `--arms a,b` | only these arms. The first arm, which is the limit, is always measured | all |
//! | `--stages a,b` | only these stages: `text-1`, `text-64`, `text-1000`, `outputs-1`, `paced`, `in-process` | all |
//! | `--out FOLDER` | where the document and the plot are written | `docs` |

mod arm;
mod check;
mod document;
mod in_process;
mod install;
mod load;
mod machine;
mod options;
mod pace;
mod plot;
mod server;
mod stage;
mod tables;

use std::error::Error;
use std::path::PathBuf;

use crate::document::Document;
use crate::machine::Machine;
use crate::options::Options;

/// What a step of the run returns. The error is shown to the user.
type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> Outcome<()> {
    let options = Options::parse(std::env::args().skip(1))?;
    let machine = Machine::read()?;
    let (installed, mut missing) = install::install(&options.arms)?;
    let in_process = match options.measures(options::IN_PROCESS) {
        true => Some(in_process::run()?),
        false => None,
    };
    machine.pin_client()?;
    let results = stage::measure_all(&options, &machine, installed, &mut missing)?;
    let document = Document { options: &options, machine: &machine, missing, results, in_process };
    std::fs::create_dir_all(&options.out)?;
    std::fs::write(options.out.join("performance.svg"), plot::plot(&document.results))?;
    std::fs::write(options.out.join("performance.md"), document.to_string())?;
    println!("wrote {}", options.out.join("performance.md").display());
    Ok(())
}

/// Returns the folder of this program.
fn here() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the root of the repository.
fn repository() -> PathBuf {
    here().join("../..")
}
