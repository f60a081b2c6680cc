//! The places of records in lists.
//!
//! In Redis Cluster, a record and the lists of its requester are in one slot, and one script writes them. The lists
//! of audiences and of all users are in other slots. Each gets its place before the record is written, and loses it
//! after, so that a list names too many records and never too few. A reader leaves out what the record does not
//! show, and removes it if it was put there a minute ago or earlier.

use std::collections::BTreeMap;

use futures_util::future::try_join_all;
use ui_message_stream::approval::store::{
    LedgerStoreError, RECORD_RETENTION, RecordCursor, RecordCursorError, RecordList,
};
use ui_message_stream::approval::{ApprovalRecord, UnixMillis};

use crate::keys::{Keys, slot};
use crate::{RedisStore, random_bytes, scripts};

/// The places of a record in all lists that can have it.
pub(crate) struct Places {
    /// The lists in the slot of the record, with its place in each, or an empty text.
    pub(crate) own: Vec<(String, String)>,
    /// The lists in other slots that have the record.
    pub(crate) elsewhere: Vec<PlaceElsewhere>,
}

/// A place in a list that is in another slot than the record.
pub(crate) struct PlaceElsewhere {
    clock: String,
    pub(crate) list: String,
    /// Without its end, until it was put there.
    place: String,
    forget_at: u64,
}

impl Places {
    pub(crate) fn of(record: &ApprovalRecord, keys: &Keys) -> Self {
        let of_record = keys.of_record(record.id).clock();
        let forget_at = forget_at(record);
        let mut places = Places { own: Vec::new(), elsewhere: Vec::new() };
        for listed in RecordList::places_of(record) {
            let of_list = keys.of_list(&listed.list, record.id);
            let list = of_list.list(&listed.list);
            let clock = of_list.clock();
            let place = listed.at.map(|at| place(RecordCursor { at, id: record.id }));
            if slot(&list) == slot(&of_record) {
                places.own.push((list, place.unwrap_or_default()));
            } else if let Some(place) = place {
                places.elsewhere.push(PlaceElsewhere { clock, list, place, forget_at });
            }
        }
        places
    }
}

/// Returns lists with a place in each, as the scripts read them.
pub(crate) fn json_of<'a>(places: impl IntoIterator<Item = &'a PlaceElsewhere>) -> String {
    let places = places.into_iter().map(|place| (place.list.clone(), place.place.clone().into()));
    serde_json::Value::Object(places.collect()).to_string()
}

/// Returns the place of a record in a list.
pub(crate) fn place(RecordCursor { at, id }: RecordCursor) -> String {
    format!("{:016}-{id}", exact(at).0)
}

/// Returns a time, or the latest one that a Lua number represents exactly.
pub(crate) fn exact(at: UnixMillis) -> UnixMillis {
    at.min(UnixMillis(MAX_EXACT_MILLIS))
}

/// Returns when a record is deleted, in milliseconds.
pub(crate) fn forget_at(record: &ApprovalRecord) -> u64 {
    exact(record.expires_at.after(RECORD_RETENTION)).0
}

/// A place that a list names.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ListedPlace {
    pub(crate) cursor: RecordCursor,
    place: String,
    list: String,
    /// In a list of another slot than the record, how long ago the place was put there, in milliseconds.
    age: Option<u64>,
}

impl ListedPlace {
    /// Reads a place of a list. `now` is the time there.
    pub(crate) fn parse(place: String, list: &str, now: u64) -> Result<Self, RecordCursorError> {
        let (cursor, end) = place.split_at_checked(PLACE_LEN).ok_or(RecordCursorError)?;
        let put_at = end.get(1..17).map(str::parse::<u64>).transpose();
        let put_at = put_at.map_err(|_| RecordCursorError)?;
        let age = put_at.map(|put_at| now.saturating_sub(put_at));
        Ok(ListedPlace { cursor: cursor.parse()?, list: list.to_owned(), age, place })
    }

    /// Returns whether no record will show this place. One that is found does not show it now.
    pub(crate) fn is_left_over(&self, is_found: bool) -> bool {
        match self.age {
            Some(age) => age >= MAX_WRITE_MILLIS,
            None => !is_found,
        }
    }

    pub(crate) fn into_key_and_place(self) -> (String, String) {
        (self.list, self.place)
    }
}

impl RedisStore {
    /// Puts records into lists of other slots.
    pub(crate) async fn put_places(
        &self,
        places: impl IntoIterator<Item = &mut PlaceElsewhere>,
    ) -> Result<(), LedgerStoreError> {
        let put = grouped(places, |place| &place.clock).map(async |(clock, places)| {
            let end = random_bytes().map_err(LedgerStoreError::new)?;
            let end = format!("-{:08x}", u32::from_be_bytes(end));
            let mut invocation = scripts::LEDGER_PUT.key(clock);
            invocation.arg(&end);
            for place in &places {
                invocation.key(&place.list).arg(&place.place).arg(place.forget_at);
            }
            let stamp: String = self.run_in_ledger(&invocation).await?;
            places.into_iter().for_each(|place| place.place += &format!("{stamp}{end}"));
            Ok(())
        });
        try_join_all(put).await.map(drop)
    }

    /// Removes places from lists, given as the key of the list and the place.
    pub(crate) async fn remove_places(
        &self,
        places: impl IntoIterator<Item = (String, String)>,
    ) -> Result<(), LedgerStoreError> {
        let removed = grouped(places, |(list, _)| slot(list)).map(async |(_, places)| {
            let mut invocation = scripts::LEDGER_FORGET.prepare_invoke();
            for (list, place) in places {
                invocation.key(list).arg(place);
            }
            self.run_in_ledger::<()>(&invocation).await
        });
        try_join_all(removed).await.map(drop)
    }

    /// Removes the places that a script has returned. If it fails, readers remove them.
    pub(crate) async fn leave(&self, keys_and_places: Vec<String>) {
        let places = keys_and_places.chunks_exact(2);
        let places = places.map(|pair| (pair[0].clone(), pair[1].clone()));
        // The error is logged, and the record is written.
        let _ = self.remove_places(places).await;
    }
}

/// Groups what is in one slot.
fn grouped<T>(
    items: impl IntoIterator<Item = T>,
    group: impl Fn(&T) -> &str,
) -> impl Iterator<Item = (String, Vec<T>)> {
    let mut groups: BTreeMap<String, Vec<T>> = BTreeMap::new();
    for item in items {
        groups.entry(group(&item).to_owned()).or_default().push(item);
    }
    groups.into_iter()
}

/// The length of a place without its end.
const PLACE_LEN: usize = 16 + 1 + 32;

/// No write of a record takes longer, in milliseconds.
const MAX_WRITE_MILLIS: u64 = 60_000;

/// The latest time, in milliseconds, that a Lua number represents exactly.
pub(crate) const MAX_EXACT_MILLIS: u64 = (1 << 53) - 1;
