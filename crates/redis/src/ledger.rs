//! [`LedgerStore`] of a [`RedisStore`]: a hash for each approval.
//!
//! `record` is the JSON of the record, `revision` counts the replacements, and `place` is its place in
//! the indexes of pending records. `replaced` is the id of the attempt that replaced the record, by
//! which a repeated script recognizes its own write. `open` says whether the call may begin, and
//! `redis` which Redis the record was inserted into. An index of pending records is a sorted set of
//! their places, which begin with the time at which the record expires.

use ui_message_stream::BoxFuture;
use ui_message_stream::approval::store::{
    Inserted, LedgerStore, LedgerStoreError, PendingCursor, PendingFilter, PendingLimits,
    PendingQuery, PendingRecords, RECORD_RETENTION, Snapshot, VersionedRecord,
};
use ui_message_stream::approval::{ApprovalRecord, ApprovalState, RecordId, UnixMillis};

use crate::error::RedisStoreError;
use crate::scripts::{Invocation, Script};
use crate::{RedisStore, random_bytes, scripts};

impl LedgerStore for RedisStore {
    fn insert_all<'a>(
        &'a self,
        records: &'a [ApprovalRecord],
        limits: PendingLimits,
    ) -> BoxFuture<'a, Result<Inserted, LedgerStoreError>> {
        Box::pin(async move {
            let Some(first) = records.first() else { return Ok(limits.admit(0, 0, 0, 0)) };
            let keys = &self.inner.keys;
            let mut known = String::new();
            for _ in 0..MAX_ATTEMPTS {
                let mut invocation = self.prepare_write(&scripts::LEDGER_INSERT, first);
                let deleted = keys.deleted(&first.requester);
                invocation.key(deleted).arg(&known).arg(limits.chat).arg(limits.requester);
                for record in records {
                    invocation.key(keys.record(record.id)).arg(record.id.to_string());
                    Written::of(record)?.push(&mut invocation);
                }
                let inserted = self.inner.connection.run(&invocation).await;
                let (existing, in_chat, of_requester, mark): (usize, usize, usize, String) =
                    inserted.map_err(LedgerStoreError::new)?;
                if mark.is_empty() {
                    return Ok(limits.admit(records.len(), existing, in_chat, of_requester));
                }
                // The chats are in another slot. After this mark was set, those that were deleted are
                // gone: a chat that is found was begun since, or another mark follows.
                let chat = keys.user(&first.requester).head(&first.chat_id);
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
        Box::pin(self.load_records(ids, true))
    }

    fn pending<'a>(
        &'a self,
        query: PendingQuery<'a>,
    ) -> BoxFuture<'a, Result<PendingRecords, LedgerStoreError>> {
        Box::pin(async move {
            let keys = &self.inner.keys;
            let limit = query.limit.min(MAX_PAGE);
            let mut invocation = scripts::LEDGER_PENDING.key(keys.ledger("clock"));
            invocation
                .key(keys.pending(query.filter))
                .arg(query.after.map(place).unwrap_or_default())
                .arg(limit + 1);
            let listed = self.inner.connection.run(&invocation).await;
            let (now, places): (u64, Vec<String>) = listed.map_err(LedgerStoreError::new)?;
            let page = places.get(..limit).unwrap_or(&places);
            let cursors: Result<Vec<PendingCursor>, _> =
                page.iter().map(|place| place.parse()).collect();
            let cursors = cursors.map_err(LedgerStoreError::new)?;
            let next = cursors.last().filter(|_| places.len() > limit).copied();
            let ids: Vec<RecordId> = cursors.iter().map(|cursor| cursor.id).collect();
            // A script may only use keys that it is called with. A record that is decided in between
            // is left out.
            let mut records = match ids.is_empty() {
                true => Vec::new(),
                false => {
                    let is_strict = !matches!(query.filter, PendingFilter::All);
                    self.load_records(&ids, is_strict).await?.records
                }
            };
            records.retain(|versioned| versioned.record.is_pending());
            Ok(PendingRecords { now: UnixMillis(now), records, next })
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
            let attempt: [u8; 16] = random_bytes().map_err(LedgerStoreError::new)?;
            let mut invocation = self.prepare_write(&scripts::LEDGER_SWAP, record);
            invocation.key(self.inner.keys.record(record.id));
            Written::of(record)?.push(&mut invocation);
            invocation.arg(&attempt).arg(revision).arg(revision.wrapping_add(1)).arg(voided);
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
    /// Loads records. If `is_strict`, a record of a format that this version does not read is an error.
    async fn load_records(
        &self,
        ids: &[RecordId],
        is_strict: bool,
    ) -> Result<Snapshot, LedgerStoreError> {
        let keys = &self.inner.keys;
        let mut invocation = scripts::LEDGER_LOAD.key(keys.ledger("clock"));
        for id in ids {
            invocation.key(keys.record(*id));
        }
        let loaded = self.inner.connection.run(&invocation).await;
        let (now, rows): (u64, Vec<Row>) = loaded.map_err(LedgerStoreError::new)?;
        Ok(Snapshot { now: UnixMillis(now), records: parse_records(rows, is_strict)? })
    }

    /// Prepares a writing script with the keys that all of them have.
    fn prepare_write<'s>(&self, script: &'s Script, record: &ApprovalRecord) -> Invocation<'s> {
        let (keys, requester) = (&self.inner.keys, &record.requester);
        let in_chat = PendingFilter::Chat { requester, chat: &record.chat_id };
        let mut invocation = script.prepare_invoke();
        invocation
            .key(keys.pending(in_chat))
            .key(keys.pending(PendingFilter::Requester(requester)))
            .key(keys.ledger("clock"))
            .key(keys.records_of(requester))
            .key(keys.pending(PendingFilter::All));
        invocation
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

/// A record as a script writes it.
struct Written {
    json: String,
    place: String,
    delete_at: u64,
    is_pending: bool,
    may_begin: bool,
}

impl Written {
    fn of(record: &ApprovalRecord) -> Result<Self, LedgerStoreError> {
        let ApprovalRecord { id, expires_at, .. } = *record;
        Ok(Written {
            json: serde_json::to_string(record).map_err(LedgerStoreError::new)?,
            place: place(PendingCursor { expires_at, id }),
            delete_at: expires_at.after(RECORD_RETENTION).0.min(MAX_EXACT_MILLIS),
            is_pending: record.is_pending(),
            may_begin: may_begin(record),
        })
    }

    fn push(&self, invocation: &mut Invocation<'_>) {
        let (is_pending, may_begin) = (u8::from(self.is_pending), u8::from(self.may_begin));
        invocation.arg(&self.json).arg(&self.place).arg(self.delete_at).arg(is_pending);
        invocation.arg(may_begin);
    }
}

/// Returns the place of a record in an index of pending records.
fn place(PendingCursor { expires_at, id }: PendingCursor) -> String {
    format!("{:016}-{id}", expires_at.0.min(MAX_EXACT_MILLIS))
}

/// Whether the call of a record may still be executed for the first time.
fn may_begin(record: &ApprovalRecord) -> bool {
    matches!(record.state, ApprovalState::Pending | ApprovalState::Granted { .. })
}

/// Parses the records that a script returned. Records that cannot be read are left out.
///
/// If `is_strict`, a record of a format that this version does not read fails the operation. If it were
/// left out, its approval would be rejected as lost, although a newer server can redeem it.
fn parse_records(
    rows: Vec<Row>,
    is_strict: bool,
) -> Result<Vec<VersionedRecord>, LedgerStoreError> {
    let mut records = Vec::with_capacity(rows.len());
    for (key, revision, json) in rows {
        match serde_json::from_str::<ApprovalRecord>(&json) {
            Ok(record) => records.push(VersionedRecord { record, revision }),
            Err(error) => {
                match ApprovalRecord::check_format(&json) {
                    Err(newer) if is_strict => {
                        tracing::error!(key, error = %newer, "a record in the ledger cannot be read");
                        return Err(LedgerStoreError::new(newer));
                    }
                    _ => {}
                }
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

/// The replies of a swap besides 0.
const SWAPPED: u8 = 1;
const VOIDED: u8 = 2;

/// The maximum number of records of a page. Redis answers no other command while it reads them.
const MAX_PAGE: usize = 256;

/// The maximum number of attempts to insert records while their requester is deleted again and again.
const MAX_ATTEMPTS: usize = 64;

/// The latest time, in milliseconds, that a Lua number represents exactly.
pub(crate) const MAX_EXACT_MILLIS: u64 = (1 << 53) - 1;
