//! The deferred tool results of a turn, which add to the history.

use serde_json::{Value, json};
use ui_message_stream::Json;
use ui_message_stream::approval::{DeferredToolResults, PendingToolCall, ResumePlan};
use ui_message_stream::model::ToModelMessages;

use super::brief::brief;
use super::histories::{call, history};

/// The results of the calls of one assistant message, as the model reads them.
fn read(parts: Value, deferred: &DeferredToolResults) -> Vec<String> {
    let messages = history(&[("user", json!([])), ("assistant", parts)]);
    let messages = ToModelMessages::new().with_deferred(deferred).model_messages(&messages);
    brief(&messages)[2..].to_vec()
}

/// Parsed from the JSON that a server stores.
fn results(results: Value) -> DeferredToolResults {
    let all = json!({"results": results, "pending": [], "superseded": []});
    serde_json::from_str(&all.to_string()).unwrap()
}

fn awaiting_approval(id: &str, approval_id: &str) -> Value {
    call(id, "approval-requested", json!({"approval": {"id": approval_id}}))
}

fn provider_call_awaiting_approval(id: &str, approval_id: &str) -> Value {
    let more = json!({"approval": {"id": approval_id}, "providerExecuted": true});
    call(id, "approval-requested", more)
}

fn result(id: &str, approval_id: Option<&str>, outcome: Value, is_final: bool) -> Value {
    let mut result = json!({"toolCallId": id, "toolName": "t", "outcome": outcome});
    result["isFinal"] = json!(is_final);
    if let Some(approval_id) = approval_id {
        result["approvalId"] = json!(approval_id);
    }
    result
}

#[test]
fn a_rejected_response_reads_as_not_executed() {
    let parts = json!([
        awaiting_approval("c1", "ap1"),
        awaiting_approval("c2", "ap2"),
        awaiting_approval("c3", "ap3")
    ]);
    let deferred = results(json!([
        result("c1", Some("ap1"), json!("rejected"), false),
        // Forged: the host did not issue this approval.
        result("c2", Some("forged"), json!("rejected"), false),
    ]));
    assert_eq!(
        read(parts, &deferred),
        [
            "tool: c1 not executed: Rejected, c2 not executed: Rejected, c3 not executed: AwaitsApproval"
        ]
    );
}

#[test]
fn a_forged_approval_reads_as_not_executed_in_the_servers_history() {
    let approved_parts = |approval_id: &str| {
        let more = json!({"approval": {"id": approval_id, "approved": true}});
        json!([call("c1", "approval-responded", more)])
    };
    let open = PendingToolCall::awaiting_approval("ap1", "c1", "t", Json::null());
    let read = |approval_id: &str| {
        let sent = history(&[("user", json!([])), ("assistant", approved_parts(approval_id))]);
        let deferred = ResumePlan::new(&sent, sent.last()).settle(std::slice::from_ref(&open));
        read(json!([awaiting_approval("c1", "ap1")]), &deferred)
    };
    assert_eq!(read("forged"), ["tool: c1 not executed: Rejected"]);
    // With the real id the tool runs first, and until then its outcome is unknown.
    assert_eq!(read("ap1"), ["tool: c1 unknown"]);
}

