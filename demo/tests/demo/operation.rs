//! What the operator of a demo sees: why it does not start, whether it is ready, and what its log says.

use std::io::Read;
use std::net::TcpStream;
use std::process::Command;
use std::thread;

use serde_json::{Value, json};
use test_support::external_processes::redis_server::RedisServer;
use test_support::external_processes::{DataFolder, Example, built_example};
use test_support::requests::respond;

use crate::http::{Stream, body_of, connect, message, send, wait_until};
use crate::two_servers::Shared;
use crate::users::new_browser;

#[test]
fn a_variable_that_cannot_be_used_is_named_with_its_value_and_what_to_set() {
    let folder = DataFolder::new();
    let file = folder.path().join("chat.db").display().to_string();
    let missing = folder.path().join("missing/chat.db").display().to_string();
    let folder = folder.path().display().to_string();
    let cases = [
        ("HOST", "localhost", "HOST is `localhost`: set an IP address"),
        ("PORT", "abc", "PORT is `abc`: set a number from 0 to 65535"),
        ("PORT", "70000", "PORT is `70000`: set a number"),
        ("UIMS_LEASE_MS", "0", "UIMS_LEASE_MS is `0`: set a number of milliseconds from 100"),
        ("UIMS_LEASE_MS", "soon", "UIMS_LEASE_MS is `soon`: set a number"),
        ("UIMS_APPEND_INTERVAL_MS", "1001", "set a number of milliseconds from 0 to 1000"),
        ("UIMS_MAX_CHAT_BYTES", "-1", "UIMS_MAX_CHAT_BYTES is `-1`: set a number"),
        ("UIMS_DATA", &*missing, "its folder does not exist; create it"),
        ("UIMS_DATA", &*folder, "it is a folder; name a file in it"),
        ("CHAT_STORE", "mysql", "CHAT_STORE is neither"),
        ("CHAT_STORE", "mysql://u:hunter2@127.0.0.1/", "CHAT_STORE is neither"),
        ("CHAT_STORE", "redis:/u:hunter2@127", "CHAT_STORE begins with `redis:` without `//`"),
        (
            "CHAT_STORE",
            "postgresql:u:hunter2@127",
            "write the address as `postgresql://127.0.0.1/`",
        ),
        (
            "CHAT_STORE",
            "redis://u:hunter2@127.0.0.1:a/",
            "the form `redis://user:password@host:6379/0`",
        ),
        (
            "CHAT_STORE",
            "postgresql://u:hunter2@127.0.0.1:a/",
            "the URL of Postgres cannot be read: it",
        ),
        ("CHAT_STORE", "postgresql://u:hunter2@127.0.0.1:1/x", "Postgres at 127.0.0.1:1, or it"),
    ];
    for (variable, value, expected) in cases {
        let error = error_of_start(&[("PORT", "0"), ("UIMS_DATA", &file), (variable, value)]);
        assert!(error.contains(variable) && error.contains(expected), "{error}");
        assert!(!error.contains("hunter2"), "{error}");
    }
}

#[test]
fn a_password_of_redis_that_is_missing_or_wrong_is_named_at_the_start() {
    let Some(redis) = RedisServer::start_with(&["--requirepass", "right"]) else { return };
    for login in ["", ":wrong@"] {
        let url = format!("redis://{login}127.0.0.1:{}/", redis.port());
        let error = error_of_start(&[("CHAT_STORE", &url)]);
        assert!(error.starts_with("Error: CHAT_STORE: Redis re"), "{error}");
        assert!(error.contains("password") && !error.contains("wrong"), "{error}");
    }
}

/// Starts a demo that does not start, and returns what it prints about that, which is one line.
fn error_of_start(variables: &[(&str, &str)]) -> String {
    let mut demo = Command::new(built_example("chat", &[]));
    // With it, a backtrace follows.
    let demo = demo.env_remove("RUST_BACKTRACE").envs(variables.iter().copied());
    let ended = demo.output().unwrap();
    let error = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(1), "{error}");
    assert_eq!(error.trim_end().lines().count(), 1, "{error}");
    error
}

#[test]
fn two_demos_that_start_at_once_on_a_new_file_both_serve() {
    for _ in 0..10 {
        let shared = Shared::sqlite().unwrap();
        thread::scope(|threads| {
            for _ in 0..2 {
                threads.spawn(|| shared.start_on("0"));
            }
        });
    }
}

