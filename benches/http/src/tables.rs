//! The tables of the document.

use crate::arm::{ARMS, Arm};
use crate::stage::{OUTPUTS, PACED, Results, Sample, Stage, TEXT};

/// The text deltas of a response.
pub(crate) const DELTAS: f64 = 2_200.0;
/// The tool outputs of a response of the stage `outputs-1`.
const OUTPUTS_EACH: f64 = 50.0;

/// Returns the CPU time of each arm divided by that of the limit.
pub(crate) fn ratios(results: &Results) -> String {
    let mut table = head(&["", "1 stream", "64 streams", "1 000 streams", "outputs, 1 stream"]);
    for arm in measured(results) {
        let cells = TEXT.iter().chain([&OUTPUTS]).map(|stage| ratio(results, stage, arm));
        table += &row(arm.title, cells);
    }
    table
}

/// Returns the CPU times, and the sizes of the responses.
pub(crate) fn times(results: &Results) -> String {
    let mut table = head(&[
        "",
        "1 stream",
        "64",
        "1 000",
        "an output",
        "a response, 1 stream",
        "frames",
        "bytes",
    ]);
    for arm in measured(results) {
        let text = TEXT.iter().map(|stage| cell(results.sample(stage, arm.name), cpu_of_delta));
        let outputs = cell(results.sample(&OUTPUTS, arm.name), |sample| {
            format!("{} µs", number(sample.cpu / 1e3 / OUTPUTS_EACH))
        });
        let response = cell(results.sample(&TEXT[0], arm.name), |sample| {
            format!("{} ms", number(sample.times[0] / 1e3))
        });
        let size = results.size(&TEXT[0], arm.name);
        let sizes = [size.map(|size| size.frames), size.map(|size| size.bytes)];
        let sizes = sizes.map(|size| size.map_or("–".to_owned(), |size| grouped(size as u64)));
        table += &row(arm.title, text.chain([outputs, response]).chain(sizes));
    }
    table
}

/// Returns the results of the stage whose text is paced.
pub(crate) fn paced(results: &Results) -> String {
    let limit = results.sample(&PACED, ARMS[0].name).map_or(0.0, |limit| limit.times[0]);
    let mut table =
        head(&["", "÷ limit", "CPU of a delta", "delay, median", "99 %", "added", "in time"]);
    for arm in ARMS.iter().filter(|arm| results.sample(&PACED, arm.name).is_some()) {
        let sample = results.sample(&PACED, arm.name);
        let micros = |value: f64| format!("{} µs", number(value));
        let cells = [
            ratio(results, &PACED, arm),
            cell(sample, |sample| micros(sample.cpu / 1e3)),
            cell(sample, |sample| micros(sample.times[0])),
            cell(sample, |sample| micros(sample.times[1])),
            cell(sample, |sample| format!("{:+.0} µs", sample.times[0] - limit)),
            cell(sample, |sample| format!("{:.0} %", 100.0 * sample.arrived)),
        ];
        let title = if arm.name == ARMS[0].name { "limit: ready frames" } else { arm.title };
        table += &row(title, cells);
    }
    table
}

/// Returns the arms of which there are results.
pub(crate) fn measured(results: &Results) -> impl Iterator<Item = &'static Arm> {
    ARMS.iter().filter(|arm| results.size(&TEXT[0], arm.name).is_some())
}

/// Returns the CPU time of a stage divided by that of the limit.
pub(crate) fn ratio_of(results: &Results, stage: &Stage, arm: &Arm) -> Option<f64> {
    Some(results.sample(stage, arm.name)?.ratio)
}

/// Returns the CPU time of a text delta.
pub(crate) fn cpu_of_delta(sample: &Sample) -> String {
    format!("{} ns", number(sample.cpu / DELTAS))
}

/// Writes a number with three digits, or with all digits before the point.
pub(crate) fn number(value: f64) -> String {
    match value {
        value if value < 10.0 => format!("{value:.2}"),
        value if value < 100.0 => format!("{value:.1}"),
        value => grouped(value as u64),
    }
}

/// Writes a whole number in groups of three digits.
fn grouped(value: u64) -> String {
    match value {
        0..1_000 => value.to_string(),
        _ => format!("{}\u{202f}{:03}", grouped(value / 1_000), value % 1_000),
    }
}

fn ratio(results: &Results, stage: &Stage, arm: &Arm) -> String {
    ratio_of(results, stage, arm).map_or("–".to_owned(), number)
}

fn cell(sample: Option<&Sample>, value: impl Fn(&Sample) -> String) -> String {
    sample.map_or("–".to_owned(), value)
}

fn head(titles: &[&str]) -> String {
    let line = "|---".repeat(titles.len());
    format!("| {} |\n{line}|\n", titles.join(" | "))
}

fn row(title: &str, cells: impl IntoIterator<Item = String>) -> String {
    let cells: Vec<String> = cells.into_iter().collect();
    format!("| {title} | {} |\n", cells.join(" | "))
}
