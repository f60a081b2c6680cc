//! Several processes create a file at once.

use rusqlite::Connection;
use test_support::kills::{Backend, Process, Role};

use crate::file::File;

pub(crate) fn of_processes_that_create_a_file_at_once_one_does() -> String {
    for _ in 0..ROUNDS {
        let file = File::new();
        let processes = [0; PROCESSES].map(|number| Process::start("create", number, &file));
        processes.into_iter().for_each(Process::finish);
        file.check();
        let rows: i64 = Connection::open(file.path())
            .unwrap()
            .query_row("SELECT count(*) FROM state", [], |row| row.get(0))
            .unwrap();
        assert_eq!(rows, 1);
    }
    format!("{ROUNDS} × {PROCESSES} processes, all have opened the file")
}

/// In the process: opens the file when all are ready.
pub(crate) async fn create(role: &Role) {
    role.journal.meet("ready", PROCESSES);
    File::open(&role.store).await.ping().await.unwrap();
}

const ROUNDS: usize = 5;
const PROCESSES: usize = 4;
