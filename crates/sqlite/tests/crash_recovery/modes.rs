//! The modes of the files that a store creates, under different umasks.

use std::process::Command;

use crate::process::{Folder, Process};

#[cfg(unix)]
pub(crate) fn the_file_and_its_log_are_private_with_any_umask() -> String {
    use std::os::unix::fs::PermissionsExt;

    let umasks = ["000", "022", "077"];
    for umask in umasks {
        let folder = Folder::new();
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("umask {umask}; exec \"$0\"")]);
        shell.arg(std::env::current_exe().unwrap());
        let mut process = Process::start_command(shell, "hold", &folder);
        assert_eq!(process.next_line().as_deref(), Some("ready"));
        for suffix in ["", "-wal", "-shm"] {
            let path = format!("{}{suffix}", folder.file().to_str().unwrap());
            let mode = std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
            assert_eq!(mode, 0o600, "umask {umask}, {suffix}");
        }
        process.go();
        process.finish();
    }
    format!("umask {}: three files of mode 0600 each", umasks.join(", "))
}

#[cfg(not(unix))]
pub(crate) fn the_file_and_its_log_are_private_with_any_umask() -> String {
    "not on this system".to_owned()
}
