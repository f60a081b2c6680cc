//! The program, as a process.

use test_support::adapter_server;

const PROGRAM: &str = env!("CARGO_BIN_EXE_chat-hyper");

#[test]
fn every_client_approves_denies_and_answers() {
    adapter_server::every_client_approves_denies_and_answers(PROGRAM);
}

#[test]
fn frames_arrive_while_the_tool_runs() {
    adapter_server::frames_arrive_while_the_tool_runs(PROGRAM);
}

#[test]
fn only_its_own_pages_are_answered() {
    adapter_server::only_its_own_pages_are_answered(PROGRAM);
}

#[test]
fn bodies_that_are_no_chat_requests_are_rejected() {
    adapter_server::bodies_that_are_no_chat_requests_are_rejected(PROGRAM);
}

#[test]
fn a_page_that_is_opened_again_finds_no_answer_to_rejoin() {
    adapter_server::a_page_that_is_opened_again_finds_no_answer_to_rejoin(PROGRAM);
}
