use std::fs;

use serde_json::Value;
use test_support::external_processes::{Demo, node_project, run_node};

use crate::program::{Server, run, scratch, text};

/// The real client, the demo and the recorder between them; then the recordings in the demo's place.
#[test]
fn the_real_client_ends_with_the_same_messages_when_a_recording_is_replayed() {
    let Some(client) = node_project("tests/client") else {
        return;
    };
    let folder = scratch("replayed");
    let demo = Demo::start();
    let recorder = Server::start(&["record", &demo.url, "--out", text(&folder)]);
    let lead = |url: &str| run_node(&client, &["replayed.mjs", url]);
    let recorded = lead(&recorder.url);
    drop((recorder, demo));

    let mut recordings: Vec<_> =
        fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    recordings.sort();
    let mut arguments = vec!["replay", "--speed", "0"];
    arguments.extend(recordings.iter().map(|path| text(path)));
    let server = Server::start(&arguments);
    let replayed = lead(server.url.strip_suffix("/api/chat").unwrap());

    let conversations = |printed: &str| -> Vec<Vec<Value>> {
        printed.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    };
    let recorded = conversations(&recorded);
    assert_eq!(recorded.len(), 4);
    assert_eq!(recorded, conversations(&replayed));

    // What the client held at the end of each conversation is what its last recording comes to.
    let mut comes_to = Vec::new();
    for path in &recordings {
        let checked = run(&["check", "--client", "6.0.0", "--warnings", text(path)]);
        assert_eq!((checked.code, checked.out.as_str()), (0, ""), "{}", path.display());
        let reduced = run(&["reduce", "--reader", "chat", text(path)]);
        assert_eq!(reduced.code, 0, "{}", reduced.err);
        comes_to.push(serde_json::from_str::<Value>(&reduced.out).unwrap());
    }
    for messages in &recorded {
        let held = messages.last().unwrap();
        let found = comes_to.iter().rfind(|message| message["id"] == held["id"]);
        assert_eq!(found, Some(held));
    }
}
