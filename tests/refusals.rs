//! One refusal for every cause: nothing runs, nothing is used up, and nothing tells the causes
//! apart.

mod bench;
mod dice;

use bench::{Bench, ada, body, call, unanswered};
use dice::Dice;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use ui_message_stream::Json;
use ui_message_stream::approval::{DeferredOutcome, KeyRing, Principal, UnixMillis};
use ui_message_stream::approvals::Approvals;
use ui_message_stream::id::ApprovalId;
use ui_message_stream::ledger_store::MemoryLedger;

const INPUTS: u64 = 1_000;

#[tokio::test]
async fn an_input_changed_in_any_leaf_is_refused_and_the_honest_answer_still_counts() {
    let mut changes = 0;
    for case in 0..INPUTS {
        let bench = Bench::new();
        let input = Value::Object(some_object(&mut Dice::new(0xa2, case), 3));
        let asked = bench.ask("call_1", input.clone()).await;
        let mut answer = call("call_1", &asked, true);
        for changed in changed(&input) {
            changes += 1;
            answer["input"] = changed;
            let (results, outcomes) = bench.settled(&ada(), &body(&[answer.clone()])).await;
            assert_eq!(outcomes, [DeferredOutcome::Refused], "{answer}");
            assert!(!results.results()[0].is_final, "{answer}");
        }
        assert!(bench.effects().is_empty() && bench.is_pending(&asked).await, "{input}");
        answer["input"] = input.clone();
        bench.outcomes(&body(&[answer])).await;
        assert_eq!(bench.effects(), [input.to_string()]);
    }
    println!("{changes} changes of {INPUTS} inputs");
    assert!(changes > 5 * INPUTS);
}

