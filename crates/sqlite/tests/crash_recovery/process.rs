//! [`Process`]: this program as another process, and [`Folder`]: where its file is.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use rusqlite::Connection;

/// A folder that is deleted at the end of its test.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("ui-message-stream-sqlite-crash-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        Folder(folder)
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.0.join("chats.db")
    }

    /// Moves the write-ahead log into the file.
    pub(crate) fn empty_log(&self) {
        let connection = Connection::open(self.file()).unwrap();
        let empty = "PRAGMA wal_checkpoint(TRUNCATE)";
        let is_busy: bool = connection.query_row(empty, [], |row| row.get(0)).unwrap();
        assert!(!is_busy);
    }

    /// Checks the file as SQLite does.
    pub(crate) fn check_integrity(&self) {
        let connection = Connection::open(self.file()).unwrap();
        let found: String =
            connection.pragma_query_value(None, "integrity_check", |row| row.get(0)).unwrap();
        assert_eq!(found, "ok");
        let mut dangling = 0;
        connection
            .pragma_query(None, "foreign_key_check", |_| {
                dangling += 1;
                Ok(())
            })
            .unwrap();
        assert_eq!(dangling, 0);
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A process. It prints lines, and waits for a line before it begins.
pub(crate) struct Process {
    child: Child,
    stdin: ChildStdin,
    lines: JoinHandle<Vec<String>>,
    first: std::sync::mpsc::Receiver<String>,
}

impl Process {
    /// Starts this program with a role, and waits until it has opened the file.
    pub(crate) fn start(role: &str, folder: &Folder) -> Self {
        Self::start_command(Command::new(std::env::current_exe().unwrap()), role, folder)
    }

    pub(crate) fn start_command(mut command: Command, role: &str, folder: &Folder) -> Self {
        let mut child = command
            .env("ROLE", role)
            .env("FILE", folder.file())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = child.stdin.take().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let (sender, first) = std::sync::mpsc::channel();
        let lines = std::thread::spawn(move || {
            let mut lines = Vec::new();
            let mut line = String::new();
            // A line without an end was cut by the kill.
            while stdout.read_line(&mut line).unwrap() > 0 && line.ends_with('\n') {
                let _ = sender.send(line.trim_end().to_owned());
                lines.push(std::mem::take(&mut line).trim_end().to_owned());
            }
            lines
        });
        Process { child, stdin, lines, first }
    }

    /// Waits until the process has printed a line more, and returns it. Returns `None` if it has
    /// ended.
    pub(crate) fn next_line(&self) -> Option<String> {
        self.first.recv().ok()
    }

    /// Lets the process begin.
    pub(crate) fn go(&mut self) {
        self.stdin.write_all(b"go\n").unwrap();
    }

    /// Waits for the end of the process and returns all lines.
    pub(crate) fn finish(mut self) -> Vec<String> {
        drop(self.stdin);
        assert!(self.child.wait().unwrap().success());
        self.lines.join().unwrap()
    }

    /// Kills the process with SIGKILL and returns all lines.
    pub(crate) fn kill(mut self) -> Vec<String> {
        self.child.kill().unwrap();
        assert!(!self.child.wait().unwrap().success(), "the process had ended before");
        self.lines.join().unwrap()
    }
}

/// In the process: waits until it may begin.
pub(crate) fn wait_for_go() {
    let mut go = [0; 3];
    std::io::stdin().read_exact(&mut go).unwrap();
}

pub(crate) fn block_on<T>(run: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(run)
}
