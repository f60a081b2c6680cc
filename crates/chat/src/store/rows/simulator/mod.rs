//! A simulator of servers over the same [rows](super::Rows), in random interleavings of their steps.
//!
//! Steps of one call run one after another, and those of other servers come between. A reply is lost, or a step is run
//! after its caller has got an error; a server crashes; the time of leases, of runs that have ended, and of chats
//! passes. After each step that has written something, the rows and lists are compared with what was appended.
//!
//! The variables of the environment are those of the [simulator of turns](crate::tests::simulator).

mod fence;
mod server;
mod world;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::time::advance;

use self::server::Server;
use self::world::World;
use crate::store::rows::known_logs::lock;
use crate::store::rows::log_rows::DUE;
use crate::tests::simulator::interleavings;
use ui_message_stream::BoxFuture;

#[test]
fn rows_of_several_servers_hold_what_was_appended_in_all_interleavings() {
    let sum = Mutex::new(BTreeMap::new());
    let count = interleavings(2_000, |seed, trace| {
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build();
        let world = Arc::new(Mutex::new(World::new(seed, trace)));
        runtime.unwrap().block_on(simulate(&world));
        let mut world = lock(&world);
        let mut sum = lock(&sum);
        for (what, count) in std::mem::take(&mut world.counts) {
            *sum.entry(what).or_insert(0) += count;
        }
        world.violation.take()
    });
    let sum = lock(&sum);
    println!("{count} interleavings: {sum:?}");
    // A simulator that does not reach these states checks nothing.
    let is_reached = STATES.iter().all(|state| sum.contains_key(state));
    assert!(count < 10_000 || is_reached, "{sum:?} lacks some of {STATES:?}");
}

/// Something that a server does.
struct Task {
    number: u64,
    server: usize,
    future: BoxFuture<'static, ()>,
}

async fn simulate(world: &Arc<Mutex<World>>) {
    let count = 2 + lock(world).random.below(2);
    let mut servers: Vec<_> = (0..count).map(|_| Server::new(world)).collect();
    let mut tasks: Vec<Task> = Vec::new();
    let below = |limit| lock(world).random.below(limit);
    for _ in 0..STEPS {
        if below(10) == 0 && lock(world).is_idle() {
            pass(world);
        }
        match below(100) {
            0..=19 if tasks.len() < 4 => {
                let number = lock(world).number();
                let server = below(count);
                let future = Box::pin(Arc::clone(&servers[server]).act());
                tasks.push(Task { number, server, future });
            }
            20..=21 => pass(world),
            22 if below(2) == 0 => {
                let server = below(count);
                let mut world_now = lock(world);
                world_now.count("crashes");
                for task in tasks.extract_if(.., |task| task.server == server) {
                    world_now.leave(task.number);
                }
                drop(world_now);
                servers[server] = Server::new(world);
            }
            24..=31 if !lock(world).late.is_empty() => lock(world).run_late(),
            _ if tasks.is_empty() => {}
            _ => {
                let at = below(tasks.len());
                let number = tasks[at].number;
                if below(20) > 0 && lock(world).is_running(number) {
                    lock(world).now += 1;
                    lock(world).run_next(number);
                } else {
                    lock(world).polled = Some(number);
                    let mut context = Context::from_waker(Waker::noop());
                    let is_ready = tasks[at].future.as_mut().poll(&mut context).is_ready();
                    lock(world).polled = None;
                    if is_ready {
                        drop(tasks.swap_remove(at));
                        lock(world).leave(number);
                    } else if !lock(world).batches.contains_key(&number) {
                        lock(world).count("pauses");
                        lock(world).now += 20;
                        advance(Duration::from_millis(21)).await;
                    }
                }
            }
        }
        if lock(world).violation.is_some() {
            return;
        }
    }
    for task in tasks.drain(..) {
        lock(world).leave(task.number);
    }
    while !lock(world).late.is_empty() {
        lock(world).run_late();
    }
    let ended = end(world, &Server::new(world)).await.map_err(|error| format!("{error:?}"));
    let mut world = lock(world);
    world.expect(ended);
    let remains = Err("something remains in the store".to_owned());
    let is_empty = world.store.is_empty();
    world.expect(if is_empty { Ok(()) } else { remains });
}

/// Passes some time. No call of the store takes minutes.
fn pass(world: &Mutex<World>) {
    let mut world = lock(world);
    let passed: &[u64] = if world.is_idle() {
        &[2_500, 61_000, 700_000, 4_000_000, 8 * DAY]
    } else {
        &[1, 20, 300, 1_500, 2_500]
    };
    let passed = passed[world.random.below(5)];
    // No deletion is forgotten.
    if passed < DAY || world.now < 10 * DAY {
        world.now += passed;
    }
}

/// Deletes all.
async fn end(
    world: &Arc<Mutex<World>>,
    server: &Server,
) -> Result<(), crate::store::ChatStoreError> {
    use crate::store::LogStore;
    let owners = lock(world).owners.clone();
    for owner in &owners {
        lock(world).deleted_users.insert(owner.clone());
        server.delete_user(owner).await?;
    }
    lock(world).now += 9 * DAY;
    // A sweep visits a chat at one of its places.
    for _ in 0..MAX_SWEEPS {
        if !lock(world).is_listed(DUE) {
            break;
        }
        server.sweep().await?;
    }
    if lock(world).random.one_in(2) {
        // No server has a sink.
        lock(world).wanted.clear();
        lock(world).now += 31 * DAY;
        server.sweep().await?;
    }
    while server.deliver(2, Duration::from_secs(60)).await? > 0 {
        lock(world).now += 60_000;
    }
    // What was placed early, and is not needed, is removed later.
    lock(world).now += 120_000;
    server.deliver(2, Duration::from_secs(60)).await?;
    Ok(())
}

const DAY: u64 = 24 * 60 * 60 * 1000;

/// What happens in 10 000 interleavings.
const STATES: [&str; 15] = [
    "appended",
    "conflict",
    "crashes",
    "deleted",
    "delivered",
    "failed append",
    "late",
    "lost reply",
    "lost runs",
    "old snapshots",
    "pauses",
    "snapshots",
    "stable lists",
    "too many chats",
    "too many runs",
];

/// How many places a chat has at most.
const MAX_SWEEPS: usize = 50;

/// How often something happens in an interleaving.
const STEPS: usize = 200;
