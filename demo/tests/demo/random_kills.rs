//! Servers, their store, or both are killed at random moments, again and again, while 16 conversations
//! go on.
//!
//! `KILLS=300 cargo test -p demo random_kills` kills so many times on each store (20 by default).
//! `KILL_SEED` repeats the moments of a run.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use test_support::external_processes::redis_server::RedisServer;
use test_support::external_processes::round_robin::RoundRobin;
use test_support::external_processes::{Example, node_project, number, say};
use test_support::rng::Dice;

use crate::two_servers::{Shared, Store};

#[test]
fn no_approval_has_two_effects_if_servers_on_sqlite_are_killed_at_random() {
    kill_at_random(Shared::sqlite());
}

#[test]
fn no_approval_has_two_effects_if_redis_and_its_servers_are_killed_at_random() {
    kill_at_random(Shared::redis());
}

#[test]
fn no_approval_has_two_effects_if_redis_loses_everything_at_random() {
    kill_at_random(Shared::redis_without_persistence());
}

#[test]
fn no_approval_has_two_effects_if_a_redis_cluster_and_its_servers_are_killed_at_random() {
    kill_at_random(Shared::cluster());
}

/// Kills, and starts again, until the conversations have met the asked number of kills. Then checks
/// what the conversations have found.
fn kill_at_random(shared: Option<Shared>) {
    let (Some(mut shared), Some(client)) = (shared, node_project("tests/client")) else {
        return;
    };
    let mut servers = Servers::start(&shared);
    let proxy = RoundRobin::start(&servers.urls.each_ref().map(String::as_str));
    let mut conversations = Command::new("node")
        .args(["random-kills.mjs", &proxy.url])
        .args((!shared.is_durable).then_some("--forgetful"))
        .current_dir(client)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let seed = number("KILL_SEED", std::process::id() as usize) as u64;
    say(&format!("{}: KILL_SEED={seed}", shared.name));
    let start = Instant::now();
    let mut random = Dice::new(seed, 0);
    let mut kills: BTreeMap<&str, usize> = BTreeMap::new();
    for _ in 0..number("KILLS", 20) {
        sleep(Duration::from_millis(random.below(900) as u64));
        let victim = kill_one(&mut servers, &mut shared, &mut random);
        *kills.entry(victim).or_default() += 1;
    }
    // The conversations end.
    drop(conversations.stdin.take());
    let output = conversations.wait_with_output().unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    let summary = printed.lines().last().unwrap_or_default();
    let seconds = start.elapsed().as_secs();
    say(&format!("{}, killed {kills:?} in {seconds} s: {summary}", shared.name));
    assert!(printed.ends_with(" 0 failed\n"), "{}: {printed}", shared.name);
}

/// Kills one server, perhaps after SIGTERM, all servers, the store, or the store and all servers, and starts them again.
/// Returns the name of what was killed.
fn kill_one(servers: &mut Servers, shared: &mut Shared, random: &mut Dice) -> &'static str {
    let (kills_store, killed, victim) = match (random.below(4), &shared.store) {
        (0, _) => (false, vec![random.below(2)], "one server"),
        (1, _) => (false, vec![random.below(2)], STOPPED),
        // The store is in the servers.
        (_, Store::Sqlite) => (false, vec![0, 1], "both servers"),
        (2, _) => (true, Vec::new(), "the store"),
        (_, _) => (true, vec![0, 1], "the store and both servers"),
    };
    let node = random.below(3);
    let pause = Duration::from_millis(random.below(500) as u64);
    if victim == STOPPED {
        // As a process manager does it, which waits for some time.
        killed.iter().for_each(|&one| servers.terminate(one));
        sleep(Duration::from_millis(random.below(3_000) as u64));
    }
    killed.iter().for_each(|&one| servers.kill(one));
    let redis: Option<&mut RedisServer> = match &mut shared.store {
        Store::Redis(redis) if kills_store => Some(redis),
        Store::Cluster(cluster) if kills_store => Some(cluster.node_mut(node)),
        _ => None,
    };
    match redis {
        Some(redis) => {
            redis.kill();
            sleep(pause);
            redis.start_again();
        }
        None => sleep(pause),
    }
    if let Store::Cluster(cluster) = &shared.store {
        // A node refuses requests for two seconds after its start.
        cluster.wait_until_complete();
    }
    killed.iter().for_each(|&one| servers.start_again(one, shared));
    victim
}

/// Two servers, which keep their ports.
struct Servers {
    running: [Option<Example>; 2],
    urls: [String; 2],
}

impl Servers {
    fn start(shared: &Shared) -> Self {
        let running = [shared.start_on("0"), shared.start_on("0")];
        let urls = running.each_ref().map(|server| server.url.clone());
        Servers { running: running.map(Some), urls }
    }

    fn terminate(&self, one: usize) {
        self.running[one].iter().for_each(Example::terminate);
    }

    fn kill(&mut self, one: usize) {
        self.running[one] = None;
    }

    fn start_again(&mut self, one: usize, shared: &Shared) {
        let port = self.urls[one].rsplit(':').next().unwrap();
        self.running[one] = Some(shared.start_on(port));
    }
}

const STOPPED: &str = "one server after SIGTERM";
