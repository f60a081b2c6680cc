//! The names of rows and lists, and the steps that read and write them.

use bytes::Bytes;
use serde::Serialize;

use super::database::Rows;
use super::rules::head::{Delivery, Head, Loaded, UnreadableRow, User, read};
use super::step::{Found, Hint, Item, Read, Reply, Sequence, Step, Version, Write};
use crate::store::{ChatStoreError, EntryKind, Epoch, LogKey, StoredEntry};
use ui_message_stream::approval::Principal;
use ui_message_stream::id::ChatId;

/// Returns the partition of a user: different users have different ones.
pub fn partition_of(owner: &Principal) -> String {
    serde_json::to_string(&(owner.tenant(), owner.id())).expect("texts are JSON")
}

/// Returns the name of the row of a chat, in the partition of its user.
pub fn row_of(chat: &ChatId) -> String {
    format!("h{}", chat.as_str())
}

/// Returns the epoch and the length of a log: of its row, and of the end of its [entries](ENTRIES).
///
/// # Errors
/// [`ChatStoreError`] if a newer version has written the row.
pub fn log_of_row(row: &[u8], end: Option<u64>) -> Result<(Epoch, u64), ChatStoreError> {
    let head = Head::read(row)?;
    Ok((Epoch(head.epoch), end.unwrap_or(head.first)))
}

/// The row of what a sink has to get of a chat.
pub(super) fn delivery_row(chat: &ChatId) -> String {
    format!("x{}", chat.as_str())
}

/// Returns the member of a list of many users that stands for a chat.
pub(super) fn member_of(key: &LogKey) -> String {
    format!("{}{SEPARATOR}{}", partition_of(&key.owner), key.chat.as_str())
}

/// Returns the chat that a member stands for.
pub(super) fn key_of(member: &str) -> Result<LogKey, ChatStoreError> {
    let (owner, chat) = member.split_once(SEPARATOR).ok_or(UnreadableRow)?;
    Ok(LogKey { owner: owner_of(owner)?, chat: chat.into() })
}

/// Returns the user of a [partition](partition_of).
pub(super) fn owner_of(partition: &str) -> Result<Principal, ChatStoreError> {
    let (tenant, id): (Option<String>, Option<String>) = read(partition.as_bytes())?;
    let owner = id.map_or_else(Principal::anonymous, Principal::new);
    Ok(tenant.into_iter().fold(owner, Principal::with_tenant))
}

impl Step {
    /// Returns a step without reads and writes in the partition of a user.
    pub(super) fn of(owner: &Principal) -> Self {
        Step { partition: partition_of(owner), ..Step::default() }
    }

    /// Returns a step without reads and writes in one of the partitions of a list of the chats of all users.
    pub(super) fn of_list(list: &str, number: u64) -> Self {
        Step { partition: format!("{list}{number}"), ..Step::default() }
    }

    /// Returns a step that moves a chat in a list of the chats of all users.
    pub(super) fn moving(
        rows: &impl Rows,
        list: &'static str,
        key: &LogKey,
        from: Option<u64>,
        to: Option<u64>,
    ) -> Self {
        Step::moving_member(rows, list, member_of(key), from, to)
    }

    /// Like [`Step::moving`], also for a member that cannot be read.
    pub(super) fn moving_member(
        rows: &impl Rows,
        list: &'static str,
        member: String,
        from: Option<u64>,
        to: Option<u64>,
    ) -> Self {
        let owner = member.split(SEPARATOR).next().unwrap_or_default();
        let number = hash(owner) % rows.list_partitions().max(1);
        let step = Step { can_wait: true, ..Step::of_list(list, number) };
        step.write(Write::Move { list, member, from, to })
    }

    /// Returns a step that moves members back.
    pub(super) fn undo(&self) -> Self {
        let back = |write: &Write| match write.clone() {
            Write::Move { list, member, from, to } => {
                Some(Write::Move { list, member, from: to, to: from })
            }
            _ => None,
        };
        let writes = self.writes.iter().filter_map(back).collect();
        Step { partition: self.partition.clone(), writes, can_wait: true, ..Step::default() }
    }

    pub(super) fn expect(mut self, row: &str, version: Version) -> Self {
        self.expected.push((row.to_owned(), version));
        self
    }

    pub(super) fn write(mut self, write: Write) -> Self {
        self.writes.push(write);
        self
    }

