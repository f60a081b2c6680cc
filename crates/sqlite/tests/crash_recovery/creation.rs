//! Several processes create a file at once.

use rusqlite::Connection;

use crate::process::{Folder, Process};

pub(crate) fn of_processes_that_create_a_file_at_once_one_does() -> String {
    for _ in 0..ROUNDS {
        let folder = Folder::new();
        let mut processes: Vec<Process> =
            (0..PROCESSES).map(|_| Process::start("create", &folder)).collect();
        for process in &processes {
            assert_eq!(process.next_line().as_deref(), Some("ready"));
        }
        processes.iter_mut().for_each(Process::go);
        for process in processes {
            process.finish();
        }
        folder.check_integrity();
        let rows: i64 = Connection::open(folder.file())
            .unwrap()
            .query_row("SELECT count(*) FROM state", [], |row| row.get(0))
            .unwrap();
        assert_eq!(rows, 1);
    }
    format!("{ROUNDS} × {PROCESSES} processes, all have opened the file")
}

const ROUNDS: usize = 5;
const PROCESSES: usize = 4;
