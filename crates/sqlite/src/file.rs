//! [`open`]: the file, which no other user may read, and connections to it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use crate::error::{DbResult, Failure, SqliteError};

/// When a commit counts as done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Durability {
    /// When it is on the disk: it survives a power failure.
    Synced,
    /// When the system has it: it survives the process. `synchronous=OFF` would do so too, but a
    /// checkpoint without a sync could damage what others have synced.
    Written,
    /// When it is in the file itself, and the write-ahead log is empty.
    Moved,
}

/// Creates the file if it does not exist, with a mode that gives other users no access. Refuses a
/// file that gives them any.
pub(crate) fn create(path: &Path) -> Result<PathBuf, SqliteError> {
    // Else SQLite would take `:memory:` and the empty path for names of its own.
    let path = std::path::absolute(path).map_err(SqliteError::File)?;
    // Only a file that does not exist is opened here. A process that closes any descriptor of a file
    // loses all its locks of that file, those of SQLite too.
    let mut options = fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    match options.open(&path) {
        Ok(_) => sync_folder_of(&path).map_err(SqliteError::File)?,
        Err(error) if path.is_dir() => {
            let reason = "it is a folder; name a file in it";
            return Err(SqliteError::File(io::Error::new(error.kind(), reason)));
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let reason = "its folder does not exist; create it, or name a file in another one";
            return Err(SqliteError::File(io::Error::new(error.kind(), reason)));
        }
        Err(error) => return Err(SqliteError::File(error)),
    }
    let path = resolve(path)?;
    for suffix in ["", "-wal", "-shm"] {
        check_access(beside(&path, suffix))?;
    }
    Ok(path)
}

/// Returns the path of a file that SQLite keeps beside the database.
pub(crate) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut file = path.as_os_str().to_owned();
    file.push(suffix);
    PathBuf::from(file)
}

/// Returns the target of a link, beside which SQLite creates `-wal` and `-shm`. Refuses a target in a
/// folder to which other users can write.
#[cfg(unix)]
fn resolve(path: PathBuf) -> Result<PathBuf, SqliteError> {
    use std::os::unix::fs::PermissionsExt;

    let is_link = fs::symlink_metadata(&path).map_err(SqliteError::File)?.is_symlink();
    if !is_link {
        return Ok(path);
    }
    let target = fs::canonicalize(&path).map_err(SqliteError::File)?;
    let Some(folder) = target.parent() else { return Ok(target) };
    let mode = fs::metadata(folder).map_err(SqliteError::File)?.permissions().mode() & 0o7777;
    if mode & 0o022 != 0 {
        return Err(SqliteError::SharedFolder { path, folder: folder.to_owned(), mode });
    }
    Ok(target)
}

#[cfg(not(unix))]
fn resolve(path: PathBuf) -> Result<PathBuf, SqliteError> {
    Ok(path)
}

/// Opens a connection, whose commits are [synced](Durability::Synced).
pub(crate) fn open(path: &Path, busy_timeout: Duration) -> DbResult<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(busy_timeout)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    // Else a statement with a parameter is prepared again each time the parameter has another value.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    set_durability(&connection, Durability::Synced)?;
    // Without these, macOS leaves what was synced in the cache of the disk.
    connection.pragma_update(None, "fullfsync", true)?;
    connection.pragma_update(None, "checkpoint_fullfsync", true)?;
    connection.pragma_update(None, "page_size", PAGE_BYTES)?;
    connection.pragma_update(None, "foreign_keys", true)?;
    // The pages that are often read, such as those of the rows of live runs, stay in memory.
    connection.pragma_update(None, "cache_size", -CACHE_KIB)?;
    // After a long read the log may be larger. Then it is cut again.
    connection.pragma_update(None, "journal_size_limit", MAX_WAL_BYTES)?;
    let page_bytes: i64 = connection.pragma_query_value(None, "page_size", |row| row.get(0))?;
    connection.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_BYTES / page_bytes.max(512))?;
    Ok(connection)
}

/// Sets when the next commits of a connection count as done. What was committed before a synced
/// commit is on the disk too.
pub(crate) fn set_durability(connection: &Connection, durability: Durability) -> DbResult<()> {
    let synchronous = match durability {
        Durability::Synced | Durability::Moved => "FULL",
        Durability::Written => "NORMAL",
    };
    Ok(connection.pragma_update(None, "synchronous", synchronous)?)
}

/// Puts the file into WAL mode, in which it stays.
pub(crate) fn use_wal(connection: &Connection, patience: Duration) -> DbResult<()> {
    let patience = patience.max(2 * RETRY_INTERVAL);
    let mut waited = Duration::ZERO;
    loop {
        // While another process does the same, SQLite may fail without waiting. The mode does not
        // change then.
        let mode = connection
            .pragma_update_and_check(None, "journal_mode", "wal", |row| row.get::<_, String>(0));
        match mode.map_err(Failure::from) {
            Ok(mode) if mode.eq_ignore_ascii_case("wal") => return Ok(()),
            Ok(_) | Err(Failure(SqliteError::Busy)) if waited < patience => {}
            Ok(_) => return Err(SqliteError::Busy.into()),
            Err(failure) => return Err(failure),
        }
        std::thread::sleep(RETRY_INTERVAL);
        waited += RETRY_INTERVAL;
    }
}

/// Refuses a file that other users can read: by its mode, or because it is theirs. SQLite creates `-wal`
/// and `-shm` with the mode of the file.
#[cfg(unix)]
fn check_access(path: PathBuf) -> Result<(), SqliteError> {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    let metadata = match fs::metadata(&path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(SqliteError::File(error)),
    };
    let owner = metadata.uid();
    let process = rustix::process::geteuid().as_raw();
    let mode = metadata.permissions().mode() & 0o7777;
    match owner == process {
        false => Err(SqliteError::FileOwner { path, owner, process }),
        true if mode & 0o077 != 0 => Err(SqliteError::FileMode { path, mode }),
        true => Ok(()),
    }
}

#[cfg(not(unix))]
fn check_access(_: PathBuf) -> Result<(), SqliteError> {
    Ok(())
}

/// Makes a new name in a folder durable.
#[cfg(unix)]
fn sync_folder_of(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), |folder| fs::File::open(folder)?.sync_all())
}

#[cfg(not(unix))]
fn sync_folder_of(_: &Path) -> io::Result<()> {
    Ok(())
}

/// The number of prepared statements that a connection keeps.
const STATEMENTS: usize = 64;

/// The size of a page of a new file, in bytes. A file keeps the size that it has.
///
/// A short turn writes about 24 pages. With 4 KiB it writes two thirds more bytes. With 1 KiB it takes more
/// CPU, and an approval request takes a third more room.
const PAGE_BYTES: i64 = 2_048;

/// How much of the file a connection keeps in memory at most, in KiB.
const CACHE_KIB: i64 = 16_384;

/// The bytes of the pages in the write-ahead log after which a commit moves them into the file. A page that
/// has changed often is moved once. The log also has a header of each page, and the pages of the last commit.
const CHECKPOINT_BYTES: i64 = 15 << 20;

/// The bytes that the write-ahead log keeps after a checkpoint.
const MAX_WAL_BYTES: i64 = 16 << 20;

/// How long to wait before a lock that SQLite does not wait for is tried again.
pub(crate) const RETRY_INTERVAL: Duration = Duration::from_millis(10);