    pub(super) fn read(mut self, read: Read) -> Self {
        self.reads.push(read);
        self
    }

    /// Reads the row of a log, its length, and when a client has read it: [`Reply::log`].
    pub(super) fn read_log(self, chat: &ChatId) -> Self {
        let row = row_of(chat);
        let reads = all(&row, READS, 0, 0);
        self.read(Read::Row(row.clone())).read(Read::End(row, ENTRIES)).read(reads)
    }

    /// Puts a row of JSON in place of the one that is expected. Returns its version.
    pub(super) fn put(&mut self, row: &str, value: &impl Serialize) -> Version {
        let version = new_version();
        let json = serde_json::to_vec(value).expect("a row is JSON");
        self.writes.push(Write::Put(row.to_owned(), version, json.into()));
        version
    }

    /// Puts the row of a user, or deletes the one of a user without chats.
    pub(super) fn put_user(&mut self, expected: Version, user: &User) {
        self.expected.push((USER.to_owned(), expected));
        if user.chats == 0 && user.live.is_empty() {
            self.writes.push(Write::Delete(USER.to_owned()));
        } else {
            self.put(USER, user);
        }
    }

    /// Replaces the one item of a sequence.
    pub(super) fn replace(self, row: &str, sequence: Sequence, bytes: Bytes) -> Self {
        let row = row.to_owned();
        let items = vec![Item { kind: 0, bytes }];
        self.write(Write::Keep { row: row.clone(), sequence, from: u64::MAX, until: u64::MAX })
            .write(Write::Push { row, sequence, first: 0, at: None, items })
    }

    pub(super) fn with_hint(mut self, key: &LogKey, log: Option<(Epoch, u64)>) -> Self {
        self.hints.push(Hint { key: key.clone(), log, is_list: true });
        self
    }
}

impl Reply {
    /// Returns the answer to [`Step::read_log`].
    pub(super) fn log(&mut self) -> Result<Loaded, ChatStoreError> {
        // All answers are taken, also if the row cannot be read.
        let (row, end, read_at) = (self.row()?, self.end()?, self.read_at());
        let (version, head) = match row {
            None => (0, None),
            Some((version, bytes)) => (version, Some(Head::read(&bytes)?)),
        };
        let read_at = read_at?;
        let length = head.as_ref().map_or(0, |head| end.unwrap_or(head.first));
        Ok(Loaded { version, head, length, read_at })
    }

    /// Returns the row of a log.
    pub(super) fn head(&mut self) -> Result<Option<Head>, ChatStoreError> {
        self.row()?.map(|(_, bytes)| Head::read(&bytes)).transpose()
    }

    /// Returns when a client has read the live run, or an earlier one.
    pub(super) fn read_at(&mut self) -> Result<Option<u64>, ChatStoreError> {
        self.items()?.pop().map(|(_, item)| read(&item.bytes)).transpose()
    }

    /// Returns the row of a user and its version.
    pub(super) fn user(&mut self) -> Result<(Version, User), ChatStoreError> {
        let row = self.row()?;
        row.map_or(Ok(Default::default()), |(version, bytes)| Ok((version, read(&bytes)?)))
    }

    /// Returns the row of what a sink has to get, and its version.
    pub(super) fn delivery(&mut self) -> Result<(Version, Option<Delivery>), ChatStoreError> {
        let row = self.row()?;
        row.map_or(Ok((0, None)), |(version, bytes)| Ok((version, Some(read(&bytes)?))))
    }

    /// Returns the version of a row.
    pub(super) fn version(&mut self) -> Result<Version, ChatStoreError> {
        Ok(self.row()?.map_or(0, |(version, _)| version))
    }

    fn row(&mut self) -> Result<Option<(Version, Bytes)>, ChatStoreError> {
        match self.found.pop_front() {
            Some(Found::Row(row)) => Ok(row),
            _ => Err(WrongReply.into()),
        }
    }

    pub(super) fn end(&mut self) -> Result<Option<u64>, ChatStoreError> {
        match self.found.pop_front() {
            Some(Found::End(end)) => Ok(end),
            _ => Err(WrongReply.into()),
        }
    }

    pub(super) fn items(&mut self) -> Result<Vec<(u64, Item)>, ChatStoreError> {
        match self.found.pop_front() {
            Some(Found::Items(items)) => Ok(items),
            _ => Err(WrongReply.into()),
        }
    }

