//! The ledger in a real Redis: a Redis that ends, hangs, is full, or whose replies are lost, and
//! what is kept for how long.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;
use test_support::contention::InsertOne;

use test_support::contention;
use test_support::external_processes::redis_server::RedisServer;
use test_support::thread_subscriber::{CapturedLog, subscribe};
use ui_message_stream::AgentEvent;
use ui_message_stream::approval::store::{
    ApprovalUse, LedgerStore, LedgerStoreError, ListRecords, PendingLimits, RECORD_RETENTION,
    RecordList, ReplayGuard, update,
};
use ui_message_stream::approval::{
    ApprovalRecord, ApprovalState, Approvals, AuditEvent, AuditEventKind, AuditSink, Claim,
    DeferredOutcome, KeyRing, LeaseHolderId, Principal, RecordId, RecordedDecision, Stepped,
    ToolList, UnixMillis,
};
use ui_message_stream::event::ToolCall;
use ui_message_stream::json::Json;
use ui_message_stream_redis::{RedisOptions, RedisStore};

use crate::backend::{redis_and_store, redis_behind_proxy};

#[tokio::test]
async fn of_simultaneous_uses_of_a_stateless_approval_one_is_the_first() {
    let Some(redis) = RedisServer::start() else { return };
    let guard = Arc::new(RedisStore::connect(&redis.url()).await.unwrap());
    let now = guard.load(&[]).await.unwrap().now;
    let uses = (0..16).map(|_| {
        let (guard, until) = (Arc::clone(&guard), now.after(Duration::from_secs(60)));
        tokio::spawn(async move { guard.set_if_absent(id(1), ApprovalUse::Claimed, until).await })
    });
    let mut first = 0;
    for used in uses.collect::<Vec<_>>() {
        match used.await.unwrap().unwrap() {
            None => first += 1,
            earlier => assert_eq!(earlier, Some(ApprovalUse::Claimed)),
        }
    }
    assert_eq!(first, 1);
    let until = now.after(HOUR);
    assert_eq!(guard.set_if_absent(id(2), ApprovalUse::Denied, until).await.unwrap(), None);
    let later = guard.set_if_absent(id(2), ApprovalUse::Claimed, until).await.unwrap();
    assert_eq!(later, Some(ApprovalUse::Denied));
}

#[tokio::test]
async fn the_first_use_of_a_stateless_approval_can_be_read_and_reading_stores_nothing() {
    let Some((redis, guard)) = redis_and_store().await else { return };
    let now = guard.load(&[]).await.unwrap().now;
    let until = now.after(HOUR);
    assert_eq!(guard.first_use(id(1)).await.unwrap(), None);
    // The read use would otherwise be the first one.
    assert_eq!(guard.set_if_absent(id(1), ApprovalUse::Denied, until).await.unwrap(), None);
    for later in [ApprovalUse::Claimed, ApprovalUse::Denied] {
        let first = Some(ApprovalUse::Denied);
        assert_eq!(guard.first_use(id(1)).await.unwrap(), first);
        assert_eq!(guard.set_if_absent(id(1), later, until).await.unwrap(), first);
    }
    assert_eq!(guard.set_if_absent(id(2), ApprovalUse::Claimed, until).await.unwrap(), None);
    assert_eq!(guard.first_use(id(2)).await.unwrap(), Some(ApprovalUse::Claimed));
    // Another client of the same Redis reads the same, and an entry is kept until its time.
    let other = RedisStore::connect(&redis.url()).await.unwrap();
    assert_eq!(other.first_use(id(2)).await.unwrap(), Some(ApprovalUse::Claimed));
    assert_eq!(guard.set_if_absent(id(3), ApprovalUse::Claimed, now).await.unwrap(), None);
    assert_eq!(guard.first_use(id(3)).await.unwrap(), None);
}

#[tokio::test]
async fn reading_the_first_use_fails_if_redis_does_not_answer() {
    let Some((mut redis, guard)) = redis_and_store().await else { return };
    redis.kill();
    // `None` would mean that the call was not executed.
    assert!(guard.first_use(id(1)).await.is_err());
}

