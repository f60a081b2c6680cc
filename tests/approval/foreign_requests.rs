//! What a user learns of a request that is not theirs, or that is not open: nothing, even if they know its approval
//! id.

use std::time::Duration;

use serde_json::{Value, json};
use test_support::requests::{ada, request, user_message};
use ui_message_stream::Json;
use ui_message_stream::approval::store::RedeemError;
use ui_message_stream::approval::{
    ApprovalDecision, ChatApprovals, DeferredOutcome, EditableInput, IssuedApproval, KeyRing,
    KeyRingError, Principal, ResolvedRequest, UnixMillis,
};

use super::one_tool::{Bench, body, body_with_new_message, call, notes, plan_of};

fn bob() -> Principal {
    Principal::new("bob")
}

/// Requests an approval in another chat or message of ada.
async fn ask_in(bench: &Bench, chat: &str, message: &str) -> IssuedApproval {
    let chat = bench.approvals.for_chat(&ada(), &chat.into());
    let input = Json::from_serialize(&notes()).unwrap();
    let (message, call) = (message.into(), "call_1".into());
    chat.request_approval(&message, &call, "delete_file", &input, None).await.unwrap()
}

#[tokio::test]
async fn the_outcome_of_a_request_is_known_in_its_own_chat_alone() {
    let (bench, issued) = Bench::asked().await;
    bench.outcomes(&body(&[call("call_1", &issued, false)])).await;
    let ids = [issued.approval_id.clone()];
    let known = async |chat: ChatApprovals| {
        let outcomes = |requests: Vec<ResolvedRequest>| {
            requests.into_iter().map(|request| request.outcome).collect::<Vec<_>>()
        };
        let known = outcomes(chat.known_outcomes(&ids).await.unwrap());
        assert_eq!(outcomes(chat.resolved_requests(&ids).await.unwrap()), known);
        known
    };
    let denied = DeferredOutcome::Denied { reason: None };
    assert_eq!(known(bench.approvals.for_chat(&ada(), &"chat".into())).await, [denied]);
    assert_eq!(known(bench.approvals.for_chat(&ada(), &"other".into())).await, []);
    assert_eq!(known(bench.approvals.for_chat(&bob(), &"chat".into())).await, []);
}

#[tokio::test]
async fn a_new_message_closes_the_open_requests_of_its_own_chat_alone() {
    let (bench, issued) = Bench::asked().await;
    let message = json!({"id": "chat", "message": user_message("u2", "Never mind")});
    let open = [issued.approval_id.clone()];
    let plan = plan_of(&request(&message)).with_open_requests(open);
    for (principal, chat, is_pending) in
        [(bob(), "chat", true), (ada(), "other", true), (ada(), "chat", false)]
    {
        let chat = bench.approvals.for_chat(&principal, &chat.into());
        let resolved = chat.resolve(plan.clone(), &[]).await.unwrap();
        assert_eq!(bench.is_pending(&issued).await, is_pending, "{principal:?} {chat:?}");
        assert_eq!(resolved.results().superseded().is_empty(), is_pending);
    }
}

/// The answer to a changed input that the tool does not accept.
async fn checked(
    bench: &Bench,
    principal: &Principal,
    mut body: Value,
    id: &IssuedApproval,
) -> Result<(), RedeemError> {
    body["approvalInputs"] = json!({ id.approval_id.as_str(): {"path": 1} });
    let chat = request(&body);
    bench.approvals.for_chat(principal, chat.id()).check_changed_inputs(&plan_of(&chat)).await
}

#[tokio::test]
async fn a_wrong_input_is_explained_only_to_who_may_decide_the_open_request() {
    let bench = Bench::new();
    bench.tool(|tool| tool.editable = EditableInput::Everything);
    let issued = bench.ask("call_1", notes()).await;
    let approved = body(&[call("call_1", &issued, true)]);
    let refused = checked(&bench, &ada(), approved.clone(), &issued).await;
    assert!(matches!(refused, Err(RedeemError::Input(_))), "{refused:?}");

    let mut elsewhere = approved.clone();
    elsewhere["id"] = "other".into();
    let newer = body_with_new_message(&[call("call_1", &issued, true)]);
    for (principal, body) in [(bob(), approved.clone()), (ada(), elsewhere), (ada(), newer)] {
        checked(&bench, &principal, body, &issued).await.unwrap();
    }

    bench.tool(|tool| tool.decided_by_others = true);
    let by_others = bench.ask("call_1", notes()).await;
    let approval = body(&[call("call_1", &by_others, true)]);
    checked(&bench, &ada(), approval, &by_others).await.unwrap();

    bench.wait(Duration::from_secs(60 * 60));
    checked(&bench, &ada(), approved, &issued).await.unwrap();
}

#[tokio::test]
async fn a_request_that_somebody_has_answered_explains_nothing() {
    let bench = Bench::new();
    bench.tool(|tool| tool.editable = EditableInput::Everything);
    let issued = bench.ask("call_1", notes()).await;
    bench.outcomes(&body(&[call("call_1", &issued, false)])).await;
    checked(&bench, &ada(), body(&[call("call_1", &issued, true)]), &issued).await.unwrap();
}

#[tokio::test]
async fn decisions_are_grouped_by_requester_chat_and_message() {
    let bench = Bench::new();
    let issued = [
        ask_in(&bench, "chat", "m2").await,
        ask_in(&bench, "chat", "m4").await,
        ask_in(&bench, "other", "m2").await,
        ask_in(&bench, "chat", "m2").await,
    ];
    let decisions = issued.iter().map(|it| ApprovalDecision::new(it.approval_id.clone(), false));
    let groups = bench.approvals.group_by_message(&ada(), decisions.collect()).await.unwrap();
    let mut found: Vec<_> = groups
        .iter()
        .map(|group| (group.chat_id.as_str(), group.message_id.as_str(), group.decisions.len()))
        .collect();
    found.sort_unstable();
    assert_eq!(found, [("chat", "m2", 2), ("chat", "m4", 1), ("other", "m2", 1)]);
}

#[test]
fn no_two_keys_have_one_number() {
    let (secret, other) = (test_support::secret(7), test_support::secret(8));
    let keys = || KeyRing::new(3, &secret).unwrap();
    let retire = |keys: KeyRing, number| keys.with_retired_key(UnixMillis(1), number, &other);
    assert!(matches!(retire(keys(), 3), Err(KeyRingError::DuplicateNumber { number: 3 })));
    let keys = retire(keys(), 2).unwrap();
    assert!(matches!(retire(keys.clone(), 2), Err(KeyRingError::DuplicateNumber { number: 2 })));
    retire(keys, 1).unwrap();
}