    /// Returns items that are texts.
    pub(super) fn texts(&mut self) -> Result<Vec<String>, ChatStoreError> {
        let text = |(_, item): (u64, Item)| String::from_utf8(item.bytes.into());
        let texts = self.items()?.into_iter().map(text).collect::<Result<_, _>>();
        texts.map_err(|_| UnreadableRow.into())
    }

    /// Returns items that are entries of a log.
    pub(super) fn entries(&mut self) -> Result<Vec<(u64, StoredEntry)>, ChatStoreError> {
        let entry = |(position, Item { kind, bytes })| {
            let kind = match kind {
                0 => EntryKind::Frame,
                1 => EntryKind::Note,
                2 => EntryKind::Control,
                _ => return Err(UnreadableRow.into()),
            };
            Ok((position, StoredEntry { kind, bytes }))
        };
        self.items()?.into_iter().map(entry).collect()
    }

    pub(super) fn members(&mut self) -> Result<Vec<(u64, String)>, ChatStoreError> {
        match self.found.pop_front() {
            Some(Found::Members(members)) => Ok(members),
            _ => Err(WrongReply.into()),
        }
    }
}

/// Returns the replies to so many steps.
pub(super) fn replies<const N: usize>(replies: Vec<Reply>) -> Result<[Reply; N], ChatStoreError> {
    replies.try_into().map_err(|_| WrongReply.into())
}

/// Returns an entry as an item.
pub(super) fn item(entry: &StoredEntry) -> Item {
    let kind = match entry.kind {
        EntryKind::Frame => 0,
        EntryKind::Note => 1,
        EntryKind::Control => 2,
    };
    Item { kind, bytes: entry.bytes.clone() }
}

/// Reads the items of a sequence from a position on.
pub(super) fn all(row: &str, sequence: Sequence, from: u64, max_bytes: usize) -> Read {
    Read::Items { row: row.to_owned(), sequence, from, max_bytes, only_marked: false }
}

/// FNV-1a, which stays the same in each version of Rust.
fn hash(text: &str) -> u64 {
    let step = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, step)
}

#[expect(clippy::disallowed_methods, reason = "a store is glue")]
pub(super) fn new_version() -> Version {
    (uuid::Uuid::new_v4().as_u64_pair().1 & ((1 << 53) - 1)).max(1)
}

/// Returns a new place for a time in a list of the chats of all users. Each place is another one, so that the removal of
/// one never removes a newer one.
pub(super) fn place_at(millis: u64) -> u64 {
    first_place(millis) | (new_version() >> (53 - PLACE_BITS))
}

/// Returns the first of the places for a time.
pub(super) fn first_place(millis: u64) -> u64 {
    millis.min(MAX_TIME) << PLACE_BITS
}

/// Returns the time of a place.
pub(super) fn time_of(place: u64) -> u64 {
    place >> PLACE_BITS
}

/// The replies of a database are not those to the steps.
#[derive(Debug, thiserror::Error)]
#[error("the replies of the database are not those to the steps")]
struct WrongReply;

impl From<WrongReply> for ChatStoreError {
    fn from(error: WrongReply) -> Self {
        ChatStoreError::new(error)
    }
}

/// The sequences of the row of a chat: its entries.
pub const ENTRIES: Sequence = 0;
/// The messages of the snapshot.
pub(super) const MESSAGES: Sequence = 1;
/// The rest of the snapshot, as one item.
pub(super) const SNAPSHOT: Sequence = 2;
/// When a client has read the live run, as one item. It is not in the row, so that a read changes no version.
pub(super) const READS: Sequence = 3;

/// The row of a user.
pub(super) const USER: &str = "u";

/// The list of the chats of a user, by the time of their last update.
pub(super) const CHATS: &str = "chats";

/// The list of the chats of all users to sweep.
pub(super) const DUE: &str = "due";

/// The list of the chats of all users that a sink has to get.
pub(super) const UNDELIVERED: &str = "undelivered";

/// The random bits of a place.
const PLACE_BITS: u32 = 20;

/// The last time that has a place: in the year 2248.
const MAX_TIME: u64 = (1 << 43) - 1;

/// JSON escapes it, so it is not in the name of a partition.
const SEPARATOR: char = '\u{1f}';