#[tokio::test]
async fn after_a_restart_redis_has_all_confirmed_writes_and_the_ledger_reconnects() {
    let Some((mut redis, ledger)) = redis_and_store().await else { return };
    let (claimed, pending) = (contention::record(id(1)), contention::record(id(2)));
    assert!(ledger.insert(&claimed).await.unwrap());
    assert!(ledger.insert(&pending).await.unwrap());
    assert_eq!(claim(&ledger, id(1), 1).await.unwrap(), granted(id(1)));
    redis.kill();
    for _ in 0..3 {
        assert!(ledger.load(&[id(1)]).await.is_err());
        assert!(claim(&ledger, id(2), 1).await.is_err());
    }
    redis.start_again();
    assert_eq!(claim(&ledger, id(1), 2).await.unwrap(), in_flight(id(1)));
    let filter = RecordList::of_requester(&pending.requester);
    let listed = ledger.read_list((&filter).into()).await.unwrap().records;
    assert_eq!(listed.iter().map(|stored| &stored.record).collect::<Vec<_>>(), [&pending]);
}

#[tokio::test]
async fn operations_fail_while_redis_hangs_and_succeed_afterwards() {
    let Some((redis, ledger)) = redis_and_store().await else { return };
    assert!(ledger.insert(&contention::record(id(1))).await.unwrap());
    redis.hang(true);
    let claimed = claim(&ledger, id(1), 1).await;
    let connected = RedisStore::connect(&redis.url()).await;
    redis.hang(false);
    assert!(claimed.is_err() && connected.is_err());
    assert_eq!(claim(&ledger, id(1), 1).await.unwrap(), granted(id(1)));
}

#[tokio::test]
async fn connecting_to_an_address_without_a_redis_is_an_error() {
    for url in ["redis://127.0.0.1:1/", "http://127.0.0.1/", "", "rediss://127.0.0.1:1/"] {
        assert!(RedisStore::connect(url).await.is_err(), "{url}");
    }
}

#[tokio::test]
async fn a_write_whose_reply_is_lost_is_applied_once_and_reports_success() {
    let Some((_redis, proxy, ledger)) = redis_behind_proxy().await else { return };
    let mut record = contention::record(id(1));
    // The scripts are loaded: the next reply is that of the write.
    assert!(ledger.insert(&contention::record(id(2))).await.unwrap());
    proxy.lose_replies(1);
    assert!(ledger.insert(&record).await.unwrap());
    assert_eq!(ledger.load(&[id(1)]).await.unwrap().records[0].revision, 0);
    let unused = ledger.load(&[id(2)]).await.unwrap().records.remove(0);
    assert!(ledger.compare_and_swap(&unused.record, unused.revision).await.unwrap());
    record.state = ApprovalState::Expired;
    proxy.lose_replies(1);
    assert!(ledger.compare_and_swap(&record, 0).await.unwrap());
    let stored = ledger.load(&[id(1)]).await.unwrap().records.remove(0);
    assert_eq!((stored.revision, &stored.record), (1, &record));
    assert!(!ledger.compare_and_swap(&record, 0).await.unwrap());
}

#[tokio::test]
async fn a_claim_whose_replies_are_all_lost_is_granted_when_the_same_holder_repeats_it() {
    let Some((_redis, proxy, ledger)) = redis_behind_proxy().await else { return };
    assert!(ledger.insert(&contention::record(id(1))).await.unwrap());
    let stored = ledger.load(&[id(1)]).await.unwrap().records.remove(0);
    assert!(ledger.compare_and_swap(&stored.record, stored.revision).await.unwrap());
    let claimed = update(&ledger, id(1), |record, now| {
        // The record was read. From here on, Redis receives all commands and all its replies are
        // lost.
        proxy.lose_replies(usize::MAX);
        record.claim(&approval(record, now), holder(1), HOUR)
    })
    .await;
    assert!(claimed.is_err());
    proxy.lose_replies(0);
    assert_eq!(claim(&ledger, id(1), 2).await.unwrap(), in_flight(id(1)));
    assert_eq!(claim(&ledger, id(1), 1).await.unwrap(), granted(id(1)));
}

