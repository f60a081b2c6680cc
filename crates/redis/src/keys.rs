//! [`Keys`]: the names of the keys in Redis.
//!
//! The part of a key in braces decides its slot in Redis Cluster. The chats of a user are in one slot, so
//! that a script can change a chat together with the list of the user's chats. All approvals are in one
//! slot, because a record is found by its id alone.

use std::fmt;

use sha2::{Digest, Sha256};
use ui_message_stream::approval::store::RecordList;
use ui_message_stream::approval::{Principal, RecordId};

/// Names the keys of a store.
#[derive(Debug, Clone)]
pub(crate) struct Keys {
    prefix: Box<str>,
    /// What the keys of approvals begin with.
    ledger: Box<str>,
}

impl Keys {
    /// A prefix holds no braces, and is not empty in Redis Cluster.
    pub(crate) fn new(prefix: &str, is_cluster: bool) -> Self {
        let ledger = match is_cluster {
            true => format!("{{{prefix}}}"),
            false => prefix.to_owned(),
        };
        Keys { prefix: prefix.into(), ledger: ledger.into() }
    }

    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Returns a key that only the ledger uses.
    pub(crate) fn ledger(&self, suffix: impl fmt::Display) -> String {
        format!("{}{suffix}", self.ledger)
    }

    pub(crate) fn record(&self, id: RecordId) -> String {
        self.ledger(format_args!("record:{id}"))
    }

    pub(crate) fn approval_use(&self, approval: RecordId) -> String {
        self.ledger(format_args!("use:{approval}"))
    }

    /// Returns a list of records.
    pub(crate) fn list(&self, list: &RecordList) -> String {
        self.ledger(format_args!("list:{}", list.as_str()))
    }

    /// Returns the index of all records of a requester.
    pub(crate) fn records_of(&self, requester: &Principal) -> String {
        self.ledger(format_args!("all:{}", user_digest(requester)))
    }

    /// Returns the mark of a user who was deleted.
    pub(crate) fn deleted(&self, user: &Principal) -> String {
        self.ledger(format_args!("deleted:{}", user_digest(user)))
    }

    /// Returns the keys of a user.
    pub(crate) fn user(&self, owner: &Principal) -> UserKeys {
        UserKeys(format!("{}{{{}}}:", self.prefix, user_digest(owner)))
    }
}

/// Returns the name of a chat in the lists of the chats of all users.
pub(crate) fn chat_name(owner: &Principal, chat: &str) -> String {
    serde_json::json!([owner, chat]).to_string()
}

/// Names the keys of one user.
#[derive(Debug, Clone)]
pub(crate) struct UserKeys(String);

impl UserKeys {
    /// Returns the head of the log of a chat.
    pub(crate) fn head(&self, id: &str) -> String {
        self.of("head", id)
    }

    /// Returns the entries of the log of a chat.
    pub(crate) fn entries(&self, id: &str) -> String {
        self.of("entries", id)
    }

    /// Returns the live runs of the chats.
    pub(crate) fn live(&self) -> String {
        format!("{}live", self.0)
    }

    /// Returns the list of the chats by the time of their last update. It is also the name of the channel on
    /// which changes of what lists show are announced.
    pub(crate) fn updated(&self) -> String {
        format!("{}updated", self.0)
    }

    /// Returns the keys of a chat, in the order in which the scripts have them.
    pub(crate) fn log(&self, id: &str) -> [String; 9] {
        let [others, messages] = ["others", "messages"].map(|key| self.of(key, id));
        let [listed, delivered, expiring] =
            ["listed", "delivered", "expiring"].map(|key| format!("{}{key}", self.0));
        let (head, entries) = (self.head(id), self.entries(id));
        [head, entries, others, messages, self.live(), listed, self.updated(), delivered, expiring]
    }

    /// Returns the channel on which the changes of a log are announced.
    pub(crate) fn channel(&self, id: &str) -> String {
        self.of("appended", id)
    }

    fn of(&self, key: &str, id: &str) -> String {
        format!("{}{key}:{id}", self.0)
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
