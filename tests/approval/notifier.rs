//! A notifier is told of each event at least once, in order, also after errors and crashes.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::sleep;
use ui_message_stream::approval::store::InMemoryLedger;
use ui_message_stream::approval::{
    ApprovalDecision, ApprovalNotice, Approvals, IssuedApproval, KeyRing, Notifier,
};
use ui_message_stream::{BoxError, BoxFuture, Json};

use super::one_tool::{Effects, ada};

/// What happens to the next deliveries.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fate {
    Delivered,
    Fails,
    Hangs,
    Panics,
    /// It was delivered, and the answer was lost.
    DeliveredAndFails,
}

/// A notifier that remembers what it was told, by the ids of the events.
#[derive(Debug, Clone, Default)]
struct Told {
    events: Arc<Mutex<Vec<(String, String)>>>,
    fates: Arc<Mutex<Vec<Fate>>>,
}

impl Told {
    fn will(&self, fates: &[Fate]) {
        *self.fates.lock().unwrap() = fates.iter().rev().copied().collect();
    }

    /// The kinds, in order.
    fn kinds(&self) -> Vec<String> {
        self.events.lock().unwrap().iter().map(|(_, kind)| kind.clone()).collect()
    }
}

impl Notifier for Told {
    fn notify<'a>(&'a self, notice: &'a ApprovalNotice) -> BoxFuture<'a, Result<(), BoxError>> {
        let fate = self.fates.lock().unwrap().pop().unwrap_or(Fate::Delivered);
        assert_ne!(fate, Fate::Panics);
        Box::pin(async move {
            let body: Value = serde_json::from_str(&notice.to_json()).unwrap();
            let kind = body["event"]["kind"].as_str().unwrap().to_owned();
            assert_eq!(body["id"], json!(notice.id()));
            match fate {
                Fate::Fails => return Err("no mail today".into()),
                Fate::Hangs => std::future::pending().await,
                _ => self.events.lock().unwrap().push((notice.id(), kind)),
            }
            match fate {
                Fate::DeliveredAndFails => Err("the answer was lost".into()),
                _ => Ok(()),
            }
        })
    }
}

fn server(ledger: &Arc<InMemoryLedger>, told: &Told) -> Approvals {
    Approvals::new(Effects::default())
        .with_keys(KeyRing::new(1, &test_support::secret(7)).unwrap())
        .with_notifier(told.clone())
        .with_ledger(ledger.clone())
}

async fn ask(approvals: &Approvals) -> IssuedApproval {
    let chat = approvals.for_chat(&ada(), &"chat".into());
    let input = Json::parse("{}").unwrap();
    chat.request_approval(&"m".into(), &"call".into(), "delete_file", &input, None).await.unwrap()
}

async fn answer(approvals: &Approvals, issued: &IssuedApproval, approved: bool) {
    let decision = ApprovalDecision::new(issued.approval_id.clone(), approved);
    for group in approvals.group_by_message(&ada(), vec![decision]).await.unwrap() {
        let chat = approvals.for_chat(&ada(), &group.chat_id);
        let mut resolved = chat.resolve(group.plan(), &[]).await.unwrap();
        while resolved.next().await.is_some() {}
    }
}

#[tokio::test(start_paused = true)]
async fn each_event_is_delivered_once_and_in_order() {
    let (ledger, told) = (Arc::new(InMemoryLedger::new()), Told::default());
    let approvals = server(&ledger, &told).with_approval_ttl(Duration::from_secs(600));
    let [approved, denied, _expires] =
        [ask(&approvals).await, ask(&approvals).await, ask(&approvals).await];
    sleep(Duration::from_millis(1)).await;
    assert_eq!(told.kinds(), ["requested"; 3], "at once");
    answer(&approvals, &approved, true).await;
    answer(&approvals, &denied, false).await;
    sleep(Duration::from_millis(1)).await;
    let mut kinds = told.kinds().split_off(3);
    kinds.sort_unstable();
    assert_eq!(kinds, ["approved", "denied", "executed"]);
    sleep(Duration::from_secs(700)).await;
    assert_eq!(approvals.expire_due().await.unwrap().records.len(), 1);
    sleep(Duration::from_millis(1)).await;
    assert_eq!(told.kinds().split_off(6), ["expired"]);
    let events = told.events.lock().unwrap().clone();
    for issued in [approved, denied] {
        let mine = events.iter().filter(|(id, _)| id.starts_with(&issued.record.to_string()));
        let numbers: Vec<_> = mine.map(|(id, _)| id.rsplit_once('-').unwrap().1).collect();
        assert_eq!(numbers, ["0", "1", "2"][..numbers.len()]);
    }
}

