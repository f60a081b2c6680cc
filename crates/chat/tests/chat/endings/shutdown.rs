//! A server that shuts down: what it still does, and what another server goes on with.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use chat_test_support::answers::{follow, post, server_of, stored};
use futures::{StreamExt, stream};
use test_support::eventually;
use test_support::requests::{ada, say};
use test_support::responses::text_of;
use ui_message_stream::AgentEvent;
use ui_message_stream::event::ToolCall;
use ui_message_stream::json::Json;
use ui_message_stream::message::AnswerEnd;
use ui_message_stream::response::ResponseOutcome;
use ui_message_stream_chat::store::InMemoryLogStore;
use ui_message_stream_chat::{ChatError, ChatServer, Turn};

use crate::endings::faults;

const GRACE: Duration = Duration::from_secs(20);

/// Returns a server whose agent calls a tool, says something in its second step after this time, and
/// says it at once if it is called again.
fn server(store: &Arc<InMemoryLogStore>, time: Duration) -> ChatServer {
    let calls = Arc::new(AtomicUsize::new(0));
    let agent = move |turn: Turn| {
        let is_first = calls.fetch_add(1, Ordering::SeqCst) == 0;
        let is_begun = turn.chat.messages.len() > 1;
        let step = [
            AgentEvent::tool_input(ToolCall::new("c1", "look"), Json::parse("{}").unwrap()),
            AgentEvent::tool_output("c1", Json::string("seen")),
            AgentEvent::StepFinish,
            AgentEvent::StepStart,
        ];
        let wait = if is_first && !is_begun { time } else { Duration::ZERO };
        let rest = stream::once(async move {
            tokio::time::sleep(wait).await;
            AgentEvent::text("All of it.")
        });
        stream::iter(step.into_iter().filter(move |_| !is_begun)).chain(rest)
    };
    server_of(agent).with_store(store.clone())
}

#[tokio::test(start_paused = true)]
async fn a_response_that_ends_in_time_is_complete_and_no_other_one_begins() {
    let chats = server(&Default::default(), GRACE / 2);
    let response = post(&chats, "m1", "Hi").await;
    let (stopped, text, refused) = tokio::join!(chats.shut_down(GRACE), text_of(response), async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        chats.stream_response(&ada(), say("chat", "m2", "Hi")).await
    });
    assert_eq!(stopped, 0);
    assert!(text.contains("All of it.") && text.contains("[DONE]"), "{text}");
    assert!(matches!(refused, Err(ChatError::ShuttingDown)), "{refused:?}");
    assert_eq!(stored(&chats).await.messages.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_response_that_does_not_end_in_time_goes_on_at_another_server() {
    for is_read_again in [false, true] {
        goes_on_at_another_server(is_read_again).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_complete_response_whose_run_goes_on_elsewhere_is_an_error() {
    let store = Default::default();
    let (chats, other) = (server(&store, GRACE * 2), server(&store, Duration::ZERO));
    let ada = ada();
    let (cut, stopped) = tokio::join!(
        chats.complete_response(&ada, say("chat", "m1", "Hi")),
        chats.shut_down(GRACE)
    );
    assert_eq!(stopped, 1);
    assert!(matches!(cut, Err(ChatError::ShuttingDown)), "{cut:?}");
    let complete = other.complete_response(&ada, say("chat", "m1", "Hi")).await.unwrap();
    assert_eq!(complete.outcome, ResponseOutcome::Finished);
}

/// The client continues after the last frame, or reads the response again.
async fn goes_on_at_another_server(is_read_again: bool) {
    let store = Default::default();
    let (chats, other) = (server(&store, GRACE * 2), server(&store, Duration::ZERO));
    let response = post(&chats, "m1", "Hi").await;
    let (stopped, begun) = tokio::join!(chats.shut_down(GRACE), text_of(response));
    assert_eq!(stopped, 1);
    assert!(begun.contains("seen") && !begun.contains("[DONE]"), "{begun}");

    let last = begun.lines().rev().find_map(|line| line.strip_prefix("id: ")).unwrap();
    let last = (!is_read_again).then_some(last);
    let asked_at = tokio::time::Instant::now();
    let rest = other.resume_stream(&ada(), &"chat".into(), last).await.unwrap().unwrap();
    let rest = text_of(rest).await;
    // The clock is paused. The lease of ten seconds was handed over.
    assert!(asked_at.elapsed() < Duration::from_secs(2), "{:?}", asked_at.elapsed());
    assert!(rest.contains("All of it.") && rest.ends_with("[DONE]\n\n"), "{rest}");
    assert_eq!(rest.contains("seen"), is_read_again, "{rest}");
    assert_eq!(rest.contains(r#""start""#), is_read_again, "{rest}");
    assert_eq!(stored(&other).await.messages.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_shuts_down_waits_for_responses_that_read_the_run_of_another_server() {
    let store = Default::default();
    let (other, chats) = (server(&store, GRACE / 2), server(&store, Duration::ZERO));
    let response = post(&other, "m1", "Hi").await;
    let reader = follow(&chats).await;
    let (stopped, text, own, refused) =
        tokio::join!(chats.shut_down(GRACE), text_of(reader), text_of(response), async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let last = chats.resume_stream(&ada(), &"chat".into(), Some("run_1.0")).await;
            (chats.resume_stream(&ada(), &"chat".into(), None).await, last)
        });
    assert_eq!((stopped, text), (0, own));
    for refused in [refused.0, refused.1] {
        assert!(matches!(refused, Err(ChatError::ShuttingDown)), "{refused:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_has_shut_down_in_time_is_closed_too() {
    let chats = server(&Default::default(), Duration::ZERO);
    assert!(text_of(post(&chats, "m1", "Hi").await).await.contains("[DONE]"));
    assert_eq!(chats.shut_down(GRACE).await, 0);
    let stopped = chats.stop(&ada(), &"chat".into()).await;
    assert!(matches!(stopped, Err(ChatError::ShuttingDown)), "{stopped:?}");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_shuts_down_resumes_no_lost_run() {
    let store = Default::default();
    let (lost, chats) = (server(&store, GRACE * 10), server(&store, Duration::ZERO));
    let response = post(&lost, "m1", "Hi").await;
    let reader = follow(&chats).await;
    drop(response);
    // The lease of the run passes while the other server closes.
    let (_, stopped, text) =
        tokio::join!(lost.shut_down(Duration::ZERO), chats.shut_down(GRACE * 2), text_of(reader));
    assert_eq!(stopped, 0);
    assert!(text.contains("seen") && !text.contains("All of it."), "{text}");
}

#[tokio::test(start_paused = true)]
async fn what_the_agent_has_said_while_the_store_was_away_is_stored_before_the_run_is_handed_over()
{
    let server = faults::server();
    let response = post(&server.chats, "m1", "Hi").await;
    let response = tokio::spawn(response.for_each(async |_| {}));
    tokio::time::sleep(Duration::from_secs(1)).await;
    let is_away = async {
        let is_away = server.faults.be_away(Duration::from_secs(1));
        server.permits.add_permits(1);
        is_away.await;
    };
    tokio::join!(is_away, async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        server.chats.shut_down(Duration::ZERO).await
    });
    response.await.unwrap();

    let other = server.other();
    let begun = tokio::time::Instant::now();
    eventually(async || stored(&other).await.answer_end().is_some()).await;
    let chat = stored(&other).await;
    // The clock is paused. The lease of ten seconds was handed over.
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    assert_eq!(chat.messages.last().unwrap().text(), "An answer");
    assert_eq!(chat.answer_end(), Some(AnswerEnd::Finished));
}
