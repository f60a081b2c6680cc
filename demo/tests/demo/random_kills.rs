//! One of two servers is killed at random moments, again and again, while 16 conversations go on.
//!
//! `KILLS=300 cargo test -p demo random_kills` kills so many times on each store (20 by default).
//! `KILL_SEED` repeats the moments of a run.

use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use test_support::external_processes::round_robin::RoundRobin;
use test_support::external_processes::{node_project, number, say};
use test_support::rng::Dice;

use crate::two_servers::Shared;

#[test]
fn no_approval_has_two_effects_if_servers_on_sqlite_are_killed_at_random() {
    kill_at_random(Shared::sqlite());
}

#[test]
fn no_approval_has_two_effects_if_servers_on_redis_are_killed_at_random() {
    kill_at_random(Shared::redis());
}

#[test]
fn no_approval_has_two_effects_if_servers_on_redis_cluster_are_killed_at_random() {
    kill_at_random(Shared::cluster());
}

fn kill_at_random(shared: Option<Shared>) {
    let (Some(shared), Some(client)) = (shared, node_project("tests/client")) else {
        return;
    };
    let mut servers = [shared.start_on("0"), shared.start_on("0")].map(Some);
    let urls = servers.each_ref().map(|server| server.as_ref().unwrap().url.clone());
    let proxy = RoundRobin::start(&urls.each_ref().map(String::as_str));
    let mut conversations = Command::new("node")
        .args(["random-kills.mjs", &proxy.url])
        .current_dir(client)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let seed = number("KILL_SEED", std::process::id() as usize) as u64;
    say(&format!("{}: KILL_SEED={seed}", shared.name));
    let mut random = Dice::new(seed, 0);
    for _ in 0..number("KILLS", 20) {
        sleep(Duration::from_millis(random.below(900) as u64));
        let one = random.below(servers.len());
        servers[one] = None;
        sleep(Duration::from_millis(random.below(500) as u64));
        let port = urls[one].rsplit(':').next().unwrap();
        servers[one] = Some(shared.start_on(port));
    }
    // The conversations end.
    drop(conversations.stdin.take());
    let output = conversations.wait_with_output().unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    say(&format!("{}: {}", shared.name, printed.lines().last().unwrap_or_default()));
    assert!(printed.ends_with(" 0 failed\n"), "{}: {printed}", shared.name);
}
