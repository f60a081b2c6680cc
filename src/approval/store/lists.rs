//! [`RecordList`]: the lists in which a store keeps its records in order.
//!
//! # A ledger keeps lists by their names, and what is in them is a rule
//!
//! A request is in many lists while it is pending: of all requests, of its requester, and of each audience, each of
//! these also by chat and by tool. In a ledger with an index for each of them, every new list is a change of four
//! stores and of the stores of third parties. So the names of the lists that have a record, and the times by which
//! they have it, are a function of the record (`RecordList::places_of`), and a store has one table: name, time, id.
//! A name is a digest, so no id of a user or chat needs to be escaped, and two tenants never share a list. A page
//! of an inbox merges the lists of the principal and of its audiences, and reads each of them from the place of the
//! page on, without what has expired by the clock of the store.
//!
//! The tool filter of an inbox is a list of its own. With both filters, the list of the chat is read, and other
//! tools are left out: a chat has at most 64 pending requests of a user.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use crate::approval::ids::{bucket, digest};
use crate::approval::{
    ApprovalRecord, DefinitionDigest, NoticeDelivery, Principal, RecordId, UnixMillis,
};
use crate::id::ChatId;

/// The name of a list of records. A store keeps the records of each list in the order of their times, and of
/// their ids where the times are equal.
///
/// Which lists have a record is a [rule](Self::places_of): a store knows nothing of pending
/// records, chats or tools. A name is a text of at most 80 letters, digits, colons and hyphens. Two
/// lists never have the same name: it holds a digest of the ids by which the list is selected.
///
/// ```
/// use ui_message_stream::approval::store::RecordList;
/// use ui_message_stream::approval::{Principal, RecordId};
///
/// let ada = Principal::new("ada").with_tenant("acme");
/// let of_ada = RecordList::of_requester(&ada);
/// assert_ne!(of_ada, RecordList::of_requester(&Principal::new("ada")));
/// assert_ne!(of_ada, of_ada.of_tool("transfer"));
/// assert!(of_ada.as_str().starts_with("requester:"));
///
/// // A store may keep a list with its parts and with the records of its requester.
/// let id = RecordId::of_requester(&ada, [7; 16]);
/// assert_eq!(of_ada.of_tool("transfer").bucket(), Some(id.bucket()));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordList {
    name: Box<str>,
    whose: Whose,
    /// That of the whole list, if this is a part.
    bucket: u16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Whose {
    All,
    Requester,
    Audience,
}

impl RecordList {
    /// The pending records of all requesters, by the time at which they expire.
    pub fn pending() -> Self {
        RecordList { name: "pending".into(), whose: Whose::All, bucket: 0 }
    }

    /// The records with an event that was not delivered to the [notifier](crate::approval::Notifier), by the time
    /// from which it may be delivered.
    pub fn to_notify() -> Self {
        RecordList { name: "to-notify".into(), whose: Whose::All, bucket: 0 }
    }

    /// The pending records of one requester, by the time at which they expire.
    pub fn of_requester(requester: &Principal) -> Self {
        Self::named(Whose::Requester, &[requester.tenant(), requester.id()])
    }

    /// The pending records of one requester in one chat. Two users may have chats with the same id.
    pub fn of_chat(requester: &Principal, chat: &ChatId) -> Self {
        Self::of_requester(requester).in_chat(chat)
    }

    /// The pending records with this [audience](ApprovalRecord::audience) of the requesters of one tenant, by
    /// the time at which they expire.
    pub fn of_audience(tenant: Option<&str>, audience: &str) -> Self {
        Self::named(Whose::Audience, &[tenant, Some(audience)])
    }

    /// Those records of this list that are of a chat.
    #[must_use]
    pub fn in_chat(&self, chat: &ChatId) -> Self {
        self.part("chat", chat)
    }

    /// Those records of this list that are of a tool.
    #[must_use]
    pub fn of_tool(&self, tool: &str) -> Self {
        self.part("tool", tool)
    }

    /// Returns all lists that can have this record in any of its states, and its place in those that have it
    /// now.
    ///
    /// The lists are the same in each state of the record. A pending record is in that of all pending ones, and
    /// in those of its requester and of each [audience](ApprovalRecord::audience): in the whole list, and in those
    /// of its chat and of its tool.
    pub fn places_of(record: &ApprovalRecord) -> Vec<ListPlace> {
        let requester = RecordList::of_requester(&record.requester);
        let audiences: BTreeSet<&str> = record.audience.iter().map(|name| &**name).collect();
        let audiences = audiences.into_iter();
        let audiences =
            audiences.map(|name| RecordList::of_audience(record.requester.tenant(), name));
        let parts = std::iter::once(requester).chain(audiences).flat_map(|list| {
            let [chat, tool] = [list.in_chat(&record.chat_id), list.of_tool(&record.tool_name)];
            [list, chat, tool]
        });
        let at = record.is_pending().then_some(record.expires_at);
        let pending = std::iter::once(RecordList::pending()).chain(parts);
        let pending = pending.map(|list| ListPlace { list, at });
        let to_notify = record.delivery.map(|_| ListPlace {
            list: RecordList::to_notify(),
            at: NoticeDelivery::due_at(record),
        });
        pending.chain(to_notify).collect()
    }

