//! What readers get while the log of a run cannot be read, or has lost entries.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use chat_test_support::answers::{post, read_until, server_of};
use chat_test_support::log_double::LogDouble;
use futures::{StreamExt, stream};
use serde_json::json;
use test_support::requests::{ada, say, send, user_message};
use tokio::time::timeout;
use ui_message_stream::AgentEvent;
use ui_message_stream::event::ToolCall;
use ui_message_stream::json::Json;
use ui_message_stream::response::BodyError;
use ui_message_stream_chat::{ChatError, Turn};

use crate::endings::faults::{Faults, server, text_of};

#[tokio::test(start_paused = true)]
async fn a_log_that_cannot_be_read_is_an_error_of_the_request() {
    let server = server();
    let mut response = post(&server.chats, "m1", "Hi").await;
    let first = read_until(&mut response, "id: ").await;
    let id = first.strip_prefix("id: ").unwrap().lines().next().unwrap();
    server.faults.is_unreadable.store(true, Ordering::SeqCst);
    let (chat, ada) = ("chat".into(), ada());
    let resumed = server.chats.resume_stream(&ada, &chat, Some(id));
    let resumed = timeout(Duration::from_secs(60), resumed).await.unwrap();
    assert!(matches!(resumed, Err(ChatError::Store(_))), "{resumed:?}");
    let next = server.chats.stream_response(&ada, say("chat", "m2", "No"));
    let next = timeout(Duration::from_secs(60), next).await.unwrap();
    assert!(matches!(next, Err(ChatError::Store(_))), "{next:?}");
    // The next request finds a run whose holder is gone.
    server.faults.is_unreadable.store(false, Ordering::SeqCst);
    server.permits.add_permits(2);
    let next = timeout(Duration::from_secs(60), post(&server.chats, "m2", "No")).await.unwrap();
    assert!(text_of(next).await.contains("answer"));
}

