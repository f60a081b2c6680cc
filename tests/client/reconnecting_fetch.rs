//! The `fetch` of both pages continues responses that are cut, alone and below the real client.

use test_support::external_processes::{node_project, run_node};

#[test]
fn the_fetch_of_the_pages_continues_a_response_that_is_cut_anywhere() {
    let Some(client) = node_project("tests/client") else { return };
    let printed = run_node(&client, &["reconnecting-fetch.mjs"]);
    assert!(printed.ends_with(" 0 failed\n"), "{printed}");
}
