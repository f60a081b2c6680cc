//! [`LedgerStore`] of a [`RedisStore`]: a hash for each approval.
//!
//! `record` is the JSON of the record, `revision` counts the replacements, and `lists` and `elsewhere` are its
//! places in lists. `replaced` is the id of the attempt that replaced the record, by which a repeated script
//! recognizes its own write. `open` says whether the call may begin, and `redis` which Redis the record was
//! inserted into. A list is a sorted set of places, which begin with the time by which it has the record.

use std::collections::{BTreeMap, HashMap};

use futures_util::future::try_join_all;
use redis::FromRedisValue;
use ui_message_stream::BoxFuture;
use ui_message_stream::approval::store::{
    Inserted, LedgerStore, LedgerStoreError, ListRecords, ListedRecords, PendingLimits, RecordList,
    Snapshot, VersionedRecord, read_record,
};
use ui_message_stream::approval::{ApprovalRecord, ApprovalState, RecordId, UnixMillis};

use crate::error::RedisStoreError;
use crate::keys::slot;
use crate::places::{ListedPlace, Places, exact, forget_at, json_of, place};
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
            self.insert_after_places(first, records, limits).await
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
            let limit = page.limit.min(MAX_PAGE);
            let (now, mut places) = self.list_places(&page, limit + 1).await?;
            let has_more = places.len() > limit;
            places.truncate(limit);
            let next = places.last().filter(|_| has_more).map(|place| place.cursor);
            let mut ids: Vec<RecordId> = places.iter().map(|place| place.cursor.id).collect();
            ids.dedup();
            // A script may only use keys that it is called with. A record that has left the list in between
            // is left out.
            let rows = if ids.is_empty() { Vec::new() } else { self.load_rows(&ids).await?.1 };
            let mut found = HashMap::new();
            for (key, revision, json) in rows {
                let record = read_record(&key, &json, page.list.is_strict())?;
                found.insert(key, record.map(|record| VersionedRecord { record, revision }));
            }
            let mut records = Vec::with_capacity(ids.len());
            let mut left_over = Vec::new();
            for place in places {
                let at = place.cursor.at;
                let id = place.cursor.id;
                let key = self.inner.keys.of_record(id).record(id);
                let is_shown = |stored: &VersionedRecord| {
                    let mut lists = RecordList::that_have(&stored.record).into_iter();
                    lists.any(|(list, listed_at)| list == *page.list && exact(listed_at) == at)
                };
                match found.get_mut(&key) {
                    // One that a newer server has written is also none.
                    Some(None) => {}
                    Some(stored) if stored.as_ref().is_some_and(is_shown) => {
                        records.extend(stored.take());
                    }
                    stored if place.is_left_over(stored.is_some()) => left_over.push(place),
                    _ => {}
                }
            }
            let left_over = left_over.into_iter().map(ListedPlace::into_key_and_place);
            self.remove_places(left_over).await?;
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
    pub(crate) async fn run_in_ledger<T: FromRedisValue + Send>(
        &self,
        script: &Invocation<'_>,
    ) -> Result<T, LedgerStoreError> {
        self.inner.connection.run(script).await.map_err(LedgerStoreError::new)
    }

    /// Inserts records of one requester after the lists in other slots have them.
    async fn insert_after_places(
        &self,
        first: &ApprovalRecord,
        records: &[ApprovalRecord],
        limits: PendingLimits,
    ) -> Result<Inserted, LedgerStoreError> {
        let all_keys = &self.inner.keys;
        let keys = all_keys.of_requester(&first.requester);
        let is_elsewhere = |id| slot(&all_keys.of_record(id).clock()) != slot(&keys.clock());
        if records.iter().any(|record| is_elsewhere(record.id)) {
            return Err(LedgerStoreError::new(RedisStoreError::IdOfOtherBucket));
        }
        let mut places: Vec<_> =
            records.iter().map(|record| Places::of(record, all_keys)).collect();
        self.put_places(places.iter_mut().flat_map(|places| &mut places.elsewhere)).await?;
        let of_requester = RecordList::of_requester(&first.requester);
        let mut known = String::new();
        let mut unused = Vec::new();
        for _ in 0..MAX_ATTEMPTS {
            let mut invocation = scripts::LEDGER_INSERT.key(keys.clock());
            invocation
                .key(keys.records_of(&first.requester))
                .key(keys.list(&of_requester))
                .key(keys.list(&of_requester.in_chat(&first.chat_id)))
                .key(keys.deleted(&first.requester))
                .arg(&known)
                .arg(limits.chat)
                .arg(limits.requester)
                .arg(records.len());
            for (record, places) in records.iter().zip(&places) {
                invocation.key(keys.record(record.id)).arg(record.id.to_string());
                push(&mut invocation, record)?;
                invocation.arg(json_of(&places.elsewhere)).arg(places.own.len());
                for (list, place) in &places.own {
                    invocation.key(list).arg(place);
                }
            }
            let inserted = self.run_in_ledger(&invocation).await?;
            let (existing, in_chat, of_requester, mark): (usize, usize, usize, String);
            (existing, in_chat, of_requester, mark, unused) = inserted;
            if mark.is_empty() {
                self.leave(unused).await;
                return Ok(limits.admit(records.len(), existing, in_chat, of_requester));
            }
            // The chats are in another slot. After this mark was set, those that were deleted are
            // gone: a chat that is found was begun since, or another mark follows.
            let chat = all_keys.user(&first.requester).row_of_chat(first.chat_id.as_str());
            if !self.run_in_ledger(&scripts::EXISTS.key(chat)).await? {
                break;
            }
            known = mark;
        }
        self.leave(unused).await;
        Err(LedgerStoreError::new(RedisStoreError::UserDeleted))
    }

    /// Loads the time and the records that there are.
    async fn load_rows(&self, ids: &[RecordId]) -> Result<(u64, Vec<Row>), LedgerStoreError> {
        let mut buckets: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for id in ids {
            let keys = self.inner.keys.of_record(*id);
            buckets.entry(keys.clock()).or_default().push(keys.record(id));
        }
        if ids.is_empty() {
            // The time of any node: of another one, if it is asked again because the first one is away.
            let any = RecordId::from_bytes(random_bytes().map_err(LedgerStoreError::new)?);
            buckets.insert(self.inner.keys.of_record(any).clock(), Vec::new());
        }
        let loaded = buckets.into_iter().map(async |(clock, records)| {
            let mut invocation = scripts::LEDGER_LOAD.key(clock);
            invocation.key(records);
            self.run_in_ledger::<(u64, Vec<Row>)>(&invocation).await
        });
        let loaded = try_join_all(loaded).await?;
        let now = loaded.iter().map(|(now, _)| *now).max().unwrap_or_default();
        Ok((now, loaded.into_iter().flat_map(|(_, rows)| rows).collect()))
    }

    /// Returns the time, and at most so many places of a page, in their order.
    async fn list_places(
        &self,
        page: &ListRecords<'_>,
        limit: usize,
    ) -> Result<(u64, Vec<ListedPlace>), LedgerStoreError> {
        // After all places of this record, because a hyphen follows its id in those that have an end.
        let after = page.after.map(|after| format!("{}.", place(after))).unwrap_or_default();
        let parts = self.inner.keys.parts_of(page.list).into_iter().map(async |keys| {
            let list = keys.list(page.list);
            let mut invocation = scripts::LEDGER_LIST.key(keys.clock());
            invocation.key(&list).arg(&after).arg(limit).arg(u8::from(page.later_than_now));
            let (now, places): (u64, Vec<String>) = self.run_in_ledger(&invocation).await?;
            let places = places.into_iter().map(|place| ListedPlace::parse(place, &list, now));
            let places: Result<Vec<_>, _> = places.collect();
            Ok::<_, LedgerStoreError>((now, places.map_err(LedgerStoreError::new)?))
        });
        let parts = try_join_all(parts).await?;
        let now = parts.iter().map(|(now, _)| *now).max().unwrap_or_default();
        let mut places: Vec<_> = parts.into_iter().flat_map(|(_, places)| places).collect();
        places.sort();
        // The clocks of the nodes differ.
        places.retain(|place| !page.later_than_now || place.cursor.at.0 > now);
        places.truncate(limit);
        Ok((now, places))
    }

    /// Replaces a record. If it `begins` a call, and Redis may have lost that the call began before, nothing
    /// is replaced.
    ///
    /// If it is to be in lists of other slots that do not have it, it is put there first.
    async fn swap(
        &self,
        record: &ApprovalRecord,
        revision: u64,
        begins: bool,
    ) -> Result<u8, LedgerStoreError> {
        let keys = self.inner.keys.of_record(record.id);
        let mut places = Places::of(record, &self.inner.keys);
        let attempt = random_bytes::<16>().map_err(LedgerStoreError::new)?;
        let wanted = json_of(&places.elsewhere);
        let mut put = Vec::new();
        loop {
            let mut invocation = scripts::LEDGER_SWAP.key(keys.clock());
            invocation.key(keys.record(record.id));
            push(&mut invocation, record)?;
            invocation.arg(&attempt).arg(revision).arg(revision.wrapping_add(1));
            invocation.arg(u8::from(begins)).arg(&wanted).arg(json_of(&put));
            for (list, place) in &places.own {
                invocation.key(list).arg(place);
            }
            let (swapped, lists): (u8, Vec<String>) = self.run_in_ledger(&invocation).await?;
            if swapped != LACKS_PLACES {
                self.leave(lists).await;
                return Ok(swapped);
            }
            let known = put.len();
            put.extend(places.elsewhere.extract_if(.., |place| lists.contains(&place.list)));
            self.put_places(&mut put[known..]).await?;
        }
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
    let json = serde_json::to_string(record).map_err(LedgerStoreError::new)?;
    invocation.arg(json).arg(forget_at(record)).arg(u8::from(may_begin(record)));
    Ok(())
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
const LACKS_PLACES: u8 = 3;

/// The maximum number of records of a page. Redis answers no other command while it reads them.
const MAX_PAGE: usize = 256;

/// The maximum number of attempts to insert records while their requester is deleted again and again.
const MAX_ATTEMPTS: usize = 64;