#[tokio::test]
async fn a_full_redis_grants_no_claims_until_it_has_memory_again() {
    let Some((redis, ledger)) = redis_and_store().await else { return };
    assert!(ledger.insert(&contention::record(id(1))).await.unwrap());
    redis.command("CONFIG SET maxmemory 1");
    assert!(ledger.insert(&contention::record(id(2))).await.is_err());
    assert!(claim(&ledger, id(1), 1).await.is_err());
    redis.command("CONFIG SET maxmemory 0");
    let loaded = ledger.load(&[id(1), id(2)]).await.unwrap().records;
    assert_eq!(loaded.len(), 1);
    assert!(loaded[0].record.is_pending());
    assert_eq!(claim(&ledger, id(1), 1).await.unwrap(), granted(id(1)));
}

#[tokio::test]
async fn records_and_lists_are_deleted_a_day_after_the_approval_expires() {
    let Some(redis) = RedisServer::start() else { return };
    let ledger = RedisOptions::new().with_prefix("p:").connect(&redis.url()).await.unwrap();
    let mut last = contention::record(id(1));
    last.expires_at = last.expires_at.after(HOUR);
    let last_deletion = format!(":{}", last.expires_at.after(RECORD_RETENTION).0);
    for record in [&last, &contention::record(id(2))] {
        assert!(ledger.insert(record).await.unwrap());
        let deletion = redis.command(&format!("PEXPIRETIME p:record:{}", record.id));
        assert_eq!(deletion, format!(":{}", record.expires_at.after(RECORD_RETENTION).0));
    }
    claim(&ledger, id(1), 1).await.unwrap();
    assert_eq!(redis.command(&format!("PEXPIRETIME p:record:{}", id(1))), last_deletion);
    // A list is deleted together with the last of its records.
    for list in ["p:list:requester:*", "p:list:pending", "p:all:*"] {
        let script = format!("return redis.call('PEXPIRETIME', redis.call('KEYS', '{list}')[1])");
        assert_eq!(redis.command(&format!("EVAL \"{script}\" 0")), last_deletion);
    }
    // Every key of the ledger expires: the key of the clock after a minute.
    let count_without_expiry = "local n = 0 for _, key in ipairs(redis.call('KEYS', '*')) do \
                   if key ~= 'p:format' and redis.call('PTTL', key) < 0 then n = n + 1 end end return n";
    assert_eq!(redis.command(&format!("EVAL \"{count_without_expiry}\" 0")), ":0");
}

#[tokio::test]
async fn lists_drop_records_whose_retention_has_ended() {
    let Some((redis, ledger)) = redis_and_store().await else { return };
    let mut expired = contention::record(id(1));
    expired.expires_at.0 -= 25 * 60 * 60 * 1000;
    let stored = contention::record(id(2));
    assert!(ledger.insert(&stored).await.unwrap());
    assert!(ledger.insert(&expired).await.unwrap());
    let listed = ledger
        .read_list((&RecordList::of_requester(&stored.requester)).into())
        .await
        .unwrap()
        .records;
    assert_eq!(listed.iter().map(|stored| stored.record.id).collect::<Vec<_>>(), [id(2)]);
    assert!(ledger.insert(&contention::record(id(3))).await.unwrap());
    let count = "return redis.call('ZCARD', redis.call('KEYS', '*:list:requester:*')[1])";
    assert_eq!(redis.command(&format!("EVAL \"{count}\" 0")), ":2");
}

#[tokio::test]
async fn stores_with_different_prefixes_share_no_records() {
    let Some(redis) = RedisServer::start() else { return };
    let connect = async |prefix: &str| {
        RedisOptions::new().with_prefix(prefix).connect(&redis.url()).await.unwrap()
    };
    let (first, second) = (connect("one:").await, connect("other:").await);
    let record = contention::record(id(1));
    assert!(first.insert(&record).await.unwrap());
    assert!(second.load(&[id(1)]).await.unwrap().records.is_empty());
    assert!(
        second
            .read_list((&RecordList::of_requester(&record.requester)).into())
            .await
            .unwrap()
            .records
            .is_empty()
    );
    assert!(second.insert(&record).await.unwrap());
}

