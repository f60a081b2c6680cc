//! The ledger in a real Redis: what a store promises, contenders with a connection each, and a Redis
//! that goes away, hangs, is full, or whose replies are lost.

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use test_support::contention;
use test_support::external_processes::redis_server::RedisServer;
use test_support::external_processes::{number, say};
use test_support::thread_subscriber::subscribe;
use ui_message_stream::approval::store::{
    LedgerStore, LedgerStoreError, PendingFilter, RECORD_RETENTION, conformance, update,
};
use ui_message_stream::approval::{
    ApprovalRecord, ApprovalState, Claim, ClaimResult, LeaseHolderId, RecordId, RecordedDecision,
    UnixMillis,
};
use ui_message_stream_redis::RedisLedger;

use super::proxy::Proxy;

#[tokio::test]
async fn the_ledger_in_redis_passes() {
    let Some(redis) = RedisServer::start() else { return };
    let url = redis.url();
    let cases = conformance::check(async || RedisLedger::connect(&url).await.unwrap()).await;
    say(&format!("conformance of the ledger in Redis: {cases} cases"));
}

#[test]
fn of_16_clients_that_claim_an_approval_one_wins() {
    let Some(redis) = RedisServer::start() else { return };
    let url = redis.url();
    let tally = contention::race(number("REDIS_RACES", 300), async || {
        Arc::new(RedisLedger::connect(&url).await.unwrap()) as Arc<dyn LedgerStore>
    });
    say(&format!("the ledger in Redis, 16 clients: {tally}"));
}

#[tokio::test]
async fn a_redis_that_was_killed_has_what_it_answered_and_is_found_again() {
    let Some(mut redis) = RedisServer::start() else { return };
    let ledger = RedisLedger::connect(&redis.url()).await.unwrap();
    let (claimed, pending) = (contention::record(id(1)), contention::record(id(2)));
    assert!(ledger.insert(&claimed).await.unwrap());
    assert!(ledger.insert(&pending).await.unwrap());
    assert_eq!(claim(&ledger, id(1), 1).await.unwrap(), won(id(1)));
    redis.kill();
    for _ in 0..3 {
        assert!(ledger.load(&[id(1)]).await.is_err());
        assert!(claim(&ledger, id(2), 1).await.is_err());
    }
    redis.start_again();
    assert_eq!(claim(&ledger, id(1), 2).await.unwrap(), ClaimResult::InFlight);
    let of = PendingFilter::Requester(&pending.requester);
    let listed = ledger.pending(of).await.unwrap().records;
    assert_eq!(listed.iter().map(|kept| &kept.record).collect::<Vec<_>>(), [&pending]);
}

#[tokio::test]
async fn a_redis_that_hangs_is_an_error_until_it_goes_on() {
    let Some(redis) = RedisServer::start() else { return };
    let ledger = RedisLedger::connect(&redis.url()).await.unwrap();
    assert!(ledger.insert(&contention::record(id(1))).await.unwrap());
    redis.hang(true);
    let answer = claim(&ledger, id(1), 1).await;
    let connected = RedisLedger::connect(&redis.url()).await;
    redis.hang(false);
    assert!(answer.is_err() && connected.is_err());
    assert_eq!(claim(&ledger, id(1), 1).await.unwrap(), won(id(1)));
}

#[tokio::test]
async fn an_address_where_no_redis_is_is_an_error() {
    for url in ["redis://127.0.0.1:1/", "http://127.0.0.1/", "", "rediss://127.0.0.1:1/"] {
        assert!(RedisLedger::connect(url).await.is_err(), "{url}");
    }
}

#[tokio::test]
async fn a_write_whose_reply_is_lost_took_place_once_and_says_so() {
    let Some(redis) = RedisServer::start() else { return };
    let proxy = Proxy::before(redis.port());
    let ledger = RedisLedger::connect(&proxy.url).await.unwrap();
    let mut record = contention::record(id(1));
    // The scripts are there: the next reply is that of the write.
    assert!(ledger.insert(&contention::record(id(2))).await.unwrap());
    proxy.lose_replies(1);
    assert!(ledger.insert(&record).await.unwrap());
    assert!(!ledger.insert(&record).await.unwrap());
    let unused = ledger.load(&[id(2)]).await.unwrap().records.remove(0);
    assert!(ledger.compare_and_swap(&unused.record, unused.revision).await.unwrap());
    record.state = ApprovalState::Expired;
    proxy.lose_replies(1);
    assert!(ledger.compare_and_swap(&record, 0).await.unwrap());
    let kept = ledger.load(&[id(1)]).await.unwrap().records.remove(0);
    assert_eq!((kept.revision, &kept.record), (1, &record));
    assert!(!ledger.compare_and_swap(&record, 0).await.unwrap());
}

