//! The checker against the real client, on random streams: it reports an error where a reader of
//! the client throws, on the same chunk, and no error elsewhere, for each reader.
//!
//! `CHECK_CASES` sets the number of streams (1 000), `CHECK_SEED` selects them, and `CHECK_ONLY`
//! runs only the stream of this number. Without Node the test says that it is skipped; with
//! `CI=true` it fails.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use test_support::external_processes::{node_project, say};
use test_support::rng::setting;
use ui_message_stream::UiMessage;
use ui_message_stream::checker::{Checker, ClientReader, Rule, Severity, Violation};
use ui_message_stream::chunk::Version;
use ui_message_stream::sse::Decoder;

use crate::random_streams::case::{Case, NEWEST_V6, NEWEST_V7};
use crate::random_streams::client::Client;
use crate::random_streams::generator;

const NEWEST: &str = NEWEST_V6.0;

#[test]
fn the_checker_reports_errors_where_the_clients_readers_throw() {
    let Some(folder) = node_project("tests/client") else { return };
    let seed = setting("CHECK_SEED").unwrap_or(20_260_201);
    let count = setting("CHECK_CASES").unwrap_or(1_000);
    let numbers = setting("CHECK_ONLY").map_or(0..count, |only| only..only + 1);

    let mut judge = Client::start(&folder, "judge.mjs");
    let mut chat = Client::start(&folder, "chat.mjs");
    let mut errors = 0;
    let mut other_ids = 0;
    for number in numbers {
        let case = Case { reads_on: true, ..generator::case(seed, number) };
        for reader in
            [ClientReader::ReadUiMessageStream, ClientReader::Chat, ClientReader::ChatResume]
        {
            let mut question = case.question(&[NEWEST]);
            question["resumes"] = (reader == ClientReader::ChatResume).into();
            let answer = match reader {
                ClientReader::ReadUiMessageStream => {
                    judge.ask(&question)["results"][NEWEST]["rejected"].take()
                }
                _ => chat.ask(&question)["rejected"].take(),
            };
            let client_error = answer["index"].as_u64();
            let (checker_error, other_id) = first_error(&case, reader);
            let chunks = case.chunks.join("\n");
            let message = case.message.as_deref().unwrap_or("none");
            assert_eq!(
                checker_error.as_ref().map(|(at, _)| *at),
                client_error,
                "CHECK_SEED={seed} CHECK_ONLY={number}, {reader:?}: here {checker_error:?}, client \
                 {answer}\nmessage: {message}\n{chunks}"
            );
            errors += usize::from(client_error.is_some());
            other_ids += usize::from(other_id);
        }
    }
    say(&format!(
        "checker: {count} streams against three readers of the real client, {errors} errors, \
         {other_ids} times another message id (CHECK_SEED={seed})"
    ));
}

#[test]
fn the_checker_for_ai_7_reports_errors_where_that_client_throws() {
    let Some(folder) = node_project("tests/client") else { return };
    let seed = setting("CHECK_SEED").unwrap_or(20_260_201);
    let count = setting("CHECK_CASES").unwrap_or(1_000);
    let numbers = setting("CHECK_ONLY").map_or(0..count, |only| only..only + 1);
    let (name, version) = NEWEST_V7;
    let mut judge = Client::start(&folder, "judge.mjs");
    let mut errors = 0;
    for number in numbers {
        let case = Case { reads_on: true, ..generator::case_for(version, seed, number) };
        let answer = judge.ask(&case.question(&[name]));
        let client_error = answer["results"][name]["rejected"]["index"].as_u64();
        let (checker_error, _) = first_error(&case, ClientReader::ReadUiMessageStream);
        assert_eq!(
            checker_error.as_ref().map(|(at, _)| *at),
            client_error,
            "CHECK_SEED={seed} CHECK_ONLY={number}: here {checker_error:?}, client {answer}\nmessage: {}\n{}",
            case.message.as_deref().unwrap_or("none"),
            case.chunks.join("\n")
        );
        errors += usize::from(client_error.is_some());
    }
    say(&format!("checker: {count} streams against {name}, {errors} errors (CHECK_SEED={seed})"));
}

#[test]
fn the_checker_for_an_older_client_refuses_the_kinds_and_keys_that_the_client_refuses() {
    let Some(folder) = node_project("tests/client") else { return };
    let mut judge = Client::start(&folder, "judge.mjs");
    let chunks = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/upstream/chunks.valid.jsonl");
    for line in fs::read_to_string(chunks).unwrap().lines() {
        let chunk = &serde_json::from_str::<Value>(line).unwrap()["chunk"];
        for (client, version) in [("5.0.0", Version::V5), ("6.0.0", Version::V6)] {
            let sse = format!("data: {chunk}\n\n");
            let answer = judge.ask(&json!({"case": 0, "sse": sse, "versions": [client]}));
            let rejected = &answer["results"][client]["rejected"];
            let found = Checker::new().with_oldest_client(version).handle_data(&chunk.to_string());
            let is_unknown =
                |found: &Violation| matches!(found.rule, Rule::UnknownKind | Rule::UnknownKey);
            // The other errors are those of the reader, which has no part or call.
            assert_eq!(
                found.iter().any(is_unknown),
                rejected["name"] == "AI_TypeValidationError",
                "{client}: {chunk}: {found:?}, {rejected}"
            );
        }
    }
}

#[test]
fn the_client_throws_at_the_first_error_in_each_stream_of_the_page_of_broken_streams() {
    let Some(folder) = node_project("tests/client") else { return };
    let mut judge = Client::start(&folder, "judge.mjs");
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/broken-streams.md");
    let page = fs::read_to_string(page).unwrap();
    let bodies = page.split("```text\n").skip(1).map(|rest| rest.split_once("```\n").unwrap().0);
    let mut errors = 0;
    for body in bodies {
        let answer = judge.ask(&json!({"case": 0, "sse": body, "versions": [NEWEST]}));
        let client_error = answer["results"][NEWEST]["rejected"]["index"].as_u64();
        let mut decoder = Decoder::default();
        decoder.push(body.as_bytes());
        let chunks = std::iter::from_fn(|| decoder.poll()).map(|event| event.data).collect();
        let case = Case { message: None, chunks, reads_on: false, client: NEWEST_V6.1 };
        let (checker_error, _) = first_error(&case, ClientReader::Chat);
        assert_eq!(checker_error.map(|(at, _)| at), client_error, "{body}: client {answer}");
        errors += usize::from(client_error.is_some());
    }
    assert_eq!(errors, 7);
}

/// The first chunk with an error for this reader, and whether the message got another id.
fn first_error(case: &Case, reader: ClientReader) -> (Option<(u64, Rule)>, bool) {
    let message = case.message.as_deref().map(|message| UiMessage::parse(message).unwrap());
    let checker = message.as_ref().map_or_else(Checker::new, Checker::continuing);
    let mut checker = checker.with_oldest_client(case.client).with_reader(reader);
    let mut first = None;
    let mut other_id = false;
    for (at, chunk) in (0..).zip(&case.chunks) {
        for violation in checker.handle_data(chunk) {
            other_id |= violation.rule == Rule::OtherMessageId;
            if violation.rule.severity() == Severity::Error && first.is_none() {
                first = Some((at, violation.rule));
            }
        }
    }
    (first, other_id)
}