    /// Returns the lists that have this record now, each with the time by which it has it.
    pub fn that_have(record: &ApprovalRecord) -> Vec<(Self, UnixMillis)> {
        let places = Self::places_of(record).into_iter();
        places.filter_map(|place| place.at.map(|at| (place.list, at))).collect()
    }

    /// Returns the name of the list.
    pub fn as_str(&self) -> &str {
        &self.name
    }

    /// Returns whether a record of this list that has a newer format fails the list. In the lists of more than
    /// one requester it is left out instead, so that it does not stop the others.
    pub fn is_strict(&self) -> bool {
        self.whose == Whose::Requester
    }

    /// Returns the bucket of the requester or of the audience, or `None` for a list of all requesters.
    ///
    /// The parts of a list are in its bucket, and the ids of the records of a requester
    /// [name](RecordId::bucket) the bucket of the requester. The records of an audience are in many buckets.
    pub fn bucket(&self) -> Option<u16> {
        (self.whose != Whose::All).then_some(self.bucket)
    }

    fn part(&self, kind: &str, of: &str) -> Self {
        let part = Self::named(self.whose, &[Some(self.as_str()), Some(kind), Some(of)]);
        RecordList { bucket: self.bucket, ..part }
    }

    fn named(whose: Whose, texts: &[Option<&str>]) -> Self {
        let digest = digest(texts);
        let kind = match whose {
            Whose::All => "all",
            Whose::Requester => "requester",
            Whose::Audience => "audience",
        };
        let name = format!("{kind}:{}", DefinitionDigest(digest)).into();
        RecordList { name, whose, bucket: bucket(&digest) }
    }
}

/// A list that has a record, or had it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListPlace {
    /// The list.
    pub list: RecordList,
    /// The time by which the record is in the list. `None` if it is not in the list now.
    pub at: Option<UnixMillis>,
}

/// Selects a page of a list.
#[derive(Debug, Clone, Copy)]
pub struct ListRecords<'a> {
    /// The list.
    pub list: &'a RecordList,
    /// The place after which the page begins. `None` for the first page.
    pub after: Option<RecordCursor>,
    /// Whether the page leaves out the records whose time in the list is not later than the store's clock.
    pub later_than_now: bool,
    /// The maximum number of records in the page.
    pub limit: usize,
}

impl ListRecords<'_> {
    /// Returns the place after which the page begins when the store's clock shows `now`.
    ///
    /// A store calls it, or does the same in its query, with the time that it returns in
    /// [`ListedRecords::now`](super::ListedRecords::now).
    pub fn begins_after(&self, now: UnixMillis) -> Option<RecordCursor> {
        self.after.max(self.later_than_now.then_some(RecordCursor::after_time(now)))
    }
}

/// Selects the first page, of at most 64 records, whether their times have passed or not.
impl<'a> From<&'a RecordList> for ListRecords<'a> {
    fn from(list: &'a RecordList) -> Self {
        ListRecords { list, after: None, later_than_now: false, limit: 64 }
    }
}

/// A place in a list: after the record with this time and this id.
///
/// The place stays valid if that record leaves the list. Its text is `time-id`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct RecordCursor {
    /// The time by which the record is in the list.
    pub at: UnixMillis,
    /// The id of the record.
    pub id: RecordId,
}

impl RecordCursor {
    /// Returns the place of a record in the lists of pending records.
    pub(crate) fn of_pending(record: &ApprovalRecord) -> Self {
        RecordCursor { at: record.expires_at, id: record.id }
    }

    /// Returns the place after all records with this time.
    pub(crate) fn after_time(at: UnixMillis) -> Self {
        RecordCursor { at, id: RecordId::from_bytes([u8::MAX; 16]) }
    }
}

impl fmt::Display for RecordCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.at.0, self.id)
    }
}

impl FromStr for RecordCursor {
    type Err = RecordCursorError;

    fn from_str(text: &str) -> Result<Self, RecordCursorError> {
        let (at, id) = text.split_once('-').ok_or(RecordCursorError)?;
        let at = UnixMillis(at.parse().map_err(|_| RecordCursorError)?);
        Ok(RecordCursor { at, id: id.parse().map_err(|_| RecordCursorError)? })
    }
}

/// The error of a text that is not a [`RecordCursor`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a place in the list of approvals")]
pub struct RecordCursorError;
