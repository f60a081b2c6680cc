//! An approver changes the input of a call: the tool runs with it if the tool accepts it, and no other
//! input ever runs.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use test_support::approvals;
use test_support::requests::{ada, request};
use ui_message_stream::approval::store::{InMemoryLedger, LedgerStore, RedeemError};
use ui_message_stream::approval::{
    ApprovalRecord, Approvals, AuditEventKind, ChangedInput, DeferredCall, DeferredOutcome,
    DefinitionDigest, EditableInput, EmptyToolbox, IssuedApproval, KeyRing, Principal,
    RejectionReason, ToolInfo, ToolList, ToolOutcome, Toolbox, UnixMillis,
};
use ui_message_stream::model::ToModelMessages;
use ui_message_stream::request::Limits;
use ui_message_stream::{AgentEvent, ChatRequest, Json, Translator};

use super::one_tool::{Bench, Effects, LEASE, body, body_with_new_message, call, notes, plan_of};

const STORED: &str = r#"{"path":"notes.txt"}"#;

/// A bench whose tool is editable in these ways.
fn bench(editable: EditableInput) -> Bench {
    let bench = Bench::new();
    bench.tool(|tool| tool.editable = editable);
    bench
}

fn only_path() -> EditableInput {
    EditableInput::Fields(vec!["path".into()])
}

/// An approval with this input.
fn approval(issued: &IssuedApproval, input: &Value) -> Value {
    let mut body = body(&[call("call_1", issued, true)]);
    body["approvalInputs"] = json!({ issued.approval_id.as_str(): input });
    body
}

