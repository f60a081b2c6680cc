//! A simulator of two servers with one conversation. It drives the real [`ChatTurn`] with the real
//! [`InMemoryRunStore`] through random interleavings of requests, crashes, lost replies and jumps of
//! the clock, and checks what must hold in all of them.
//!
//! `SIMULATIONS=1000000 cargo test --release -p ui-message-stream --all-features --lib simulator`
//! runs a million interleavings. `SIMULATION_SEED` sets the first seed. A failure prints its seed, and
//! `TRACE=<seed>` prints the inputs and outputs of all turns of that interleaving.

mod users;
mod world;

use self::world::{Counts, World};

#[test]
fn random_interleavings_of_two_servers_keep_all_promises() {
    let number = |name: &str, default| {
        std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
    };
    let (count, first): (u64, u64) = (number("SIMULATIONS", 400), number("SIMULATION_SEED", 1));
    let threads = match count {
        0..10_000 => 1,
        _ => std::thread::available_parallelism().map_or(1, |threads| threads.get() as u64),
    };
    let share = |thread: u64| {
        let mut sum = Counts::default();
        let mut failures = Vec::new();
        for seed in (first + thread..first + count).step_by(threads as usize) {
            let world = World::simulate(seed, false);
            failures.extend(world.violations.first().map(|found| format!("seed {seed}: {found}")));
            sum.add(&world.counts);
            if failures.len() >= 5 {
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
    if let Some(seed) = std::env::var("TRACE").ok().and_then(|seed| seed.parse().ok()) {
        World::simulate(seed, true);
    }
    assert!(failures.is_empty(), "{} failed:\n{}", failures.len(), failures.join("\n"));
    // A simulator that does not reach these states checks nothing.
    if count >= 400 {
        let reached = [
            sum.runs,
            sum.continued,
            sum.taken,
            sum.effects,
            sum.sent,
            sum.closed,
            sum.joined,
            sum.stored,
            sum.conflicts,
            sum.refused_appends,
            sum.crashes,
            sum.mended,
            sum.deleted,
        ];
        assert!(reached.iter().all(|count| *count > 0), "{sum:?}");
    }
}
