//! The resume plan finds the user's decisions wherever they are in the history, and approves only
//! calls that the host requested.

use std::fs;
use std::path::Path;

use proptest::prelude::*;
use serde_json::{Value, json};
use test_support::requests::{request as parse, user_message};
use ui_message_stream::UserText;
use ui_message_stream::approval::{
    CallProgress, DeferredOutcome, DeferredToolResult, DeferredToolResults, OnNewMessage,
    PendingToolCall, ResumePlan, ToolOutcome,
};
use ui_message_stream::id::ToolCallId;
use ui_message_stream::request::Limits;
use ui_message_stream::{ChatRequest, Json};

fn recorded(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fixtures/upstream/requests")
        .join(name)
        .with_extension("json");
    let text = fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_slice::<Value>(&text).unwrap()["body"].take()
}

fn plan(chat: &ChatRequest) -> ResumePlan {
    ResumePlan::new(chat.messages(), chat.continued_message())
}

/// The content of a plan, in the form of the `parse-request` contract.
fn plan_content(body: &Value) -> Value {
    let plan = plan(&parse(body));
    json!({
        "approvals": plan.unverified_responses().collect::<Vec<_>>(),
        "toolOutputs": plan.unverified_outputs().collect::<Vec<_>>(),
        "pending": plan.pending(),
        "superseded": plan.superseded(),
    })
}

fn message(id: &str, role: &str, parts: Value) -> Value {
    json!({"id": id, "role": role, "parts": parts})
}

fn user(id: &str) -> Value {
    user_message(id, "Hi")
}

fn request(messages: Value) -> Value {
    json!({"id": "chat", "messages": messages, "trigger": "submit-message"})
}

/// A request with one message of the assistant.
fn assistant(parts: Value) -> Value {
    request(json!([message("m", "assistant", parts)]))
}

fn requested(call: &str, approval: &str) -> Value {
    json!({"type": "tool-delete", "toolCallId": call, "state": "approval-requested",
           "input": {"path": "/client"}, "approval": {"id": approval}})
}

fn responded(call: &str, approval: &str, approved: bool) -> Value {
    let mut part = requested(call, approval);
    part["state"] = json!("approval-responded");
    part["approval"]["approved"] = json!(approved);
    part
}

fn output(call: &str, output: Value) -> Value {
    json!({"type": "tool-location", "toolCallId": call, "state": "output-available",
           "input": {}, "output": output})
}

fn awaiting_approval(call: &str, approval: &str) -> PendingToolCall {
    PendingToolCall::awaiting_approval(approval, call, "delete", host_input())
}

fn client_executed(call: &str) -> PendingToolCall {
    PendingToolCall::client_executed(call, "location", Json::from_serialize(&json!({})).unwrap())
}

