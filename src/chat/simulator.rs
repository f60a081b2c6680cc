//! A simulator of two servers with one conversation. It drives the real [`ChatTurn`] with the real
//! [`InMemoryRunStore`] through random interleavings, and checks what must hold in all of them.
//!
//! Users send messages, edits, regenerations, answers and outputs of their own tools, also together,
//! twice, or from another screen. They stop the run, and delete the conversation. Servers crash while
//! clients read, and the clients continue at the other server. Requests to the stores and to the
//! ledger are lost, or their replies. The clock jumps over leases, and over the time for which logs
//! are stored. After a failure the users send again what is still open, and then nothing may be lost.
//!
//! ```text
//! simulation: users, clients, crashes, the clock ──▶ world: stores, turns, readers ──▶ promises
//!                                                      ▲ step: effects, redemption, agent, clients
//! ```
//!
//! `SIMULATIONS=1000000 cargo test --release -p ui-message-stream --all-features --lib simulator`
//! runs a million interleavings. `SIMULATION_SEED` sets the first seed. A failure prints its seed and
//! the broken promise. `SIMULATION=<seed>` repeats one interleaving, and prints the inputs and outputs
//! of all turns.
//!
//! What it notices is tested with deliberate bugs of the turn, one at a time: `.ci/mutations` applies each
//! patch of `tests/mutations/` to a copy of the tree, and requires that a promise is broken.

pub(in crate::chat) mod agent;
mod clients;
mod counts;
mod driver;
mod effects;
pub(in crate::chat) mod ledger;
mod promises;
pub(in crate::chat) mod random;
mod readers;
mod redemption;
mod simulation;
mod step;
pub(in crate::chat) mod users;
mod world;

use self::counts::Counts;
use self::simulation::Simulation;

#[test]
fn random_interleavings_of_two_servers_keep_all_promises() {
    if let Some(seed) = number("SIMULATION") {
        let violations = Simulation::run_seed(seed, true).violations;
        return assert!(violations.is_empty(), "seed {seed}: {violations:?}");
    }
    let (count, first) =
        (number("SIMULATIONS").unwrap_or(600), number("SIMULATION_SEED").unwrap_or(1));
    let threads = match count {
        0..10_000 => 1,
        _ => std::thread::available_parallelism().map_or(1, |threads| threads.get() as u64),
    };
    let share = |thread: u64| {
        let mut sum = Counts::default();
        let mut failures = Vec::new();
        for seed in (first + thread..first + count).step_by(threads as usize) {
            let world = Simulation::run_seed(seed, false);
            failures.extend(world.violations.first().map(|found| format!("seed {seed}: {found}")));
            sum.add(&world.counts);
            if failures.len() >= 12 {
                break;
            }
        }
        (sum, failures)
    };
    let (mut sum, mut failures) = (Counts::default(), Vec::new());
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|it| scope.spawn(move || share(it))).collect();
        for thread in running {
            let (part, found) = thread.join().unwrap();
            sum.add(&part);
            failures.extend(found);
        }
    });
    println!("{count} interleavings: {sum:?}");
    assert!(failures.is_empty(), "{} failed:\n{}", failures.len(), failures.join("\n"));
    // A simulator that does not reach these states checks nothing.
    assert!(count < 600 || sum.unreached().is_empty(), "never: {:?}", sum.unreached());
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}
