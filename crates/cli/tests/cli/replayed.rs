use std::convert::Infallible;
use std::fs;
use std::path::Path;

use http::{Request, Response};
use serde_json::Value;
use test_support::external_processes::{Demo, node_project, run_node};
use ui_message_stream::testing::Recording;

use crate::http::{exchange, post};
use crate::program::{Server, run, scratch, text};

/// Records the real client and the demo, then replays the recordings to the client without the
/// demo, and to another demo without the client.
#[test]
fn the_real_client_has_the_same_messages_after_a_replay_as_after_the_recording() {
    let Some(client) = node_project("tests/client") else { return };
    let folder = scratch("replayed");
    let demo = Demo::start();
    let recorder = Server::start(&["record", &demo.url, "--out", text(&folder)]);
    let run_client = |url: &str| run_node(&client, &["replayed.mjs", url]);
    let recorded = run_client(&recorder.url);
    drop((recorder, demo));
    replay_to_a_new_server(&folder);

    let mut recordings: Vec<_> =
        fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    recordings.sort();
    let mut arguments = vec!["replay", "--speed", "0"];
    arguments.extend(recordings.iter().map(|path| text(path)));
    let server = Server::start(&arguments);
    let replayed = run_client(server.url.strip_suffix("/api/chat").unwrap());

    let conversations = |printed: &str| -> Vec<Vec<Value>> {
        printed.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    };
    let recorded = conversations(&recorded);
    assert_eq!(recorded.len(), 4);
    assert_eq!(recorded, conversations(&replayed));

    // The final message of each conversation is the reduced message of its last recording.
    let mut reduced_messages = Vec::new();
    for path in &recordings {
        // Without warnings: all pages are shown the output of a client, also the one that has sent it.
        let checked = run(&["check", "--client", "6.0.0", text(path)]);
        assert_eq!((checked.code, checked.out.as_str()), (0, ""), "{}", path.display());
        let reduced = run(&["reduce", "--reader", "chat", text(path)]);
        assert_eq!(reduced.code, 0, "{}", reduced.err);
        reduced_messages.push(serde_json::from_str::<Value>(&reduced.out).unwrap());
    }
    for messages in &recorded {
        let final_message = messages.last().unwrap();
        let reduced_message =
            reduced_messages.iter().rfind(|message| message["id"] == final_message["id"]);
        assert_eq!(reduced_message, Some(final_message));
    }
}

/// Replays the requests of the client, with its approvals and its denial, to a server that has never
/// seen them. Its responses are the recorded ones.
fn replay_to_a_new_server(folder: &Path) {
    let demo = Demo::start();
    let service = async |request: Request<String>| {
        let response = exchange(&demo.url, &post("/api/chat", request.body()));
        let status = response.first_line.split(' ').nth(1).unwrap();
        let body = String::from_utf8(response.body).unwrap();
        Ok::<_, Infallible>(Response::builder().status(status).body(body).unwrap())
    };
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(Recording::read(folder).replay_with_service("/api/chat", service));
}
