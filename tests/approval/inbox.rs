//! The inbox: what a principal has requested, and what it may decide as one of an audience.

use std::sync::Arc;

use ui_message_stream::Json;
use ui_message_stream::approval::store::InMemoryLedger;
use ui_message_stream::approval::{
    ApprovalDecision, Approvals, InboxQuery, IssuedApproval, Principal, RequestApprovalError,
    ToolList,
};
use ui_message_stream::id::ChatId;

fn user(id: &str) -> Principal {
    Principal::new(id).with_tenant("acme")
}

/// A user belongs to the teams whose names the id of the user contains. The audience of `transfer` is finance,
/// that of `delete` is finance and the board, and `ring` has none. `odd` has more audiences than are allowed.
fn approvals(ledger: &Arc<InMemoryLedger>) -> Approvals {
    let tools = ["transfer", "delete", "odd", "ring"];
    let tools = tools
        .iter()
        .fold(ToolList::new(), |tools, name| tools.tool(name, "Does it.", &Json::null()));
    let teams = ["finance", "board"];
    Approvals::new(tools)
        .with_ledger(ledger.clone())
        .with_audiences(
            |record| match &*record.tool_name {
                "transfer" => vec!["finance".into()],
                "delete" => vec!["finance".into(), "board".into()],
                "odd" => (0..17).map(|number| number.to_string().into()).collect(),
                _ => Vec::new(),
            },
            move |principal| {
                let id = principal.id().unwrap_or_default();
                let teams = teams.iter().filter(|team| id.contains(**team));
                teams.map(|team| Box::from(*team)).collect()
            },
        )
        .authorize_decision(|principal, record| {
            record.requester.tenant() == principal.tenant()
                && principal.id().is_some_and(|id| !id.ends_with("trainee"))
        })
}

async fn ask(
    approvals: &Approvals,
    requester: &Principal,
    chat: &str,
    tool: &str,
) -> Result<IssuedApproval, RequestApprovalError> {
    let chat = approvals.for_chat(requester, &chat.into());
    let input = Json::parse("{}").unwrap();
    chat.request_approval(&"m".into(), &"call".into(), tool, &input, None).await
}

/// Returns the tools and the requesters of all pages, in order.
async fn inbox(
    approvals: &Approvals,
    principal: &Principal,
    query: InboxQuery<'_>,
) -> Vec<(String, String)> {
    let (mut query, mut found) = (query, Vec::new());
    loop {
        let page = approvals.inbox(principal, query).await.unwrap();
        assert!(page.approvals.len() <= query.limit);
        let is_empty = page.approvals.is_empty();
        found.extend(page.approvals.into_iter().map(|pending| {
            let requester = pending.record.requester.id().unwrap_or_default().to_owned();
            (pending.record.tool_name.to_string(), requester)
        }));
        query.after = page.next;
        if query.after.is_none() {
            assert!(!is_empty || found.is_empty(), "an empty page follows the last one");
            return found;
        }
    }
}

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(tool, user)| ((*tool).to_owned(), (*user).to_owned())).collect()
}

#[tokio::test(start_paused = true)]
async fn an_inbox_merges_the_own_requests_and_those_of_the_audiences_each_once() {
    let ledger = Arc::new(InMemoryLedger::new());
    let approvals = approvals(&ledger);
    let boss = user("finance and board");
    let elsewhere = Principal::new("ada").with_tenant("other");
    for (requester, chat, tool) in [
        (&user("ada"), "c1", "transfer"),
        (&boss, "c1", "ring"),
        (&elsewhere, "c1", "transfer"),
        (&user("bob"), "c2", "delete"),
        (&boss, "c2", "delete"),
        (&user("bob"), "c1", "ring"),
    ] {
        ask(&approvals, requester, chat, tool).await.unwrap();
        tokio::time::advance(std::time::Duration::from_millis(5)).await;
    }
    let all = [
        ("transfer", "ada"),
        ("ring", "finance and board"),
        ("delete", "bob"),
        ("delete", "finance and board"),
    ];
    for limit in [1, 2, 3, 100] {
        let query = InboxQuery { limit, ..InboxQuery::default() };
        assert_eq!(inbox(&approvals, &boss, query).await, pairs(&all), "{limit}");
    }
    let (c1, c2) = (ChatId::from("c1"), ChatId::from("c2"));
    for (query, expected) in [
        (InboxQuery { tool: Some("delete"), ..InboxQuery::default() }, &all[2..]),
        (InboxQuery { chat: Some(&c1), ..InboxQuery::default() }, &all[..2]),
        (InboxQuery { chat: Some(&c1), tool: Some("ring"), ..InboxQuery::default() }, &all[1..2]),
        (InboxQuery { chat: Some(&c2), tool: Some("ring"), ..InboxQuery::default() }, &[]),
    ] {
        assert_eq!(inbox(&approvals, &boss, query).await, pairs(expected), "{query:?}");
    }
    let first = InboxQuery::default();
    assert_eq!(inbox(&approvals, &user("ada"), first).await, pairs(&[("transfer", "ada")]));
    // A trainee of finance may decide nothing, and another tenant has its own finance.
    assert_eq!(inbox(&approvals, &user("finance trainee"), first).await, []);
    let other_boss = Principal::new("finance").with_tenant("other");
    assert_eq!(inbox(&approvals, &other_boss, first).await, pairs(&[("transfer", "ada")]));
    let no_tenant = Principal::new("finance");
    assert_eq!(inbox(&approvals, &no_tenant, first).await, []);
}

