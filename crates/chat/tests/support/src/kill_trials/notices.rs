//! [`Notices`]: servers are killed while they deliver the events of approvals, and the notifier works, fails, is
//! slow, or is down. Each event of each approval request is delivered at least once, no other event is delivered,
//! and the first deliveries of the events of one request are in their order.
//!
//! A lease takes 30 seconds or more, so the trial sets the time of the ledger. A lease can also end while its
//! server still delivers.

use std::collections::BTreeMap;
use std::fs;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use test_support::kills::{Backend, Journal, Role, SEED, Trial, kill_at_random};
use test_support::rng::Dice;
use tokio::time::{sleep, timeout};
use ui_message_stream::approval::store::{LedgerStore, RecordList, VersionedRecord};
use ui_message_stream::approval::{
    ApprovalDecision, ApprovalEvent, ApprovalNotice, ApprovalRecord, Approvals, ApprovedCall,
    KeyRing, Notifier, Progress, RecordId, ToolInfo, ToolOutcome, Toolbox,
};
use ui_message_stream::{BoxError, BoxFuture, Json};

use super::{Store, TOOL, ada, tool_info};

pub(super) async fn each_event_is_delivered_at_least_once_and_in_order(
    backend: &impl Backend<Store: Store>,
) -> String {
    kill_at_random::<_, Notices>(backend).await
}

pub(super) struct Notices;

impl<B: Backend<Store: Store>> Trial<B> for Notices {
    const ROLE: &'static str = "notices";
    const MAX_LINES: usize = 40;

    async fn act(role: Role, store: Arc<B::Store>) {
        let dice = |part| Dice::new(SEED, 2 * role.number + part);
        let approvals = approvals(&role, store, Some(Mutex::new(dice(0))));
        tokio::join!(deliver(&approvals), request(&approvals, dice(1)));
    }

    fn disturb(journal: &Journal, random: &mut Dice) {
        set_down(journal, random.chance(25));
        journal.pass_time(Duration::from_secs([0, 31, 31, 300, 1_800][random.below(5)]));
    }

    async fn check(store: Arc<B::Store>, journal: Journal, next: u64) -> String {
        let unanswered = journal.after("delivered").len() - journal.after("answered").len();
        assert!(unanswered > 0, "no server was killed while it delivered");
        let role = Role::of_test("", next, String::new(), journal.clone());
        let records = deliver_the_rest(store, &role).await;
        format!("{unanswered} deliveries had no answer; {}", check(&records, &journal))
    }
}

async fn deliver(approvals: &Approvals) {
    let mut new_events = approvals.new_events();
    loop {
        while approvals.deliver_due().await.unwrap() {}
        approvals.expire_due().await.unwrap();
        let _ = timeout(Duration::from_millis(50), new_events.next()).await;
    }
}

async fn request(approvals: &Approvals, mut random: Dice) {
    let input = Json::parse("{}").unwrap();
    loop {
        let chat = format!("chat {}", random.below(1_000_000));
        let chat = approvals.for_chat(&ada(), &chat.into());
        let issued = chat.request_approval(&"m".into(), &"call".into(), TOOL, &input, None).await;
        let issued = issued.unwrap();
        match random.below(10) {
            answer @ 0..6 => {
                let decision = ApprovalDecision::new(issued.approval_id, answer < 4);
                let groups = approvals.group_by_message(&ada(), vec![decision]).await.unwrap();
                for group in groups {
                    let chat = approvals.for_chat(&ada(), &group.chat_id);
                    let mut resolved = chat.resolve(group.plan(), &[]).await.unwrap();
                    while resolved.next().await.is_some() {}
                }
            }
            6 | 7 => drop(approvals.revoke(issued.record).await.unwrap()),
            // It stays pending until it expires.
            _ => {}
        }
        pause(random.below(20)).await;
    }
}

/// Delivers what is left with a notifier that works, and returns all records.
async fn deliver_the_rest(store: Arc<dyn LedgerStore>, role: &Role) -> Vec<ApprovalRecord> {
    set_down(&role.journal, false);
    let approvals = approvals(role, store.clone(), None);
    let requested = role.journal.after("asks").into_iter();
    let requested = requested.map(|line| line.rsplit(' ').next().unwrap().parse().unwrap());
    let requested: Vec<RecordId> = requested.collect();
    // The calls of lost servers get their outcomes.
    role.journal.pass_time(2 * MAX_LEASE);
    for VersionedRecord { record, .. } in store.load(&requested).await.unwrap().records {
        let keys = KeyRing::new(1, &test_support::secret(7)).unwrap();
        let id = record.approval_id(&keys, record.requested_at).unwrap();
        approvals.for_chat(&ada(), &record.chat_id).outcomes(&[id]).await.unwrap();
    }
    while approvals.deliver_due().await.unwrap() {}
    let left = store.read_list((&RecordList::to_notify()).into()).await.unwrap().records;
    assert!(left.is_empty(), "not delivered: {left:?}");
    let records = store.load(&requested).await.unwrap().records;
    records.into_iter().map(|stored| stored.record).collect()
}

