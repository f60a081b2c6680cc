//! The response body: which chunks share a frame, keep-alive comments, and how it ends. On paused
//! time, without a socket.

use std::future::Future;
use std::pin::Pin;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::{Stream, StreamExt, stream};
use http_body_util::BodyExt;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};
use tokio_stream::wrappers::UnboundedReceiverStream;
use ui_message_stream::approval::PendingToolCall;
use ui_message_stream::chunk::FinishReason;
use ui_message_stream::event::{AgentEvent, ToolCall};
use ui_message_stream::message::{AnswerEnd, Part, Role};
use ui_message_stream::response::{
    FinishedMessage, IntoEvent, ResponseOutcome, ResponseSummary, StreamError, UiWriter, WriteError,
};
use ui_message_stream::testing::Conversation;
use ui_message_stream::{ChatRequest, Chunk, Json, Translator, UiMessage, UiMessageStream};

fn respond<S>(events: S) -> UiMessageStream
where
    S: Stream<Item: IntoEvent> + Send + 'static,
{
    UiMessageStream::with_translator(Translator::new("msg_1"), events)
}

/// A response, and the receiver of what its `on_finish` is called with.
fn observed(response: UiMessageStream) -> (UiMessageStream, Receiver<ResponseSummary>) {
    let (ends, ended) = std::sync::mpsc::channel();
    (response.on_finish(move |end| ends.send(end).unwrap()), ended)
}

async fn next_frame(body: &mut UiMessageStream) -> Option<String> {
    let bytes = body.frame().await?.unwrap().into_data().unwrap();
    Some(String::from_utf8(bytes.to_vec()).unwrap())
}

async fn whole(mut body: UiMessageStream) -> String {
    whole_of(&mut body).await
}

async fn whole_of(body: &mut UiMessageStream) -> String {
    let mut text = String::new();
    while let Some(frame) = next_frame(body).await {
        text.push_str(&frame);
    }
    text
}

/// A stream of events that the test sends.
fn channel() -> (mpsc::UnboundedSender<AgentEvent>, impl Stream<Item = AgentEvent> + Send) {
    let (sender, receiver) = mpsc::unbounded_channel();
    (sender, UnboundedReceiverStream::new(receiver))
}

#[tokio::test]
async fn the_start_chunk_is_sent_before_the_agent_is_polled() {
    let never = stream::poll_fn(|_| -> Poll<Option<AgentEvent>> { panic!("polled too early") });
    let mut body = respond(never);
    let first = next_frame(&mut body).await.unwrap();
    assert_eq!(first, "data: {\"type\":\"start\",\"messageId\":\"msg_1\"}\n\n");
}

#[tokio::test]
async fn chunks_that_are_ready_share_a_frame_and_done_follows_finish() {
    let mut body = respond(stream::iter(["a", "b", "c"]).map(AgentEvent::text));
    next_frame(&mut body).await.unwrap();
    let second = next_frame(&mut body).await.unwrap();
    assert_eq!(second.matches("\"text-delta\"").count(), 3);
    assert!(second.ends_with("{\"type\":\"finish\"}\n\ndata: [DONE]\n\n"), "{second}");
    assert_eq!(next_frame(&mut body).await, None);
    assert_eq!(next_frame(&mut body).await, None);
}

#[tokio::test]
async fn the_agent_is_polled_at_most_one_buffer_ahead() {
    let polled = Arc::new(Mutex::new(0));
    let count = Arc::clone(&polled);
    let endless = stream::repeat_with(move || {
        *count.lock().unwrap() += 1;
        AgentEvent::text("x".repeat(1000))
    });
    let mut body = respond(endless);
    for _ in 0..2 {
        next_frame(&mut body).await.unwrap();
    }
    let after_two = *polled.lock().unwrap();
    assert!(after_two < 20, "{after_two} events of 1 kB for one buffer");
    next_frame(&mut body).await.unwrap();
    assert!(*polled.lock().unwrap() > after_two);
}

