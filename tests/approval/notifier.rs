//! Each event is delivered to the notifier at least once and in order, also after errors and crashes.

use std::ops::Deref;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use test_support::approvals;
use test_support::requests::ada;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use ui_message_stream::approval::store::{InMemoryLedger, update};
use ui_message_stream::approval::{
    ApprovalDecision, ApprovalNotice, ApprovalRecord, Approvals, IssuedApproval, KeyRing,
    LeaseHolderId, Notifier, RecordedDecision, Transition, UnixMillis,
};
use ui_message_stream::{BoxError, BoxFuture};

use super::one_tool::Effects;

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
            let kind = body["event"].as_str().unwrap().to_owned();
            assert_eq!(
                body["decidedBy"].is_null(),
                !matches!(&*kind, "approved" | "denied" | "executed" | "outcome-unknown")
            );
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

/// A server with the task that delivers events.
struct Server(Approvals, JoinHandle<()>);

impl Drop for Server {
    fn drop(&mut self) {
        self.1.abort();
    }
}

impl Deref for Server {
    type Target = Approvals;

    fn deref(&self) -> &Approvals {
        &self.0
    }
}

fn server(ledger: &Arc<InMemoryLedger>, told: &Told) -> Server {
    server_with(approvals(told).with_ledger(ledger.clone()))
}

fn server_with(approvals: Approvals) -> Server {
    let (delivered, mut new_events) = (approvals.clone(), approvals.new_events());
    let task = tokio::spawn(async move {
        loop {
            while delivered.deliver_due().await.is_ok_and(|has_more| has_more) {}
            let _ = timeout(Duration::from_secs(30), new_events.next()).await;
        }
    });
    Server(approvals, task)
}

fn approvals(told: &Told) -> Approvals {
    Approvals::new(Effects::default())
        .with_keys(KeyRing::new(1, &test_support::secret(7)).unwrap())
        .with_notifier(told.clone())
}

async fn ask(approvals: &Approvals) -> IssuedApproval {
    approvals::ask(approvals, "call", "delete_file", json!({})).await
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
    let approvals = approvals(&told).with_approval_ttl(Duration::from_secs(600));
    let approvals = server_with(approvals.with_ledger(ledger.clone()));
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
    let _next = server(&ledger, &told);
    sleep(Duration::from_secs(90)).await;
    assert_eq!(told.kinds(), ["requested", "denied"]);
    assert_eq!(never.kinds(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn of_two_servers_one_delivers_an_event() {
    let (ledger, told) = (Arc::new(InMemoryLedger::new()), Told::default());
    let servers = [(); 2].map(|()| server(&ledger, &told));
    for round in 0..20 {
        let issued = ask(&servers[round % 2]).await;
        answer(&servers[(round + 1) % 2], &issued, true).await;
        // Both look for events.
        for server in &servers {
            server.deliver_due().await.unwrap();
        }
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
    sleep(Duration::from_secs(90)).await;
    assert_eq!(told.kinds(), [""; 0]);
    ask(&approvals).await;
    sleep(Duration::from_secs(1)).await;
    assert_eq!(told.kinds(), ["requested"]);
}

#[tokio::test(start_paused = true)]
async fn events_that_are_not_delivered_keep_no_others_waiting_and_are_tried_less_often() {
    let (ledger, told) = (Arc::new(InMemoryLedger::new()), Told::default());
    let failing = [Fate::Hangs; 40];
    told.will(&failing);
    let approvals = server(&ledger, &told);
    for _ in 0..failing.len() {
        ask(&approvals).await;
    }
    // Three rounds of at most 16.
    sleep(Duration::from_secs(29)).await;
    assert_eq!((told.kinds().len(), told.fates.lock().unwrap().len()), (0, 0));
    told.will(&[Fate::Fails; 999]);
    sleep(Duration::from_secs(3_600)).await;
    // After 30 seconds, 1 minute, 2, 4 and so on.
    let attempts = 999 - told.fates.lock().unwrap().len();
    assert!((40 * 5..=40 * 7).contains(&attempts), "{attempts}");
    told.will(&[]);
    ask(&approvals).await;
    sleep(Duration::from_millis(1)).await;
    assert_eq!(told.kinds(), ["requested"], "at once");
}

#[tokio::test(start_paused = true)]
async fn each_way_in_which_a_request_ends_is_an_event() {
    let (ledger, told) = (Arc::new(InMemoryLedger::new()), Told::default());
    let approvals = server(&ledger, &told);
    let revoked = ask(&approvals).await;
    approvals.revoke(revoked.record).await.unwrap();
    sleep(Duration::from_millis(1)).await;
    let unknown = ask(&approvals).await;
    for rule in [
        (|record: &ApprovalRecord, now| {
            let decision = RecordedDecision::new(ada(), now);
            let claim = record.claim(&decision, LeaseHolderId::from_bytes([1; 16]), Duration::ZERO);
            Transition { output: (), next: claim.next }
        }) as fn(&ApprovalRecord, UnixMillis) -> Transition<()>,
        |record, now| Transition { output: (), next: record.expire(now).next },
    ] {
        update(&*ledger, unknown.record, rule).await.unwrap();
        sleep(Duration::from_secs(31)).await;
    }
    assert_eq!(told.kinds(), ["requested", "revoked", "requested", "approved", "outcome-unknown"]);
}