#[tokio::test(start_paused = true)]
async fn a_response_is_cut_off_if_its_log_cannot_be_read_for_half_a_minute_and_can_be_continued() {
    for (seconds, hangs_reads) in [(20, false), (40, false), (20, true), (40, true)] {
        let server = server();
        server.faults.hangs_reads.store(hangs_reads, Ordering::SeqCst);
        let _written = server.begun().await;
        let (other, mut read) = server.read_elsewhere().await;
        let first = read.next().await.unwrap().unwrap();
        server.faults.is_unreadable.store(true, Ordering::SeqCst);
        server.permits.add_permits(1);
        let read = read.collect::<Vec<_>>();
        let (mut pages, ()) = tokio::join!(timeout(Duration::from_secs(120), read), async {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            server.faults.is_unreadable.store(false, Ordering::SeqCst);
        });
        let pages = pages.as_mut().expect("the response ends");
        let cut = pages.pop_if(|page| page.is_err());
        assert_eq!(cut, (seconds > 30).then_some(Err(BodyError::CutOff)));
        let mut text = String::from_utf8(first.to_vec()).unwrap();
        for page in pages {
            text.push_str(str::from_utf8(page.as_ref().unwrap()).unwrap());
        }
        // A proxy does not close the connection meanwhile.
        assert!(text.contains(": keep-alive\n\n"), "{text}");
        if cut.is_some() {
            assert!(!text.contains("[DONE]") && !text.contains(r#""type":"error""#), "{text}");
            let last = text.lines().rev().find_map(|line| line.strip_prefix("id: "));
            let rest = other.resume_stream(&ada(), &"chat".into(), last).await.unwrap().unwrap();
            text.push_str(&text_of(rest).await);
        }
        assert_eq!(text.matches(r#""delta":"answer""#).count(), 1, "{text}");
        assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_store_is_rarely_read_for_a_client_of_the_server_that_writes() {
    let faults = Arc::new(LogDouble::<Faults>::default());
    let agent = |_: Turn| {
        stream::iter(0..600).then(|number| async move {
            tokio::time::sleep(Duration::from_millis(100)).await;
            AgentEvent::text(format!("{number} "))
        })
    };
    let chats = server_of(agent).with_store(faults.clone());
    assert!(text_of(post(&chats, "m1", "Hi").await).await.contains("599"));
    // The store has to know that the run is read.
    let reads = faults.reads.load(Ordering::SeqCst);
    assert!((6..=20).contains(&reads), "{reads} reads in a minute");
}

#[tokio::test(start_paused = true)]
async fn a_comment_comes_in_time_although_a_read_begins_to_hang_after_a_silence() {
    let server = server();
    let _written = server.begun().await;
    let (_other, mut read) = server.read_elsewhere().await;
    let mut page = read.next().await.unwrap().unwrap();
    server.faults.hangs_reads.store(true, Ordering::SeqCst);
    let silence = async {
        tokio::time::sleep(Duration::from_secs(14)).await;
        server.faults.is_unreadable.store(true, Ordering::SeqCst);
    };
    let mut waited = Duration::ZERO;
    let comment = async {
        while page != ": keep-alive\n\n" {
            let began = tokio::time::Instant::now();
            page = read.next().await.unwrap().unwrap();
            waited = began.elapsed();
        }
    };
    let (comment, ()) = tokio::join!(timeout(Duration::from_secs(60), comment), silence);
    comment.expect("a comment");
    assert!((15..=21).contains(&waited.as_secs()), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn a_complete_response_whose_log_cannot_be_read_is_an_error() {
    let server = server();
    let _written = server.begun().await;
    // A server reads its own logs from its memory.
    let (other, ada) = (server.other(), ada());
    let complete = other.complete_response(&ada, say("chat", "m1", "Hi"));
    let (complete, ()) = tokio::join!(timeout(Duration::from_secs(120), complete), async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        server.faults.is_unreadable.store(true, Ordering::SeqCst);
    });
    let complete = complete.expect("a response");
    assert!(matches!(complete, Err(ChatError::Store(_))), "{complete:?}");
}

#[tokio::test(start_paused = true)]
async fn a_response_whose_log_has_lost_what_was_read_is_cut_off() {
    let server = server();
    let _written = server.begun().await;
    let (_other, mut read) = server.read_elsewhere().await;
    read_until(&mut read, "An ").await;
    server.faults.has_lost_entries.store(true, Ordering::SeqCst);
    let next = timeout(Duration::from_secs(60), read.next()).await.expect("the response ends");
    assert_eq!(next, Some(Err(BodyError::CutOff)));
}

#[tokio::test(start_paused = true)]
async fn a_frame_behind_the_end_of_a_log_has_no_rest() {
    let server = server();
    let first = read_until(&mut post(&server.chats, "m1", "Hi").await, "id: ").await;
    let id = first.strip_prefix("id: ").unwrap().lines().next().unwrap();
    let [epoch, begin, ..] = id.split('.').collect::<Vec<_>>()[..] else { panic!("{id}") };
    let behind = format!("{epoch}.{begin}.99.0");
    let resumed = server.chats.resume_stream(&ada(), &"chat".into(), Some(&behind)).await.unwrap();
    assert!(resumed.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_page_that_holds_a_part_of_a_run_gets_only_the_rest_although_a_read_fails() {
    let agent = |_: Turn| {
        let look = AgentEvent::tool_input(ToolCall::new("c1", "look"), Json::parse("{}").unwrap());
        let seen = AgentEvent::tool_output("c1", Json::string("seen"));
        stream::iter([look, seen]).chain(stream::pending())
    };
    let faults = Arc::new(LogDouble::<Faults>::default());
    let server = || server_of(agent).with_store(faults.clone());
    // A server reads its own logs from its memory.
    let (chats, other, ada) = (server(), server(), ada());
    let mut written = post(&chats, "m1", "Hi").await;
    let begun = read_until(&mut written, "seen").await;
    let (_, id) = begun.split_once(r#""messageId":""#).unwrap();
    let (id, _) = id.split_once('"').unwrap();
    let held = json!({"id": id, "role": "assistant", "parts": [
        {"type": "step-start"},
        {"type": "tool-look", "toolCallId": "c1", "state": "output-available", "input": {},
         "output": "seen"},
    ]});
    let again = send("chat", &json!([user_message("m1", "Hi"), held]));
    faults.failing_reads.store(2, Ordering::SeqCst);
    let rest = other.stream_response(&ada, again).await.unwrap();
    assert_eq!(faults.failing_reads.load(Ordering::SeqCst), 0);
    chats.stop(&ada, &"chat".into()).await.unwrap();
    let rest = text_of(rest).await;
    assert!(rest.contains(r#""type":"abort""#) && !rest.contains("tool-input"), "{rest}");
}
