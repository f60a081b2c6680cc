//! [`LedgerStore`] of a [`RedisStore`]: a hash for each approval.
//!
//! `record` is the JSON of the record, `revision` counts the replacements, and `lists` are its places in
//! lists. `replaced` is the id of the attempt that replaced the record, by which a repeated script
//! recognizes its own write. `open` says whether the call may begin, and `redis` which Redis the record was
//! inserted into. A list is a sorted set of places, which begin with the time by which it has the record.

use std::collections::HashSet;

use ui_message_stream::BoxFuture;
use ui_message_stream::approval::store::{
    Inserted, LedgerStore, LedgerStoreError, ListRecords, ListedRecords, PendingLimits,
    RECORD_RETENTION, RecordCursor, RecordList, Snapshot, VersionedRecord, read_record,
};
use ui_message_stream::approval::{ApprovalRecord, ApprovalState, RecordId, UnixMillis};

use crate::error::RedisStoreError;
use crate::scripts::Invocation;
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
                let of_requester = RecordList::of_requester(&first.requester);
                let mut invocation = scripts::LEDGER_INSERT.key(keys.ledger("clock"));
                invocation
                    .key(keys.records_of(&first.requester))
                    .key(keys.list(&of_requester))
                    .key(keys.list(&of_requester.in_chat(&first.chat_id)))
                    .key(keys.deleted(&first.requester))
                    .arg(&known)
                    .arg(limits.chat)
                    .arg(limits.requester)
                    .arg(records.len());
                for record in records {
                    let lists = self.lists_of(record);
                    invocation.key(keys.record(record.id)).arg(record.id.to_string());
                    push(&mut invocation, record)?;
                    invocation.arg(lists.len());
                    for (list, place) in lists {
                        invocation.key(list).arg(place);
                    }
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
        Box::pin(async move {
            let (now, rows) = self.load_rows(ids).await?;
            Ok(Snapshot { now: UnixMillis(now), records: parse_records(rows, true)? })
        })
    }

    fn read_list<'a>(
        &'a self,
        page: ListRecords<'a>,
    ) -> BoxFuture<'a, Result<ListedRecords, LedgerStoreError>> {
        Box::pin(async move {
            let keys = &self.inner.keys;
            let limit = page.limit.min(MAX_PAGE);
            let mut invocation = scripts::LEDGER_LIST.key(keys.ledger("clock"));
            invocation
                .key(keys.list(page.list))
                .arg(page.after.map(place).unwrap_or_default())
                .arg(limit + 1)
                .arg(u8::from(page.later_than_now));
            let listed = self.inner.connection.run(&invocation).await;
            let (now, places): (u64, Vec<String>) = listed.map_err(LedgerStoreError::new)?;
            let listed = places.get(..limit).unwrap_or(&places);
            let cursors: Result<Vec<RecordCursor>, _> =
                listed.iter().map(|place| place.parse()).collect();
            let cursors = cursors.map_err(LedgerStoreError::new)?;
            let next = cursors.last().filter(|_| places.len() > limit).copied();
            let ids: Vec<RecordId> = cursors.iter().map(|cursor| cursor.id).collect();
            // A script may only use keys that it is called with. A record that has left the list in between
            // is left out.
            let rows = match ids.is_empty() {
                true => Vec::new(),
                false => self.load_rows(&ids).await?.1,
            };
            let found: HashSet<&str> = rows.iter().map(|(key, ..)| &**key).collect();
            let gone = ids.iter().zip(listed);
            let gone = gone.filter(|(id, _)| !found.contains(&*keys.record(**id)));
            let gone: Vec<&String> = gone.map(|(_, place)| place).collect();
            if !gone.is_empty() {
                let mut forget = scripts::LEDGER_FORGET.key(keys.list(page.list));
                let forgotten = self.inner.connection.run::<()>(forget.arg(gone)).await;
                forgotten.map_err(LedgerStoreError::new)?;
            }
            let mut records = parse_records(rows, page.list.is_strict())?;
            records.retain(|stored| {
                let mut lists = RecordList::that_have(&stored.record).into_iter();
                lists.any(|(list, _)| list == *page.list)
            });
            Ok(ListedRecords { now: UnixMillis(now), records, next })
        })
    }

    fn compare_and_swap<'a>(
        &'a self,
        record: &'a ApprovalRecord,
        revision: u64,
    ) -> BoxFuture<'a, Result<bool, LedgerStoreError>> {
        Box::pin(async move {
            let voided = self.with_unknown_outcome(record);
            let swapped = self.swap(record, revision, voided.is_some()).await?;
            if let (VOIDED, Some(voided)) = (swapped, voided) {
                // The caller reads the record again, and finds the unknown outcome.
                tracing::warn!(
                    record = %record.id,
                    "Redis was restarted since this approval was requested, so the call is not \
                     executed: it may have been executed before; a Redis that loses nothing is \
                     declared with `RedisOptions::assume_durable`"
                );
                self.swap(&voided, revision, false).await?;
            }
            Ok(swapped == SWAPPED)
        })
    }
}

