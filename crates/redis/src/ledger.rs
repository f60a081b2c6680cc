//! [`LedgerStore`] of a [`RedisStore`]: a hash for each approval.
//!
//! `record` is the JSON of the record, `revision` counts the replacements, and `requested` is the
//! time of the request, by which the records are listed. `inserted` and `replaced` are the ids of
//! the attempts that wrote the record, by which a repeated script recognizes its own write. `open`
//! says whether the call may begin, and `redis` which Redis the record was inserted into. An index
//! is a sorted set of record ids, scored by the time at which the record expires in Redis.

use ui_message_stream::BoxFuture;
use ui_message_stream::approval::store::{
    LedgerStore, LedgerStoreError, PendingCursor, PendingFilter, PendingQuery, PendingRecords,
    RECORD_RETENTION, Snapshot, VersionedRecord,
};
use ui_message_stream::approval::{ApprovalRecord, ApprovalState, RecordId, UnixMillis};

use crate::error::RedisStoreError;
use crate::scripts::{Invocation, Script};
use crate::{RedisStore, random_bytes, scripts};

impl LedgerStore for RedisStore {
    fn insert<'a>(
        &'a self,
        record: &'a ApprovalRecord,
    ) -> BoxFuture<'a, Result<bool, LedgerStoreError>> {
        Box::pin(async move {
            let keys = &self.inner.keys;
            let mut known = String::new();
            for _ in 0..MAX_ATTEMPTS {
                let mut invocation = self.prepare_write(&scripts::LEDGER_INSERT, record)?;
                invocation.key(keys.deleted(&record.requester)).arg(&known);
                let inserted = self.inner.connection.run(&invocation).await;
                let (is_inserted, mark): (bool, String) =
                    inserted.map_err(LedgerStoreError::new)?;
                if mark.is_empty() {
                    return Ok(is_inserted);
                }
                // The chats are in another slot. After this mark was set, those that were deleted are
                // gone: a chat that is found was begun since, or another mark follows.
                let chat = keys.user(&record.requester).chat(&record.chat_id);
                let found = self.inner.connection.run(&scripts::EXISTS.key(chat)).await;
                if !found.map_err(LedgerStoreError::new)? {
                    break;
                }
                known = mark;
            }
            Err(LedgerStoreError::new(RedisStoreError::UserDeleted))
        })
    }

    fn load<'a>(
        &'a self,
        ids: &'a [RecordId],
    ) -> BoxFuture<'a, Result<Snapshot, LedgerStoreError>> {
        Box::pin(async move {
            let keys = &self.inner.keys;
            let mut invocation = scripts::LEDGER_LOAD.key(keys.ledger("clock"));
            for id in ids {
                invocation.key(keys.record(*id));
            }
            let loaded = self.inner.connection.run(&invocation).await;
            let (now, rows): (u64, Vec<Row>) = loaded.map_err(LedgerStoreError::new)?;
            Ok(Snapshot { now: UnixMillis(now), records: parse_records(rows)? })
        })
    }

    fn pending<'a>(
        &'a self,
        query: PendingQuery<'a>,
    ) -> BoxFuture<'a, Result<PendingRecords, LedgerStoreError>> {
        Box::pin(async move {
            let (now, rows, next, unexpired) = self.list_pending(query).await?;
            let next = next.into_iter().next().map(|(requested_at, id)| {
                let id = id.parse().map_err(LedgerStoreError::new)?;
                Ok::<_, LedgerStoreError>(PendingCursor {
                    requested_at: UnixMillis(requested_at),
                    id,
                })
            });
            Ok(PendingRecords {
                now: UnixMillis(now),
                records: parse_records(rows)?,
                next: next.transpose()?,
                unexpired,
            })
        })
    }

    fn compare_and_swap<'a>(
        &'a self,
        record: &'a ApprovalRecord,
        revision: u64,
    ) -> BoxFuture<'a, Result<bool, LedgerStoreError>> {
        Box::pin(async move {
            let voided = match self.with_unknown_outcome(record) {
                Some(voided) => serde_json::to_string(&voided).map_err(LedgerStoreError::new)?,
                None => String::new(),
            };
            let mut invocation = self.prepare_write(&scripts::LEDGER_SWAP, record)?;
            invocation.arg(revision).arg(revision.wrapping_add(1)).arg(voided);
            let swapped = self.inner.connection.run(&invocation).await;
            let swapped: u8 = swapped.map_err(LedgerStoreError::new)?;
            if swapped == VOIDED {
                // The caller reads the record again, and finds the unknown outcome.
                tracing::warn!(
                    record = %record.id,
                    "Redis was restarted since this approval was requested, so the call is not \
                     executed: it may have been executed before; a Redis that loses nothing is \
                     declared with `RedisOptions::assume_durable`"
                );
            }
            Ok(swapped == SWAPPED)
        })
    }
}