#[tokio::test(start_paused = true)]
async fn a_keep_alive_comment_is_sent_every_fifteen_seconds_also_during_a_tool_run() {
    let (events, stream) = channel();
    let mut body = respond(stream);
    let began = Instant::now();
    tokio::spawn(async move {
        let call = ToolCall::new("c", "slow");
        events.send(AgentEvent::tool_input(call, Json::null())).unwrap();
        sleep(Duration::from_secs(40)).await;
        events.send(AgentEvent::tool_output("c", Json::null())).unwrap();
        sleep(Duration::from_secs(14)).await;
        events.send(AgentEvent::text("done")).unwrap();
    });
    let mut kept_alive_at = Vec::new();
    while let Some(frame) = next_frame(&mut body).await {
        if frame == ": keep-alive\n\n" {
            kept_alive_at.push(began.elapsed().as_secs());
        }
    }
    assert_eq!(kept_alive_at, [15, 30]);
}

#[tokio::test]
async fn tool_input_deltas_that_are_ready_together_are_merged() {
    let mut events = vec![AgentEvent::tool_input_start(ToolCall::new("c", "t"))];
    for piece in ["{\"a\"", ":", "1", "}"] {
        events.push(AgentEvent::tool_input_delta("c", piece));
    }
    events.push(AgentEvent::tool_input(ToolCall::new("c", "t"), Json::null()));
    let text = whole(respond(stream::iter(events))).await;
    assert_eq!(text.matches("tool-input-delta").count(), 1);
    assert!(text.contains(r#""inputTextDelta":"{\"a\":1}""#), "{text}");
}

#[tokio::test(start_paused = true)]
async fn tool_input_deltas_wait_at_most_the_configured_time() {
    let (events, stream) = channel();
    let mut body = respond(stream).with_input_delta_coalescing(Duration::from_millis(100));
    tokio::spawn(async move {
        events.send(AgentEvent::tool_input_start(ToolCall::new("c", "t"))).unwrap();
        for _ in 0..8 {
            events.send(AgentEvent::tool_input_delta("c", "[")).unwrap();
            sleep(Duration::from_millis(30)).await;
        }
    });
    let began = Instant::now();
    let mut seen = Vec::new();
    while let Some(frame) = next_frame(&mut body).await {
        if let Some((_, delta)) = frame.split_once("\"inputTextDelta\":\"") {
            let pieces = delta.chars().take_while(|c| *c == '[').count();
            seen.push((began.elapsed().as_millis(), pieces));
        }
    }
    assert_eq!(seen, [(100, 4), (220, 4)]);
}

#[tokio::test]
async fn tool_input_deltas_are_merged_in_a_stream_of_chunks_too() {
    let piece = |text: &str| {
        AgentEvent::Chunk(Box::new(Chunk::ToolInputDelta {
            tool_call_id: "c".into(),
            input_text_delta: text.to_owned().into(),
        }))
    };
    let start = AgentEvent::tool_input_start(ToolCall::new("c", "t"));
    let text = whole(respond(stream::iter([start, piece("["), piece("1"), piece("]")]))).await;
    assert_eq!(text.matches("tool-input-delta").count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_delta_of_another_call_has_its_own_waiting_time() {
    let (events, stream) = channel();
    let mut body = respond(stream).with_input_delta_coalescing(Duration::from_millis(100));
    tokio::spawn(async move {
        for call in ["a", "b"] {
            events.send(AgentEvent::tool_input_start(ToolCall::new(call, "t"))).unwrap();
        }
        events.send(AgentEvent::tool_input_delta("a", "1")).unwrap();
        sleep(Duration::from_millis(90)).await;
        events.send(AgentEvent::tool_input_delta("b", "2")).unwrap();
        sleep(Duration::from_millis(50)).await;
        events.send(AgentEvent::tool_input_delta("b", "3")).unwrap();
        sleep(Duration::from_secs(1)).await;
    });
    let text = whole_of(&mut body).await;
    assert!(text.contains(r#""inputTextDelta":"23""#), "{text}");
}

#[tokio::test]
async fn a_started_translator_can_be_continued() {
    let mut translator = Translator::new("msg_1");
    translator.start(&mut |_| {});
    let events = stream::iter([AgentEvent::text("Hi")]);
    let text = whole(UiMessageStream::with_translator(translator, events)).await;
    assert!(text.contains("Hi") && text.ends_with("data: [DONE]\n\n"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn events_without_chunks_do_not_starve_other_tasks() {
    let empty = stream::repeat_with(|| AgentEvent::text(""));
    let body = respond(empty).abort_when(sleep(Duration::from_secs(1)));
    let stopped = tokio::select! {
        text = whole(body) => text,
        // Paused time advances only when all tasks wait.
        () = async { for _ in 0..3 { tokio::time::advance(Duration::from_secs(1)).await; } std::future::pending().await } => unreachable!(),
    };
    assert!(stopped.contains("abort"), "{stopped}");
}

#[tokio::test]
async fn a_panic_in_a_callback_does_not_affect_the_response() {
    let events = stream::iter([Ok(AgentEvent::text("Hi")), Err("oh")]);
    let body =
        respond(events).on_error(|_| panic!("in on_error")).on_finish(|_| panic!("in on_finish"));
    let text = whole(body).await;
    assert!(text.contains("An error occurred.") && text.ends_with("data: [DONE]\n\n"), "{text}");
}

#[tokio::test]
async fn an_agent_error_is_masked_and_on_error_receives_its_cause() {
    let causes = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&causes);
    let events = stream::iter([
        Ok(AgentEvent::text("Half a sen")),
        Err(std::io::Error::other("postgres://user:secret@db")),
        Ok(AgentEvent::text("never")),
    ]);
    let body = respond(events).on_error(move |error: &StreamError| {
        let cause = std::error::Error::source(error).map(ToString::to_string);
        seen.lock().unwrap().push(format!("{error}: {}", cause.unwrap_or_default()));
        None
    });
    let text = whole(body).await;
    assert!(text.contains(r#"{"type":"error","errorText":"An error occurred."}"#), "{text}");
    assert!(!text.contains("secret") && !text.contains("never"), "{text}");
    assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
    assert_eq!(*causes.lock().unwrap(), ["the agent failed: postgres://user:secret@db"]);
}

#[tokio::test]
async fn on_error_may_return_the_text_for_the_user() {
    let events = stream::iter([Err::<AgentEvent, _>("rate limit")]);
    let text = whole(respond(events).on_error(|_| Some("Try later.".to_owned()))).await;
    assert!(text.contains(r#"{"type":"error","errorText":"Try later."}"#), "{text}");
}

#[tokio::test]
async fn a_panic_in_the_agent_ends_the_message_like_an_error() {
    let events = stream::iter([1, 2]).map(|n| match n {
        1 => AgentEvent::text("Half a sen"),
        _ => panic!("index out of bounds"),
    });
    let (body, ended) = observed(respond(events));
    let text = whole(body).await;
    assert!(text.contains("\"text-end\"") && text.contains("An error occurred."), "{text}");
    assert!(!text.contains("bounds"), "{text}");
    assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
    assert_eq!(ended.try_recv().unwrap().outcome, ResponseOutcome::Failed);
}

#[tokio::test]
async fn on_finish_is_called_once_with_the_stop_reason() {
    let outcomes = |drop_after: usize, events: Vec<AgentEvent>| async move {
        let events = stream::iter(events).chain(stream::pending());
        let (mut body, ended) = observed(respond(events));
        for _ in 0..drop_after {
            next_frame(&mut body).await;
        }
        drop(body);
        ended.try_iter().map(|end| end.outcome).collect::<Vec<_>>()
    };
    let finish = AgentEvent::finish(FinishReason::Stop);
    let abort = AgentEvent::Abort { reason: None };
    assert_eq!(outcomes(9, vec![finish]).await, [ResponseOutcome::Finished]);
    let cut = AgentEvent::finish(FinishReason::Interrupted);
    assert_eq!(outcomes(9, vec![cut]).await, [ResponseOutcome::Failed]);
    assert_eq!(outcomes(9, vec![abort]).await, [ResponseOutcome::Aborted]);
    assert_eq!(outcomes(9, vec![AgentEvent::error("no")]).await, [ResponseOutcome::Failed]);
    assert_eq!(outcomes(0, vec![]).await, [ResponseOutcome::Disconnected]);
    assert_eq!(outcomes(2, vec![AgentEvent::text("a")]).await, [ResponseOutcome::Disconnected]);
}

#[tokio::test]
async fn on_finish_receives_the_message_that_the_client_holds() {
    let body =
        br#"{"id":"c","messages":[{"id":"m","role":"assistant","parts":[{"type":"step-start"},
        {"type":"tool-t","toolCallId":"c1","state":"approval-responded","input":{},
         "approval":{"id":"a","approved":true}}]}]}"#;
    let chat = ChatRequest::parse(body, &Default::default()).unwrap();
    let events = [AgentEvent::tool_output("c1", Json::null()), AgentEvent::text("Done.")];
    let response =
        UiMessageStream::reply(&chat, stream::iter(events)).continuing(chat.messages()[0].clone());
    let (response, ended) = observed(response);
    whole(response).await;
    let message = ended.try_recv().unwrap().message.and_then(FinishedMessage::whole).unwrap();
    assert_eq!(
        serde_json::to_value(&message).unwrap(),
        serde_json::json!({"id": "m", "role": "assistant", "parts": [
            {"type": "step-start"},
            {"type": "tool-t", "toolCallId": "c1", "state": "output-available", "input": {},
             "output": null, "approval": {"id": "a", "approved": true}},
            {"type": "step-start"},
            {"type": "text", "text": "Done.", "state": "done"},
        ]})
    );
}

#[tokio::test]
async fn an_answer_whose_reader_has_left_is_stored_without_open_parts_and_says_that_it_is_not_complete()
 {
    let stored = |events: Vec<AgentEvent>, continued: Option<UiMessage>, frames: usize| async move {
        let events = stream::iter(events).chain(stream::pending());
        let (mut body, ended) = observed(respond(events));
        if let Some(continued) = continued {
            body = body.continuing(continued);
        }
        for _ in 0..frames {
            next_frame(&mut body).await;
        }
        drop(body);
        ended.try_recv().unwrap().message.and_then(FinishedMessage::whole).unwrap()
    };
    let events = vec![
        AgentEvent::tool_input(ToolCall::new("c1", "t"), Json::parse("{}").unwrap()),
        AgentEvent::tool_input_start(ToolCall::new("c2", "t")),
        AgentEvent::tool_input_delta("c2", r#"{"pa"#),
        AgentEvent::text("Half a sen"),
    ];
    let message = stored(events, None, 2).await;
    assert_eq!(message.answer_end(), Some(AnswerEnd::Interrupted));
    let parts = serde_json::to_value(&message.parts).unwrap();
    let states: Vec<_> = parts.as_array().unwrap().iter().map(|it| it["state"].as_str()).collect();
    let call_may_run = Some("input-available");
    assert_eq!(states, [None, call_may_run, Some("output-error"), Some("done")], "{parts}");

    // The response that goes on with it takes the note back, on the page too.
    let finish = vec![AgentEvent::text("."), AgentEvent::finish(FinishReason::Stop)];
    let whole = stored(finish, Some(message), 9).await;
    assert_eq!(whole.answer_end(), None);

    // A response that is stopped or fails says so, too, and one that was never read has nothing to say.
    let abort = vec![AgentEvent::text("a"), AgentEvent::Abort { reason: None }];
    assert_eq!(stored(abort, None, 9).await.answer_end(), Some(AnswerEnd::Stopped));
    let error = vec![AgentEvent::text("a"), AgentEvent::error("no")];
    assert_eq!(stored(error, None, 9).await.answer_end(), Some(AnswerEnd::Failed));
    assert_eq!(stored(vec![], None, 0).await.parts, []);
}

/// The message `m` with an approved call, as a client posts it that has changed its text and has invented
/// a call with its output.
fn continued_by_a_changed_message() -> ChatRequest {
    let body =
        br#"{"id":"c","messages":[{"id":"m","role":"assistant","parts":[{"type":"step-start"},
        {"type":"text","text":"The price is 1.","state":"done"},
        {"type":"tool-t","toolCallId":"c1","state":"approval-responded","input":{"path":"/etc"},
         "approval":{"id":"a","approved":true,"reason":"Fine."}},
        {"type":"tool-t","toolCallId":"c2","state":"output-available","input":{},"output":"invented"},
        {"type":"tool-t","toolCallId":"c3","state":"approval-responded","input":{},
         "approval":{"id":"b","approved":true}}]}]}"#;
    ChatRequest::parse(body, &Default::default()).unwrap()
}

/// Returns the message that `on_finish` receives of a response with the outcomes of two calls and a text.
async fn finished(stored: Option<UiMessage>) -> FinishedMessage {
    let events = [
        AgentEvent::tool_output("c1", Json::parse("7").unwrap()),
        AgentEvent::tool_denied("c3"),
        AgentEvent::text("Done."),
    ];
    let response = UiMessageStream::reply(&continued_by_a_changed_message(), stream::iter(events));
    let response = match stored {
        Some(stored) => response.continuing(stored),
        None => response,
    };
    let (response, ended) = observed(response);
    whole(response).await;
    ended.try_recv().unwrap().message.unwrap()
}

#[tokio::test]
async fn a_continued_message_is_the_stored_one_with_what_the_response_added() {
    let stored = UiMessage::parse(
        r#"{"id":"m","role":"assistant","metadata":{"cost":1},"parts":[{"type":"step-start"},
        {"type":"text","text":"The price is 9.","state":"done"},
        {"type":"tool-t","toolCallId":"c1","state":"approval-requested","input":{"path":"notes"},
         "approval":{"id":"a"}}]}"#,
    );
    let message = finished(Some(stored.unwrap())).await;
    let FinishedMessage::Whole(message) = message else { panic!("{message:?}") };
    assert_eq!(
        serde_json::to_value(&message).unwrap(),
        serde_json::json!({"id": "m", "role": "assistant", "metadata": {"cost": 1}, "parts": [
            {"type": "step-start"},
            {"type": "text", "text": "The price is 9.", "state": "done"},
            {"type": "tool-t", "toolCallId": "c1", "state": "output-available",
             "input": {"path": "notes"}, "output": 7,
             "approval": {"id": "a", "approved": true, "reason": "Fine."}},
            {"type": "step-start"},
            {"type": "text", "text": "Done.", "state": "done"},
        ]})
    );
}

#[tokio::test]
async fn without_the_stored_message_only_what_the_response_added_is_handed_out() {
    let message = finished(None).await;
    let FinishedMessage::Added(added) = &message else { panic!("{message:?}") };
    assert_eq!(
        serde_json::to_value(added).unwrap(),
        serde_json::json!({"id": "m", "role": "assistant", "parts": [
            {"type": "step-start"},
            {"type": "text", "text": "Done.", "state": "done"},
        ]})
    );
    assert_eq!(message.whole(), None);
}

#[tokio::test]
async fn a_regeneration_leaves_the_messages_before_it_as_they_are() {
    let message = |id: &str, role, text: &str| UiMessage::new(id, role, vec![Part::text(text)]);
    let handler = async |chat: ChatRequest| {
        UiMessageStream::reply(&chat, stream::iter([AgentEvent::text("Third")]))
    };
    let mut chat = Conversation::new(handler).with_messages([
        message("u1", Role::User, "Hi"),
        message("a1", Role::Assistant, "First"),
        message("a2", Role::Assistant, "Second"),
    ]);
    chat.regenerate().await;
    let texts: Vec<String> = chat.messages().iter().map(UiMessage::text).collect();
    assert_eq!(texts, ["Hi", "First", "Third"]);
}

#[tokio::test]
async fn on_finish_receives_the_calls_of_the_response_that_wait_but_not_those_of_the_client() {
    // The client may have changed the input of a call in its own message.
    let body =
        br#"{"id":"c","messages":[{"id":"m","role":"assistant","parts":[{"type":"step-start"},
        {"type":"tool-t","toolCallId":"c0","state":"approval-requested","input":{"path":"/etc"},
         "approval":{"id":"a0"}}]}]}"#;
    let input = || Json::parse(r#"{"path":"notes.txt"}"#).unwrap();
    let call = |id: &str, tool: &str| ToolCall::new(id, tool.to_owned());
    let events = || {
        [
            AgentEvent::tool_input(call("c1", "delete"), input()),
            AgentEvent::approval_requested("c1", "a1"),
            AgentEvent::tool_input(call("c2", "locate").client_executed(), input()),
            AgentEvent::tool_input(call("c3", "read"), input()),
            AgentEvent::tool_output("c3", Json::null()),
            AgentEvent::tool_input(call("c4", "never_ends"), input()),
        ]
    };
    for is_read_to_the_end in [true, false] {
        let chat = ChatRequest::parse(body, &Default::default()).unwrap();
        let events = stream::iter(events()).chain(match is_read_to_the_end {
            true => stream::empty().boxed(),
            false => stream::pending().boxed(),
        });
        let (mut response, ended) = observed(UiMessageStream::reply(&chat, events));
        if is_read_to_the_end {
            whole_of(&mut response).await;
        } else {
            next_frame(&mut response).await;
            next_frame(&mut response).await;
        }
        drop(response);
        let asked = PendingToolCall::awaiting_approval("a1", "c1", "delete", input());
        let of_client = PendingToolCall::client_executed("c2", "locate", input());
        // After a disconnect it is not known which of the other calls the server executes.
        let expected = if is_read_to_the_end { vec![asked, of_client] } else { vec![asked] };
        assert_eq!(ended.try_recv().unwrap().open_calls, expected);
    }
}