#[tokio::test]
async fn a_claim_whose_replies_are_all_lost_is_won_by_asking_again() {
    let Some(redis) = RedisServer::start() else { return };
    let proxy = Proxy::before(redis.port());
    let ledger = RedisLedger::connect(&proxy.url).await.unwrap();
    assert!(ledger.insert(&contention::record(id(1))).await.unwrap());
    let kept = ledger.load(&[id(1)]).await.unwrap().records.remove(0);
    assert!(ledger.compare_and_swap(&kept.record, kept.revision).await.unwrap());
    let answer = update(&ledger, id(1), |record, now| {
        // It was read; from here on Redis hears everything and nobody hears Redis.
        proxy.lose_replies(usize::MAX);
        record.claim(&yes(record, now), claimant(1), HOUR)
    })
    .await;
    assert!(answer.is_err());
    proxy.lose_replies(0);
    assert_eq!(claim(&ledger, id(1), 2).await.unwrap(), ClaimResult::InFlight);
    assert_eq!(claim(&ledger, id(1), 1).await.unwrap(), won(id(1)));
}

#[tokio::test]
async fn a_redis_that_is_full_gives_no_claims_and_goes_on_when_there_is_room() {
    let Some(redis) = RedisServer::start() else { return };
    let ledger = RedisLedger::connect(&redis.url()).await.unwrap();
    assert!(ledger.insert(&contention::record(id(1))).await.unwrap());
    redis.command("CONFIG SET maxmemory 1");
    assert!(ledger.insert(&contention::record(id(2))).await.is_err());
    assert!(claim(&ledger, id(1), 1).await.is_err());
    redis.command("CONFIG SET maxmemory 0");
    let loaded = ledger.load(&[id(1), id(2)]).await.unwrap().records;
    assert_eq!(loaded.len(), 1);
    assert!(loaded[0].record.is_pending());
    assert_eq!(claim(&ledger, id(1), 1).await.unwrap(), won(id(1)));
}

#[tokio::test]
async fn a_redis_that_may_evict_is_warned_of() {
    let Some(redis) = RedisServer::start() else { return };
    let said = Said::default();
    let writer = said.clone();
    let subscriber =
        tracing_subscriber::fmt().with_writer(move || writer.clone()).with_ansi(false).finish();
    let _listening = subscribe(subscriber);
    RedisLedger::connect(&redis.url()).await.unwrap();
    assert_eq!(said.text(), "");
    redis.command("CONFIG SET maxmemory-policy allkeys-lru");
    RedisLedger::connect(&redis.url()).await.unwrap();
    assert!(said.text().contains("WARN"), "{}", said.text());
    assert!(said.text().contains("allkeys-lru"), "{}", said.text());
}

#[tokio::test]
async fn records_and_lists_expire_a_day_after_the_record() {
    let Some(redis) = RedisServer::start() else { return };
    let ledger = RedisLedger::connect(&redis.url()).await.unwrap().with_prefix("p:");
    let mut late = contention::record(id(1));
    late.expires_at = late.expires_at.after(HOUR);
    let late_until = format!(":{}", late.expires_at.after(RECORD_RETENTION).0);
    for record in [&late, &contention::record(id(2))] {
        assert!(ledger.insert(record).await.unwrap());
        let until = redis.command(&format!("PEXPIRETIME p:record:{}", record.id));
        assert_eq!(until, format!(":{}", record.expires_at.after(RECORD_RETENTION).0));
    }
    claim(&ledger, id(1), 1).await.unwrap();
    assert_eq!(redis.command(&format!("PEXPIRETIME p:record:{}", id(1))), late_until);
    // The list stays for as long as the last of its records.
    for list in ["p:chat:*", "p:person:*"] {
        let script = format!("return redis.call('PEXPIRETIME', redis.call('KEYS', '{list}')[1])");
        assert_eq!(redis.command(&format!("EVAL \"{script}\" 0")), late_until);
    }
    // Nothing is kept for good: the clock's key has a minute.
    let forever = "local n = 0 for _, key in ipairs(redis.call('KEYS', '*')) do \
                   if redis.call('PTTL', key) < 0 then n = n + 1 end end return n";
    assert_eq!(redis.command(&format!("EVAL \"{forever}\" 0")), ":0");
}

