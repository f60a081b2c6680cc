//! A process that executes approved tools is killed with SIGKILL, from outside, at each of twelve
//! points around claim, effect, outcome and emission. No effect happens twice, and every chat
//! continues.
//!
//! This program is the server and the test. Started with `KILLED_AT`, it is the [server](program)
//! that is killed. Otherwise it starts the server, kills it, and checks the effect log, the ledger
//! in a real Redis, and what the client shows. `KILLS` sets the number of kills at each point (1),
//! for a tool that runs at most once and for an idempotent one.
//!
//! After that, [servers with a notifier](notices), and [servers whose agents ask for calls](inner_agents), are
//! killed at random moments, each `KILLS` times (at least 20).

mod effects;
mod inner_agents;
mod notices;
mod points;
mod program;
mod trial;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use chat_test_support::inner_agent_kills;
use test_support::external_processes::redis_server::RedisServer;
use test_support::external_processes::{number, say};
use test_support::notifier_kills;

use points::Point;
use trial::{Observed, Trial};

fn main() {
    if let Some(settings) = program::Settings::from_environment() {
        return block_on(program::serve(settings));
    }
    if let Some(server) = notifier_kills::Server::from_environment() {
        return block_on(notices::serve(server));
    }
    if let Some(server) = inner_agent_kills::Server::from_environment() {
        return block_on(inner_agents::serve(server));
    }
    let Some(redis) = RedisServer::start() else { return };
    let kills = number("KILLS", 1);
    let trials: Vec<Trial> = (0..kills)
        .flat_map(|_| Point::ALL)
        .flat_map(|point| [false, true].map(|idempotent| (point, idempotent)))
        .enumerate()
        .map(|(number, (point, idempotent))| Trial { number, point, idempotent })
        .collect();
    let next = AtomicUsize::new(0);
    let run = || {
        let mut observed = Vec::new();
        while let Some(trial) = trials.get(next.fetch_add(1, Ordering::Relaxed)) {
            observed.push((*trial, block_on(trial.run(&redis.url()))));
        }
        observed
    };
    let observed: Vec<(Trial, Observed)> = thread::scope(|scope| {
        let threads: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(run)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let mut tally = BTreeMap::new();
    for (trial, observed) in observed {
        *tally.entry((trial.point, trial.idempotent, observed)).or_insert(0) += 1;
    }
    let mut killed = 0;
    for ((point, idempotent, observed), count) in tally {
        let tool = if idempotent { "idempotent" } else { "at most once" };
        say(&format!("{count:4} × {:<17} {tool:<12} {observed}", point.name()));
        killed += count;
    }
    say(&format!("{killed} processes killed, no effect twice, every chat continued"));
    let delivered = block_on(notices::each_event_is_delivered_at_least_once_and_in_order(&redis));
    say(&format!("redis, notices: {delivered}"));
    let asked = block_on(inner_agents::each_call_runs_at_most_once_and_no_question_is_lost(&redis));
    say(&format!("redis, inner agents: {asked}"));
}

fn block_on<T>(run: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(run)
}

const AT_ONCE: usize = 8;