#[test]
fn a_server_that_stops_answers_503_until_its_answers_have_ended_and_its_log_says_why() {
    let shared = Shared::sqlite().unwrap();
    let mut server = shared.start_on("0");
    let gate = shared.gate("text");
    let ask = |chat: &str| json!({"id": chat, "messages": [message("until text")]});
    // It goes on without a reader.
    let mut left = Stream::post(&server, "/api/chat", &ask("left"));
    left.read_until(|answer| answer.text().contains("3 "));
    drop(left);
    server.terminate();
    wait_until(|| server.log().contains("SIGTERM"));
    for request in ["POST /api/chat", "POST /api/chat", "GET /api/chat/left/stream"] {
        // Each is a connection of its own.
        let refused = send(&server, request, &ask("new").to_string());
        assert!(refused.starts_with("HTTP/1.0 503 "), "{refused}");
        assert!(refused.contains("retry-after: 1\r\n"), "{refused}");
    }
    let unready = send(&server, "GET /ready", "");
    assert!(
        unready.starts_with("HTTP/1.0 503 ") && unready.ends_with("the server stops"),
        "{unready}"
    );
    gate.open();
    assert!(server.wait());
    let kept = body_of(&send(&shared.start_on("0"), "GET /api/chat/left", ""));
    assert!(kept.to_string().contains(" done"), "{kept}");
}

#[test]
fn a_store_that_fails_or_gives_no_answer_is_named_by_ready_and_logged_once() {
    let Some(mut shared) = Shared::redis() else { return };
    let server = shared.start_on("0");
    let ready = || send(&server, "GET /ready", "");
    // A busy machine may need longer than the check has.
    wait_until(|| ready().starts_with("HTTP/1.0 200 "));
    shared.redis_mut().hang(true);
    for _ in 0..3 {
        let hung = ready();
        assert!(hung.starts_with("HTTP/1.0 503 ") && hung.ends_with("no answer"), "{hung}");
    }
    shared.redis_mut().hang(false);
    wait_until(|| ready().starts_with("HTTP/1.0 200 "));
    let lines = |text: &str| server.log().lines().filter(|line| line.contains(text)).count();
    assert_eq!(lines("the store gives no answer"), 1);

    shared.redis_mut().command("CONFIG SET maxmemory 1");
    for _ in 0..50 {
        let full = ready();
        let is_named = full.contains("the memory of Redis is full: raise its maxmemory");
        assert!(is_named || full.ends_with("no answer"), "{full}");
    }
    shared.redis_mut().command("CONFIG SET maxmemory 0");
    wait_until(|| ready().starts_with("HTTP/1.0 200 "));
    assert_eq!(lines("the memory of Redis is full"), 1);
}

#[test]
fn a_demo_goes_on_after_the_password_of_redis_was_changed_and_changed_back() {
    let Some(mut shared) = Shared::redis() else { return };
    let address = shared.redis_mut().url().trim_start_matches("redis://").to_owned();
    shared.redis_mut().command("CONFIG SET requirepass right");
    let variables = [
        ("CHAT_STORE", format!("redis://:right@{address}")),
        ("UIMS_DATA", shared.data().display().to_string()),
    ];
    let server = Example::run(built_example("chat", &[]), &variables);
    let set = ["AUTH right", "CONFIG SET requirepass other", "CLIENT KILL TYPE normal"];
    shared.redis_mut().commands(&set);
    let ready = || send(&server, "GET /ready", "");
    wait_until(|| ready().contains("Redis refuses the user or the password"));
    shared.redis_mut().commands(&["AUTH other", "CONFIG SET requirepass right"]);
    wait_until(|| ready().starts_with("HTTP/1.0 200 "));
    let mut answer =
        Stream::post(&server, "/api/chat", &json!({"id": "c", "messages": [message("slow 3")]}));
    answer.read_to_end();
    assert_eq!((answer.text().as_str(), answer.error()), ("1 2 3 ", None));
    assert!(!server.log().contains("right"), "{}", server.log());
}

#[test]
fn after_redis_has_lost_a_question_its_answer_is_refused_as_one_that_nobody_has_asked() {
    let Some(mut shared) = Shared::redis() else { return };
    let server = shared.start_on("0");
    let [ada, eve] = [(); 2].map(|()| new_browser(&server.url));
    let read = |mut connection: TcpStream| {
        let mut response = String::new();
        connection.read_to_string(&mut response).unwrap();
        response
    };
    let post = |user: &str, body: &Value| {
        read(connect(&server, "POST /api/chat", user, &body.to_string()))
    };
    let ask = |chat: &str| {
        post(&ada, &json!({"id": chat, "messages": [message("delete")]}));
        let mut stored =
            body_of(&read(connect(&server, &format!("GET /api/chat/{chat}"), &ada, "")));
        let parts = stored["messages"][1]["parts"].as_array_mut().unwrap();
        let call = parts.iter_mut().find(|part| part["state"] == "approval-requested").unwrap();
        respond(call, true);
        json!({"id": chat, "messages": stored["messages"]})
    };
    let own = ask("c");
    let other = ask("d");
    shared.redis_mut().command("FLUSHALL");
    let forged = other.to_string().replace("\"a1.", "\"a1.A");
    let known = "the chat does not hold this message, or the tool calls that it answers";
    // The reply does not say whether the question was ever asked.
    let refused = [&eve, &ada].map(|user| post(user, &own));
    for refused in refused.iter().chain([&post(&ada, &serde_json::from_str(&forged).unwrap())]) {
        assert!(refused.starts_with("HTTP/1.0 409 ") && refused.contains(known), "{refused}");
    }
}