#[tokio::test]
async fn lists_let_go_of_what_is_forgotten() {
    let Some(redis) = RedisServer::start() else { return };
    let ledger = RedisLedger::connect(&redis.url()).await.unwrap();
    let mut forgotten = contention::record(id(1));
    forgotten.expires_at.0 -= 25 * 60 * 60 * 1000;
    let kept = contention::record(id(2));
    assert!(ledger.insert(&kept).await.unwrap());
    assert!(ledger.insert(&forgotten).await.unwrap());
    let listed = ledger.pending(PendingFilter::Requester(&kept.requester)).await.unwrap().records;
    assert_eq!(listed.iter().map(|kept| kept.record.id).collect::<Vec<_>>(), [id(2)]);
    assert!(ledger.insert(&contention::record(id(3))).await.unwrap());
    let count = "return redis.call('ZCARD', redis.call('KEYS', '*:person:*')[1])";
    assert_eq!(redis.command(&format!("EVAL \"{count}\" 0")), ":2");
}

#[tokio::test]
async fn ledgers_of_two_prefixes_know_nothing_of_each_other() {
    let Some(redis) = RedisServer::start() else { return };
    let one = RedisLedger::connect(&redis.url()).await.unwrap().with_prefix("one:");
    let other = one.clone().with_prefix("other:");
    let record = contention::record(id(1));
    assert!(one.insert(&record).await.unwrap());
    assert!(other.load(&[id(1)]).await.unwrap().records.is_empty());
    assert!(
        other
            .pending(PendingFilter::Requester(&record.requester))
            .await
            .unwrap()
            .records
            .is_empty()
    );
    assert!(other.insert(&record).await.unwrap());
}

#[tokio::test]
async fn a_record_that_cannot_be_read_is_lost_alone() {
    let Some(redis) = RedisServer::start() else { return };
    let ledger = RedisLedger::connect(&redis.url()).await.unwrap();
    for number in [1, 2] {
        assert!(ledger.insert(&contention::record(id(number))).await.unwrap());
    }
    redis.command(&format!("HSET ui-message-stream:record:{} record {{}}", id(1)));
    let read = ledger.load(&[id(1), id(2)]).await.unwrap().records;
    assert_eq!(read.iter().map(|kept| kept.record.id).collect::<Vec<_>>(), [id(2)]);
    assert!(!ledger.insert(&contention::record(id(1))).await.unwrap());
}

#[tokio::test]
async fn a_clock_that_is_set_back_stands_still_unless_it_was_wrong() {
    let Some(redis) = RedisServer::start() else { return };
    let ledger = RedisLedger::connect(&redis.url()).await.unwrap();
    let now = ledger.load(&[]).await.unwrap().now;
    // As if Redis had told this time, and its clock had been set back since.
    let told = now.after(Duration::from_secs(50));
    redis.command(&format!("SET ui-message-stream:clock {}", told.0));
    assert_eq!(ledger.load(&[]).await.unwrap().now, told);
    assert!(ledger.insert(&contention::record(id(1))).await.unwrap());
    assert_eq!(ledger.load(&[]).await.unwrap().now, told);
    let wrong = now.after(HOUR);
    redis.command(&format!("SET ui-message-stream:clock {}", wrong.0));
    assert!(ledger.load(&[]).await.unwrap().now < wrong);
    assert!(ledger.insert(&contention::record(id(2))).await.unwrap());
    assert!(ledger.load(&[]).await.unwrap().now < wrong);
}

async fn claim(
    ledger: &RedisLedger,
    id: RecordId,
    number: u8,
) -> Result<ClaimResult, LedgerStoreError> {
    let changed =
        update(ledger, id, |record, now| record.claim(&yes(record, now), claimant(number), HOUR));
    Ok(changed.await?.unwrap().1)
}

fn yes(record: &ApprovalRecord, now: UnixMillis) -> RecordedDecision {
    RecordedDecision { decided_by: record.requester.clone(), decided_at: now, reason: None }
}

fn won(record: RecordId) -> ClaimResult {
    let claim = serde_json::json!({"record": record, "fence": 1});
    ClaimResult::Granted(serde_json::from_value::<Claim>(claim).unwrap())
}

fn id(number: u8) -> RecordId {
    RecordId::from_bytes([number; 16])
}

fn claimant(number: u8) -> LeaseHolderId {
    LeaseHolderId::from_bytes([number; 16])
}

/// What was logged.
#[derive(Debug, Clone, Default)]
struct Said(Arc<Mutex<Vec<u8>>>);

impl Said {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl Write for Said {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

const HOUR: Duration = Duration::from_secs(60 * 60);
