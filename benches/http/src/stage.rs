//! The stages: in each, the arms take turns for some rounds, and the medians count.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::error::Error;
use std::time::{Duration, Instant};

use bench_work::Answer;

use crate::Outcome;
use crate::arm::{Arm, Kit};
use crate::check::{Size, check};
use crate::install::{Installed, Missing};
use crate::load::{Client, block_on};
use crate::machine::Machine;
use crate::options::Options;
use crate::pace::read_paced;
use crate::server::{Server, cpu_of};

/// A kind of load.
pub(crate) struct Stage {
    /// The name on the command line.
    pub(crate) name: &'static str,
    /// The route of the arms.
    path: &'static str,
    streams: usize,
}

impl Stage {
    /// Returns whether this arm has a response for this stage.
    pub(crate) fn includes(&self, arm: &Arm) -> bool {
        match self.path {
            "/paced" => arm.is_paced,
            "/outputs" => arm.sends_outputs,
            _ => true,
        }
    }
}

pub(crate) const TEXT: [Stage; 3] = [
    Stage { name: "text-1", path: "/text", streams: 1 },
    Stage { name: "text-64", path: "/text", streams: 64 },
    Stage { name: "text-1000", path: "/text", streams: 1_000 },
];
pub(crate) const OUTPUTS: Stage = Stage { name: "outputs-1", path: "/outputs", streams: 1 };
pub(crate) const PACED: Stage = Stage { name: "paced", path: "/paced", streams: 500 };

/// A measurement that takes long is made in each so many rounds.
pub(crate) const SLOW: usize = 5;

/// How long one response of each stream may take.
const MAX_TIME: Duration = Duration::from_secs(30);

/// What one arm took, in one round or as the median of the rounds.
#[derive(Clone, Copy)]
pub(crate) struct Sample {
    /// The CPU time of the server, in nanoseconds: for a response, or for a delta if the text is paced.
    pub(crate) cpu: f64,
    /// The CPU time divided by that of the limit in the same round.
    pub(crate) ratio: f64,
    /// Half of the rounds have a ratio that differs from the median by less than this share of it.
    pub(crate) spread: f64,
    /// The median and the 99th percentile, in microseconds, of the time of a response, or of the delay of a delta.
    pub(crate) times: [f64; 2],
    /// The share of the time in which the client's core was busy.
    pub(crate) client: f64,
    /// The share of the deltas that arrived in the time in which they should, if the text is paced.
    pub(crate) arrived: f64,
    /// The rounds that were measured.
    pub(crate) rounds: usize,
}

impl Sample {
    /// What one arm took in a round, before it is compared with the limit.
    fn of_round(cpu: f64, times: [f64; 2], client: f64, arrived: f64) -> Self {
        Sample { cpu, ratio: f64::NAN, spread: 0.0, times, client, arrived, rounds: 1 }
    }
}

/// The results of all stages that were measured: by the name of the stage and the name of the arm.
#[derive(Default)]
pub(crate) struct Results {
    samples: BTreeMap<(&'static str, &'static str), Sample>,
    sizes: BTreeMap<(&'static str, &'static str), Size>,
}

impl Results {
    pub(crate) fn sample(&self, stage: &Stage, arm: &'static str) -> Option<&Sample> {
        self.samples.get(&(stage.name, arm))
    }

    /// Returns the size of a response of an arm.
    pub(crate) fn size(&self, stage: &Stage, arm: &str) -> Option<Size> {
        self.sizes.get(&(stage.path, arm)).copied()
    }

    /// Returns whether one response of each stream would take longer than [`MAX_TIME`]. The stage before shows it.
    pub(crate) fn takes_too_long(&self, stage: &Stage, arm: &'static str) -> bool {
        let before = self.sample(&TEXT[1], arm).map_or(0.0, |sample| sample.cpu);
        before * stage.streams as f64 > MAX_TIME.as_nanos() as f64
    }

