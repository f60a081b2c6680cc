//! [`SqliteError`]: why the file cannot be used, without its contents.

#[cfg(feature = "chat")]
use std::error::Error as StdError;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use rusqlite::ErrorCode;

/// A failure of a [`SqliteStore`](crate::SqliteStore).
///
/// The functions of the store traits return it as the source of their own errors. It holds no SQL
/// and nothing that is stored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SqliteError {
    /// The file cannot be created, or its mode cannot be read.
    #[error("the file cannot be opened")]
    File(#[source] io::Error),
    /// Other users of the machine may read or write the file.
    #[error(
        "{} has mode {mode:04o}: other users may have read the chats and the sealing key in it; \
         `chmod 600` it, if that is no harm",
        path.display()
    )]
    FileMode {
        /// The file, or the `-wal` or `-shm` beside it.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// The file holds a database of another program.
    #[error("the file is the database of another program")]
    OtherDatabase,
    /// A newer version of this package has created the tables.
    #[error(
        "the tables have schema {schema}, which is newer than this version of \
         ui-message-stream-sqlite reads ({known}); upgrade the server"
    )]
    NewerSchema {
        /// The schema of the file.
        schema: i64,
        /// The schema that this version reads.
        known: i64,
    },
    /// An older version of this package has created the tables.
    #[error(
        "the tables have schema {schema}, which is older than this version of \
         ui-message-stream-sqlite reads ({known}); begin with a new file"
    )]
    OlderSchema {
        /// The schema of the file.
        schema: i64,
        /// The schema that this version reads.
        known: i64,
    },
    /// Another process has locked the file for longer than the
    /// [busy timeout](crate::SqliteOptions::with_busy_timeout).
    #[error("the file is locked by another process: wait for it, or end it")]
    Busy,
    /// The operation has waited this long for its turn: those before it wait for the disk, or for
    /// other processes. It has changed nothing.
    #[error("the disk has not answered within {0:?}: it is too slow or hangs")]
    Timeout(Duration),
    /// The disk is full.
    #[error("the disk is full: free space on it")]
    Full,
    /// This process may not write the file, or may not create its `-wal` and `-shm`.
    #[error("the file or its folder cannot be written: give this process the right to write both")]
    ReadOnly,
    /// The file is damaged.
    #[error(
        "the file is damaged: stop the server, and see \"A damaged file\" in docs/operations.md"
    )]
    Corrupt,
    /// The file, or the `-wal` beside it, was removed or replaced while it was open. Nothing is written
    /// until it is at its place again.
    #[error(
        "{} was removed or replaced while the server ran, so nothing is stored any more; see \
         \"A damaged file\" in docs/operations.md",
        path.display()
    )]
    Removed {
        /// The file or its `-wal`.
        path: PathBuf,
    },
    /// The file belongs to another user of the machine, who can read the chats and the sealing key.
    #[error(
        "{} belongs to the user with id {owner}, and this process runs as {process}: that user can \
         read the chats and the sealing key in it; `chown` it, if that is no harm",
        path.display()
    )]
    FileOwner {
        /// The file, or the `-wal` or `-shm` beside it.
        path: PathBuf,
        /// The user id of the owner.
        owner: u32,
        /// The user id of this process.
        process: u32,
    },
    /// The path is a link to a file in a folder to which other users of the machine can write.
    #[error(
        "{} is a link into {}, a folder with mode {mode:04o}: other users can replace the files in it; \
         name a file in a folder of your own",
        path.display(), folder.display()
    )]
    SharedFolder {
        /// The link.
        path: PathBuf,
        /// The folder of its target.
        folder: PathBuf,
        /// The permissions of the folder.
        mode: u32,
    },
    /// The disk failed, for example because the file may not grow.
    #[error("the disk failed (code {code} of SQLite)")]
    Io {
        /// The extended result code of SQLite.
        code: i32,
    },
    /// SQLite failed for another reason.
    #[error("SQLite failed (code {code})")]
    Sqlite {
        /// The extended result code of SQLite.
        code: i32,
    },
    /// What is stored is not what this version writes.
    #[error("a stored {0} cannot be read")]
    Unreadable(&'static str),
    /// The user was [deleted](crate::SqliteStore::delete_user) during a run, which requests no more
    /// approvals.
    #[error("the user was deleted, and has no such chat since")]
    UserDeleted,
    /// The system has no random bytes.
    #[error("no random bytes")]
    Random,
    /// The operation has panicked, because of a bug. It has changed nothing.
    #[error("the operation has panicked")]
    Panicked,
}

impl SqliteError {
    /// Returns the cause of a failure of the logs.
    #[cfg(feature = "chat")]
    pub(crate) fn from_chat(error: ui_message_stream_chat::store::ChatStoreError) -> Self {
        let cause = error.source().and_then(<dyn StdError>::downcast_ref::<Self>);
        cause.map_or(SqliteError::Unreadable("row"), SqliteError::same)
    }

    /// Returns the error for another operation of the same transaction.
    pub(crate) fn same(&self) -> Self {
        match self {
            SqliteError::OtherDatabase => SqliteError::OtherDatabase,
            SqliteError::Busy => SqliteError::Busy,
            SqliteError::Timeout(time) => SqliteError::Timeout(*time),
            SqliteError::Full => SqliteError::Full,
            SqliteError::ReadOnly => SqliteError::ReadOnly,
            SqliteError::Corrupt => SqliteError::Corrupt,
            SqliteError::Removed { path } => SqliteError::Removed { path: path.clone() },
            SqliteError::Io { code } => SqliteError::Io { code: *code },
            SqliteError::Sqlite { code } => SqliteError::Sqlite { code: *code },
            SqliteError::Unreadable(what) => SqliteError::Unreadable(what),
            SqliteError::Panicked => SqliteError::Panicked,
            // The other errors do not end a transaction.
            _ => SqliteError::Sqlite { code: rusqlite::ffi::SQLITE_ERROR },
        }
    }
}

/// An error inside this package: `?` converts the errors of `rusqlite`, whose type is not public
/// here.
#[derive(Debug)]
pub(crate) struct Failure(pub(crate) SqliteError);

impl From<SqliteError> for Failure {
    fn from(error: SqliteError) -> Self {
        Failure(error)
    }
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        // The text of the error may hold SQL and values.
        let Some(error) = error.sqlite_error() else {
            return Failure(SqliteError::Unreadable("record"));
        };
        let code = error.extended_code;
        Failure(match error.code {
            ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked => SqliteError::Busy,
            ErrorCode::DiskFull => SqliteError::Full,
            ErrorCode::ReadOnly | ErrorCode::PermissionDenied | ErrorCode::CannotOpen => {
                SqliteError::ReadOnly
            }
            ErrorCode::DatabaseCorrupt => SqliteError::Corrupt,
            ErrorCode::NotADatabase => SqliteError::OtherDatabase,
            ErrorCode::SystemIoFailure => SqliteError::Io { code },
            _ => SqliteError::Sqlite { code },
        })
    }
}

pub(crate) type DbResult<T> = Result<T, Failure>;
