//! A process that runs approved tools is killed with SIGKILL, from outside, at each of twelve points
//! around claim, effect, outcome and emission. No effect happens twice, and every chat goes on.
//!
//! This program is both: started with `KILLED_AT` it is the [server](program) that is killed, else it
//! starts that one, kills it, and judges by the effect log, the ledger in a real Redis, and what the
//! client shows. `KILLS` says how often at each point (1), for a tool that runs at most once and for
//! an idempotent one.

mod effects;
mod points;
mod program;
mod trial;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use test_support::external_processes::redis_server::RedisServer;
use test_support::external_processes::{number, say};

use points::Point;
use trial::{Ended, Trial};

fn main() {
    if let Some(settings) = program::Settings::of_environment() {
        return block_on(program::serve(settings));
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
        let mut ended = Vec::new();
        while let Some(trial) = trials.get(next.fetch_add(1, Ordering::Relaxed)) {
            ended.push((*trial, block_on(trial.run(&redis.url()))));
        }
        ended
    };
    let ended: Vec<(Trial, Ended)> = thread::scope(|scope| {
        let threads: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(run)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let mut tally = BTreeMap::new();
    for (trial, ended) in ended {
        *tally.entry((trial.point, trial.idempotent, ended)).or_insert(0) += 1;
    }
    let mut killed = 0;
    for ((point, idempotent, ended), times) in tally {
        let tool = if idempotent { "idempotent" } else { "at most once" };
        say(&format!("{times:4} × {:<17} {tool:<12} {ended}", point.name()));
        killed += times;
    }
    say(&format!("{killed} processes killed, no effect twice, every chat went on"));
}

fn block_on<T>(run: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(run)
}

const AT_ONCE: usize = 8;