/// Compares what was delivered with the events of all records. Returns the counts.
fn check(records: &[ApprovalRecord], journal: &Journal) -> String {
    let delivered = journal.after("delivered");
    // The first deliveries of each record, in their order.
    let mut firsts: BTreeMap<RecordId, Vec<&str>> = BTreeMap::new();
    for line in &delivered {
        let id = line.split_once('-').unwrap().0.parse().unwrap();
        let firsts = firsts.entry(id).or_default();
        if !firsts.contains(&&**line) {
            firsts.push(line);
        }
    }
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for record in records {
        let events = ApprovalEvent::all_of(record).into_iter().map(|(event, _)| name(event));
        let events: Vec<String> = events
            .inspect(|event| *counts.entry(event.clone()).or_default() += 1)
            .enumerate()
            .map(|(number, event)| format!("{}-{number} {event}", record.id))
            .collect();
        assert_eq!(firsts.remove(&record.id).unwrap_or_default(), events, "{record:?}");
    }
    assert!(firsts.is_empty(), "there are no such records: {firsts:?}");
    let events: usize = counts.values().sum();
    let repeated = delivered.len() - events;
    assert!(repeated > 0, "no event was delivered again");
    assert!(events > records.len(), "no request has two events");
    format!("{events} events of {} requests, {repeated} repeated: {counts:?}", records.len())
}

fn approvals(role: &Role, ledger: Arc<dyn LedgerStore>, fates: Option<Mutex<Dice>>) -> Approvals {
    super::approvals(role, ledger, Tool)
        .with_approval_ttl(Duration::from_secs(3_600))
        .with_notifier(JournalNotifier { journal: role.journal.clone(), fates })
}

/// A notifier that writes each event. It is down, fails, or is slow.
#[derive(Debug)]
struct JournalNotifier {
    journal: Journal,
    /// It never fails if there are none.
    fates: Option<Mutex<Dice>>,
}

impl Notifier for JournalNotifier {
    fn notify<'a>(&'a self, notice: &'a ApprovalNotice) -> BoxFuture<'a, Result<(), BoxError>> {
        Box::pin(async move {
            let random = |end| {
                let fates = self.fates.as_ref().map(|fates| fates.lock().unwrap());
                fates.map_or(0, |mut fates| fates.below(end))
            };
            if self.journal.path("down").exists() {
                return Err("it is down".into());
            }
            pause(random(10)).await;
            self.journal.write(format!("delivered {} {}", notice.id(), name(notice.event)));
            let answer = match random(10) {
                8 | 9 => Err("the answer is lost".into()),
                6 | 7 => {
                    pause(100 + random(400)).await;
                    Ok(())
                }
                _ => Ok(()),
            };
            self.journal.write(format!("answered {}", notice.id()));
            answer
        })
    }
}

/// Sets whether the notifier of all servers is down.
fn set_down(journal: &Journal, is_down: bool) {
    match is_down {
        true => fs::write(journal.path("down"), "").unwrap(),
        false => drop(fs::remove_file(journal.path("down"))),
    }
}

/// The only tool.
#[derive(Debug)]
struct Tool;

impl Toolbox for Tool {
    fn tool(&self, name: &str) -> Option<ToolInfo> {
        tool_info(name)
    }

    fn permits<'a>(&'a self, _: &'a ApprovedCall) -> BoxFuture<'a, bool> {
        Box::pin(async { true })
    }

    fn run(&self, call: ApprovedCall, _: Progress) -> BoxFuture<'static, ToolOutcome> {
        Box::pin(async {
            pause(20).await;
            ToolOutcome::Output(call.input)
        })
    }
}

async fn pause(milliseconds: usize) {
    sleep(Duration::from_millis(milliseconds as u64)).await;
}

/// Returns the name of an event.
fn name(event: ApprovalEvent) -> String {
    json!(event).as_str().unwrap().to_owned()
}

/// 30 seconds, doubled seven times.
const MAX_LEASE: Duration = Duration::from_secs(3_840);
