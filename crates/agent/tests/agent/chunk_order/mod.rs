//! The order of the chunks, in both phases of a turn: what the AI SDK's own server was recorded to
//! send (`fixtures/upstream/server/`), and what this crate's agent sends with the same tools and
//! the same script. The test builds the recorded history with the agent itself, so that every
//! approval is real.
//!
//! `fixtures/conversations/` has both, chunk by chunk, with the reason of every difference.
//! `RECORD=1 cargo test --test agent chunk_order` writes these files again; a difference without a
//! reason fails.

mod page;
mod play;
mod script;
mod side_by_side;
mod tools;

use std::collections::BTreeSet;
use std::fs;

use test_support::fixture_files::fixture_files;

use self::play::play;
use self::script::Script;
use self::side_by_side::{SideBySide, reasons};

/// The recorded case, and the name of its file in `fixtures/conversations/`.
const CASES: &[(&str, &str)] = &[
    ("answered-and-pending", "one_of_two_questions_is_answered"),
    ("answered-then-user-message", "an_answer_comes_with_a_new_message"),
    ("approved", "an_approved_call_runs_before_the_first_step"),
    ("approved-but-no-approval-needed", "a_tool_that_was_asked_about_needs_no_approval_any_more"),
    ("approved-invalid-input", "the_schema_is_stricter_than_when_the_person_was_asked"),
    ("approved-provider-executed", "the_provider_runs_what_it_asked_about"),
    ("approved-slow-and-quick", "of_two_approved_calls_the_quick_one_is_shown_first"),
    ("approved-streaming-tool", "an_approved_call_gives_preliminary_outputs"),
    ("approved-then-asked-again", "after_an_approved_call_the_model_asks_again"),
    ("approved-tool-throws", "an_approved_call_fails"),
    ("approved-unknown-tool", "the_tool_is_gone_when_the_answer_comes"),
    ("client-tool-output", "the_client_gives_the_output"),
    ("denied", "a_denied_call_does_not_run"),
    ("denied-provider-executed", "the_provider_is_told_that_it_may_not"),
    ("error-in-second-step", "the_model_fails_in_its_second_step"),
    ("mixed", "what_is_denied_comes_before_what_runs"),
    ("mixed-with-client-output", "denied_and_approved_beside_an_output_of_the_client"),
    ("multi-step-same-text-id", "text_and_reasoning_use_one_id_in_two_steps"),
    ("pending-only", "nothing_is_answered_and_the_client_posts_all_the_same"),
    ("pending-then-user-message", "the_person_writes_on_instead_of_answering"),
    (
        "phase1-approval-invalid-and-unknown",
        "a_question_a_result_an_invalid_input_and_an_unknown_tool_in_one_step",
    ),
    (
        "phase1-client-and-server-tools",
        "a_call_for_the_client_one_for_the_server_and_one_for_the_person",
    ),
    ("phase1-model-fails-while-a-tool-runs", "the_model_fails_while_a_tool_runs"),
    ("phase1-signed", "a_question_is_sealed"),
    ("phase1-slow-and-quick", "of_two_calls_the_quick_one_is_shown_first"),
    ("phase1-two-calls-of-one-id", "two_calls_of_a_step_have_one_id"),
    ("step-limit-reached", "the_limit_of_steps_is_reached"),
    ("turn-after-denied", "the_turn_after_a_denied_call"),
];

#[test]
fn every_recorded_case_is_listed_and_has_a_file() {
    let recorded: Vec<String> = fixture_files("upstream/server", ".json")
        .iter()
        .map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    let known: BTreeSet<&str> = CASES.iter().map(|(case, _)| *case).collect();
    assert_eq!(recorded.iter().map(String::as_str).collect::<BTreeSet<_>>(), known);
    let written = fixture_files("conversations", ".txt");
    let written = written.iter().map(|path| path.file_stem().unwrap().to_str().unwrap());
    assert_eq!(written.collect::<BTreeSet<_>>(), CASES.iter().map(|(_, name)| *name).collect());
}

#[tokio::test(start_paused = true)]
async fn the_chunk_order_is_that_of_the_ai_sdk_except_for_listed_differences() {
    let record = std::env::var_os("RECORD").is_some();
    let reasons = reasons();
    let (mut used, mut errors) = (BTreeSet::new(), Vec::new());
    for (case, name) in CASES {
        let script = Script::read(case);
        let (theirs, ours) = (script.expected(), play(case, &script).await);
        let path = test_support::repository().join(format!("fixtures/conversations/{name}.txt"));
        let stored = SideBySide::parse(&fs::read_to_string(&path).unwrap_or_default());
        if record {
            let updated = SideBySide::of(&theirs, &ours, &stored);
            fs::write(&path, updated.to_text(&format!("{case}: {}", script.note))).unwrap();
            continue;
        }
        if stored.theirs() != theirs {
            errors.push(format!("{name}: differs from the recording"));
        }
        if stored.ours() != ours {
            errors.push(format!("{name}: the agent sent:\n{}", ours.join("\n")));
        }
        for reason in stored.reasons() {
            match reasons.contains(reason) {
                true => drop(used.insert(reason.to_owned())),
                false => errors.push(format!("{name}: {reason:?} is not a listed reason")),
            }
        }
    }
    assert!(errors.is_empty(), "{}", errors.join("\n"));
    assert!(
        record || used == reasons,
        "reasons without a difference: {:?}",
        reasons.difference(&used)
    );
}
