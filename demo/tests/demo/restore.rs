//! A backup is restored with the commands of docs/operations.md, as they stand there: what was executed
//! after the backup is not executed again.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use test_support::external_processes::{Example, missing};

use crate::http::{Stream, body_of, message, send, wait_until, world};
use crate::two_servers::Shared;

#[test]
fn a_backup_without_its_sealing_key_voids_open_questions_and_new_ones_can_be_asked() {
    restore(String::new);
}

#[test]
fn a_backup_whose_secret_was_replaced_voids_open_questions_and_new_ones_can_be_asked() {
    let section = section("### The key elsewhere");
    let code = section.split('`').find(|code| code.starts_with("openssl")).unwrap();
    restore(|| run(code, Path::new(".")).trim().to_owned());
}

/// Approves a question after a backup that holds it, restores the backup, and answers the question again.
/// `new_secret` returns what is used before, and then after.
fn restore(new_secret: impl Fn() -> String) {
    if Command::new("sqlite3").arg("-version").output().is_err() {
        return missing("there is no sqlite3");
    }
    let commands = commands(section("### Backups"));
    let (backup, restore) = commands.split_once("# To restore").unwrap();
    let shared = Shared::sqlite().unwrap();
    let folder = shared.data();
    let folder = folder.parent().unwrap();

    let mut server = shared.start_with("0", &new_secret());
    let before = files(&server);
    ask(&server, "c");
    let question = pending(&server).remove(0);
    run(backup, folder);
    approve(&server, "/api/chat/c/answers", &question);
    wait_until(|| files(&server) == before - 1);
    server.terminate();
    assert!(server.wait());

    run(&format!("#{restore}"), folder);
    let server = shared.start_with("0", &new_secret());
    // The files are those of the backup, too.
    assert_eq!(files(&server), before);
    let listed = pending(&server);
    for question in listed.iter().chain([&question]) {
        let refused = approve(&server, "/api/approvals", question);
        assert!(refused.contains(r#""accepted":false"#), "{refused}");
        let refused = approve(&server, "/api/chat/c/answers", question);
        assert!(refused.contains("This tool call was not executed"), "{refused}");
    }
    assert_eq!(listed, [] as [Value; 0]);
    assert_eq!(files(&server), before);

    ask(&server, "new");
    let new = pending(&server).remove(0);
    approve(&server, "/api/chat/new/answers", &new);
    wait_until(|| files(&server) == before - 1);
}

fn files(server: &Example) -> usize {
    world(server)["files"].as_array().unwrap().len()
}

/// Asks for the deletion of a file.
fn ask(server: &Example, chat: &str) {
    let body = json!({"id": chat, "messages": [message("delete")]});
    Stream::post(server, "/api/chat", &body).read_to_end();
}

/// Returns the ids of the approvals that wait.
fn pending(server: &Example) -> Vec<Value> {
    let pending = body_of(&send(server, "GET /api/approvals", ""));
    let pending = pending["approvals"].as_array().unwrap().iter();
    pending.map(|approval| approval["approvalId"].clone()).collect()
}

fn approve(server: &Example, path: &str, approval: &Value) -> String {
    let decision = json!({"approvalId": approval, "approved": true});
    let body = json!({"decisions": [decision]}).to_string();
    let response = send(server, &format!("POST {path}"), &body);
    assert!(response.starts_with("HTTP/1.0 200 "), "{response}");
    response
}

/// Returns the section of the page that has this heading.
fn section(heading: &str) -> &'static str {
    let start = PAGE.find(&format!("\n{heading}\n")).unwrap() + 1;
    let section = &PAGE[start + heading.len()..];
    &section[..section.find("\n##").unwrap()]
}

/// Returns the commands of a section.
fn commands(section: &str) -> String {
    let blocks = section.split("```sh\n").skip(1);
    blocks.map(|block| block.split_once("```").unwrap().0).collect()
}

/// Runs commands, and returns what they print.
fn run(commands: &str, folder: &Path) -> String {
    let shell = Command::new("sh").args(["-euc", commands]).current_dir(folder).output().unwrap();
    let error = String::from_utf8_lossy(&shell.stderr);
    assert!(shell.status.success(), "{commands}: {error}");
    String::from_utf8(shell.stdout).unwrap()
}

const PAGE: &str = include_str!("../../../docs/operations.md");

#[test]
fn the_backup_command_works_again_and_a_stopped_server_leaves_a_complete_file() {
    if Command::new("sqlite3").arg("-version").output().is_err() {
        return missing("there is no sqlite3");
    }
    let commands = commands(section("### Backups"));
    let (backup, _) = commands.split_once("# To restore").unwrap();
    let shared = Shared::sqlite().unwrap();
    let file = shared.data();
    let folder = file.parent().unwrap();
    let mut server = shared.start_with("0", "");
    for chat in ["first", "second"] {
        ask(&server, chat);
        run(backup, folder);
        assert_eq!(chats_in(&folder.join("backup.db")), if chat == "first" { 1 } else { 2 });
    }
    server.terminate();
    assert!(server.wait());
    let copy = folder.join("copy.db");
    std::fs::copy(&file, &copy).unwrap();
    assert_eq!(chats_in(&copy), 2);
}

#[test]
fn a_server_whose_file_was_removed_is_not_ready_and_says_so_in_its_log() {
    let Some(shared) = Shared::sqlite() else { return };
    for suffix in ["", "-wal"] {
        let server = shared.start_with("0", "");
        ask(&server, "c");
        wait_until(|| send(&server, "GET /ready", "").starts_with("HTTP/1.0 200 "));
        let mut file = shared.data().into_os_string();
        file.push(suffix);
        std::fs::remove_file(&file).unwrap();
        assert!(send(&server, "GET /ready", "").starts_with("HTTP/1.0 503 "));
        wait_until(|| server.log().contains("was removed or replaced while the server ran"));
    }
}

#[test]
fn what_can_be_read_of_a_damaged_file_is_a_file_that_a_server_opens() {
    if Command::new("sqlite3").arg("-version").output().is_err() {
        return missing("there is no sqlite3");
    }
    let shared = Shared::sqlite().unwrap();
    let file = shared.data();
    let mut server = shared.start_with("0", "");
    ask(&server, "c");
    server.terminate();
    assert!(server.wait());
    let recover = commands(section("### A damaged file"));
    let printed = run(&recover, file.parent().unwrap());
    assert_eq!(printed.trim(), "1", "the number of chats");
    std::fs::rename(file.with_file_name("recovered.db"), &file).unwrap();
    let server = shared.start_with("0", "");
    assert!(send(&server, "GET /ready", "").starts_with("HTTP/1.0 200 "));
    assert_eq!(chats_in(&file), 1);
}

fn chats_in(file: &Path) -> usize {
    let count = "SELECT count(*) FROM rows WHERE CAST(substr(hex(name), 1, 2) AS INTEGER) = 68";
    run(&format!("sqlite3 {} '{count}'", file.display()), Path::new(".")).trim().parse().unwrap()
}
