//! Several processes on one file: processes that are killed with SIGKILL while they work, as on each store, that
//! claim the same approvals, that create a file at once, and that may not write.
//!
//! This program is each of these processes, and the test. Started with a role it is a process; otherwise it starts
//! processes and checks what is in the file. `KILLS` and `POINT_KILLS` set the number of kills.

mod bytes;
mod claims;
mod creation;
mod deliveries;
mod file;
mod limits;
mod modes;

use chat_test_support::kill_trials::{self, block_on};
use test_support::external_processes::say;
use test_support::kills::{Backend, Role};

use self::file::File;

fn main() {
    if let Some(role) = Role::from_environment() {
        return block_on(act(role));
    }
    // Each test prints a line about what it has checked, and panics if it fails.
    for (name, test) in TESTS {
        say(&format!("sqlite, {name}: {}", test()));
    }
    kill_trials::run("sqlite", File::new);
}

/// In a process: does what its role says.
async fn act(role: Role) {
    match &*role.name {
        "create" => creation::create(&role).await,
        "hold" => modes::hold(&role).await,
        "open" => limits::open(&role).await,
        "claim" => claims::claim_all(&role, &*File::open(&role.store).await).await,
        "deliver" => deliveries::deliver(&role, File::open(&role.store).await).await,
        "save" => limits::save(&*File::open(&role.store).await).await,
        "fill" => limits::fill(&role, &*File::open(&role.store).await).await,
        _ => kill_trials::act::<File>(role).await,
    }
}

type Test = (&'static str, fn() -> String);

const TESTS: [Test; 6] = [
    ("bytes", bytes::a_long_answer_is_written_about_once),
    ("file modes", modes::the_file_and_its_log_are_private_with_any_umask),
    ("creation", creation::of_processes_that_create_a_file_at_once_one_does),
    ("claims", claims::of_two_processes_that_claim_an_approval_one_is_granted_the_claim),
    (
        "deliveries",
        deliveries::what_a_killed_process_has_not_delivered_is_delivered_by_the_next_one,
    ),
    ("limits", limits::a_file_that_cannot_grow_or_be_written_is_an_error_and_loses_nothing),
];
