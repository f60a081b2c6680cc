//! A simulator of two servers with some chats of a user. It drives the real [`LogTurn`](crate::log::turn::LogTurn) through
//! random interleavings, with the real [`InMemoryLogStore`](crate::store::InMemoryLogStore) or real
//! [rows](crate::store::rows), and checks what must hold in all of them.
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
mod random;
mod readers;
mod simulation;
mod users;
mod world;

use self::counts::Counts;
use self::simulation::Simulation;

#[test]
fn random_interleavings_of_two_servers_with_one_log_keep_all_promises() {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    if let Some(seed) = number("SIMULATION") {
        let violations = Simulation::run_seed(seed, true).violations;
        return assert!(violations.is_empty(), "seed {seed}: {violations:?}");
    }
    let count = number("SIMULATIONS").unwrap_or(1_000);
    let first = number("SIMULATION_SEED").unwrap_or(1);
    let threads = if count < 10_000 { 1 } else { 2 };
    let share = |thread: u64| {
        let mut sum = Counts::default();
        let mut failures = Vec::new();
        for seed in (first + thread..first + count).step_by(threads) {
            let world = Simulation::run_seed(seed, false);
            failures.extend(world.violations.first().map(|found| format!("seed {seed}: {found}")));
            sum.add(&world.counts);
            if failures.len() >= 12 {
                break;
            }
        }
        (sum, failures)
    };
    let mut sum = Counts::default();
    let mut failures = Vec::new();
    std::thread::scope(|scope| {
        let running: Vec<_> =
            (0..threads as u64).map(|number| scope.spawn(move || share(number))).collect();
        for thread in running {
            let (part, found) = thread.join().unwrap();
            sum.add(&part);
            failures.extend(found);
        }
    });
    println!("{count} interleavings: {sum:?}");
    assert!(failures.is_empty(), "{} failed:\n{}", failures.len(), failures.join("\n"));
    // A simulator that does not reach these states checks nothing.
    assert!(count < 1_000 || sum.unreached().is_empty(), "never: {:?}", sum.unreached());
}