impl RedisStore {
    /// Lists the pending records that match a filter.
    async fn list_pending(&self, query: PendingQuery<'_>) -> Result<Page, LedgerStoreError> {
        let (connection, keys) = (&self.inner.connection, &self.inner.keys);
        let index = keys.pending(query.filter);
        for _ in 0..MAX_ATTEMPTS {
            // A script may only use keys that it is called with.
            let mut list = scripts::LEDGER_LIST.key(&index);
            let ids = connection.run(list.arg(MAX_PAGE)).await;
            let ids: Vec<String> = ids.map_err(LedgerStoreError::new)?;
            let mut invocation = scripts::LEDGER_PENDING.key(keys.ledger("clock"));
            invocation
                .key(&index)
                .arg(query.after.map_or(-1, |after| after.requested_at.0 as i64))
                .arg(query.after.map(|after| after.id.to_string()).unwrap_or_default())
                .arg(query.limit.min(MAX_PAGE))
                .arg(RECORD_RETENTION.as_millis() as u64);
            for id in &ids {
                invocation.key(keys.ledger(format_args!("record:{id}"))).arg(id);
            }
            let page: Option<Page> =
                connection.run(&invocation).await.map_err(LedgerStoreError::new)?;
            // Otherwise a record was inserted or decided in between.
            if let Some(page) = page {
                return Ok(page);
            }
        }
        Err(LedgerStoreError::new("the pending records change faster than they can be read"))
    }

    /// Prepares a writing script with the keys and arguments that all of them have.
    fn prepare_write<'s>(
        &self,
        script: &'s Script,
        record: &ApprovalRecord,
    ) -> Result<Invocation<'s>, LedgerStoreError> {
        let (keys, requester) = (&self.inner.keys, &record.requester);
        let in_chat = PendingFilter::Chat { requester, chat: &record.chat_id };
        let attempt: [u8; 16] = random_bytes().map_err(LedgerStoreError::new)?;
        let json = serde_json::to_string(record).map_err(LedgerStoreError::new)?;
        let delete_at = record.expires_at.after(RECORD_RETENTION).0.min(MAX_EXACT_MILLIS);
        let mut invocation = script.prepare_invoke();
        invocation
            .key(keys.record(record.id))
            .key(keys.pending(in_chat))
            .key(keys.pending(PendingFilter::Requester(requester)))
            .key(keys.ledger("clock"))
            .key(keys.records_of(requester))
            .arg(record.id.to_string())
            .arg(json)
            .arg(&attempt)
            .arg(delete_at)
            .arg(u8::from(record.is_pending()))
            .arg(u8::from(may_begin(record)))
            .arg(record.requested_at.0);
        Ok(invocation)
    }

    /// Returns the record that replaces a claim if Redis may have lost an earlier claim, or `None`
    /// if the record is no claim, or one that may be repeated.
    fn with_unknown_outcome(&self, record: &ApprovalRecord) -> Option<ApprovalRecord> {
        match &record.state {
            ApprovalState::Granted { decision } | ApprovalState::Claimed { decision, .. }
                if !record.idempotent && !self.inner.is_durable =>
            {
                let decision = decision.clone();
                let mut voided = record.clone();
                voided.state = ApprovalState::OutcomeUnknown { decision };
                Some(voided)
            }
            _ => None,
        }
    }
}

/// Whether the call of a record may still be executed for the first time.
fn may_begin(record: &ApprovalRecord) -> bool {
    matches!(record.state, ApprovalState::Pending | ApprovalState::Granted { .. })
}

/// Parses the records that a script returned. Records that cannot be read are left out.
///
/// A record of a format that this version does not read fails the operation. If it were left
/// out, its approval would be rejected as lost, although a newer server can redeem it.
fn parse_records(rows: Vec<Row>) -> Result<Vec<VersionedRecord>, LedgerStoreError> {
    let mut records = Vec::with_capacity(rows.len());
    for (key, revision, json) in rows {
        match serde_json::from_str::<ApprovalRecord>(&json) {
            Ok(record) => records.push(VersionedRecord { record, revision }),
            Err(error) => {
                ApprovalRecord::check_format(&json).map_err(|error| {
                    tracing::error!(key, %error, "a record in the ledger cannot be read");
                    LedgerStoreError::new(error)
                })?;
                // The record counts as lost, and the other records are still returned. Only the
                // position of the error is logged, because its text may hold contents of the
                // record.
                let column = error.column();
                tracing::error!(key, column, "a record in the ledger cannot be read");
            }
        }
    }
    Ok(records)
}

/// The key of a record, its revision and its JSON.
type Row = (String, u64, String);

/// The time, the records of a page, the place after which the next page begins, and the number of
/// all records that have not expired.
type Page = (u64, Vec<Row>, Vec<(u64, String)>, usize);

/// The replies of a swap besides 0.
const SWAPPED: u8 = 1;
const VOIDED: u8 = 2;

/// The maximum number of records of a page. A Lua table of so many fits into the memory of Redis.
const MAX_PAGE: usize = 1 << 20;

/// The maximum number of attempts to list records that others change.
const MAX_ATTEMPTS: usize = 64;

/// The latest time, in milliseconds, that a Lua number represents exactly.
pub(crate) const MAX_EXACT_MILLIS: u64 = (1 << 53) - 1;
