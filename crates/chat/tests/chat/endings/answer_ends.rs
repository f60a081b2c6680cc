//! How an answer has ended: what a live page reads of it, the stored message says, and the model reads.

use std::future::{pending, ready};

use chat_test_support::answers::{follow, read_until, server_of, stored};
use futures::{StreamExt, stream};
use serde_json::{Value, json};
use test_support::requests::{ada, send, user_message};
use test_support::responses::{message_of, text_of};
use ui_message_stream::event::ToolCall;
use ui_message_stream::message::{AnswerEnd, Role};
use ui_message_stream::model::ToModelMessages;
use ui_message_stream::{AgentEvent, Json, UiMessage};
use ui_message_stream_chat::ChatLimits;
use ui_message_stream_chat::{ChatServer, ChatStream, Turn};

/// A server whose agent does what the last text of the user says, and says what it reads in its next call.
fn server() -> ChatServer {
    let agent = |turn: Turn| {
        let messages = &turn.chat.messages;
        let question = messages.iter().rfind(|it| it.role == Role::User).unwrap().text();
        let is_continued = messages.last().unwrap().role == Role::Assistant;
        let metadata = AgentEvent::Metadata(Json::parse(r#"{"model": "m"}"#).unwrap());
        let mut events = vec![metadata, AgentEvent::text("One")];
        let mut rest = stream::empty().boxed();
        match &*question {
            _ if is_continued => events = vec![AgentEvent::text("Two")],
            "wait" => rest = stream::once(pending()).boxed(),
            "fail" => events.push(AgentEvent::error("it broke")),
            "fail at once" => events = vec![AgentEvent::error("it broke")],
            "fill" => {
                let word = || ready(AgentEvent::text("x".repeat(4_000)));
                rest = stream::repeat_with(word).then(|word| word).boxed();
            }
            "ask and fail" | "ask twice and fail" => {
                for id in ["c1", "c2"].into_iter().take(1 + usize::from(question.contains("twice")))
                {
                    let call = ToolCall::new(id, "look").client_executed();
                    events.push(AgentEvent::tool_input(call, Json::parse("{}").unwrap()));
                }
                events.push(AgentEvent::error("it broke"));
            }
            _ => {}
        }
        stream::iter(events).chain(rest)
    };
    let limits = ChatLimits::default().with_max_log_bytes(50_000);
    server_of(agent).with_limits(limits)
}

async fn post(chats: &ChatServer, message: Value) -> ChatStream {
    chats.stream_response(&ada(), send("chat", &json!([message]))).await.unwrap()
}

/// Reads a response to its end, as a page does that holds this message.
async fn shown(held: Option<UiMessage>, response: ChatStream) -> UiMessage {
    message_of(held, &text_of(response).await)
}

async fn last(chats: &ChatServer) -> UiMessage {
    stored(chats).await.messages.last().unwrap().clone()
}

fn as_json(message: &UiMessage) -> Value {
    serde_json::to_value(message).unwrap()
}

#[tokio::test]
async fn a_live_page_and_a_reload_agree_about_how_an_answer_has_ended() {
    for (text, ended) in
        [("wait", Some("stopped")), ("fail", Some("failed")), ("fill", Some("limit")), ("go", None)]
    {
        let chats = server();
        let mut response = post(&chats, user_message("m1", text)).await;
        if text == "wait" {
            // The text is written before the stop.
            read_until(&mut response, "One").await;
            chats.stop(&ada(), &"chat".into()).await.unwrap();
            response = post(&chats, user_message("m1", text)).await;
        }
        let live = as_json(&shown(None, response).await);
        let reloaded = as_json(&last(&chats).await);
        assert_eq!(live["metadata"], reloaded["metadata"], "{text}");
        assert_eq!(live["parts"], reloaded["parts"], "{text}");
        assert_eq!(live["metadata"]["model"], "m", "{text}");
        assert_eq!(live["metadata"]["ui-message-stream"]["ended"].as_str(), ended, "{text}");
    }
}

#[tokio::test]
async fn each_page_that_reads_a_stop_live_learns_of_it() {
    let chats = server();
    let response = post(&chats, user_message("m1", "wait")).await;
    let second = follow(&chats).await;
    while last(&chats).await.text() != "One" {
        tokio::task::yield_now().await;
    }
    let stop = async { chats.stop(&ada(), &"chat".into()).await.unwrap() };
    let (first, second, ()) = tokio::join!(shown(None, response), shown(None, second), stop);
    let stored = last(&chats).await;
    assert_eq!(stored.answer_end(), Some(AnswerEnd::Stopped));
    for page in [first, second] {
        assert_eq!(as_json(&page), as_json(&stored));
    }
}

#[tokio::test]
async fn an_answer_without_parts_leaves_no_message_and_the_chat_says_how_it_ended() {
    let chats = server();
    let live = shown(None, post(&chats, user_message("m1", "fail at once")).await).await;
    assert_eq!((live.parts.len(), live.metadata), (0, None));
    let chat = stored(&chats).await;
    assert_eq!((chat.messages.len(), chat.answer_end()), (1, Some(AnswerEnd::Failed)));
}

#[tokio::test]
async fn a_message_that_is_continued_does_not_say_any_more_that_it_has_failed() {
    let chats = server();
    let failed = shown(None, post(&chats, user_message("m1", "ask and fail")).await).await;
    assert_eq!(failed.answer_end(), Some(AnswerEnd::Failed));
    let mut answered = failed.clone();
    for call in answered.tool_parts_mut() {
        call.set_output(Ok(Json::string("seen"))).unwrap();
    }
    let response = post(&chats, as_json(&answered)).await;
    let live = shown(Some(answered), response).await;
    let stored = last(&chats).await;
    assert_eq!((live.answer_end(), stored.answer_end()), (None, None));
    assert_eq!(as_json(&live)["metadata"], as_json(&stored)["metadata"]);
    assert!(live.text().contains("Two"), "{live:?}");
    assert_eq!(as_json(&live)["metadata"]["ui-message-stream"], json!({"ended": null}));
}

#[tokio::test]
async fn a_failed_answer_of_which_one_call_of_two_is_answered_has_failed_until_it_is_continued() {
    let chats = server();
    let failed = shown(None, post(&chats, user_message("m1", "ask twice and fail")).await).await;
    let end = Some(AnswerEnd::Failed);
    for (call, expected) in [("c1", end), ("c2", Some(AnswerEnd::Finished))] {
        assert_eq!(stored(&chats).await.answer_end(), end);
        let mut answered = last(&chats).await;
        let mut parts = answered.tool_parts_mut();
        let part = parts.find(|part| part.tool_call_id.as_str() == call).unwrap();
        part.set_output(Ok(Json::string("seen"))).unwrap();
        drop(parts);
        let live = shown(Some(answered.clone()), post(&chats, as_json(&answered)).await).await;
        assert_eq!(stored(&chats).await.answer_end(), expected, "{call}");
        let ends = (live.answer_end(), last(&chats).await.answer_end());
        let said = expected.filter(|end| *end != AnswerEnd::Finished);
        assert_eq!(ends, (said, said), "{call}");
    }
    assert_eq!(failed.answer_end(), end);
}

#[tokio::test]
async fn the_model_reads_before_the_next_message_that_an_answer_is_not_complete() {
    let chats = server();
    for (id, text) in [("m1", "fail"), ("m2", "go"), ("m3", "fail")] {
        shown(None, post(&chats, user_message(id, text)).await).await;
    }
    let chat = stored(&chats).await;
    let converted = ToModelMessages::new().model_messages(chat.messages.iter());
    let texts = |content: &[&str]| -> Vec<Value> {
        content.iter().map(|text| json!({"text": {"text": text}})).collect()
    };
    let user = |content: &[&str]| json!({"user": {"content": texts(content)}});
    let assistant = json!({"assistant": {"content": texts(&["One"])}});
    let note = "(The answer before this has failed. It is not complete.)";
    let expected = json!([
        user(&["fail"]),
        assistant,
        user(&[note, "go"]),
        assistant,
        user(&["fail"]),
        // No message of the user follows.
        assistant,
    ]);
    assert_eq!(serde_json::to_value(converted).unwrap(), expected);
}
