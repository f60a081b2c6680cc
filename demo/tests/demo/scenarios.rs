//! Every version of the real client gets through every scenario against the demo.

use test_support::external_processes::{Demo, node_project, run_node};

#[test]
fn every_client_gets_through_every_scenario_against_the_demo() {
    let Some(client) = node_project("tests/client") else {
        return;
    };
    let demo = Demo::start();
    let printed = run_node(&client, &["scenarios.mjs", &demo.url]);
    assert!(printed.ends_with(" 0 failed\n"), "{printed}");
}