impl RedisStore {
    /// Loads the time and the records that there are.
    async fn load_rows(&self, ids: &[RecordId]) -> Result<(u64, Vec<Row>), LedgerStoreError> {
        let keys = &self.inner.keys;
        let mut invocation = scripts::LEDGER_LOAD.key(keys.ledger("clock"));
        for id in ids {
            invocation.key(keys.record(*id));
        }
        self.inner.connection.run(&invocation).await.map_err(LedgerStoreError::new)
    }

    /// Replaces a record. If it `begins` a call, and Redis may have lost that the call began before, nothing
    /// is replaced.
    async fn swap(
        &self,
        record: &ApprovalRecord,
        revision: u64,
        begins: bool,
    ) -> Result<u8, LedgerStoreError> {
        let (keys, attempt) = (&self.inner.keys, random_bytes::<16>());
        let attempt = attempt.map_err(LedgerStoreError::new)?;
        let mut invocation = scripts::LEDGER_SWAP.key(keys.ledger("clock"));
        invocation.key(keys.record(record.id));
        push(&mut invocation, record)?;
        invocation.arg(&attempt).arg(revision).arg(revision.wrapping_add(1)).arg(u8::from(begins));
        for (list, place) in self.lists_of(record) {
            invocation.key(list).arg(place);
        }
        self.inner.connection.run(&invocation).await.map_err(LedgerStoreError::new)
    }

    /// Returns the keys of the lists of a record, with its place in each, or an empty text.
    fn lists_of(&self, record: &ApprovalRecord) -> Vec<(String, String)> {
        let places = RecordList::places_of(record).into_iter().map(|listed| {
            let at = listed.at.map(|at| place(RecordCursor { at, id: record.id }));
            (self.inner.keys.list(&listed.list), at.unwrap_or_default())
        });
        places.collect()
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

/// Adds a record as a script writes it: its JSON, the time at which it is deleted, and whether its call may
/// begin.
fn push(invocation: &mut Invocation<'_>, record: &ApprovalRecord) -> Result<(), LedgerStoreError> {
    let delete_at = record.expires_at.after(RECORD_RETENTION).0.min(MAX_EXACT_MILLIS);
    let json = serde_json::to_string(record).map_err(LedgerStoreError::new)?;
    invocation.arg(json).arg(delete_at).arg(u8::from(may_begin(record)));
    Ok(())
}

/// Returns the place of a record in a list.
fn place(RecordCursor { at, id }: RecordCursor) -> String {
    format!("{:016}-{id}", at.0.min(MAX_EXACT_MILLIS))
}

/// Whether the call of a record may still be executed for the first time.
fn may_begin(record: &ApprovalRecord) -> bool {
    matches!(record.state, ApprovalState::Pending | ApprovalState::Granted { .. })
}

/// Parses the records that a script returned. Records that cannot be read are left out.
fn parse_records(
    rows: Vec<Row>,
    is_strict: bool,
) -> Result<Vec<VersionedRecord>, LedgerStoreError> {
    let mut records = Vec::with_capacity(rows.len());
    for (key, revision, json) in rows {
        let record = read_record(&key, &json, is_strict)?;
        records.extend(record.map(|record| VersionedRecord { record, revision }));
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
