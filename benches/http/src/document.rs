//! The document, `docs/performance.md`.

use std::fmt;

use crate::arm::Arm;
use crate::install::Missing;
use crate::machine::{Machine, version_of};
use crate::options::Options;
use crate::stage::{OUTPUTS, PACED, Results, SLOW, Stage, TEXT, middle};
use crate::tables;

/// Everything that the document reports.
pub(crate) struct Document<'a> {
    pub(crate) options: &'a Options,
    pub(crate) machine: &'a Machine,
    pub(crate) missing: Vec<Missing>,
    pub(crate) results: Results,
    /// The tables of the bench in process.
    pub(crate) in_process: Option<String>,
}

impl fmt::Display for Document<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let command = self.command();
        writeln!(f, "<!-- Written by `{command}`. Do not edit. -->\n\n# Performance\n")?;
        writeln!(f, "{INTRODUCTION}")?;
        self.burst(f)?;
        self.paced(f)?;
        self.arms(f)?;
        writeln!(f, "{REPEAT}")?;
        self.machine(f)?;
        self.in_process(f)
    }
}

impl Document<'_> {
    fn command(&self) -> String {
        let options = match self.options.given.as_str() {
            "" => String::new(),
            given => format!(" -- {given}"),
        };
        format!("cargo run --release --manifest-path benches/http/Cargo.toml{options}")
    }

    fn burst(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{BURST}")?;
        writeln!(f, "![CPU time of a text delta, 64 streams](performance.svg)\n")?;
        writeln!(f, "{}", tables::ratios(&self.results))?;
        let arms = tables::measured(&self.results).skip(1);
        let samples = arms.flat_map(|arm| TEXT.iter().map(|stage| (stage, arm.name)));
        let samples = samples.filter_map(|(stage, arm)| self.results.sample(stage, arm));
        let spread = 100.0 * middle(samples.map(|sample| sample.spread));
        writeln!(
            f,
            "{SPREAD} {spread:.0} %\n(the median over the arms and the numbers of streams).\n\n{TIMES}"
        )?;
        writeln!(f, "{}", tables::times(&self.results))?;
        for stage in TEXT.iter().chain([&OUTPUTS]) {
            self.notes(f, stage)?;
        }
        Ok(())
    }

    /// Writes what a reader has to know of the measurements of a stage.
    fn notes(&self, f: &mut fmt::Formatter<'_>, stage: &Stage) -> fmt::Result {
        if !self.options.measures(stage.name) {
            return Ok(());
        }
        let (name, rounds) = (stage.name, self.options.rounds);
        let all: Vec<&Arm> =
            tables::measured(&self.results).filter(|arm| stage.includes(arm)).collect();
        let arms_with = |is: &dyn Fn(&Arm) -> bool| -> Option<String> {
            let titles: Vec<&str> = all.iter().filter(|arm| is(arm)).map(|arm| arm.title).collect();
            match titles.len() {
                0 => None,
                some if some == all.len() => Some("all arms".to_owned()),
                _ => Some(titles.join("; ")),
            }
        };
        let sample = |arm: &Arm| self.results.sample(stage, arm.name);
        if let Some(arms) = arms_with(&|arm| self.results.takes_too_long(stage, arm.name)) {
            writeln!(f, "- `{name}` takes too long and was not measured: {arms}.")?;
        }
        if let Some(arms) = arms_with(&|arm| sample(arm).is_some_and(|one| one.rounds < rounds)) {
            let some = rounds.div_ceil(SLOW);
            writeln!(
                f,
                "- `{name}` takes long and was measured in {some} of {rounds} rounds: {arms}."
            )?;
        }
        if let Some(arms) = arms_with(&|arm| sample(arm).is_some_and(|one| one.client > 0.9)) {
            writeln!(f, "- `{name}` kept the client busy for more than 90 % of the time: {arms}.")?;
        }
        Ok(())
    }

    fn paced(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\n{PACED_TEXT}")?;
        match self.options.measures(PACED.name) {
            true => {
                writeln!(f, "{}", tables::paced(&self.results))?;
                self.notes(f, &PACED)?;
                writeln!(f)
            }
            false => writeln!(f, "{NOT_MEASURED}\n"),
        }
    }

    fn arms(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "## The arms\n")?;
        for arm in tables::measured(&self.results) {
            let version = version_of(arm).map(|version| format!(", {version}")).unwrap_or_default();
            writeln!(f, "- **{}** (`{}`{version}). {}", arm.title, arm.name, arm.about)?;
        }
        for Missing { arm, reason } in &self.missing {
            let reason = reason.replace(['\n', '\r'], " ");
            writeln!(f, "- **{}** (`{}`) was not measured. {reason}", arm.title, arm.name)?;
        }
        writeln!(f)
    }

    fn machine(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| | |\n|---|---|")?;
        for (name, value) in &self.machine.lines {
            writeln!(f, "| {name} | {value} |")?;
        }
        let [server, client] = self.machine.cores;
        writeln!(f, "| core of the servers, core of the client | {server}, {client} |\n")
    }

    fn in_process(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{IN_PROCESS}")?;
        writeln!(f, "{}", self.in_process.as_deref().unwrap_or(NOT_MEASURED))
    }
}

