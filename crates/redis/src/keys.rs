//! [`Keys`]: the names of the keys in Redis.
//!
//! The part of a key in braces decides its slot in Redis Cluster. The keys of a partition of rows are in one slot, so
//! that a step can change them together: the chats of a user are such a partition. The approvals of a user are in
//! the bucket that their ids name, with the lists of the user. The lists of an audience are in a bucket, too. A
//! list of all users has sixteen parts, by the first digit of the ids. The keys of a bucket, and of such a part,
//! are in one slot.

use std::fmt;

use sha2::{Digest, Sha256};
use ui_message_stream::approval::store::RecordList;
use ui_message_stream::approval::{Principal, RecordId};

/// Names the keys of a store.
#[derive(Debug, Clone)]
pub(crate) struct Keys {
    prefix: Box<str>,
    is_cluster: bool,
}

impl Keys {
    /// A prefix holds no braces, and is not empty in Redis Cluster.
    pub(crate) fn new(prefix: &str, is_cluster: bool) -> Self {
        Keys { prefix: prefix.into(), is_cluster }
    }

    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Returns a key that belongs to no user.
    pub(crate) fn shared(&self, suffix: &str) -> String {
        if self.is_cluster {
            format!("{{{}}}{suffix}", self.prefix)
        } else {
            format!("{}{suffix}", self.prefix)
        }
    }

    /// Returns a pattern of keys that all users with chats of the first format have.
    #[cfg(feature = "chat")]
    pub(crate) fn pattern_of_older_chats(&self) -> String {
        let escaped = self.prefix.replace('\\', r"\\").replace('*', r"\*");
        let escaped = escaped.replace('?', r"\?").replace('[', r"\[");
        format!("{escaped}{{*}}:updated")
    }

    /// Returns the keys of the approvals of a version that kept all in one slot.
    #[cfg(feature = "cluster")]
    pub(crate) fn older_ledger(&self) -> LedgerKeys {
        LedgerKeys(self.shared(""))
    }

    /// Returns the keys of the bucket of a record.
    pub(crate) fn of_record(&self, id: RecordId) -> LedgerKeys {
        self.bucket(id.bucket())
    }

    /// Returns the keys of the bucket of a requester.
    pub(crate) fn of_requester(&self, requester: &Principal) -> LedgerKeys {
        self.bucket(RecordId::of_requester(requester, [0; 16]).bucket())
    }

    /// Returns the keys where a list is, or the part of it that can have this record.
    pub(crate) fn of_list(&self, list: &RecordList, id: RecordId) -> LedgerKeys {
        match list.bucket() {
            Some(bucket) => self.bucket(bucket),
            None => self.part(id.bucket() >> 8),
        }
    }

    /// Returns where a list is, or its parts.
    pub(crate) fn parts_of(&self, list: &RecordList) -> Vec<LedgerKeys> {
        match list.bucket() {
            Some(bucket) => vec![self.bucket(bucket)],
            None if self.is_cluster => (0..16).map(|part| self.part(part)).collect(),
            None => vec![self.part(0)],
        }
    }

    /// Returns the keys of a partition of rows. Braces in its name would change the slot, and without a name there
    /// would be none.
    pub(crate) fn partition(&self, name: &str) -> PartitionKeys {
        let is_plain = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric());
        let tag = if is_plain { name.to_owned() } else { digest([Some(name)]) };
        PartitionKeys(format!("{}{{{tag}}}:", self.prefix))
    }

    /// Returns the keys of the partition with the chats of a user.
    pub(crate) fn user(&self, owner: &Principal) -> PartitionKeys {
        self.partition(&serde_json::json!([owner.tenant(), owner.id()]).to_string())
    }

    fn bucket(&self, bucket: u16) -> LedgerKeys {
        self.ledger(format_args!("{bucket:03x}"))
    }

    fn part(&self, part: u16) -> LedgerKeys {
        self.ledger(format_args!("{part:x}-all"))
    }

    fn ledger(&self, slot: fmt::Arguments<'_>) -> LedgerKeys {
        LedgerKeys(if self.is_cluster {
            format!("{}{{{slot}}}:", self.prefix)
        } else {
            self.prefix.to_string()
        })
    }
}

/// Returns what decides the slot of a key of the ledger. It is the same for all keys if there are no slots.
pub(crate) fn slot(key: &str) -> &str {
    key.split_once('}').map_or("", |(slot, _)| slot)
}

/// Names the keys of the approvals in a bucket, or in a part of the lists of all users. Without Redis Cluster, there
/// is one bucket, which is also the only part.
#[derive(Debug, Clone)]
pub(crate) struct LedgerKeys(String);

impl LedgerKeys {
    pub(crate) fn record(&self, id: impl fmt::Display) -> String {
        format!("{}record:{id}", self.0)
    }

    /// Returns the key that holds the first use of a stateless approval.
    pub(crate) fn approval_use(&self, approval: RecordId) -> String {
        format!("{}use:{approval}", self.0)
    }

    /// Returns the key of a list of records.
    pub(crate) fn list(&self, list: &RecordList) -> String {
        format!("{}list:{}", self.0, list.as_str())
    }

    /// Returns the time that the clock of the ledger must not fall below.
    pub(crate) fn clock(&self) -> String {
        format!("{}clock", self.0)
    }

    /// Returns the index of all records of a requester.
    pub(crate) fn records_of(&self, requester: &Principal) -> String {
        format!("{}all:{}", self.0, user_digest(requester))
    }

    /// Returns the mark of a user who was deleted.
    pub(crate) fn deleted(&self, user: &Principal) -> String {
        format!("{}deleted:{}", self.0, user_digest(user))
    }
}

/// Names the keys of a partition of rows.
#[derive(Debug, Clone)]
pub(crate) struct PartitionKeys(String);

impl PartitionKeys {
    pub(crate) fn row(&self, row: &str) -> String {
        format!("{}row:{row}", self.0)
    }

    /// Returns the key of the row that a user with chats has.
    pub(crate) fn row_of_user(&self) -> String {
        self.row("u")
    }

    /// Returns the key of the row that a chat has.
    pub(crate) fn row_of_chat(&self, chat: &str) -> String {
        self.row(&format!("h{chat}"))
    }

    /// Returns the key of a sequence of a row.
    pub(crate) fn sequence(&self, row: &str, sequence: u8) -> String {
        format!("{}{sequence}:{row}", self.0)
    }

    pub(crate) fn list(&self, list: &str) -> String {
        format!("{}list:{list}", self.0)
    }

    /// Returns the channel on which the changes of the log are announced that has this row.
    pub(crate) fn channel(&self, row: &str) -> String {
        format!("{}changed:{row}", self.0)
    }

    /// Returns the channel on which the changes of what lists show are announced.
    pub(crate) fn channel_of_lists(&self) -> String {
        format!("{}changed", self.0)
    }
}

fn user_digest(user: &Principal) -> String {
    digest([user.tenant(), user.id()])
}

/// Returns the SHA-256 digest of optional texts, in hex.
///
/// Each text is hashed with its presence and its length, so that different texts never hash the
/// same bytes.
fn digest<const N: usize>(texts: [Option<&str>; N]) -> String {
    let mut digest = Sha256::new();
    for text in texts {
        match text {
            Some(text) => {
                digest.update([1]);
                digest.update((text.len() as u64).to_be_bytes());
                digest.update(text);
            }
            None => digest.update([0]),
        }
    }
    let mut hex = String::with_capacity(64);
    for byte in digest.finalize() {
        for digit in [byte >> 4, byte & 15] {
            hex.extend(char::from_digit(digit.into(), 16));
        }
    }
    hex
}