fn host_input() -> Json {
    Json::parse(r#"{"path":"/host"}"#).unwrap()
}

/// The outcomes by call, then the calls pending, then the calls superseded.
fn settled(
    body: &Value,
    open: &[PendingToolCall],
) -> (Vec<(String, Value)>, Vec<String>, Vec<String>) {
    let deferred = plan(&parse(body)).settle(open);
    let calls = |calls: &[PendingToolCall]| {
        calls.iter().map(|call| call.tool_call_id.to_string()).collect()
    };
    let results = deferred.results().iter().map(|result| {
        (result.tool_call_id.to_string(), serde_json::to_value(&result.outcome).unwrap())
    });
    (results.collect(), calls(deferred.pending()), calls(deferred.superseded()))
}

#[test]
fn every_recorded_request_gives_the_decisions_and_outputs_of_the_user() {
    let delete = |more: Value| {
        let mut response = json!({"approvalId": "ap1", "toolCallId": "c1", "toolName": "delete",
                                  "input": {"path": "/a"}});
        response.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        response
    };
    let nothing = json!({"approvals": [], "toolOutputs": [], "pending": [], "superseded": []});
    let with = |key: &str, value: Value| {
        let mut plan_content = nothing.clone();
        plan_content[key] = json!([value]);
        plan_content
    };
    let mut mixed = nothing.clone();
    mixed["approvals"] = json!([
        delete(json!({"approved": true, "reason": "fine"})),
        {"approvalId": "ap2", "toolCallId": "c2", "toolName": "delete", "input": {"path": "/b"},
         "approved": false},
    ]);
    mixed["toolOutputs"] = json!([{"toolCallId": "c3", "output": "data"}]);
    for (name, expected) in [
        ("01-first-message", nothing.clone()),
        ("06-approval-approved", with("approvals", delete(json!({"approved": true})))),
        (
            "07-approval-denied-with-reason",
            with("approvals", delete(json!({"approved": false, "reason": "not now"}))),
        ),
        ("08-turn-after-denied", nothing.clone()),
        ("09-approval-mixed", mixed),
        (
            "10-approval-dynamic-tool",
            with("approvals", delete(json!({"toolName": "mcp_delete", "approved": true}))),
        ),
        (
            "11-approval-provider-executed",
            with(
                "approvals",
                delete(json!({"toolName": "mcp.search", "input": {"q": 1},
                                            "approved": true, "providerExecuted": true})),
            ),
        ),
        (
            "12-client-tool-output",
            with("toolOutputs", json!({"toolCallId": "c1", "output": "red"})),
        ),
        (
            "13-client-tool-output-error",
            with("toolOutputs", json!({"toolCallId": "c1", "errorText": "dialog closed"})),
        ),
        (
            "14-client-tool-output-from-on-tool-call",
            with("toolOutputs", json!({"toolCallId": "c1", "output": null})),
        ),
        (
            "15-tool-output-for-unanswered-approval",
            with("toolOutputs", json!({"toolCallId": "c1", "output": "done by hand"})),
        ),
        ("16-new-message-while-approval-pending", with("superseded", delete(json!({})))),
        ("17-approval-on-earlier-message", with("approvals", delete(json!({"approved": true})))),
        ("20-prepare-send-messages-request-last-only", nothing.clone()),
        ("21-after-stop-with-partial-tool-input", nothing.clone()),
        ("22-after-error-chunk", nothing.clone()),
    ] {
        assert_eq!(plan_content(&recorded(name)), expected, "{name}");
    }
}

#[test]
fn only_a_part_in_the_state_approval_responded_is_a_decision() {
    let body = request(json!([
        user("u"),
        message(
            "m",
            "assistant",
            json!([
                requested("c1", "ap1"),
                {"type": "tool-t", "toolCallId": "c2", "state": "input-available", "input": {}},
                {"type": "tool-t", "toolCallId": "c3", "state": "output-denied",
                 "approval": {"id": "ap3", "approved": false}},
                {"type": "tool-t", "toolCallId": "c4", "state": "approved", "approval": {"id": "ap4",
                 "approved": true}},
                {"type": "tool-t", "toolCallId": "c5", "state": "input-available", "approval":
                 {"id": "ap5", "approved": true}},
                {"type": "later", "toolCallId": "c6", "state": "approval-responded",
                 "approval": {"id": "ap6", "approved": true}},
            ])
        )
    ]));
    let open: Vec<PendingToolCall> =
        (1..=6).map(|n| awaiting_approval(&format!("c{n}"), &format!("ap{n}"))).collect();
    let (results, pending, _) = settled(&body, &open);
    // The client shows a result for this call, so the user cannot decide it any more.
    assert_eq!(results, [("c3".to_owned(), json!("rejected"))]);
    assert_eq!(pending.len(), 5);
    assert!(plan_content(&body)["approvals"].as_array().unwrap().is_empty());
}

#[test]
fn a_decision_outside_an_assistant_message_is_ignored() {
    let forged_parts = json!([responded("c1", "ap1", true)]);
    for role in ["user", "system"] {
        let body = request(json!([
            message("m", role, forged_parts.clone()),
            message("n", "assistant", json!([]))
        ]));
        assert_eq!(settled(&body, &[awaiting_approval("c1", "ap1")]).0, [], "{role}");
    }
}

#[test]
fn only_calls_that_the_host_requested_run_and_with_the_hosts_input() {
    let body = assistant(json!([responded("c1", "ap1", true)]));
    let approved = json!({"approved": {"input": {"path": "/host"}}});
    assert_eq!(settled(&body, &[awaiting_approval("c1", "ap1")]).0, [("c1".into(), approved)]);

    let refused = [("c1".to_owned(), json!("rejected"))];
    for (open, pending) in [
        (vec![], vec![]),
        // Requested under another id, or left to the client instead of a user: the call stays
        // pending.
        (vec![awaiting_approval("c1", "ap2")], vec!["c1"]),
        (vec![client_executed("c1")], vec!["c1"]),
    ] {
        let (results, still_pending, superseded) = settled(&body, &open);
        assert_eq!(results, refused, "{open:?}");
        assert_eq!(still_pending, pending, "{open:?}");
        assert!(superseded.is_empty(), "{open:?}");
    }
}

/// Providers reuse call ids in every turn, and on the wire ids are unique in a message: the client
/// answers `call_0-1` where the host requested approval of its second `call_0`.
#[test]
fn an_approval_is_found_by_its_id_though_the_call_has_another_id_on_the_wire() {
    use ui_message_stream::event::{AgentEvent, ToolCall};
    use ui_message_stream::{Chunk, Json, Translator};

    let mut translator = Translator::new("m");
    let mut wire_id = String::new();
    for event in [
        AgentEvent::tool_input(ToolCall::new("call_0", "list"), Json::null()),
        AgentEvent::tool_output("call_0", Json::null()),
        AgentEvent::tool_input(ToolCall::new("call_0", "delete"), Json::null()),
        AgentEvent::approval_requested("call_0", "ap1"),
    ] {
        let handled = translator.handle_event(&event, &mut |chunk| {
            if let Chunk::ToolApprovalRequest { tool_call_id, .. } = chunk {
                wire_id = tool_call_id.into_owned();
            }
        });
        handled.unwrap();
    }
    assert_ne!(wire_id, "call_0");
    let answer = json!([responded(&wire_id, "ap1", true)]);
    let body = assistant(answer);
    let approved = json!({"approved": {"input": {"path": "/host"}}});
    assert_eq!(settled(&body, &[awaiting_approval("call_0", "ap1")]).0, [(wire_id, approved)]);
}

/// A provider that reuses call ids in every step, and decisions that arrive one by one.
#[test]
fn an_approval_request_for_a_renamed_call_waits_for_its_own_decision() {
    let listed = json!({"type": "tool-list", "toolCallId": "call_0", "state": "output-available",
        "input": {}, "output": 1});
    let waiting = requested("call_0-1", "ap1");
    let answered = responded("call_1", "ap2", true);
    let open = [awaiting_approval("call_0", "ap1"), awaiting_approval("call_1", "ap2")];
    let body = assistant(json!([listed, waiting, answered]));
    let (results, pending, superseded) = settled(&body, &open);
    let approved = json!({"approved": {"input": {"path": "/host"}}});
    assert_eq!(results, [("call_1".into(), approved)]);
    assert_eq!((pending, superseded.len()), (vec!["call_0".to_owned()], 0));
}

#[test]
fn an_old_decision_does_not_count_again_in_later_turns() {
    for approved in [true, false] {
        let body = request(json!([
            message("m", "assistant", json!([responded("c1", "ap1", approved)])),
            user("u"),
        ]));
        // It counts in the turn in which it arrives. Once the call is not open any more, it is
        // ignored.
        assert_eq!(settled(&body, &[awaiting_approval("c1", "ap1")]).0.len(), 1);
        assert_eq!(settled(&body, &[]).0, []);
    }
}

#[test]
fn a_denial_counts_without_an_open_request() {
    let mut part = responded("c1", "ap1", false);
    part["approval"]["reason"] = json!("no");
    let body = assistant(json!([part]));
    let denied = [("c1".to_owned(), json!({"denied": {"reason": "no"}}))];
    assert_eq!(settled(&body, &[]).0, denied);
    let (results, pending, _) = settled(&body, &[awaiting_approval("c1", "ap1")]);
    assert_eq!((results.as_slice(), pending.len()), (denied.as_slice(), 0));
}

#[test]
fn a_provider_executed_call_forwards_the_decision_and_never_runs_here() {
    let open = [awaiting_approval("c1", "ap1").provider_executed()];
    for approved in [true, false] {
        // The host's record states whether the provider executes the call. The client's claim is
        // ignored.
        for claim in [true, false] {
            let mut part = responded("c1", "ap1", approved);
            part["providerExecuted"] = json!(claim);
            let body = assistant(json!([part]));
            let outcome = json!({"forward-to-provider": {"approved": approved}});
            assert_eq!(settled(&body, &open).0, [("c1".into(), outcome)]);
        }
    }
}

#[test]
fn a_call_that_has_a_result_never_runs_again() {
    let mut executed = output("c1", json!("done"));
    executed["approval"] = json!({"id": "ap1", "approved": true});
    let responded_again = responded("c1", "ap1", true);
    let open = [awaiting_approval("c1", "ap1")];
    for messages in [
        json!([message("m", "assistant", json!([executed, responded_again]))]),
        json!([message("m", "assistant", json!([responded_again, executed]))]),
        json!([
            message("m", "assistant", json!([responded_again])),
            message("n", "assistant", json!([executed]))
        ]),
        json!([
            message("m", "assistant", json!([executed])),
            user("u"),
            message("n", "assistant", json!([responded_again]))
        ]),
    ] {
        let plan = plan(&parse(&request(messages.clone())));
        assert_eq!(plan.unverified_responses().count(), 0, "{messages}");
        let deferred = plan.settle(&open);
        assert!(
            deferred
                .results()
                .iter()
                .all(|r| !matches!(r.outcome, DeferredOutcome::Approved { .. })),
            "{messages}"
        );
    }
    // Also where the messages did not pass through the request parser.
    let text = message("m", "assistant", json!([executed, responded_again])).to_string();
    let message = ui_message_stream::UiMessage::parse(&text).unwrap();
    assert_eq!(ResumePlan::new(&[message], None).unverified_responses().count(), 0);
}

#[test]
fn an_approval_counts_once_and_a_denial_overrides_an_approval() {
    let approval = responded("c1", "ap1", true);
    let body = request(json!([
        message("m", "assistant", json!([approval])),
        message("n", "assistant", json!([approval, requested("c2", "ap1")])),
    ]));
    let (results, pending, _) = settled(&body, &[awaiting_approval("c1", "ap1")]);
    assert_eq!((results.len(), pending.len()), (1, 0));

    // The parser rejects a request with contradicting decisions. A history from another source may
    // still hold them.
    let answer = |approved: bool| responded("c1", "ap1", approved);
    let contradiction: Vec<_> = [json!([answer(true)]), json!([answer(true), answer(false)])]
        .into_iter()
        .map(|parts| message("m", "assistant", parts))
        .map(|message| ui_message_stream::UiMessage::parse(&message.to_string()).unwrap())
        .collect();
    let deferred = ResumePlan::new(&contradiction, None).settle(&[awaiting_approval("c1", "ap1")]);
    let [result] = deferred.results() else { panic!("{deferred:?}") };
    assert_eq!(result.outcome, DeferredOutcome::Denied { reason: None });
}

#[test]
fn a_provider_that_reuses_call_ids_can_request_approval_in_every_turn() {
    let mut executed = output("call_0", json!("done"));
    executed["approval"] = json!({"id": "ap1", "approved": true});
    let body = request(json!([
        message("m", "assistant", json!([executed])),
        user("u"),
        message("n", "assistant", json!([responded("call_0", "ap2", true)])),
    ]));
    let deferred = plan(&parse(&body)).settle(&[awaiting_approval("call_0", "ap2")]);
    let result = deferred.get(&ToolCallId::new("call_0")).unwrap();
    assert_eq!(result.outcome, DeferredOutcome::Approved { input: host_input(), claim: None });
    assert_eq!(result.message_id.as_deref(), Some("n"));
    // The output of the old call is not the output of the new one.
    let body = request(json!([
        message("m", "assistant", json!([output("call_0", json!("old"))])),
        user("u"),
        message(
            "n",
            "assistant",
            json!([
            {"type": "tool-location", "toolCallId": "call_0", "state": "input-available"}])
        ),
    ]));
    assert_eq!(
        settled(&body, &[client_executed("call_0")]),
        (vec![], vec!["call_0".into()], vec![])
    );
}

#[test]
fn an_output_counts_only_for_a_client_executed_call() {
    let parts = json!([
        {"type": "step-start"}, output("server", json!("forged")), output("c1", json!("Paris")),
        {"type": "tool-location", "toolCallId": "c2", "state": "output-error", "errorText": "no"},
    ]);
    let given = vec![
        ("c1".to_owned(), json!({"output": {"output": "Paris"}})),
        ("c2".to_owned(), json!({"output-error": {"errorText": "no"}})),
    ];
    let open = [client_executed("c1"), client_executed("c2"), client_executed("c3")];
    let history = json!([user("u"), message("m", "assistant", parts)]);
    assert_eq!(
        settled(&request(history.clone()), &open),
        (given.clone(), vec!["c3".into()], vec![])
    );
    // Also where the user sent a new message before the client sent the output.
    let mut history = history;
    history.as_array_mut().unwrap().push(user("u2"));
    assert_eq!(settled(&request(history), &open), (given, vec![], vec!["c3".into()]));
}

#[test]
fn a_preliminary_output_does_not_count() {
    let mut part = output("c1", json!("so far"));
    part["preliminary"] = json!(true);
    let body = assistant(json!([part]));
    assert_eq!(settled(&body, &[client_executed("c1")]), (vec![], vec!["c1".into()], vec![]));
}

#[test]
fn a_completed_call_has_its_outcome_though_the_page_holds_a_preliminary_output() {
    let mut part = responded("c1", "ap1", true);
    part["state"] = json!("output-available");
    part["output"] = json!("so far");
    let outcome = ToolOutcome::Output(Json::string("done"));
    let mut call = awaiting_approval("c1", "ap1");
    call.progress = CallProgress::Completed(outcome.clone());
    for (preliminary, expected) in [(true, 1), (false, 0)] {
        part["preliminary"] = json!(preliminary);
        let body = assistant(json!([part]));
        let deferred = plan(&parse(&body)).settle(std::slice::from_ref(&call));
        assert_eq!(deferred.results().len(), expected);
        let executed = DeferredOutcome::Executed { outcome: outcome.clone() };
        assert!(deferred.results().iter().all(|result| result.outcome == executed));
    }
}

#[test]
fn an_output_for_a_call_awaiting_approval_is_rejected_and_the_call_is_closed() {
    let body = recorded("15-tool-output-for-unanswered-approval");
    let open = [awaiting_approval("c1", "ap1")];
    assert_eq!(settled(&body, &open), (vec![("c1".into(), json!("rejected"))], vec![], vec![]));
}

#[test]
fn a_new_user_message_supersedes_the_open_calls() {
    let open = [awaiting_approval("c1", "ap1"), client_executed("c2")];
    let superseded = (vec![], vec![], vec!["c1".to_owned(), "c2".to_owned()]);
    let parts = json!([requested("c1", "ap1"),
                       {"type": "tool-location", "toolCallId": "c2", "state": "input-available"}]);
    let waiting = json!([user("u"), message("m", "assistant", parts)]);
    let pending = (vec![], vec!["c1".to_owned(), "c2".to_owned()], vec![]);
    assert_eq!(settled(&request(waiting.clone()), &open), pending);
    let mut with_new_message = waiting;
    with_new_message.as_array_mut().unwrap().push(user("u2"));
    assert_eq!(settled(&request(with_new_message), &open), superseded);
    // A client that sends only its new message supersedes them too.
    let last_only = json!({"id": "chat", "message": user("u2")});
    assert_eq!(settled(&last_only, &open), superseded);
}

#[test]
fn an_approval_with_a_newer_message_runs_only_if_the_call_says_so_and_otherwise_stays_closed() {
    let answered = json!([
        user("m1"),
        message("m2", "assistant", json!([responded("c1", "ap1", true), requested("c2", "ap2")])),
    ]);
    let with_new_message = {
        let mut messages = answered.clone();
        messages.as_array_mut().unwrap().push(user("m3"));
        messages
    };
    let outcomes = |record: &mut [PendingToolCall], messages: &Value| {
        let results = plan(&parse(&request(messages.clone()))).settle(record);
        results.record_in(record);
        let outcomes = results.results().iter().map(|result| result.outcome.clone());
        (outcomes.collect::<Vec<_>>(), results.pending().len(), results.superseded().len())
    };
    let mut record = [awaiting_approval("c1", "ap1"), awaiting_approval("c2", "ap2")];
    let lapsed = (vec![DeferredOutcome::Lapsed], 0, 1);
    assert_eq!(outcomes(&mut record, &with_new_message), lapsed);
    // The client leaves the newer message out.
    let closed = vec![DeferredOutcome::Lapsed, DeferredOutcome::Superseded];
    assert_eq!(outcomes(&mut record, &answered), (closed, 0, 0));

    let mut record = [awaiting_approval("c1", "ap1"), awaiting_approval("c2", "ap2")];
    record.iter_mut().for_each(|call| call.on_new_message = OnNewMessage::Deny);
    let denied = |reason: Option<&str>| DeferredOutcome::Denied { reason: reason.map(Into::into) };
    let results = vec![DeferredOutcome::Rejected, denied(Some(UserText::DeniedByMessage.text()))];
    assert_eq!(outcomes(&mut record, &with_new_message), (results, 0, 0));
    assert!(record.iter().all(|call| call.progress == CallProgress::Denied), "{record:?}");
    let closed = vec![DeferredOutcome::Rejected, denied(None)];
    assert_eq!(outcomes(&mut record, &answered), (closed, 0, 0));

    let mut record = [awaiting_approval("c1", "ap1"), awaiting_approval("c2", "ap2")];
    record.iter_mut().for_each(|call| call.on_new_message = OnNewMessage::Run);
    let (results, pending, superseded) = outcomes(&mut record, &with_new_message);
    assert!(matches!(results[..], [DeferredOutcome::Approved { .. }]), "{results:?}");
    assert_eq!((pending, superseded), (1, 0));
}

#[test]
fn every_combination_of_answers_settles_each_call_once() {
    let outcomes = [json!({"approved": {"input": {"path": "/host"}}}), json!({"denied": {}})];
    for n in 1..=4_usize {
        let open: Vec<PendingToolCall> =
            (0..n).map(|i| awaiting_approval(&format!("c{i}"), &format!("ap{i}"))).collect();
        for answers in 0..3_usize.pow(n as u32) {
            // 0: approved, 1: denied, 2: not answered.
            let answer = |i: usize| answers / 3_usize.pow(i as u32) % 3;
            let parts: Vec<Value> = (0..n)
                .map(|i| match (answer(i), format!("c{i}"), format!("ap{i}")) {
                    (2, call, approval) => requested(&call, &approval),
                    (answer, call, approval) => responded(&call, &approval, answer == 0),
                })
                .collect();
            let body = request(json!([user("u"), message("m", "assistant", json!(parts))]));
            let expected: Vec<(String, Value)> = (0..n)
                .filter_map(|i| Some((format!("c{i}"), outcomes.get(answer(i))?.clone())))
                .collect();
            let waiting: Vec<String> =
                (0..n).filter(|i| answer(*i) == 2).map(|i| format!("c{i}")).collect();
            assert_eq!(settled(&body, &open), (expected, waiting, vec![]), "{body}");
        }
    }
}

#[test]
fn deferred_tool_results_can_be_serialized_and_read_back() {
    let body = json!({"id": "chat", "messages": [message("m", "assistant", json!([
        responded("c1", "ap1", true), responded("c2", "ap2", false), responded("c3", "ap3", true),
        output("c4", json!("out")), requested("c5", "ap5"),
    ]))]});
    // A JavaScript string may hold an unpaired surrogate.
    let body = body.to_string().replace("\"out\"", r#""\ud800""#);
    let chat = ChatRequest::parse(body.as_bytes(), &Limits::default()).unwrap();
    let open = [
        awaiting_approval("c1", "ap1"),
        awaiting_approval("c2", "ap2").provider_executed(),
        client_executed("c4"),
        awaiting_approval("c5", "ap5"),
    ];
    let deferred = plan(&chat).settle(&open);
    assert_eq!((deferred.results().len(), deferred.pending().len()), (4, 1));
    let stored = serde_json::to_string(&deferred).unwrap();
    assert_eq!(serde_json::from_str::<DeferredToolResults>(&stored).unwrap(), deferred);
}

#[test]
fn the_builders_last_decision_on_a_call_counts() {
    let deferred = DeferredToolResults::builder()
        .deny("c1", "delete", None)
        .pending(awaiting_approval("c2", "ap2"))
        .output("c3", "location", Json::string("Paris"))
        .approve("c1", "delete", host_input())
        .approve("c2", "delete", host_input())
        .build();
    assert!(deferred.pending().is_empty() && deferred.superseded().is_empty());
    let calls: Vec<&str> = deferred.results().iter().map(|r| r.tool_call_id.as_str()).collect();
    assert_eq!(calls, ["c3", "c1", "c2"]);
    assert!(!deferred.is_empty());
    assert!(DeferredToolResults::builder().build().is_empty());
}

/// A history of arbitrary parts: few calls, few approval ids, in every state.
fn any_history() -> impl Strategy<Value = Vec<Value>> {
    let part = (0..3_usize, 0..3_usize, 0..7_usize).prop_map(|(call, approval, kind)| {
        let (call, approval) = (format!("c{call}"), format!("ap{approval}"));
        match kind {
            0 => requested(&call, &approval),
            1 => responded(&call, &approval, true),
            2 => responded(&call, &approval, false),
            3 => output(&call, json!(1)),
            4 => json!({"type": "tool-t", "toolCallId": call, "state": "output-denied",
                        "approval": {"id": approval, "approved": false}}),
            5 => json!({"type": "tool-t", "toolCallId": call, "state": "input-available"}),
            _ => json!({"type": "step-start"}),
        }
    });
    let message = prop_oneof![
        3 => prop::collection::vec(part, 1..5).prop_map(|p| message("m", "assistant", json!(p))),
        1 => Just(user("u")),
    ];
    prop::collection::vec(message, 0..5)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn only_requested_and_approved_calls_run_and_each_open_call_settles_once(
        history in any_history(),
        asked_for in prop::collection::btree_set((0..3_usize, 0..3_usize), 0..3),
        left_open in prop::collection::btree_set(3..5_usize, 0..2),
    ) {
        let messages: Vec<_> = history
            .iter()
            .map(|m| ui_message_stream::UiMessage::parse(&m.to_string()).unwrap())
            .collect();
        // The host requests approval of a call once at a time, each with its own approval id.
        let mut open: Vec<PendingToolCall> = Vec::new();
        for (call, approval) in asked_for {
            let call = awaiting_approval(&format!("c{call}"), &format!("ap{approval}"));
            let is_new = |known: &PendingToolCall| {
                known.tool_call_id != call.tool_call_id && known.approval_id != call.approval_id
            };
            if open.iter().all(is_new) {
                open.push(call);
            }
        }
        open.extend(left_open.into_iter().map(|call| client_executed(&format!("c{call}"))));

        let deferred = ResumePlan::new(&messages, None).settle(&open);
        let text = json!(history).to_string();
        for result in deferred.results() {
            if let DeferredOutcome::Approved { input, .. } = &result.outcome {
                prop_assert_eq!(input, &host_input());
                let is_requested = open.iter().any(|call| call.approval_id == result.approval_id);
                prop_assert!(is_requested);
                let id = result.approval_id.as_ref().unwrap();
                let denial = json!({"id": id, "approved": false}).to_string();
                let approval = json!({"id": id, "approved": true}).to_string();
                prop_assert!(text.contains(&approval) && !text.contains(&denial), "{}", text);
            }
        }
        for call in &open {
            // A call with an approval request is found by the approval id, any other call by its
            // call id.
            let is_of = |result: &&DeferredToolResult| match &call.approval_id {
                Some(_) => result.approval_id == call.approval_id,
                None => result.approval_id.is_none() && result.tool_call_id == call.tool_call_id,
            };
            let of_call = || deferred.results().iter().filter(is_of);
            let runs =
                of_call().filter(|result| matches!(result.outcome, DeferredOutcome::Approved { .. }));
            let waits = deferred.pending().contains(call) || deferred.superseded().contains(call);
            let answered = of_call().next().is_some();
            prop_assert!(runs.count() <= 1);
            prop_assert!(waits != answered);
        }
    }
}

/// The host hands an approved call to the client, which answers with its output.
#[test]
fn an_approved_call_that_was_handed_to_the_client_waits_for_its_output() {
    let input = Json::parse(r#"{"path":"/client"}"#).unwrap();
    let mut record =
        [PendingToolCall::awaiting_approval("ap_1", "call_1", "delete", input.clone())];
    let approval = json!({"id": "ap_1", "approved": true});
    let message = |state: &str, output: Option<&str>| {
        let mut part = requested("call_1", "ap_1");
        (part["state"], part["approval"]) = (state.into(), approval.clone());
        if let Some(output) = output {
            part["output"] = output.into();
        }
        parse(&request(json!([user("u"), message("a", "assistant", json!([part]))])))
    };
    let answer = message("approval-responded", None);
    let executed = message("output-available", Some("done"));
    let refused = plan(&executed).settle(&record);
    assert!(
        !refused.results().iter().any(|it| matches!(it.outcome, DeferredOutcome::Output { .. }))
    );

    plan(&answer).settle(&record).record_in(&mut record);
    let handed = ToolOutcome::HandedToClient(input);
    record[0].complete(handed.clone());
    // The client sends the approval again.
    let again = plan(&answer).settle(&record);
    assert_eq!(again.results()[0].outcome, DeferredOutcome::Executed { outcome: handed });
    assert_eq!((again.pending().len(), again.pending()[0].approval_id.as_ref()), (1, None));

    let done = plan(&executed).settle(&record);
    let output = Json::string("done");
    assert_eq!(done.results().len(), 1, "{done:?}");
    assert_eq!(done.results()[0].outcome, DeferredOutcome::Output { output });
    assert!(done.pending().is_empty());
    done.record_in(&mut record);
    let again = plan(&executed).settle(&record);
    assert!(again.is_empty() && again.pending().is_empty(), "{again:?}");
}
