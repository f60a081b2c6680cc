//! The plot, `docs/performance.svg`: a bar for each arm, on a logarithmic scale.

use crate::stage::{Results, Stage, TEXT};
use crate::tables::{DELTAS, cpu_of_delta, measured, number, ratio_of};

/// The stage that the plot shows.
const STAGE: &Stage = &TEXT[1];

const WIDTH: f64 = 860.0;
const TITLES: f64 = 250.0;
const VALUES: f64 = 150.0;
const BAR: f64 = 26.0;
const TOP: f64 = 52.0;
const BOTTOM: f64 = 40.0;

/// Draws the CPU time of a text delta. The colours follow the reader's preference for light or dark.
pub(crate) fn plot(results: &Results) -> String {
    let bars: Vec<_> = measured(results)
        .filter_map(|arm| {
            Some((arm, results.sample(STAGE, arm.name)?, ratio_of(results, STAGE, arm)?))
        })
        .collect();
    let nanoseconds = || bars.iter().map(|(_, sample, _)| sample.cpu / DELTAS);
    let first = nanoseconds().fold(f64::MAX, f64::min).max(0.1).log10().floor();
    let last = nanoseconds().fold(1.0, f64::max).log10().ceil().max(first + 1.0);
    let height = TOP + BAR * bars.len() as f64 + BOTTOM;
    let x =
        |value: f64| TITLES + (value.log10() - first) / (last - first) * (WIDTH - TITLES - VALUES);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         height=\"{height}\" role=\"img\">\n<title>CPU time of a text delta, 64 streams</title>\n{STYLE}\n\
         <rect class=\"ground\" width=\"{WIDTH}\" height=\"{height}\" rx=\"6\"/>\n"
    );
    svg += &text("heading", 16.0, 26.0, "CPU time of a text delta, burst, 64 streams");
    for power in first as i32..=last as i32 {
        let (at, bottom) = (x(10f64.powi(power)), height - BOTTOM + 4.0);
        svg += &format!(
            "<line class=\"grid\" x1=\"{at:.1}\" y1=\"{}\" x2=\"{at:.1}\" y2=\"{bottom}\"/>\n",
            TOP - 6.0
        );
        svg += &text("scale", at, bottom + 16.0, &unit(power));
    }
    for (index, (arm, sample, ratio)) in bars.iter().enumerate() {
        let (y, end) = (TOP + BAR * index as f64, x(sample.cpu / DELTAS));
        let class = match arm.name {
            "frames-16" | "frames-1" => "limit",
            "reply" | "own-task" | "chats" | "agent" => "ours",
            _ => "other",
        };
        let (top, length, bar) = (y + 3.0, (end - TITLES).max(1.0), BAR - 8.0);
        svg += &text("title", TITLES - 10.0, y + 17.0, &arm.title.replace('`', ""));
        svg += &format!(
            "<rect class=\"{class}\" x=\"{TITLES}\" y=\"{top}\" width=\"{length:.1}\" height=\"{bar}\" rx=\"2\"/>\n"
        );
        let value = format!("{} · {} ×", cpu_of_delta(sample), number(*ratio));
        svg += &text("value", end + 8.0, y + 17.0, &value);
    }
    svg + "</svg>\n"
}

fn text(class: &str, x: f64, y: f64, text: &str) -> String {
    format!("<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{text}</text>\n")
}

/// Returns the label of a power of ten of nanoseconds.
fn unit(power: i32) -> String {
    match power {
        ..0 => format!("{} ns", 10f64.powi(power)),
        0..3 => format!("{} ns", 10i64.pow(power as u32)),
        3..6 => format!("{} µs", 10i64.pow(power as u32 - 3)),
        _ => format!("{} ms", 10i64.pow(power as u32 - 6)),
    }
}

const STYLE: &str = "<style>
text { font: 13px system-ui, sans-serif; fill: #1f2328 }
.heading { font-weight: 600; font-size: 15px }
.title { text-anchor: end }
.scale { text-anchor: middle; fill: #656d76; font-size: 12px }
.ground { fill: #ffffff }
.grid { stroke: #d0d7de }
.limit { fill: #8c959f }
.ours { fill: #0969da }
.other { fill: #bc4c00 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 }
  .scale { fill: #8d96a0 }
  .ground { fill: #0d1117 }
  .grid { stroke: #30363d }
  .limit { fill: #6e7681 }
  .ours { fill: #4493f8 }
  .other { fill: #db6d28 }
}
</style>";
