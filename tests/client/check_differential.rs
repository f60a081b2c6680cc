//! The checker against the real client, on random streams: an error where a reader of the client
//! throws and on the same chunk, and none where it does not, for each of its readers.
//!
//! `CHECK_CASES` says how many streams to try (1 000), `CHECK_SEED` which ones, and `CHECK_ONLY`
//! that only the one of this number is. Without Node the client is not asked, which is said aloud,
//! and is a failure where `CI=true`.

use test_support::external_processes::{node_project, say};
use test_support::rng::setting;
use ui_message_stream::UiMessage;
use ui_message_stream::checker::{Checker, ClientReader, Rule, Severity};

use crate::random_streams::case::Case;
use crate::random_streams::client::Client;
use crate::random_streams::generator;

const NEWEST: &str = "6.0.326";

#[test]
fn an_error_is_found_where_a_reader_of_the_client_throws() {
    let Some(folder) = node_project("tests/client") else { return };
    let seed = setting("CHECK_SEED").unwrap_or(20_260_201);
    let count = setting("CHECK_CASES").unwrap_or(1_000);
    let numbers = setting("CHECK_ONLY").map_or(0..count, |only| only..only + 1);

    let mut judge = Client::start(&folder, "judge.mjs");
    let mut chat = Client::start(&folder, "chat.mjs");
    let mut thrown = 0;
    let mut renamed = 0;
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
            let there = answer["index"].as_u64();
            let (here, other_id) = first_error(&case, reader);
            let chunks = case.chunks.join("\n");
            let message = case.message.as_deref().unwrap_or("none");
            assert_eq!(
                here.as_ref().map(|(at, _)| *at),
                there,
                "CHECK_SEED={seed} CHECK_ONLY={number}, {reader:?}: here {here:?}, client {answer}\n\
                 message: {message}\n{chunks}"
            );
            thrown += usize::from(there.is_some());
            renamed += usize::from(other_id);
        }
    }
    say(&format!(
        "checker: {count} streams against three readers of the real client, {thrown} times thrown \
         at, {renamed} times with another message id (CHECK_SEED={seed})"
    ));
}

/// The first chunk that is an error to this reader, and whether the message got another id.
fn first_error(case: &Case, reader: ClientReader) -> (Option<(u64, Rule)>, bool) {
    let message = case.message.as_deref().map(|message| UiMessage::parse(message).unwrap());
    let checker = message.as_ref().map_or_else(Checker::new, Checker::continuing);
    let mut checker = checker.with_reader(reader);
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