#[tokio::test]
async fn a_record_that_cannot_be_read_does_not_affect_other_records() {
    let Some((redis, ledger)) = redis_and_store().await else { return };
    for number in [1, 2] {
        assert!(ledger.insert(&contention::record(id(number))).await.unwrap());
    }
    redis.command(&format!("HSET ui-message-stream:record:{} record {{}}", id(1)));
    let read = ledger.load(&[id(1), id(2)]).await.unwrap().records;
    assert_eq!(read.iter().map(|stored| stored.record.id).collect::<Vec<_>>(), [id(2)]);
    assert!(ledger.insert(&contention::record(id(1))).await.unwrap());
    let read = ledger.load(&[id(1)]).await.unwrap().records;
    assert!(read.is_empty(), "it is not replaced");
}

#[tokio::test]
async fn an_insertion_among_4000_pending_records_runs_a_fixed_number_of_commands() {
    let Some((redis, ledger)) = redis_and_store().await else { return };
    let limits = PendingLimits { chat: 5_000, requester: 5_000 };
    let record = |number: u32| {
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(&number.to_be_bytes());
        contention::record(RecordId::from_bytes(bytes))
    };
    let mut commands = Vec::new();
    for (first, pending) in [(0, 10), (10, 4_000)] {
        let records: Vec<_> = (first..pending).map(record).collect();
        for batch in records.chunks(500) {
            assert_eq!(ledger.insert_all(batch, limits).await.unwrap().stored, batch.len());
        }
        redis.command("CONFIG RESETSTAT");
        let more = [record(10_000 + first)];
        assert_eq!(ledger.insert_all(&more, limits).await.unwrap().stored, 1);
        let list = RecordList::of_requester(&more[0].requester);
        let page = ListRecords { limit: 5, ..(&list).into() };
        assert_eq!(ledger.read_list(page).await.unwrap().records.len(), 5);
        commands.push(redis.executed_commands());
    }
    assert!(commands[0] > 10 && commands[1] <= commands[0], "{commands:?}");
}

