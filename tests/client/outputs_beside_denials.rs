//! The real client sends the output of a tool of the browser beside a call that was refused or denied.

use test_support::external_processes::{node_project, run_node};

#[test]
fn a_page_sends_the_output_of_its_tool_beside_a_denied_call() {
    let Some(client) = node_project("tests/client") else { return };
    let printed = run_node(&client, &["outputs-beside-denials.mjs"]);
    assert!(printed.ends_with(" 0 failed\n"), "{printed}");
}
