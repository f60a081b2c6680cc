//! [`RedisStoreError`]: why Redis cannot be used.

use std::time::Duration;

use redis::{ConnectionInfo, ErrorKind, RedisError};

/// A failure of a [`RedisStore`](crate::RedisStore).
///
/// The functions of the store traits return it as the source of their own errors.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RedisStoreError {
    /// The prefix of the keys holds a brace, which has a meaning in Redis Cluster, or it is empty
    /// in Redis Cluster, where it decides the node of some lists.
    #[error("the prefix of the keys must not hold braces, nor be empty in Redis Cluster")]
    Prefix,
    /// The text is not the URL of a Redis.
    #[error("the URL of Redis cannot be read; it has the form `redis://user:password@host:6379/0`")]
    Url(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// No connection was made when the store was opened.
    #[error("cannot connect to Redis at {addresses}; start it, or correct its URL")]
    Unreachable {
        /// Where Redis was expected, without user and password.
        addresses: String,
        /// Why there is no connection.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Redis has refused the connection or the operation, which has changed nothing.
    #[error("{reason} ({code})")]
    Refused {
        /// The code of Redis, for example `OOM`.
        code: &'static str,
        /// What it means, and what to do.
        reason: &'static str,
    },
    /// Redis is not reachable, or it has refused the operation for another reason. It is not known
    /// whether the operation took place.
    #[error("Redis failed")]
    Redis(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// Redis has not answered in time. It is not known whether the operation took place.
    #[error(
        "Redis has not answered within {0:?}: it hangs, has too much to do, or is not reachable"
    )]
    Timeout(Duration),
    /// Another version of this package has written the chats.
    #[error(
        "the chats in this Redis have format {format}, and this version of ui-message-stream-redis reads \
         format {known}: if it is older, use another prefix or delete them; if it is newer, upgrade the server"
    )]
    OtherChats {
        /// The format of the chats.
        format: u64,
        /// The format that this version reads.
        known: u64,
    },
    /// The user was [deleted](crate::RedisStore::delete_user) during a run, which requests no more
    /// approvals.
    #[error("the user was deleted, and has no such chat since")]
    UserDeleted,
    /// The approvals in a Redis Cluster are those of an earlier version, which keeps all in one slot.
    #[error(
        "the approvals in this Redis Cluster have the format of an earlier version of \
         ui-message-stream-redis, in which all are in one slot: stop the servers of that version, and wait \
         until the keys {0}record:*, {0}list:*, {0}all:* and {0}use:* have expired, or delete them, \
         which voids the open questions"
    )]
    OlderApprovals(Box<str>),
    /// An approval has an id that another requester has. See
    /// [`RecordId::of_requester`](ui_message_stream::approval::RecordId::of_requester).
    #[error(
        "the id of an approval is not one of its requester: create it with `RecordId::of_requester`"
    )]
    IdOfOtherBucket,
    /// What is stored is not what this version writes.
    #[error("a stored {0} cannot be read")]
    Unreadable(&'static str),
    /// The system has no random bytes.
    #[error("no random bytes")]
    Random,
}

impl RedisStoreError {
    /// Another program has written a key.
    #[cfg(feature = "chat")]
    pub(crate) fn wrong_type() -> Self {
        RedisStoreError::Refused { code: WRONG_TYPE.0, reason: WRONG_TYPE.1 }
    }

    /// Returns the cause of a failure of the logs.
    #[cfg(feature = "chat")]
    pub(crate) fn from_chat(error: ui_message_stream_chat::store::ChatStoreError) -> Self {
        let cause = std::error::Error::source(&error);
        let cause = cause.and_then(<dyn std::error::Error>::downcast_ref::<Self>);
        cause.map_or(RedisStoreError::Unreadable("row"), Self::of_another)
    }

    /// Returns the error of another operation that was sent in the same call.
    pub(crate) fn of_another(&self) -> Self {
        match self {
            RedisStoreError::Refused { code, reason } => RedisStoreError::Refused { code, reason },
            RedisStoreError::Timeout(time) => RedisStoreError::Timeout(*time),
            other => RedisStoreError::Redis(other.to_string().into()),
        }
    }

    /// Adds to an error of opening a connection where Redis was expected.
    pub(crate) fn at(self, nodes: &[ConnectionInfo]) -> Self {
        let source: Box<dyn std::error::Error + Send + Sync> = match self {
            RedisStoreError::Redis(source) => source,
            timeout @ RedisStoreError::Timeout(_) => timeout.into(),
            other => return other,
        };
        let addresses: Vec<String> = nodes.iter().map(|node| node.addr().to_string()).collect();
        RedisStoreError::Unreachable { addresses: addresses.join(", "), source }
    }

    /// Wraps an error of the client, whose type is not public here.
    pub(crate) fn redis(error: RedisError) -> Self {
        if let Some((code, reason)) = refusal(&error) {
            return RedisStoreError::Refused { code, reason };
        }
        match error.kind() {
            // Its text holds the reply, and so what is stored.
            ErrorKind::Parse | ErrorKind::UnexpectedReturnType => {
                RedisStoreError::Unreadable("reply")
            }
            _ => RedisStoreError::Redis(error.into()),
        }
    }
}

/// Returns whether Redis has refused the user or the password, or requires one.
pub(crate) fn is_unauthenticated(error: &RedisError) -> bool {
    // The client does not keep the code of a reply to AUTH.
    error.kind() == ErrorKind::AuthenticationFailed
        || matches!(error.code(), Some("NOAUTH" | "WRONGPASS"))
}

/// Returns why Redis has refused a connection or an operation, if that has a known reason.
fn refusal(error: &RedisError) -> Option<(&'static str, &'static str)> {
    let code = match error.kind() {
        ErrorKind::AuthenticationFailed => "WRONGPASS",
        _ => error.code()?,
    };
    let detail = error.detail().unwrap_or_default();
    REFUSALS.into_iter().find(|(known, _)| {
        // Before Redis 7, the text of a failed script holds the code.
        code == *known || code == "ERR" && detail.contains(&format!("-{known} "))
    })
}

const REFUSALS: [(&str, &str); 10] = [
    ("WRONGPASS", "Redis refuses the user or the password: correct them in its URL"),
    ("NOAUTH", "Redis requires a password: set it in its URL"),
    ("NOPERM", "the user of Redis may not use the commands or keys of the store: extend its ACL"),
    ("OOM", "the memory of Redis is full: raise its maxmemory, or delete other data"),
    ("MISCONF", "Redis cannot write to its disk: free space on it, or see the log of Redis"),
    ("LOADING", "Redis is loading its data: wait until it has done so"),
    ("READONLY", "this Redis is a replica, which cannot be written: connect to the primary"),
    ("MASTERDOWN", "this Redis is a replica without its primary: connect to the primary"),
    WRONG_TYPE,
    ("CLUSTERDOWN", "a part of the Redis Cluster is down: start its nodes"),
];

const WRONG_TYPE: (&str, &str) = (
    "WRONGTYPE",
    "another program has written a key of the store: use another prefix, or delete it",
);