    fn check(&mut self, arm: &'static Arm, server: &Server) -> Outcome<()> {
        let answers: [(&'static str, &Answer); 2] =
            [(TEXT[0].path, bench_work::text()), (OUTPUTS.path, bench_work::outputs())];
        for (path, answer) in answers {
            let size = check(arm, server.address, path, answer)?;
            self.sizes.insert((path, arm.name), size);
        }
        Ok(())
    }
}

/// Starts each arm and checks its responses, then measures the stages.
///
/// # Errors
/// If a response is not the answer. A peer that does not start is added to the missing ones.
pub(crate) fn measure_all(
    options: &Options,
    machine: &Machine,
    installed: Vec<Installed>,
    missing: &mut Vec<Missing>,
) -> Outcome<Results> {
    let mut results = Results::default();
    let mut arms = Vec::new();
    for arm in installed {
        match Server::start(&arm, machine.cores[0], options.paced_deltas()) {
            Ok(server) => results.check(arm.arm, &server)?,
            Err(error) if arm.arm.kit == Kit::Ours => return Err(error),
            Err(error) => {
                missing.push(Missing::new(arm.arm, &*error));
                continue;
            }
        }
        arms.push(arm);
    }
    for stage in TEXT.iter().chain([&OUTPUTS, &PACED]) {
        if options.measures(stage.name) {
            let takes_part = |arm: &&Installed| {
                stage.includes(arm.arm) && !results.takes_too_long(stage, arm.arm.name)
            };
            let arms = arms.iter().filter(takes_part).collect();
            measure(stage, options, machine, arms, &mut results)?;
        }
    }
    Ok(results)
}

fn measure(
    stage: &Stage,
    options: &Options,
    machine: &Machine,
    arms: Vec<&Installed>,
    results: &mut Results,
) -> Outcome<()> {
    let start = |arm: &&Installed| Server::start(arm, machine.cores[0], options.paced_deltas());
    let servers = arms.iter().map(start).collect::<Outcome<Vec<_>>>()?;
    let mut samples: Vec<Vec<Sample>> = vec![Vec::new(); arms.len()];
    let mut is_slow = vec![stage.name == PACED.name; arms.len()];
    let mut limit = f64::NAN;
    for round in 0..options.rounds {
        for (at, (arm, server)) in arms.iter().zip(&servers).enumerate() {
            if is_slow[at] && round % SLOW != 0 {
                continue;
            }
            let name = arm.arm.name;
            let named = |error: Box<dyn Error>| format!("{name} in {}: {error}", stage.name);
            let size = results.size(stage, name);
            if round == 0 && size.is_some() {
                let warm_up = Stage { streams: stage.streams.min(16), ..*stage };
                burst(&warm_up, options, server).map_err(named)?;
            }
            let begun = Instant::now();
            let mut sample = match size {
                Some(size) => burst(stage, options, server).and_then(|burst| burst.sample(size)),
                None => paced(stage, options, server),
            }
            .map_err(named)?;
            if at == 0 {
                limit = sample.cpu;
            }
            sample.ratio = sample.cpu / limit;
            is_slow[at] |= begun.elapsed() > 5 * options.time;
            let (cpu, ratio, client) = (sample.cpu, sample.ratio, sample.client);
            eprintln!(
                "{} {round} {name}: {cpu:.0} ns, ÷ {ratio:.2}, client {client:.2}",
                stage.name
            );
            samples[at].push(sample);
        }
    }
    for (arm, samples) in arms.iter().zip(samples) {
        results.samples.insert((stage.name, arm.arm.name), median(&samples));
    }
    Ok(())
}

/// What a burst has read, and what it took.
struct Burst {
    client: Client,
    /// The CPU time of the server and of the client, and the time on the clock, in nanoseconds.
    took: [f64; 3],
}

fn burst(stage: &Stage, options: &Options, server: &Server) -> Outcome<Burst> {
    let (client, begun) = (Client::new(), Cell::new(None));
    let begin = || begun.set(Some((read_cpu(server), Instant::now())));
    let target = (server.address, stage.path);
    block_on(client.burst(target, stage.streams, options.time, begin))?;
    let (cpu, begun) = begun.take().expect("the connections were open");
    let took = since(cpu, server)?;
    Ok(Burst { client, took: [took[0], took[1], begun.elapsed().as_nanos() as f64] })
}

impl Burst {
    fn sample(self, size: Size) -> Outcome<Sample> {
        let mut read = self.client.read.take();
        let (responses, [server, client, clock]) = (read.responses as f64, self.took);
        // The head and the lengths of the pieces come on top.
        if (read.bytes as f64) < responses * size.bytes as f64 * 0.99 {
            return Err("the responses are shorter than the one that was checked".into());
        }
        let times = percentiles(&mut read.times).map(|time| time.as_secs_f64() * 1e6);
        let (cpu, client) = (server / responses, client / clock);
        Ok(Sample::of_round(cpu, times, client, 1.0))
    }
}

fn paced(stage: &Stage, options: &Options, server: &Server) -> Outcome<Sample> {
    let (begun, took) = (Cell::new(None), Cell::new(None));
    let begin = || begun.set(Some(read_cpu(server)));
    let end = || took.set(begun.take().map(|cpu| since(cpu, server)));
    let time = options.paced_time();
    let reading = read_paced(server.address, stage.streams, time, begin, end);
    let mut delays = block_on(reading)?.delays;
    let expected = stage.streams as f64 * 50.0 * time.as_secs_f64();
    let [server, client] = took.take().expect("the time has ended")?;
    if delays.is_empty() {
        return Err("no delta arrived".into());
    }
    let arrived = delays.len() as f64 / expected;
    let times = percentiles(&mut delays).map(|delay| delay as f64 / 1e3);
    let client = client / time.as_nanos() as f64;
    let cpu = server / delays.len() as f64;
    Ok(Sample::of_round(cpu, times, client, arrived))
}

/// Returns the CPU times of the server and of this process, in nanoseconds.
fn read_cpu(server: &Server) -> Outcome<[u64; 2]> {
    Ok([server.cpu()?, cpu_of(std::process::id())?])
}

fn since(begun: Outcome<[u64; 2]>, server: &Server) -> Outcome<[f64; 2]> {
    let (begun, now) = (begun?, read_cpu(server)?);
    Ok([0, 1].map(|at| now[at].saturating_sub(begun[at]) as f64))
}

/// Returns the median and the 99th percentile.
fn percentiles<T: Ord + Copy>(values: &mut [T]) -> [T; 2] {
    values.sort_unstable();
    [0.5, 0.99].map(|share| values[((values.len() - 1) as f64 * share) as usize])
}

fn median(samples: &[Sample]) -> Sample {
    let of = |value: fn(&Sample) -> f64| middle(samples.iter().map(value));
    let ratio = of(|sample| sample.ratio);
    let distances = samples.iter().map(|sample| (sample.ratio / ratio - 1.0).abs());
    Sample {
        cpu: of(|sample| sample.cpu),
        ratio,
        spread: middle(distances),
        times: [of(|sample| sample.times[0]), of(|sample| sample.times[1])],
        client: of(|sample| sample.client),
        arrived: of(|sample| sample.arrived),
        rounds: samples.len(),
    }
}

/// Returns the median.
pub(crate) fn middle(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
