//! [`FileHealth`]: whether the open file is still the one that its path names, and undamaged.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::error::{DbResult, SqliteError};
use crate::file;

/// What is known of the file since it was opened.
#[derive(Debug)]
pub(crate) struct FileHealth {
    /// The file and its `-wal`, with their identities when they were opened.
    opened: Vec<(PathBuf, Identity)>,
    /// An operation has found damage.
    is_damaged: AtomicBool,
    /// Whether the last check has failed, so that only a change is logged.
    has_failed: Mutex<bool>,
}

/// The device and the inode of a file.
type Identity = (u64, u64);

impl FileHealth {
    /// Reads the identities of a file that is open, and whose `-wal` exists.
    pub(crate) fn new(path: &Path) -> Self {
        let opened = ["", "-wal"].into_iter().filter_map(|suffix| {
            let path = file::beside(path, suffix);
            let identity = identity(&path).ok()?;
            Some((path, identity))
        });
        FileHealth {
            opened: opened.collect(),
            is_damaged: AtomicBool::new(false),
            has_failed: Mutex::new(false),
        }
    }

    /// Remembers damage that an operation has found, and returns its error. What was a database of this
    /// package when it was opened is damaged if it is none any more.
    pub(crate) fn note(&self, error: SqliteError) -> SqliteError {
        match error {
            SqliteError::Corrupt | SqliteError::OtherDatabase => {
                self.is_damaged.store(true, Ordering::Relaxed);
                SqliteError::Corrupt
            }
            error => error,
        }
    }

    /// Checks that the paths still name the files that are open, and that the beginning of each table can
    /// be read. Logs when the result has changed.
    ///
    /// # Errors
    /// [`SqliteError::Removed`] or [`SqliteError::Corrupt`].
    pub(crate) fn check(&self) -> Result<(), SqliteError> {
        let checked = self.look();
        let has_failed = checked.is_err();
        let mut before = self.has_failed.lock().unwrap_or_else(|error| error.into_inner());
        match &checked {
            Err(error) if !*before => tracing::error!(%error, "the chats are in danger"),
            Ok(()) if *before => tracing::info!("the file is at its place again"),
            _ => {}
        }
        *before = has_failed;
        checked
    }

    /// Checks that the paths still name the files that are open. What is written to others is lost.
    pub(crate) fn check_place(&self) -> Result<(), SqliteError> {
        let is_gone = |(path, opened): &&(PathBuf, Identity)| match identity(path) {
            Ok(identity) => identity != *opened,
            // Otherwise it may be there: this process may have given up the right to look.
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        };
        match self.opened.iter().find(is_gone) {
            Some((path, _)) => Err(SqliteError::Removed { path: path.clone() }),
            None => Ok(()),
        }
    }

    fn look(&self) -> Result<(), SqliteError> {
        self.check_place()?;
        if !self.is_damaged.load(Ordering::Relaxed) {
            let path = self.opened.first().map(|(path, _)| path.as_path());
            let Err(failure) = path.map_or(Ok(()), read_beginnings) else { return Ok(()) };
            self.note(failure.0);
        }
        match self.is_damaged.load(Ordering::Relaxed) {
            true => Err(SqliteError::Corrupt),
            // Another failure is found by the operations that it affects.
            false => Ok(()),
        }
    }
}

/// Reads the first row of each table with a new connection, which knows no page of the file. A connection
/// that is open has pages in memory, and would not notice that they are damaged.
fn read_beginnings(path: &Path) -> DbResult<()> {
    let connection = file::open(path, Duration::ZERO)?;
    let mut names = connection.prepare("SELECT name FROM sqlite_schema WHERE type = 'table'")?;
    let names: Vec<String> = names.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?;
    for name in &names {
        let read = format!("SELECT * FROM \"{}\" LIMIT 1", name.replace('"', "\"\""));
        connection.prepare(&read)?.query([])?.next()?;
    }
    if names.is_empty() { Err(SqliteError::Corrupt.into()) } else { Ok(()) }
}

#[cfg(unix)]
fn identity(path: &Path) -> io::Result<Identity> {
    use std::os::unix::fs::MetadataExt;

    let metadata = std::fs::metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

/// An open file cannot be removed.
#[cfg(not(unix))]
fn identity(_: &Path) -> io::Result<Identity> {
    Err(io::ErrorKind::Unsupported.into())
}
