//! The stored forms of approval records and approval ids: newer formats are refused by name.

use std::collections::BTreeMap;

use serde_json::value::RawValue;
use serde_json::{Value, json};
use test_support::requests::ada;
use ui_message_stream::approval::{
    ApprovalDecision, ApprovalRecord, DeferredOutcome, KeyRing, UnixMillis,
};

use super::one_tool::{Bench, body, call};

fn fixture(name: &str) -> String {
    let path = format!("{}/fixtures/formats/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(path).unwrap()
}

/// The JSON of one record for each state.
fn stored_records() -> BTreeMap<String, Box<RawValue>> {
    serde_json::from_str(&fixture("ledger-records-1.json")).unwrap()
}

fn read(json: &str) -> ApprovalRecord {
    serde_json::from_str(json).unwrap_or_else(|error| panic!("{error}: {json}"))
}

#[test]
fn a_record_in_each_state_is_read_and_written() {
    for (state, json) in stored_records() {
        let record = read(json.get());
        assert_eq!(serde_json::to_string(&record).unwrap(), json.get(), "{state}");
        ApprovalRecord::check_format(json.get()).unwrap();
    }
}

#[test]
fn a_record_of_a_newer_format_is_refused_by_name() {
    let newer = r#"{"format":2,"id":"01010101010101010101010101010101","keys":[1]}"#;
    let expected = "ledger record: format 2 is newer than this version of ui-message-stream reads \
                    (1); upgrade the server";
    let error = serde_json::from_str::<ApprovalRecord>(newer).unwrap_err();
    assert!(error.to_string().starts_with(expected), "{error}");
    assert_eq!(ApprovalRecord::check_format(newer).unwrap_err().to_string(), expected);
}

#[test]
fn a_token_is_valid_for_its_record() {
    let keys = KeyRing::new(1, &test_support::secret(7)).unwrap();
    let (token, now) =
        (fixture("approval-token-1.txt").trim().into(), UnixMillis(1_700_000_000_000));
    let record = read(stored_records()["pending"].get());
    assert!(record.is_bound_to(&token, &keys, now));
    assert_eq!(record.approval_id(&keys, now), Some(token));
}

#[tokio::test]
async fn a_token_of_a_newer_format_is_rejected_as_any_other_and_the_audit_names_the_reason() {
    // With another key, the texts below would begin with other characters.
    let keys = KeyRing::new(1, &test_support::secret(7)).unwrap();
    let bench = Bench::new().with(|approvals| approvals.with_keys(keys));
    let asked = bench.ask("call_1", json!({"path": "notes.txt"})).await;
    let token = asked.approval_id.as_str();
    for (id, reason) in [
        (token.replacen("a1.", "a2.", 1), "newer-format"),
        ("a10.AQ".to_owned(), "newer-format"),
        // The first byte is the version.
        (token.replacen("a1.AT", "a1.Aj", 1), "newer-format"),
        (token.replacen("a1.AT", "a1._z", 1), "forged"),
        (token.replacen("a1.", "a0.", 1), "forged"),
        (token.replacen("a1.", "b2.", 1), "forged"),
    ] {
        let mut answer = call("call_1", &asked, true);
        answer["approval"]["id"] = json!(id);
        assert_eq!(bench.outcomes(&body(&[answer])).await, [DeferredOutcome::Rejected], "{id}");
        let yes = ApprovalDecision::new(id.as_str().into(), true);
        let accepted = bench.approvals.group_by_message(&ada(), vec![yes]).await.unwrap();
        assert!(accepted.is_empty(), "{id}");
        let events = bench.audit_events_without_record();
        let causes: Vec<Value> = events[events.len() - 2..]
            .iter()
            .map(|event| serde_json::to_value(event).unwrap()["cause"].clone())
            .collect();
        assert_eq!(causes, [reason; 2], "{id}");
    }
    assert!(bench.is_pending(&asked).await);
}
