//! [`RedisStoreError`]: why Redis cannot be used.

use std::time::Duration;

use redis::ErrorKind;

/// A failure of a [`RedisStore`](crate::RedisStore).
///
/// The functions of the store traits return it as the source of their own errors.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RedisStoreError {
    /// The prefix of the keys holds a brace, which has a meaning in Redis Cluster, or it is empty
    /// in Redis Cluster, where it decides the node of the approvals.
    #[error("the prefix of the keys must not hold braces, nor be empty in Redis Cluster")]
    Prefix,
    /// Redis is not reachable, or it has refused the operation. It is not known whether the
    /// operation took place.
    #[error("Redis failed")]
    Redis(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// Redis has not answered in time. It is not known whether the operation took place.
    #[error("Redis has not answered within {0:?}")]
    Timeout(Duration),
    /// A newer version of this package has written the run.
    #[error(
        "run: format {format} is newer than this version of ui-message-stream-redis reads \
         ({known}); upgrade the server"
    )]
    NewerRunFormat {
        /// The format of the run.
        format: u64,
        /// The newest format that this version reads.
        known: u64,
    },
    /// The user was [deleted](crate::RedisStore::delete_user) during a run, which requests no more
    /// approvals.
    #[error("the user was deleted, and has no such chat since")]
    UserDeleted,
    /// What is stored is not what this version writes.
    #[error("a stored {0} cannot be read")]
    Unreadable(&'static str),
    /// The system has no random bytes.
    #[error("no random bytes")]
    Random,
}

impl RedisStoreError {
    /// Wraps an error of the client, whose type is not public here.
    pub(crate) fn redis(error: redis::RedisError) -> Self {
        if error.code() == Some(NEWER_RUN) {
            let numbers = error.detail().unwrap_or_default().split_whitespace();
            let mut numbers = numbers.map(|number| number.parse().unwrap_or(0));
            let mut next = || numbers.next().unwrap_or(0);
            return RedisStoreError::NewerRunFormat { format: next(), known: next() };
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

/// The error with which `run.lua` refuses a run of a newer format. The format of the run and the
/// newest format that the script reads follow.
const NEWER_RUN: &str = "NEWERRUN";