#[tokio::test(start_paused = true)]
async fn an_event_that_was_not_delivered_is_delivered_again_and_before_the_next_one() {
    for fate in [Fate::Fails, Fate::Hangs, Fate::Panics] {
        let (ledger, told) = (Arc::new(InMemoryLedger::new()), Told::default());
        let approvals = server(&ledger, &told);
        told.will(&[fate, fate]);
        let issued = ask(&approvals).await;
        sleep(Duration::from_secs(1)).await;
        answer(&approvals, &issued, true).await;
        sleep(Duration::from_secs(1)).await;
        assert_eq!(told.kinds(), [""; 0], "{fate:?}: nothing overtakes it");
        sleep(Duration::from_secs(180)).await;
        assert_eq!(told.kinds(), ["requested", "approved", "executed"], "{fate:?}");
    }
    let (ledger, told) = (Arc::new(InMemoryLedger::new()), Told::default());
    told.will(&[Fate::DeliveredAndFails]);
    let approvals = server(&ledger, &told);
    ask(&approvals).await;
    sleep(Duration::from_secs(90)).await;
    assert_eq!(told.kinds(), ["requested", "requested"], "at least once");
    let events = told.events.lock().unwrap();
    assert_eq!(events[0].0, events[1].0, "with the same id");
}

#[tokio::test(start_paused = true)]
async fn another_server_delivers_what_a_lost_one_has_left() {
    let (ledger, told) = (Arc::new(InMemoryLedger::new()), Told::default());
    let never = Told::default();
    never.will(&[Fate::Hangs; 9]);
    let lost = server(&ledger, &never);
    let issued = ask(&lost).await;
    answer(&lost, &issued, false).await;
    sleep(Duration::from_millis(1)).await;
    drop(lost);
    let next = server(&ledger, &told);
    next.start_notifier();
    sleep(Duration::from_secs(90)).await;
    assert_eq!(told.kinds(), ["requested", "denied"]);
    assert_eq!(never.kinds(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn of_two_servers_one_delivers_an_event() {
    let (ledger, told) = (Arc::new(InMemoryLedger::new()), Told::default());
    let servers = [(); 2].map(|()| server(&ledger, &told));
    for server in &servers {
        server.start_notifier();
    }
    for round in 0..20 {
        let issued = ask(&servers[round % 2]).await;
        answer(&servers[(round + 1) % 2], &issued, true).await;
        for server in &servers {
            server.start_notifier();
        }
        sleep(Duration::from_millis(7)).await;
    }
    sleep(Duration::from_secs(90)).await;
    let mut ids: Vec<String> =
        told.events.lock().unwrap().iter().map(|(id, _)| id.clone()).collect();
    assert_eq!(ids.len(), 60);
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 60);
}

#[tokio::test(start_paused = true)]
async fn a_notifier_that_hangs_delays_no_request_and_no_decision() {
    let (ledger, told) = (Arc::new(InMemoryLedger::new()), Told::default());
    told.will(&[Fate::Hangs; 999]);
    let approvals = server(&ledger, &told);
    let begun = tokio::time::Instant::now();
    for _ in 0..40 {
        let issued = ask(&approvals).await;
        answer(&approvals, &issued, true).await;
    }
    assert_eq!(begun.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_was_made_without_a_notifier_has_no_events() {
    let (ledger, told) = (Arc::new(InMemoryLedger::new()), Told::default());
    let silent = Approvals::new(Effects::default()).with_ledger(ledger.clone());
    ask(&silent).await;
    let approvals = server(&ledger, &told);
    approvals.start_notifier();
    sleep(Duration::from_secs(90)).await;
    assert_eq!(told.kinds(), [""; 0]);
    ask(&approvals).await;
    sleep(Duration::from_secs(1)).await;
    assert_eq!(told.kinds(), ["requested"]);
}