const INTRODUCTION: &str = "\
What a response costs the server over HTTP: with this crate, without it, and with other libraries. Each arm is a server
of its own on one core, and the client is on another core of the same machine. The times are CPU times of the server,
with all of its threads, and with what the kernel does for it. They differ between machines, and a shared machine
differs between days. The ratios differ less, so they come first.";

const BURST: &str = "
## Burst

The agent is always ready: the load is as high as the server can take. A response is 2 200 text deltas of about seven
bytes in four steps, and three tool calls. The last column is another response, with 50 tool outputs of 100 KB each.
Before the run, one response of each arm is checked: it holds the same text in as many deltas, and all tool outputs. An arm
that sends no outputs has a dash in the last column.

CPU time divided by that of the limit, which only sends bytes that are ready, 16 frames together. The scale of the plot is
logarithmic:
";

const SPREAD: &str = "\
How steady the machine was: in half of the rounds, the ratio of an arm to the limit differs from its median by less than";

const TIMES: &str = "\
The same as CPU time of a text delta, and of a tool output. Everything that a response takes is divided by the number of
its text deltas, so other chunks and the request count too. Then the time on the clock of a whole response, if there is
one stream, and the size of a response. The arms with this crate join the pieces of a tool input that are ready together,
so they send fewer frames. Other differences in frames are chunks that only some arms write. A chat server also writes an
`id:` in each frame.
";

const PACED_TEXT: &str = "\
## At the pace of a model

500 streams at once, and the agent of each writes 50 deltas a second. A delta is sent when it is written, so nothing can
be joined: most of the time is the system call. The delay is the time from the writing of a delta until the client, which
runs on another core, has read it. *Added* is the median delay minus that of the limit. *In time* is the share of the
25 000 deltas a second that arrived. If it is below 100 %, a core was fully used, and the delays are longer for that
reason. The other arms have no paced response.
";

const REPEAT: &str = "\
## How to repeat it

On Linux with two cores, in a clone of the repository:

```sh
cargo run --release --manifest-path benches/http/Cargo.toml
```

It needs Rust, a C compiler, `taskset` and `prlimit`, and for two of the peers Node 20 with npm, and Python 3.10 with
`venv`. It takes about fifteen minutes. A short run of some arms, which leaves this page as it is:

```sh
cargo run --release --manifest-path benches/http/Cargo.toml -- --rounds 1 --arms reply,sse --stages text-64 --out target/performance
```

The arms take turns in each round. A ratio is the median of the ratios to the limit in the same round, and a time is the
median of the times. Two cores of a virtual machine may be threads of one core, and then the client slows the server down.

All arms set `TCP_NODELAY`, which `axum::serve` does not do by itself: without it, the last bytes of a response can wait
40 ms for an acknowledgement. The outputs of tools are values of the language: each arm converts them to JSON itself, for
each response. The Rust programs are built with `--release` and no further settings.
";

const NOT_MEASURED: &str = "This was not measured in the run that wrote this page.";

const IN_PROCESS: &str = "\
## In process

What the core costs without a server, as `cargo bench --bench in_process` prints it:
";
