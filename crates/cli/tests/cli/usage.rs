use std::process::{Command, Stdio};

use test_support::fixture_files::fixture_files;

use crate::program::{PROGRAM, run, scratch, text};

#[test]
fn a_wrong_command_exits_with_code_2_and_an_error_message() {
    let stream = fixture_files("upstream/streams", "text-basic.jsonl").remove(0);
    let stream = text(&stream);
    let request = fixture_files("upstream/requests", "01-first-message.json").remove(0);
    let wrong: &[&[&str]] = &[
        &[],
        &["mend"],
        &["check", "--nonsense"],
        &["check", "no/such/file"],
        &["check", stream, stream],
        &["check", "--client", "7.1", stream],
        &["check", "--message", "no/such/file", stream],
        &["check", "--message", text(&request), stream],
        &["reduce", "no/such/file"],
        &["reduce", "--reader", "nobody", stream],
        &["parse-request", "no/such/file"],
        &["replay"],
        &["replay", "no/such/file"],
        &["replay", "--speed", "-1", stream],
        &["replay", "--port", "65536", stream],
        &["record"],
        &["record", "127.0.0.1:3000"],
        &["record", "https://127.0.0.1:3000"],
        &["record", "http://127.0.0.1:3000/chat"],
    ];
    for arguments in wrong {
        let result = run(arguments);
        assert_eq!((result.code, result.out.as_str()), (2, ""), "{arguments:?}: {}", result.err);
        assert!(!result.err.is_empty(), "{arguments:?}");
    }
}

#[test]
fn the_error_names_a_file_that_cannot_be_read() {
    let folder = scratch("usage_folder");
    for arguments in [
        &["check", text(&folder)][..],
        &["reduce", text(&folder)],
        &["check", "--message", text(&folder)],
        &["parse-request", text(&folder)],
        &["replay", text(&folder)],
    ] {
        let result = run(arguments);
        assert_eq!(result.code, 2);
        assert!(result.err.starts_with(text(&folder)), "{arguments:?}: {}", result.err);
    }
}

#[test]
fn the_error_names_the_line_at_which_a_recording_is_invalid() {
    let path = scratch("usage").join("broken.jsonl");
    std::fs::write(&path, "{\"request\":{}}\n{\"chunk\":\n").unwrap();
    let result = run(&["replay", text(&path)]);
    assert_eq!(result.code, 2);
    assert!(result.err.contains("broken.jsonl: line 2: "), "{}", result.err);
}

#[test]
fn a_file_without_a_chunk_is_not_replayed() {
    let folder = scratch("usage_nothing");
    for content in
        ["", "\n", "<!doctype html>\n<p>data: x</p>\n", "{\"error\":\"x\"}\n", "data: [DONE]\n\n"]
    {
        let path = folder.join("page.html");
        std::fs::write(&path, content).unwrap();
        let result = run(&["replay", text(&path)]);
        assert_eq!((result.code, result.out.as_str()), (2, ""), "{content}");
        assert!(result.err.contains("page.html: no chunk in it"), "{content}: {}", result.err);
    }
}

#[test]
fn an_unknown_command_is_answered_with_the_one_that_was_probably_meant() {
    let stream = fixture_files("upstream/streams", "text-basic.jsonl").remove(0);
    let stream = text(&stream);
    for (name, suggestion) in [
        ("chekc", "check".to_owned()),
        ("reduces", "reduce".to_owned()),
        (stream, format!("check {stream}")),
    ] {
        let result = run(&[name]);
        let expected = format!("there is no command `{name}`; did you mean `{suggestion}`?\n");
        assert_eq!((result.code, result.err), (2, expected));
    }
    let result = run(&["mend"]);
    assert!(!result.err.contains("did you mean"), "{}", result.err);
}

#[test]
fn the_error_names_the_port_that_is_in_use() {
    let stream = fixture_files("upstream/streams", "text-basic.jsonl").remove(0);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let out = scratch("usage_port");
    for arguments in [
        &["replay", text(&stream), "--port", &port][..],
        &["record", "http://127.0.0.1:1", "--port", &port, "--out", text(&out)],
    ] {
        let result = run(arguments);
        assert_eq!(result.code, 2);
        assert!(result.err.starts_with(&format!("127.0.0.1:{port}: ")), "{}", result.err);
        assert!(result.err.contains("in use") && result.err.contains("--port"), "{}", result.err);
    }
}

#[test]
fn a_shell_can_complete_the_commands() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = run(&["completions", shell]);
        assert_eq!((script.code, script.err.as_str()), (0, ""), "{shell}");
        for word in ["ui-message-stream", "parse-request", "reader"] {
            assert!(script.out.contains(word), "{shell}: no {word}");
        }
    }
}

#[test]
fn help_and_version_exit_with_code_0() {
    let help = run(&["--help"]);
    assert_eq!((help.code, help.err.as_str()), (0, ""));
    for command in ["check", "reduce", "parse-request", "replay", "record", "completions"] {
        assert!(help.out.contains(command), "{}", help.out);
        assert_eq!(run(&[command, "--help"]).code, 0);
    }
    let version = run(&["--version"]);
    assert_eq!(version.out, concat!("ui-message-stream ", env!("CARGO_PKG_VERSION"), "\n"));
}

#[test]
fn if_standard_output_is_closed_the_program_exits_without_a_message() {
    let path = scratch("usage_pipe").join("wrong.jsonl");
    std::fs::write(&path, "{\"type\":\"text-end\",\"id\":\"0\"}\n".repeat(10_000)).unwrap();
    let mut child = Command::new(PROGRAM)
        .args(["check", text(&path)])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
}