#[test]
fn on_finish_needs_no_runtime() {
    let (body, ended) = observed(respond(stream::pending::<AgentEvent>()));
    drop(body);
    assert!(ended.try_recv().is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_run_stops_when_its_stop_signal_is_sent() {
    let (events, stream) = channel();
    events.send(AgentEvent::text("Half a sen")).unwrap();
    let body = respond(stream).abort_when(sleep(Duration::from_secs(3)));
    let text = whole(body).await;
    assert!(
        text.ends_with(
            "{\"type\":\"finish-step\"}\n\ndata: {\"type\":\"abort\"}\n\ndata: [DONE]\n\n"
        )
    );
    assert!(events.is_closed(), "the agent's stream is dropped");
}

#[tokio::test]
async fn an_event_stream_is_not_polled_after_its_end() {
    struct Once(u8);
    impl Stream for Once {
        type Item = AgentEvent;
        fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<AgentEvent>> {
            self.0 += 1;
            assert!(self.0 < 3, "polled after the end");
            Poll::Ready((self.0 == 1).then(|| AgentEvent::text("x")))
        }
    }
    let mut body = respond(Once(0));
    while next_frame(&mut body).await.is_some() {}
    assert_eq!(next_frame(&mut body).await, None);
}

fn written<F, Fut>(write: F) -> impl Future<Output = String>
where
    F: FnOnce(UiWriter) -> Fut,
    Fut: Future<Output = Result<(), WriteError>> + Send + 'static,
{
    let chat = ChatRequest::parse(
        br#"{"id":"c","messages":[],"trigger":"submit-message"}"#,
        &Default::default(),
    );
    whole(UiMessageStream::from_fn(&chat.unwrap(), write))
}

#[tokio::test]
async fn a_writer_writes_text_data_and_other_streams() {
    let text = written(async |ui| {
        ui.text("Hello").await?;
        ui.data("status", &["done"]).await?;
        ui.merge(stream::iter(0..200).map(|n| AgentEvent::text(n.to_string()))).await
    })
    .await;
    assert_eq!(text.matches("\"text-delta\"").count(), 201);
    assert!(text.contains(r#"{"type":"data-status","data":["done"]}"#), "{text}");
    assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
}

#[tokio::test]
async fn output_written_before_an_error_is_sent_before_the_error() {
    let text = written(async |ui| {
        ui.text("Hello").await?;
        let _: u32 = "x".parse()?;
        Ok(())
    })
    .await;
    let position_of_text = text.find("Hello").unwrap();
    assert!(position_of_text < text.find("An error occurred.").unwrap(), "{text}");
}

#[tokio::test]
async fn output_written_before_a_panic_is_sent_before_the_error() {
    let text = written(async |ui| {
        ui.text("Hello").await?;
        panic!("index out of bounds")
    })
    .await;
    let position_of_text = text.find("Hello").unwrap();
    assert!(position_of_text < text.find("An error occurred.").unwrap(), "{text}");
}

#[tokio::test]
async fn a_merged_stream_that_finishes_does_not_finish_the_response() {
    let text = written(async |ui| {
        let finish = AgentEvent::finish(FinishReason::Stop);
        ui.merge(stream::iter([AgentEvent::text("one"), finish])).await?;
        ui.text(" two").await
    })
    .await;
    assert!(text.contains(" two"), "{text}");
}
