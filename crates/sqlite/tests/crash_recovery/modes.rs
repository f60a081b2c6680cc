//! The modes of the files that a store creates, under different umasks.

use test_support::kills::{Backend, Role};

use crate::file::File;

#[cfg(unix)]
pub(crate) fn the_file_and_its_log_are_private_with_any_umask() -> String {
    use std::os::unix::fs::PermissionsExt;
    use test_support::kills::Process;

    let umasks = ["000", "022", "077"];
    for umask in umasks {
        let file = File::new();
        let command = Process::in_shell(&format!("umask {umask}"));
        let process = Process::start_command(command, "hold", 0, &file);
        file.journal().wait_for("ready", 1);
        for suffix in ["", "-wal", "-shm"] {
            let path = format!("{}{suffix}", file.address());
            let mode = std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
            assert_eq!(mode, 0o600, "umask {umask}, {suffix}");
        }
        process.kill();
    }
    format!("umask {}: three files of mode 0600 each", umasks.join(", "))
}

#[cfg(not(unix))]
pub(crate) fn the_file_and_its_log_are_private_with_any_umask() -> String {
    "not on this system".to_owned()
}

/// In the process: keeps the file open. With its last connection SQLite removes the `-wal` and `-shm`.
pub(crate) async fn hold(role: &Role) {
    let store = File::open(&role.store).await;
    store.ping().await.unwrap();
    role.journal.write("ready");
    std::future::pending().await
}