#[tokio::test]
async fn what_javascript_makes_of_a_number_is_no_change_and_no_number_stands_for_another() {
    for (asked_for, sent, is_same) in [
        ("1.0", "1", true),
        ("1", "1.0", true),
        ("1e2", "100", true),
        ("9007199254740991", "9007199254740991.0", true),
        ("9007199254740991", "9007199254740992", false),
        ("null", "1e400", false),
        ("0", "-0", false),
        ("1", "1.0000000000000001", false),
        (r#""\ufffd""#, r#""\ud800""#, false),
        (r#""é""#, r#""e\u0301""#, false),
        (r#""1""#, "1", false),
        ("[]", "{}", false),
    ] {
        let bench = Bench::new();
        let input = serde_json::value::RawValue::from_string(format!(r#"{{"n":{asked_for}}}"#));
        let asked = bench.ask("call_1", input.unwrap()).await;
        let answer = body(&[call("call_1", &asked, true)]).to_string();
        let answer = answer.replace(r#"{"path":"notes.txt"}"#, &format!(r#"{{"n":{sent}}}"#));
        bench.settled(&ada(), answer).await;
        let expected: &[String] = &[format!(r#"{{"n":{asked_for}}}"#)];
        let expected = if is_same { expected } else { &[] };
        assert_eq!(bench.effects(), expected, "asked {asked_for}, sent {sent}");
    }
}

#[tokio::test]
async fn nothing_tells_the_causes_of_a_refusal_apart() {
    for approved in [true, false] {
        for other in [Other::Absent, Other::Unanswered, Other::Refused] {
            let mut seen = Vec::new();
            for cause in CAUSES {
                seen.push((cause, refused(cause, approved, other).await));
            }
            let (_, first) = &seen[0];
            assert!(first.contains(r#""isFinal":false"#), "{first}");
            for (cause, told) in &seen {
                assert_eq!(told, first, "{cause}: approved {approved}, {other:?}");
            }
        }
    }
}

const CAUSES: [&str; 9] = [
    "forged",
    "not a token",
    "cut",
    "another key",
    "unknown",
    "of another chat",
    "of another person",
    "of another call",
    "changed input",
];

/// What the client shows of a second call that waits.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Other {
    Absent,
    Unanswered,
    /// Answered under a forged id, or under the first one's where the ids are swapped.
    Refused,
}

/// All that comes of an answer that may not count, but for the ids that the client sent.
async fn refused(cause: &str, approved: bool, shown: Other) -> String {
    let keys = || KeyRing::new(1, &[1; 32]).unwrap();
    let bench = Bench::new().with(|approvals| approvals.with_keys(keys()));
    let notes = json!({"path": "notes.txt"});
    let asked = bench.ask("call_1", notes.clone()).await;
    let other = bench.ask("call_2", notes.clone()).await;
    let ask = async |approvals: &Approvals, who: &str, chat: &str| {
        let chat = approvals.of_chat(&Principal::new(who), &chat.into());
        let input = Json::of(&notes).unwrap();
        let (message, call) = ("m2".into(), "call_1".into());
        let asked = chat.ask(&message, &call, "delete_file", &input, None).await;
        asked.unwrap().approval_id
    };
    let elsewhere = || {
        let ledger = MemoryLedger::at(UnixMillis(1_000_000_000_000));
        bench.approvals.clone().with_ledger(Arc::new(ledger))
    };
    let id: ApprovalId = match cause {
        "forged" => {
            // Every character of it is one that might be.
            let (rest, last) = asked.approval_id.split_at(asked.approval_id.len() - 2);
            format!("{rest}{}", if last == "AA" { "BA" } else { "AA" }).into()
        }
        "not a token" => "ap_1".into(),
        "cut" => asked.approval_id[..100].into(),
        "another key" => {
            let keys = KeyRing::new(1, &[2; 32]).unwrap();
            ask(&elsewhere().with_keys(keys), "ada", "chat").await
        }
        "unknown" => ask(&elsewhere(), "ada", "chat").await,
        "of another chat" => ask(&bench.approvals, "ada", "chat 2").await,
        "of another person" => ask(&bench.approvals, "eve", "chat").await,
        "of another call" => other.approval_id.clone(),
        "changed input" => asked.approval_id.clone(),
        _ => panic!("{cause}"),
    };
    let mut answer = call("call_1", &asked, approved);
    answer["approval"]["id"] = id.as_str().into();
    if cause == "changed input" {
        answer["input"]["path"] = "/etc".into();
    }
    let mut calls = vec![answer];
    let second: ApprovalId = match cause {
        _ if shown == Other::Unanswered => other.approval_id.clone(),
        "of another call" => asked.approval_id.clone(),
        _ => "a1.forged".into(),
    };
    match shown {
        Other::Absent => {}
        Other::Unanswered => calls.push(unanswered("call_2", &other)),
        Other::Refused => {
            let mut answer = call("call_2", &other, approved);
            answer["approval"]["id"] = second.as_str().into();
            calls.push(answer);
        }
    }
    let (results, outcomes) = bench.settled(&ada(), &body(&calls)).await;
    assert!(bench.effects().is_empty(), "{cause}");
    assert!(bench.is_pending(&asked).await && bench.is_pending(&other).await, "{cause}");
    let mut told = serde_json::to_value(&results).unwrap();
    for (name, sent) in [("call_1", &id), ("call_2", &second)] {
        for result in told["results"].as_array_mut().unwrap() {
            if result["toolCallId"] == name && result["approvalId"] == **sent {
                result["approvalId"] = "as sent".into();
            }
        }
    }
    // What still waits was sealed anew for this bench.
    let told = told.to_string().replace(&*other.approval_id, "the other's");
    format!("{} {outcomes:?}", told.replace(&*asked.approval_id, "the first's"))
}

/// The same with one leaf changed, removed, or put under another name: all of them.
fn changed(value: &Value) -> Vec<Value> {
    match value {
        Value::Null => vec![json!(0), json!(false)],
        Value::Bool(is) => vec![json!(!is), json!(i32::from(*is))],
        Value::Number(number) => {
            let number = number.as_f64().unwrap();
            let next = if number == 0.0 { 1e-9 } else { number * 1.000_000_000_000_001 };
            vec![json!(next), json!(-number - 1.0), json!(number.to_string())]
        }
        Value::String(text) => vec![
            json!(format!("{text}\u{200b}")),
            json!(format!(" {text}")),
            json!(text.chars().rev().chain(['x']).collect::<String>()),
        ],
        Value::Array(items) => {
            let mut more = items.clone();
            more.push(Value::Null);
            let mut all = vec![Value::Array(more)];
            for at in 0..items.len() {
                for item in changed(&items[at]) {
                    let mut items = items.clone();
                    items[at] = item;
                    all.push(Value::Array(items));
                }
            }
            all
        }
        Value::Object(fields) => {
            let mut all = Vec::new();
            let mut more = fields.clone();
            more.insert("more".into(), Value::Null);
            all.push(Value::Object(more));
            for (key, value) in fields {
                let mut without = fields.clone();
                without.remove(key);
                let mut renamed = without.clone();
                renamed.insert(format!("{key}_"), value.clone());
                all.extend([Value::Object(without), Value::Object(renamed)]);
                for value in changed(value) {
                    let mut fields = fields.clone();
                    fields.insert(key.clone(), value);
                    all.push(Value::Object(fields));
                }
            }
            all
        }
    }
}

/// An object of which a browser shows everything as it is.
fn some_object(dice: &mut Dice, depth: usize) -> Map<String, Value> {
    let fields = 1 + dice.below(3);
    (0..fields).map(|at| (format!("{}{at}", dice.pick(KEYS)), some_value(dice, depth))).collect()
}

fn some_value(dice: &mut Dice, depth: usize) -> Value {
    match dice.below(if depth == 0 { 5 } else { 8 }) {
        0 => Value::Null,
        1 => json!(dice.chance(50)),
        2 => json!(dice.below(1 << 53) as i64 - (1 << 52)),
        3 => json!(dice.below(1_000_000) as f64 / 1024.0),
        4 => json!(dice.pick(TEXTS)),
        5 => (0..dice.below(4)).map(|_| some_value(dice, depth - 1)).collect(),
        _ => Value::Object(some_object(dice, depth - 1)),
    }
}

const KEYS: &[&str] = &["path", "to", "", "größe", "🙂", "a b", "0"];
const TEXTS: &[&str] = &["", "notes.txt", "ü\n\"", "\u{2028}", "🙂", "1", "null", "/etc/passwd"];
