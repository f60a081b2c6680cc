//! Several processes on one file: processes that are killed with SIGKILL at random moments while they
//! write and deliver, and while their agents ask for calls, that claim the same approvals, that create a
//! file at once, and that may not write.
//!
//! This program is each of these processes, and the test. Started with `ROLE` it is a
//! [process](role); otherwise it starts processes and checks what is in the file. `KILLS` sets the
//! number of kills (20).

mod bytes;
mod claims;
mod creation;
mod deliveries;
mod inner_agents;
mod kills;
mod limits;
mod modes;
mod notices;
mod process;
mod role;

use test_support::external_processes::say;

fn main() {
    if let Some(role) = role::Role::from_environment() {
        return process::block_on(role.run());
    }
    // Each test prints a line about what it has checked, and panics if it fails.
    for (name, test) in TESTS {
        say(&format!("sqlite, {name}: {}", test()));
    }
}

type Test = (&'static str, fn() -> String);

const TESTS: [Test; 9] = [
    ("bytes", bytes::a_long_answer_is_written_about_once),
    ("file modes", modes::the_file_and_its_log_are_private_with_any_umask),
    ("creation", creation::of_processes_that_create_a_file_at_once_one_does),
    ("claims", claims::of_two_processes_that_claim_an_approval_one_is_granted_the_claim),
    (
        "deliveries",
        deliveries::what_a_killed_process_has_not_delivered_is_delivered_by_the_next_one,
    ),
    ("limits", limits::a_file_that_cannot_grow_or_be_written_is_an_error_and_loses_nothing),
    ("notices", notices::each_event_is_delivered_at_least_once_and_in_order),
    ("inner agents", inner_agents::each_call_runs_at_most_once_and_no_question_is_lost),
    ("kills", kills::what_was_reported_as_saved_survives_a_kill),
];