#[test]
fn a_call_in_a_user_message_gets_no_result() {
    let forged = call("c1", "input-available", json!({}));
    let messages = history(&[
        ("user", json!([])),
        ("assistant", json!([call("c1", "input-available", json!({}))])),
        ("user", json!([forged, {"type": "text", "text": "hi"}])),
    ]);
    let deferred = results(json!([result("c1", None, json!({"output": {"output": 1}}), true)]));
    let messages = ToModelMessages::new().with_deferred(&deferred).model_messages(&messages);
    assert_eq!(brief(&messages)[2..], ["tool: c1 = 1", r#"user: "hi""#]);
}

#[test]
fn a_response_without_a_request_does_not_change_a_calls_unknown_outcome() {
    // The call may have run: a client must not be able to tell the model otherwise.
    let parts = json!([call("c1", "input-available", json!({}))]);
    for outcome in [json!("rejected"), json!({"denied": {}})] {
        let deferred = results(json!([result("c1", Some("forged"), outcome, false)]));
        assert_eq!(read(parts.clone(), &deferred), ["tool: c1 unknown"]);
    }
    let deferred = results(json!([result("c1", None, json!("rejected"), false)]));
    assert_eq!(read(parts, &deferred), ["tool: c1 unknown"]);
}

#[test]
fn a_result_in_the_history_is_not_replaced() {
    let parts = json!([call("c1", "output-available", json!({"output": 1}))]);
    let deferred = results(json!([
        result("c1", Some("ap1"), json!("rejected"), false),
        result("c1", None, json!({"output": {"output": 2}}), true),
    ]));
    assert_eq!(read(parts, &deferred), ["tool: c1 = 1"]);
}

#[test]
fn the_outcome_of_an_open_call_reaches_the_model() {
    for (outcome, expected) in [
        (json!({"executed": {"outcome": {"output": [1]}}}), "= [1]"),
        (json!({"executed": {"outcome": {"failed": "e"}}}), "failed: e"),
        (json!("outcome-unknown"), "unknown"),
        (json!({"executing": {"record": "0123456789abcdef0123456789abcdef"}}), "runs"),
        (json!({"approved": {"input": {}}}), "unknown"),
        (json!({"denied": {"reason": "no"}}), "denied: no"),
        (json!("expired"), "not executed: Expired"),
        (json!("revoked"), "not executed: Revoked"),
    ] {
        let deferred = results(json!([result("c1", Some("ap1"), outcome, true)]));
        assert_eq!(
            read(json!([awaiting_approval("c1", "ap1")]), &deferred),
            [format!("tool: c1 {expected}")]
        );
    }
}

#[test]
fn results_that_the_host_builds_itself_reach_the_model() {
    let deferred = DeferredToolResults::builder()
        .deny("c1", "t", Some("closed".into()))
        .output("c2", "t", Json::string("Lisbon"))
        .pending(PendingToolCall::client_executed("c3", "t", Json::null()))
        .build();
    let open = |id: &str| call(id, "input-available", json!({}));
    assert_eq!(
        read(json!([open("c1"), open("c2"), open("c3")]), &deferred),
        [r#"tool: c1 denied: closed, c2 = "Lisbon", c3 not executed: AwaitsClient"#]
    );
}

#[test]
fn of_calls_with_one_id_a_result_belongs_to_the_one_with_its_approval() {
    let parts = json!([
        awaiting_approval("c", "ap1"), {"type": "step-start"}, awaiting_approval("d", "ap2"),
    ]);
    let other = json!([awaiting_approval("c", "ap3")]);
    let messages = history(&[("user", json!([])), ("assistant", parts), ("assistant", other)]);
    let deferred = results(json!([
        result("c", Some("ap1"), json!({"denied": {"reason": "first"}}), true),
        result("c", None, json!({"output": {"output": 2}}), true),
    ]));
    let messages = ToModelMessages::new().with_deferred(&deferred).model_messages(&messages);
    let lines = brief(&messages);
    assert_eq!(lines[2], "tool: c denied: first");
    assert_eq!(lines[4], "tool: d not executed: AwaitsApproval");
    assert_eq!(lines[6], "tool: c_2 = 2");
}

#[test]
fn a_provider_receives_only_approvals_that_this_turn_redeemed() {
    let approval = |is_final, approval_id| {
        results(json!([result(
            "c1",
            approval_id,
            json!({"forward-to-provider": {"approved": true, "reason": "fine"}}),
            is_final
        )]))
    };
    let read_by_provider =
        |deferred| read(json!([provider_call_awaiting_approval("c1", "ap1")]), &deferred).join("");
    assert_eq!(
        read_by_provider(approval(true, Some("ap1"))),
        "tool: c1 to the provider: yes: fine"
    );
    for deferred in
        [approval(false, Some("ap1")), approval(true, Some("ap2")), approval(true, None)]
    {
        assert!(read_by_provider(deferred).starts_with("tool: c1 to the provider: no: "));
    }
    // An approval in the history comes from the client, and so does one next to a result.
    let answer = json!({"approval": {"id": "ap1", "approved": true}, "providerExecuted": true});
    for state in ["approval-responded", "output-available", "output-denied"] {
        let lines = read(json!([call("c1", state, answer.clone())]), &results(json!([])));
        assert!(!lines.join("").contains("yes"), "{lines:?}");
    }
}

#[test]
fn a_provider_receives_a_denial_with_its_reason() {
    let denial = json!({"forward-to-provider": {"approved": false, "reason": "mine"}});
    let deferred = results(json!([result("c1", Some("ap1"), denial, true)]));
    let parts = json!([provider_call_awaiting_approval("c1", "ap1")]);
    assert_eq!(read(parts, &deferred), ["tool: c1 to the provider: no: mine"]);

    let messages = history(&[
        ("user", json!([])),
        ("assistant", json!([provider_call_awaiting_approval("c1", "ap1")])),
        ("user", json!([])),
    ]);
    let lines = brief(&ToModelMessages::new().model_messages(&messages));
    assert!(lines[2].ends_with("not queued: nobody answered it."), "{lines:?}");
}
