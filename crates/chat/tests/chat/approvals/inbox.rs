//! A second user finds what a team is asked in its list, and decides it there.

use chat_test_support::test_server::{Client, Host};
use serde_json::json;
use ui_message_stream::approval::Principal;

/// Bob and Carol are finance, which is asked about transfers. Bob may decide.
fn host() -> Host {
    let is_finance = |principal: &Principal| matches!(principal.id(), Some("bob") | Some("carol"));
    let host = Host::with(Vec::new(), |approvals| {
        approvals
            .with_audiences(
                |record| match &*record.tool_name {
                    "transfer" => vec!["finance".into()],
                    _ => Vec::new(),
                },
                move |principal| match is_finance(principal) {
                    true => vec!["finance".into()],
                    false => Vec::new(),
                },
            )
            .authorize_decision(|principal, _| principal.id() == Some("bob"))
    });
    host.tools.let_others_decide("transfer");
    host
}

#[tokio::test]
async fn a_team_lists_and_decides_what_it_is_asked_by_tool_and_by_chat() {
    let host = host();
    let mut alice = Client::new("alice", "chat 1");
    alice.say(&host, "mixed").await;
    assert_eq!(host.pending("alice").await.len(), 2);
    assert!(host.pending("carol").await.is_empty() && host.pending("dave").await.is_empty());
    let asked = host.pending("bob").await;
    let [asked] = &asked[..] else { panic!("{asked:#?}") };
    assert_eq!(
        (&asked["toolName"], &asked["requestedBy"], &asked["decidedByOthers"]),
        (&json!("transfer"), &json!("alice"), &json!(true))
    );
    for (query, of_bob, of_alice) in [
        ("tool=transfer", 1, 1),
        ("tool=delete%5Ffile", 0, 1),
        ("chat=chat+1", 1, 2),
        ("chat=chat%201&tool=transfer", 1, 1),
        ("chat=other", 0, 0),
    ] {
        for (user, count) in [("bob", of_bob), ("alice", of_alice)] {
            let page = host.get(user, &format!("/api/approvals?{query}")).await.json();
            assert_eq!(page["approvals"].as_array().unwrap().len(), count, "{user}: {query}");
        }
    }
    let refused = host.get("bob", "/api/approvals?tool=%ff").await;
    assert_eq!((refused.status.as_u16(), &*refused.text), (400, "tool: expected a text in UTF-8"));

    let id = asked["approvalId"].as_str().unwrap();
    for (user, accepted) in [("carol", false), ("alice", false), ("bob", true)] {
        assert_eq!(host.decides(user, id, true).await, accepted, "{user}");
    }
    assert_eq!(host.tools.effects().len(), 1);
    assert!(host.pending("bob").await.is_empty());
}