#[tokio::test]
async fn one_of_an_audience_decides_what_its_inbox_shows_and_it_is_gone_then() {
    let ledger = Arc::new(InMemoryLedger::new());
    let approvals = approvals(&ledger);
    ask(&approvals, &user("ada"), "c1", "transfer").await.unwrap();
    let finance = user("finance");
    let page = approvals.inbox(&finance, InboxQuery::default()).await.unwrap();
    let denial = ApprovalDecision::new(page.approvals[0].approval_id.clone(), false);
    // Who is in no audience and may decide can do so, too. Who may not decide cannot.
    let trainee = user("finance trainee");
    let groups = approvals.group_by_message(&trainee, vec![denial.clone()]).await.unwrap();
    assert_eq!(groups, []);
    let groups = approvals.group_by_message(&finance, vec![denial]).await.unwrap();
    let [group] = &groups[..] else { panic!("{groups:?}") };
    let chat = approvals.for_chat(&finance, &group.chat_id).on_behalf_of(&group.requester);
    chat.resolve(group.plan(), &[]).await.unwrap().next().await.unwrap();
    for principal in [&finance, &user("ada")] {
        assert_eq!(inbox(&approvals, principal, InboxQuery::default()).await, []);
    }
}

#[tokio::test]
async fn a_request_with_too_many_audiences_is_not_made() {
    let ledger = Arc::new(InMemoryLedger::new());
    let approvals = approvals(&ledger);
    let error = ask(&approvals, &user("ada"), "c1", "odd").await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "`Approvals::with_audiences` named more than 16 audiences for one request, or one of more than 128 bytes"
    );
    assert_eq!(approvals.pending(&user("ada")).await.unwrap(), []);
}

#[tokio::test]
async fn a_page_reads_no_more_than_200_requests_that_the_principal_may_not_decide() {
    let ledger = Arc::new(InMemoryLedger::new());
    let approvals = approvals(&ledger);
    for number in 0..250 {
        ask(&approvals, &user(&format!("user {number}")), "c1", "transfer").await.unwrap();
    }
    let trainee = user("finance trainee");
    let first = approvals.inbox(&trainee, InboxQuery::default()).await.unwrap();
    assert_eq!((first.approvals.len(), first.next.is_some()), (0, true));
    let second = InboxQuery { after: first.next, ..InboxQuery::default() };
    let second = approvals.inbox(&trainee, second).await.unwrap();
    assert_eq!((second.approvals.len(), second.next), (0, None));
}

#[tokio::test(start_paused = true)]
async fn requests_that_have_expired_are_not_listed_though_the_ledger_still_lists_them_first() {
    let ledger = Arc::new(InMemoryLedger::new());
    let ttl = std::time::Duration::from_secs(60);
    let approvals = approvals(&ledger).with_approval_ttl(ttl);
    let (ada, boss) = (user("ada"), user("finance and board"));
    for _ in 0..3 {
        ask(&approvals, &ada, "c1", "transfer").await.unwrap();
        ask(&approvals, &boss, "c1", "ring").await.unwrap();
    }
    tokio::time::advance(ttl).await;
    assert_eq!(inbox(&approvals, &boss, InboxQuery::default()).await, []);
    assert_eq!(approvals.pending(&ada).await.unwrap(), []);
    ask(&approvals, &ada, "c1", "delete").await.unwrap();
    tokio::time::advance(std::time::Duration::from_millis(5)).await;
    ask(&approvals, &boss, "c1", "transfer").await.unwrap();
    let listed = pairs(&[("delete", "ada"), ("transfer", "finance and board")]);
    for limit in [1, 2, 3, 100] {
        let query = InboxQuery { limit, ..InboxQuery::default() };
        assert_eq!(inbox(&approvals, &boss, query).await, listed, "{limit}");
    }
    assert_eq!(approvals.pending(&ada).await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_page_with_a_limit_of_0_says_whether_there_are_requests() {
    let approvals = approvals(&Arc::new(InMemoryLedger::new()));
    let ada = user("ada");
    let query = InboxQuery { limit: 0, ..InboxQuery::default() };
    let page = approvals.inbox(&ada, query).await.unwrap();
    assert_eq!((page.approvals.len(), page.next), (0, None));
    ask(&approvals, &ada, "c1", "transfer").await.unwrap();
    let page = approvals.inbox(&ada, query).await.unwrap();
    assert_eq!(page.approvals.len(), 0);
    let rest = InboxQuery { after: page.next, ..InboxQuery::default() };
    assert!(rest.after.is_some());
    assert_eq!(inbox(&approvals, &ada, rest).await, pairs(&[("transfer", "ada")]));
}