#[tokio::test]
async fn a_record_of_a_newer_format_is_an_error_that_names_the_format_in_its_source() {
    let Some((redis, ledger)) = redis_and_store().await else { return };
    for number in [1, 2] {
        assert!(ledger.insert(&contention::record(id(number))).await.unwrap());
    }
    let key = format!("ui-message-stream:record:{}", id(1));
    redis.command(&format!(r#"HSET {key} record '{{"state":"paused","format":2}}'"#));
    let log = CapturedLog::default();
    let subscriber = tracing_subscriber::fmt().with_writer(log.writer()).with_ansi(false).finish();
    let _subscription = subscribe(subscriber);
    let requester = contention::record(id(1)).requester;
    let pending = RecordList::of_chat(&requester, &"chat".into());
    for failed in [
        ledger.load(&[id(1), id(2)]).await.map(drop),
        ledger.read_list((&pending).into()).await.map(drop),
    ] {
        let error = failed.unwrap_err();
        assert_eq!(error.to_string(), "the approval ledger failed");
        assert_eq!(
            error.source().unwrap().to_string(),
            "ledger record: format 2 is newer than this version of ui-message-stream reads \
             (1); upgrade the server"
        );
    }
    let format_named = log.text().matches("format 2 is newer").count();
    assert_eq!(format_named, 2, "{}", log.text());
    assert_eq!(ledger.load(&[id(2)]).await.unwrap().records.len(), 1);
}

#[tokio::test]
async fn the_time_does_not_go_back_unless_the_clock_was_more_than_a_minute_ahead() {
    let Some((redis, ledger)) = redis_and_store().await else { return };
    let now = ledger.load(&[]).await.unwrap().now;
    // As if Redis had returned this time before its clock was set back.
    let earlier = now.after(Duration::from_secs(50));
    redis.command(&format!("SET ui-message-stream:clock {}", earlier.0));
    assert_eq!(ledger.load(&[]).await.unwrap().now, earlier);
    assert!(ledger.insert(&contention::record(id(1))).await.unwrap());
    assert_eq!(ledger.load(&[]).await.unwrap().now, earlier);
    let far_ahead = now.after(HOUR);
    redis.command(&format!("SET ui-message-stream:clock {}", far_ahead.0));
    assert!(ledger.load(&[]).await.unwrap().now < far_ahead);
    assert!(ledger.insert(&contention::record(id(2))).await.unwrap());
    assert!(ledger.load(&[]).await.unwrap().now < far_ahead);
}

/// Claims the record, and returns the outcome of its call.
async fn claim(
    ledger: &RedisStore,
    id: RecordId,
    number: u8,
) -> Result<(Stepped, Option<DeferredOutcome>), LedgerStoreError> {
    let changed = update(ledger, id, |record, now| {
        record.claim(&approval(record, now), holder(number), HOUR)
    });
    let (record, stepped) = changed.await?.unwrap();
    Ok((stepped, record.outcome()))
}

fn approval(record: &ApprovalRecord, now: UnixMillis) -> RecordedDecision {
    RecordedDecision::new(record.requester.clone(), now)
}

fn granted(record: RecordId) -> (Stepped, Option<DeferredOutcome>) {
    let claim = serde_json::json!({"record": record, "fence": 1});
    let claim = serde_json::from_value::<Claim>(claim).unwrap();
    (Stepped::Granted(claim), Some(DeferredOutcome::Executing { record }))
}

/// What another holder gets.
fn in_flight(record: RecordId) -> (Stepped, Option<DeferredOutcome>) {
    (Stepped::Counts, Some(DeferredOutcome::Executing { record }))
}

fn id(number: u8) -> RecordId {
    RecordId::from_bytes([number; 16])
}

fn holder(number: u8) -> LeaseHolderId {
    LeaseHolderId::from_bytes([number; 16])
}

const HOUR: Duration = Duration::from_secs(60 * 60);

/// The events of all servers.
#[derive(Debug, Clone, Default)]
struct Audit(Arc<std::sync::Mutex<Vec<AuditEvent>>>);

impl AuditSink for Audit {
    fn record(&self, event: &AuditEvent) {
        self.0.lock().unwrap().push(event.clone());
    }
}

#[tokio::test]
async fn of_two_servers_one_expires_each_request() {
    let Some(redis) = RedisServer::start() else { return };
    let audit = Audit::default();
    let mut servers = Vec::new();
    for _ in 0..2 {
        let store = RedisStore::connect(&redis.url()).await.unwrap();
        let tools = ToolList::new().tool("ring", "Rings the bell.", &Json::null());
        let approvals = Approvals::new(tools)
            .with_keys(KeyRing::new(1, &test_support::secret(7)).unwrap())
            .with_ledger(Arc::new(store))
            .with_approval_ttl(Duration::from_millis(300))
            .with_audit(audit.clone());
        servers.push(approvals);
    }
    for chat in 0..20 {
        let chat = format!("chat-{chat}").into();
        let approvals = servers[0].for_chat(&Principal::new("ada"), &chat);
        let call = ToolCall::new("call", "ring");
        let asked = approvals.request_approval_of(&call, &Json::null()).await;
        assert!(matches!(asked, AgentEvent::ApprovalRequested { .. }), "{asked:?}");
    }
    let expiring = servers.into_iter().map(|approvals| {
        tokio::spawn(async move {
            let mut expired = 0;
            loop {
                let done = approvals.expire_due().await.unwrap();
                expired += done.records.len();
                let Some(next_in) = done.next_in else { return expired };
                tokio::time::sleep(next_in).await;
            }
        })
    });
    let expiring: Vec<_> = expiring.collect();
    let mut expired = 0;
    for server in expiring {
        expired += server.await.unwrap();
    }
    assert_eq!(expired, 20);
    let events = audit.0.lock().unwrap();
    let events = events.iter().filter(|event| event.kind == AuditEventKind::Expired);
    let mut records: Vec<_> = events.map(|event| event.record.unwrap().to_string()).collect();
    assert_eq!(records.len(), 20, "one event for each");
    records.sort();
    records.dedup();
    assert_eq!(records.len(), 20);
}