/// Returns the text of the error with which an adapter refuses this request.
async fn refusal(bench: &Bench, body: &Value) -> String {
    let redeemed = bench.approvals.redeem(&ada(), &request(body)).await;
    match redeemed.map(drop) {
        Err(RedeemError::Input(error)) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

fn executed(input: &Value) -> DeferredOutcome {
    let output = Json::parse(&input.to_string()).unwrap();
    DeferredOutcome::Executed { outcome: ToolOutcome::Output(output) }
}

#[tokio::test]
async fn the_tool_runs_with_the_changed_input_and_the_ledger_keeps_both() {
    let bench = bench(only_path());
    let issued = bench.ask("call_1", notes()).await;
    let descriptor: Value = issued.descriptor.decode().unwrap();
    assert_eq!(descriptor["editable"], json!(["path"]));
    let changed = json!({"path": "draft.md"});
    let outcomes = bench.outcomes(&approval(&issued, &changed)).await;
    assert_eq!(outcomes, [executed(&changed)]);
    assert_eq!(bench.effects(), [changed.to_string()]);

    let record = bench.ledger.load(&[issued.record]).await.unwrap().records.remove(0).record;
    assert_eq!(record.input.as_str(), STORED);
    assert_eq!(record.approved_input().as_str(), changed.to_string());
    let decision = record.decision().unwrap();
    assert_eq!((&decision.decided_by, decision.changed_input.is_some()), (&ada(), true));
    let descriptor = record.descriptor(record.requested_at).unwrap();
    let both = ChangedInput::from_descriptor(&descriptor).unwrap();
    assert_eq!(both.original.as_str(), STORED);
    assert_eq!(both.changed.as_str(), changed.to_string());
}

#[tokio::test]
async fn the_first_outcome_stands_whatever_a_repetition_sends() {
    let bench = bench(EditableInput::Everything);
    let issued = bench.ask("call_1", notes()).await;
    let first = json!({"path": "draft.md"});
    bench.outcomes(&approval(&issued, &first)).await;
    for repeated in [json!({"path": "third.md"}), notes(), json!({"path": 7}), json!(null)] {
        let outcomes = bench.outcomes(&approval(&issued, &repeated)).await;
        assert_eq!(outcomes, [executed(&first)], "{repeated}");
        let chat = request(&approval(&issued, &repeated));
        assert!(bench.approvals.redeem(&ada(), &chat).await.is_ok(), "{repeated}");
    }
    assert_eq!(bench.effects(), [first.to_string()]);
}

#[tokio::test]
async fn a_change_that_is_not_accepted_runs_nothing_and_the_request_stays_open() {
    let cases = [
        (EditableInput::Nothing, json!({"path": "a"}), "the input cannot be changed"),
        (only_path(), json!({"path": "a", "force": true}), "`force` cannot be changed"),
        (only_path(), json!("a"), "expected an object"),
        (EditableInput::Everything, json!({"path": 7}), "path: expected a string"),
        (
            EditableInput::Everything,
            json!({"path": "/etc"}),
            "the tool may not run with this input",
        ),
    ];
    for (editable, changed, problem) in cases {
        let bench = bench(editable);
        bench.tool(|tool| tool.forbidden = Some(Json::parse(r#"{"path":"/etc"}"#).unwrap()));
        let issued = bench.ask("call_1", notes()).await;
        let body = approval(&issued, &changed);
        let expected = format!("the changed input for `delete_file`: {problem}");
        assert_eq!(refusal(&bench, &body).await, expected);
        // A host that does not check it first.
        assert_eq!(bench.outcomes(&body).await, [DeferredOutcome::Rejected], "{changed}");
        assert!(bench.is_pending(&issued).await, "{changed}");
        let last = bench.audit_events(issued.record).pop().unwrap().kind;
        let cause = RejectionReason::InputNotAccepted;
        assert_eq!(last, AuditEventKind::Rejected { cause }, "{changed}");
        assert!(bench.effects().is_empty(), "{changed}");
        // The input that the user was asked about can still run.
        bench.outcomes(&approval(&issued, &notes())).await;
        assert_eq!(bench.effects(), [STORED], "{changed}");
    }
}

#[tokio::test]
async fn an_input_of_somebody_else_or_for_another_request_does_not_count() {
    let bench = bench(EditableInput::Everything);
    let (issued, other) = (bench.ask("call_1", notes()).await, bench.ask("call_2", notes()).await);
    let changed = json!({"path": "draft.md"});
    let (eve, answer) = (Principal::new("eve"), approval(&issued, &changed));
    assert_eq!(bench.outcomes_in_adas_chat(&eve, &answer).await, [DeferredOutcome::Rejected]);
    let mut forged = approval(&issued, &changed);
    forged["messages"][1]["parts"][0]["approval"]["id"] = json!("ap_forged");
    forged["approvalInputs"] = json!({"ap_forged": changed});
    assert_eq!(bench.outcomes(&forged).await, [DeferredOutcome::Rejected]);
    assert!(bench.effects().is_empty());

    // The input of another request, and one of a denied call.
    let mut of_other = body(&[call("call_1", &issued, true), call("call_2", &other, false)]);
    of_other["approvalInputs"] = json!({ other.approval_id.as_str(): changed });
    bench.outcomes(&of_other).await;
    assert_eq!(bench.effects(), [STORED]);
}

#[tokio::test]
async fn a_changed_input_that_comes_too_late_runs_nothing() {
    let changed = json!({"path": "draft.md"});
    let late = |bench: &Bench, what: usize| match what {
        0 => bench.wait(Duration::from_secs(60 * 60)),
        1 => bench.tool(|tool| tool.description = "deletes a folder"),
        _ => {}
    };
    let expected = [DeferredOutcome::Expired, DeferredOutcome::Revoked, DeferredOutcome::Lapsed];
    for (what, expected) in expected.into_iter().enumerate() {
        let bench = bench(EditableInput::Everything);
        let issued = bench.ask("call_1", notes()).await;
        late(&bench, what);
        let mut body = approval(&issued, &changed);
        if what == 2 {
            body["messages"] =
                body_with_new_message(&[call("call_1", &issued, true)])["messages"].take();
            body["messageId"].take();
        }
        assert_eq!(bench.outcomes(&body).await, [expected]);
        assert!(bench.effects().is_empty());
    }
}

#[tokio::test]
async fn a_tool_that_is_not_editable_any_more_accepts_no_change() {
    let bench = bench(EditableInput::Everything);
    let issued = bench.ask("call_1", notes()).await;
    bench.tool(|tool| tool.editable = EditableInput::Nothing);
    let body = approval(&issued, &json!({"path": "draft.md"}));
    assert!(refusal(&bench, &body).await.ends_with("the input cannot be changed"));
    assert_eq!(bench.outcomes(&body).await, [DeferredOutcome::Rejected]);
    assert!(bench.effects().is_empty());
}

/// An approver may lower an amount, and not raise it.
fn only_lower(input: &ChangedInput) -> Result<(), String> {
    #[derive(serde::Deserialize)]
    struct Transfer {
        amount: u64,
    }
    let input: ChangedInput<Transfer> = input.decode().map_err(|error| error.to_string())?;
    match input.changed.amount <= input.original.amount {
        true => Ok(()),
        false => Err("amount: may be lowered, not raised".to_owned()),
    }
}

/// What the client says about the original input does not count: the rule compares with the record.
#[tokio::test]
async fn an_adapter_lets_an_approver_lower_an_amount_and_not_raise_it() {
    let amount = EditableInput::Fields(vec!["amount".into()]);
    let tools = ToolList::new().tool("transfer", "Transfers money.", &Json::no_schema());
    let tools = tools.editable("transfer", amount, only_lower);
    let ledger = Arc::new(InMemoryLedger::new());
    let approvals = Approvals::new(tools).with_ledger(ledger.clone());
    let issued = approvals::ask(&approvals, "call_1", "transfer", json!({"amount": 80})).await;
    let body = |shown: u64, changed: u64| {
        let mut body = approval(&issued, &json!({ "amount": changed }));
        let parts = body["messages"][1]["parts"].as_array_mut().unwrap();
        parts[0]["type"] = json!("tool-transfer");
        parts[0]["input"] = json!({ "amount": shown });
        let data = json!({"originalInput": {"amount": shown}, "changedInput": {"amount": 1}});
        parts.push(json!({"type": "data-approval", "id": "call_1", "data": data}));
        body
    };
    for body in [body(80, 95), body(200, 95)] {
        let error = approvals.redeem(&ada(), &request(&body)).await.unwrap_err().to_string();
        assert_eq!(error, "the changed input for `transfer`: amount: may be lowered, not raised");
        // A host that does not check it first.
        let chat = request(&body);
        let chat_approvals = approvals.for_chat(&ada(), chat.id());
        let mut calls = chat_approvals.resolve(plan_of(&chat), &[]).await.unwrap();
        assert_eq!(calls.next().await.unwrap().outcome, DeferredOutcome::Rejected);
        let record = ledger.load(&[issued.record]).await.unwrap().records.remove(0).record;
        assert!(record.is_pending());
    }
    let lowered = request(&body(80, 60));
    let user = ada();
    let running = approvals.run(&user, &lowered, |call, _| async move {
        assert_eq!(call.changed_input.unwrap().original.as_str(), r#"{"amount":80}"#);
        call.input
    });
    let mut running = running.await.unwrap();
    let outcome = running.next().await.unwrap().outcome;
    assert_eq!(outcome, executed(&json!({"amount": 60})));
}

#[tokio::test]
async fn a_toolbox_permits_a_change_by_both_inputs() {
    let bench = bench(only_path());
    bench.tool(|tool| {
        tool.permits_change = |input| input.changed.as_str().len() < input.original.as_str().len();
    });
    let issued = bench.ask("call_1", notes()).await;
    let longer = approval(&issued, &json!({"path": "private.txt"}));
    let expected = "the changed input for `delete_file`: the tool may not run with this input";
    assert_eq!(refusal(&bench, &longer).await, expected);
    assert_eq!(bench.outcomes(&longer).await, [DeferredOutcome::Rejected]);
    assert!(bench.is_pending(&issued).await);
    let shorter = json!({"path": "a.md"});
    assert_eq!(bench.outcomes(&approval(&issued, &shorter)).await, [executed(&shorter)]);
}

#[tokio::test]
async fn a_further_attempt_is_permitted_by_the_input_that_it_runs_with() {
    for (forbidden, expected) in [(r#"{"path":"draft.md"}"#, None), (STORED, Some("draft.md"))] {
        let bench = bench(only_path());
        bench.tool(|tool| tool.is_idempotent = true);
        let issued = bench.ask("call_1", notes()).await;
        let changed = Json::parse(r#"{"path":"draft.md"}"#).unwrap();
        bench.claim_changed_and_vanish(&issued, Some(changed)).await;
        bench.wait(LEASE);
        bench.tool(|tool| tool.forbidden = Some(Json::parse(forbidden).unwrap()));
        // The page repeats the approval without the changed input.
        bench.outcomes(&body(&[call("call_1", &issued, true)])).await;
        let expected = expected.map(|path| json!({ "path": path }).to_string());
        assert_eq!(bench.effects(), Vec::from_iter(expected), "{forbidden}");
    }
}

#[tokio::test]
async fn an_adapter_streams_the_changed_input_before_the_output_and_the_model_reads_both() {
    let tools = ToolList::new().tool("delete_file", "Deletes.", &Json::no_schema());
    let tools = tools.editable("delete_file", only_path(), |_| Ok(()));
    let approvals = Approvals::new(tools);
    let issued = approvals::ask(&approvals, "call_1", "delete_file", notes()).await;
    let chat = request(&approval(&issued, &json!({"path": "draft.md"})));
    let user = ada();
    let running = approvals.run(&user, &chat, |call, progress| async move {
        progress.emit("looking").unwrap();
        call.input
    });
    let mut running = running.await.unwrap();
    let mut translator = Translator::continuing(chat.continued_message().unwrap());
    let mut kinds: Vec<String> = Vec::new();
    let mut translate = |event: &AgentEvent| {
        translator.handle_event(event, &mut |chunk| {
            kinds.push(match &chunk {
                ui_message_stream::Chunk::ToolInputAvailable { input, .. } => {
                    format!("input {}", input.as_deref().unwrap())
                }
                other => other.kind().to_string(),
            });
        })
    };
    while let Some(event) = running.next_event().await {
        translate(&event).unwrap();
    }
    let at = kinds.iter().position(|kind| kind == r#"input {"path":"draft.md"}"#).unwrap();
    assert!(kinds[at + 1].starts_with("tool-output-available"), "{kinds:?}");
    assert_eq!(kinds.iter().filter(|kind| kind.starts_with("input")).count(), 1, "{kinds:?}");

    let results = running.into_results();
    let messages = ToModelMessages::new().with_deferred(&results).model_messages(chat.messages());
    let prompt = serde_json::to_string(&messages).unwrap();
    assert!(prompt.contains(r#""input":{"path":"notes.txt"}"#), "{prompt}");
    assert!(prompt.contains("changed the input of this call"), "{prompt}");
    assert!(prompt.contains("draft.md"), "{prompt}");
}

/// `null` is an input, also in a stored record.
#[tokio::test]
async fn an_input_that_was_changed_to_null_is_not_the_original_one_after_a_crash() {
    let digest = DefinitionDigest::new("set", "Sets a value.", &Json::null());
    let info = ToolInfo::new(digest).idempotent();
    let tools =
        ToolList::new().with("set", info).editable("set", EditableInput::Everything, |_| Ok(()));
    let now = UnixMillis(1_000_000_000_000);
    let ledger = Arc::new(InMemoryLedger::with_test_clock(now));
    let approvals = Approvals::new(tools).with_ledger(ledger.clone());
    let issued = approvals::ask(&approvals, "call_1", "set", "original").await;
    let mut body = approval(&issued, &Value::Null);
    body["messages"][1]["parts"][0]["type"] = json!("tool-set");
    body["messages"][1]["parts"][0]["input"] = json!("original");
    let redeemed = approvals.redeem(&ada(), &request(&body)).await.unwrap();
    let call = redeemed.into_iter().next().unwrap();
    let DeferredCall::Approved(call) = call else { panic!("{call:?}") };
    assert_eq!(call.input(), &Json::null());
    // The server is lost. Another one reads the record from a store.
    std::mem::forget(call);
    let stored = ledger.load(&[issued.record]).await.unwrap().records.remove(0).record;
    let read = serde_json::to_string(&stored).unwrap();
    let read: ApprovalRecord = serde_json::from_str(&read).unwrap();
    assert_eq!(read, stored);
    assert_eq!(read.approved_input(), &Json::null());
}

#[test]
fn stateless_approvals_refuse_an_editable_tool() {
    let keys = KeyRing::new(1, &test_support::secret(7)).unwrap();
    let tools = ToolList::new().tool("send", "Sends a mail.", &Json::no_schema());
    let tools = tools.editable("send", EditableInput::Everything, |_| Ok(()));
    let error = Approvals::stateless_replayable(tools, keys).unwrap_err();
    assert!(error.to_string().contains("let no input of the tool `send` be editable"), "{error}");
}

#[tokio::test]
async fn a_tool_list_without_a_check_accepts_no_change() {
    let digest = DefinitionDigest::new("send", "", &Json::null());
    let info = ToolInfo::new(digest).editable(EditableInput::Everything);
    let approvals = Approvals::new(ToolList::new().with("send", info));
    let issued = approvals::ask(&approvals, "call_1", "send", ()).await;
    let mut body = approval(&issued, &json!({"to": "eve"}));
    body["messages"][1]["parts"][0]["type"] = json!("tool-send");
    body["messages"][1]["parts"][0]["input"] = Value::Null;
    let error = approvals.redeem(&ada(), &request(&body)).await.unwrap_err().to_string();
    assert!(error.contains("use `ToolList::editable`"), "{error}");
}

#[test]
fn a_body_with_other_inputs_is_refused() {
    for inputs in [json!([]), json!("x"), json!(7)] {
        let body = json!({"id": "chat", "messages": [], "approvalInputs": inputs}).to_string();
        let error = ChatRequest::parse(body.as_bytes(), &Limits::default()).unwrap_err();
        let expected = "approvalInputs: expected an object of inputs by approval id";
        assert_eq!(error.to_string(), expected);
    }
}

#[test]
fn a_toolbox_accepts_no_changed_input_unless_it_checks_them_also_behind_a_pointer() {
    let to = |changed: &str| ChangedInput {
        original: Json::parse(STORED).unwrap(),
        changed: Json::parse(changed).unwrap(),
    };
    let (changed, wrong) = (to(r#"{"path":"draft.md"}"#), to(r#"{"path":1}"#));
    let unchecked = EmptyToolbox.check_input("delete_file", &changed).unwrap_err();
    assert!(unchecked.contains("Toolbox::check_input"), "{unchecked}");
    let effects = Effects::default();
    effects.1.lock().unwrap().editable = only_path();
    let shared = Arc::new(effects.clone());
    for input in [&changed, &wrong] {
        let checked = effects.check_input("delete_file", input);
        assert_eq!(shared.check_input("delete_file", input), checked, "{input:?}");
    }
    assert!(shared.check_input("delete_file", &wrong).is_err());
    assert_eq!(shared.tool("delete_file").unwrap().editable, only_path());
    assert!(shared.tool("another").is_none());
}
