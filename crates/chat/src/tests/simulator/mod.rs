//! A simulator of two servers with some chats of a user. It drives the real [`LogTurn`](crate::log::turn::LogTurn) through
//! random interleavings, with the real [`InMemoryLogStore`](crate::store::InMemoryLogStore), and checks what must hold in
//! all of them.
//!
//! A store may execute an operation later than its caller gives up, or lose the reply. Servers crash, are
//! paused, and hand their runs over. Logs are trimmed, snapshots are late, and the clock jumps. Clients differ in
//! what they can read and answer.
//!
//! `SIMULATIONS` is the number of interleavings, `SIMULATION_SEED` the first seed, and `SIMULATION` the seed of a
//! single one, whose steps are printed.

mod agent;
mod counts;
mod effects;
mod ledger;
mod promises;
pub(crate) mod random;
mod readers;
mod simulation;
mod users;
mod world;

use std::sync::Mutex;

use self::counts::Counts;
use self::simulation::Simulation;

#[test]
fn random_interleavings_of_two_servers_with_one_log_keep_all_promises() {
    let sum = Mutex::new(Counts::default());
    let count = interleavings(1_000, |seed, trace| {
        let world = Simulation::run_seed(seed, trace);
        sum.lock().unwrap().add(&world.counts);
        world.violations.into_iter().next()
    });
    let sum = sum.into_inner().unwrap();
    println!("{count} interleavings: {sum:?}");
    // A simulator that does not reach these states checks nothing.
    assert!(count < 1_000 || sum.unreached().is_empty(), "never: {:?}", sum.unreached());
}

/// Simulates an interleaving for each seed, and returns their number. The function gets a seed and whether it prints
/// the steps, and returns what is wrong.
pub(crate) fn interleavings(
    default: u64,
    simulate: impl Fn(u64, bool) -> Option<String> + Sync,
) -> u64 {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    if let Some(seed) = number("SIMULATION") {
        let violation = simulate(seed, true);
        assert!(violation.is_none(), "seed {seed}: {violation:?}");
        return 1;
    }
    let count = number("SIMULATIONS").unwrap_or(default);
    let first = number("SIMULATION_SEED").unwrap_or(1);
    let threads = if count < 10_000 { 1 } else { 2 };
    let share = |thread: u64| -> Vec<String> {
        let seeds = (first + thread..first + count).step_by(threads);
        let found = |seed| simulate(seed, false).map(|found| format!("seed {seed}: {found}"));
        seeds.filter_map(found).take(12).collect()
    };
    let failures: Vec<_> = std::thread::scope(|scope| {
        let running: Vec<_> =
            (0..threads as u64).map(|number| scope.spawn(move || share(number))).collect();
        running.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    assert!(failures.is_empty(), "{} failed:\n{}", failures.len(), failures.join("\n"));
    count
}
