//! The attacks of `fixtures/attacks/`, played by the npm client against this crate's routes over
//! HTTP: one test for each row. The checks read what the tools did and what the model read.

use std::fs;

use test_support::external_processes::{node_project, run_node};

use super::attack_server::Server;

/// Plays attacks against a fresh server, and returns what the player printed.
async fn play(arguments: &[&str]) -> Option<String> {
    let client = node_project("tests/client")?;
    let server = Server::start().await;
    let mut all = vec!["attacks.mjs".to_owned(), server.url];
    all.extend(arguments.iter().map(|&argument| argument.to_owned()));
    let output = tokio::task::spawn_blocking(move || {
        run_node(&client, &all.iter().map(String::as_str).collect::<Vec<_>>())
    });
    Some(output.await.unwrap())
}

/// Plays the files of a row, and requires that every attack is repelled.
async fn check_row(row: &str) {
    let row = format!("{row}-");
    let files = fs::read_dir(test_support::repository().join("fixtures/attacks")).unwrap();
    let files =
        files.filter(|file| file.as_ref().unwrap().file_name().to_string_lossy().starts_with(&row));
    let files = files.count();
    assert!(files > 0, "no file begins with {row}");
    let Some(printed) = play(&["--only", &row]).await else { return };
    let expected = format!("attacks: {files} played, 0 do not hold, 0 effects that may not be\n");
    assert!(printed.ends_with(&expected), "{printed}");
}

/// With `RECORD=1` it writes the table again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_document_of_attacks_holds_the_measured_results() {
    if std::env::var_os("RECORD").is_some() {
        play(&["--update"]).await;
    }
    let Some(printed) = play(&["--check"]).await else { return };
    assert!(printed.ends_with(" 0 differ\n"), "{printed}");
}

macro_rules! rows {
    ($($name:ident: $row:literal,)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            check_row($row).await;
        }
    )*};
}

rows! {
    a1_an_approval_that_was_never_requested: "a1",
    a2_arguments_changed_after_the_approval: "a2",
    a3_an_approval_of_another_chat_or_user: "a3",
    a4_the_same_post_again: "a4",
    a5_several_answers_at_once: "a5",
    a6_an_approval_that_expired: "a6",
    a7_a_tool_that_is_no_longer_permitted: "a7",
    a8_a_tool_swapped_under_its_name: "a8",
    a9_a_call_id_used_twice: "a9",
    a10_contradicting_answers: "a10",
    a11_old_answers_in_the_history: "a11",
    a12_an_id_with_a_line_end: "a12",
    a13_a_lone_surrogate: "a13",
    a14_numbers_that_clients_and_servers_read_differently: "a14",
    a15_a_harmless_looking_call: "a15",
    a16_an_approver_who_is_not_the_requester: "a16",
    a17_an_approval_by_the_id_of_a_chat: "a17",
    a18_an_approval_beside_a_newer_message: "a18",
    a19_a_late_answer_to_a_call_that_ran: "a19",
    a20_a_predicate_that_finds_nothing_in_a_changed_history: "a20",
    a21_an_input_that_the_approver_changed: "a21",
    h1_a_forged_output: "h1",
    h2_a_forged_system_message: "h2",
    h3_a_forged_history: "h3",
    h4_forged_provider_metadata: "h4",
    h5_files_from_disallowed_sources: "h5",
    h6_unknown_parts: "h6",
    b1_a_giant_body: "b1",
    b2_a_deep_body: "b2",
    b3_a_body_of_many_small_things: "b3",
    b4_a_repeated_key: "b4",
    b5_prototype_keys: "b5",
    b6_invalid_inputs: "b6",
    o1_frames_injected_into_texts: "o1",
    o2_secrets_in_errors: "o2",
    o3_texts_that_are_slow_to_process: "o3",
    n1_a_page_of_another_origin: "n1",
    n9_a_request_without_a_principal: "n9",
}
