//! How long a store keeps the records of approvals.

use test_support::contention::{self, InsertOne};
use ui_message_stream::approval::store::{LedgerStore, RECORD_RETENTION};
use ui_message_stream::approval::{RecordId, UnixMillis};

/// A record is deleted a day after it has expired. `at` is the time after so many seconds, and `sweep_at` sweeps
/// at that time.
pub async fn a_record_is_deleted_a_day_after_it_has_expired_and_not_before(
    store: &impl LedgerStore,
    at: impl Fn(u64) -> UnixMillis,
    sweep_at: impl AsyncFn(u64),
) {
    let mut record = contention::record(RecordId::from_bytes([1; 16]));
    record.expires_at = at(100);
    let mut kept = contention::record(RecordId::from_bytes([2; 16]));
    kept.expires_at = UnixMillis(u64::MAX);
    for record in [&record, &kept] {
        assert!(store.insert(record).await.unwrap());
    }
    let end = 100 + RECORD_RETENTION.as_secs();
    let ids = [record.id, kept.id];
    sweep_at(end).await;
    assert_eq!(store.load(&ids).await.unwrap().records.len(), 2);
    sweep_at(end + 1).await;
    let left = store.load(&ids).await.unwrap().records;
    assert_eq!(left.iter().map(|left| &left.record).collect::<Vec<_>>(), [&kept]);
}
