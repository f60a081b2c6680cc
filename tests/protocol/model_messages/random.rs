//! Random histories and random deferred results: the promised rules hold, and no provider would
//! reject the messages.
//!
//! `MODEL_MESSAGE_CASES` sets the number of cases (5 000), `MODEL_MESSAGE_SEED` the seed.

use serde_json::json;
use test_support::prompt_rules::{check_as_anthropic, check_as_openai, check_promises};
use test_support::random_messages::history::{APPROVAL_IDS, message_text};
use test_support::random_messages::values::CALL_IDS;
use test_support::rng::{Dice, setting};
use ui_message_stream::approval::DeferredToolResults;
use ui_message_stream::model::{ModelMessage, ToModelMessages};
use ui_message_stream::{Json, UiMessage};

use super::brief::brief;

#[test]
fn no_random_history_gives_messages_that_a_provider_rejects() {
    let seed = setting("MODEL_MESSAGE_SEED").unwrap_or(20_261_120);
    let cases = setting("MODEL_MESSAGE_CASES").unwrap_or(5_000);
    let mut coverage = Coverage::default();
    for case in 0..cases {
        let mut dice = Dice::new(seed, case);
        let history = history(&mut dice);
        let deferred = deferred(&mut dice);
        let mut from_ui = ToModelMessages::new();
        if dice.chance(70) {
            from_ui = from_ui.with_deferred(&deferred);
        }
        if dice.chance(30) {
            from_ui = from_ui.with_data(|part| part.data.as_ref().map(Json::to_string));
        }
        let messages = from_ui.model_messages(&history);
        let lines = brief(&messages);
        coverage.add(&lines);
        let _shown = Shown { seed, case, history: &history, lines: &lines };
        check_promises(&messages);
        check_as_openai(&messages);
        check_as_anthropic(&messages);
        check_stored(&messages);
    }
    coverage.check(cases);
}

fn check_stored(messages: &[ModelMessage]) {
    let stored = serde_json::to_string(messages).unwrap();
    let read: Vec<ModelMessage> = serde_json::from_str(&stored).unwrap();
    assert_eq!(read, messages);
}

/// Prints the case when it is dropped during a panic.
struct Shown<'a> {
    seed: u64,
    case: u64,
    history: &'a [UiMessage],
    lines: &'a [String],
}

impl Drop for Shown<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        let history = serde_json::to_string(self.history).unwrap_or_default();
        eprintln!("seed {}, case {}: {history}\n{:#?}", self.seed, self.case, self.lines);
    }
}

/// Counts that show whether the cases covered enough.
#[derive(Default)]
struct Coverage([(&'static str, usize); 9]);

impl Coverage {
    fn add(&mut self, lines: &[String]) {
        let words = [
            " = ",
            " failed: ",
            " denied",
            "not executed: Unanswered",
            "not executed: AwaitsApproval",
            "not executed: Rejected",
            "unknown, so far",
            "to the provider: yes",
            "_2 calls ",
        ];
        let text = lines.join("\n");
        for (coverage, word) in self.0.iter_mut().zip(words) {
            *coverage = (word, coverage.1 + usize::from(text.contains(word)));
        }
    }

    fn check(&self, cases: u64) {
        eprintln!("{cases} histories: {:?}", self.0);
        for (word, count) in self.0 {
            assert!(cases < 1_000 || count > 0, "no transcript contains {word:?}");
        }
    }
}

fn history(dice: &mut Dice) -> Vec<UiMessage> {
    let messages = (0..dice.below(7)).map(|_| message_text(dice)).collect::<Vec<_>>();
    // A part may repeat a key. Then the message is invalid.
    messages.iter().filter_map(|text| UiMessage::parse(text).ok()).collect()
}

/// Random deferred results for the calls of a history.
fn deferred(dice: &mut Dice) -> DeferredToolResults {
    let outcomes = [
        json!("rejected"),
        json!("expired"),
        json!("revoked"),
        json!("outcome-unknown"),
        json!({"denied": {"reason": "no"}}),
        json!({"approved": {"input": 1}}),
        json!({"executed": {"outcome": {"output": [1]}}}),
        json!({"executed": {"outcome": {"failed": ""}}}),
        json!({"forward-to-provider": {"approved": true}}),
        json!({"forward-to-provider": {"approved": false, "reason": "no"}}),
        json!({"output": {"output": "x"}}),
        json!({"output-error": {"errorText": "e"}}),
    ];
    let call = |dice: &mut Dice| {
        let mut call = json!({"toolCallId": dice.pick(CALL_IDS), "toolName": "ls"});
        if dice.chance(60) {
            call["approvalId"] = json!(dice.pick(APPROVAL_IDS));
        }
        call
    };
    let results = (0..dice.below(4)).map(|_| {
        let mut result = call(dice);
        result["outcome"] = outcomes[dice.below(outcomes.len())].clone();
        result["isFinal"] = json!(dice.chance(60));
        result
    });
    let results: Vec<_> = results.collect();
    let open = |dice: &mut Dice| {
        let open = (0..dice.below(3)).map(|_| {
            let mut open = call(dice);
            open["input"] = json!({});
            open
        });
        open.collect::<Vec<_>>()
    };
    let deferred =
        json!({"results": results, "pending": open(dice), "superseded": open(dice)}).to_string();
    serde_json::from_str(&deferred).unwrap()
}
