//! How many bytes the store writes for a response of many deltas.

use std::sync::Arc;
use std::time::Duration;

use chat_test_support::long_answer::stream_long_answer;
use rusqlite::Connection;
use ui_message_stream_sqlite::SqliteStore;

use crate::process::{Folder, Process};

pub(crate) fn a_long_answer_is_written_about_once() -> String {
    let folder = Folder::new();
    let lines = Process::start("answer", &folder).finish();
    lines.concat()
}

/// In the process: answers, and prints what was written.
pub(crate) async fn answer(store: SqliteStore) {
    let Some(before) = written_bytes() else { return println!("not counted on this system") };
    let answer = stream_long_answer(Arc::new(store)).await;
    move_log_into_file();
    let written = written_bytes().unwrap() - before;
    assert!(written <= answer.permitted_bytes(), "{written} bytes written for {answer:?}");
    println!("{written} bytes written for {answer:?}");
}

/// Moves the write-ahead log into the file, which the last connection of a process does too.
fn move_log_into_file() {
    let connection = Connection::open(std::env::var_os("FILE").unwrap()).unwrap();
    connection.busy_timeout(Duration::from_secs(60)).unwrap();
    let empty = "PRAGMA wal_checkpoint(TRUNCATE)";
    assert!(!connection.query_row(empty, [], |row| row.get::<_, bool>(0)).unwrap());
}

/// Returns how many bytes this process has passed to the system.
fn written_bytes() -> Option<usize> {
    let counts = std::fs::read_to_string("/proc/self/io").ok()?;
    let written = counts.lines().find_map(|line| line.strip_prefix("wchar: "))?;
    written.parse().ok()
}
