//! A request that is delivered twice changes nothing: neither the history, nor the world, nor the
//! number of model calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::http::Method;
use axum::http::StatusCode;
use axum::middleware::map_response;
use axum::response::Response;
use axum::{Extension, Router};
use chat_test_support::answers::{send, server_of, stored};
use chat_test_support::test_server::{Client, Host};
use futures::stream;
use serde_json::{Value, json};
use test_support::eventually;
use test_support::requests::{ada, request, user_message};
use test_support::responses::{message_of, text_of};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use ui_message_stream::approval::Principal;
use ui_message_stream::{AgentEvent, UiMessage};
use ui_message_stream_chat::ChatLimits;
use ui_message_stream_chat::axum::chat_routes;
use ui_message_stream_chat::{
    Chat, ChatServer, PostedHistory, RequestConflict, RequestEffect, StopReason, Turn,
};

use PostedHistory::{Keep, Truncate};

const UNNAMED_EDIT: RequestEffect = RequestEffect::Refused(RequestConflict::UnnamedEdit);

fn assistant(id: &str) -> Value {
    json!({"id": id, "role": "assistant", "parts": [{"type": "text", "text": "An answer."}]})
}

/// The history `m1 a1 m2 a2 …` of this many turns, up to the message of the user in the last one.
fn posted(turns: usize) -> Vec<Value> {
    let turns = (1..=turns)
        .flat_map(|n| [user_message(format!("m{n}"), "Hi"), assistant(&format!("a{n}"))]);
    let mut messages: Vec<Value> = turns.collect();
    messages.pop();
    messages
}

/// A request that sends the last of these messages.
fn submit(messages: &[Value]) -> Value {
    json!({"id": "chat", "trigger": "submit-message", "messages": messages})
}

/// A request that edits the last of these messages.
fn edit(messages: &[Value]) -> Value {
    let mut body = submit(messages);
    body["messageId"] = messages.last().unwrap()["id"].clone();
    body
}

fn regenerate(messages: &[Value], id: Option<&str>) -> Value {
    let mut body = submit(messages);
    body["trigger"] = "regenerate-message".into();
    body["messageId"] = id.into();
    body
}

fn apply_with(chat: &mut Chat, body: &Value, posted_history: PostedHistory) -> RequestEffect {
    chat.apply_request(&request(body), posted_history)
}

fn apply(chat: &mut Chat, body: &Value) -> RequestEffect {
    apply_with(chat, body, Keep)
}

/// Applies a request that must change nothing. Returns its effect.
#[track_caller]
fn repeat(chat: &mut Chat, body: &Value) -> RequestEffect {
    let before = chat.clone();
    let effect = apply(chat, body);
    assert_eq!(*chat, before, "{body}");
    effect
}

/// Applies a request that is to be answered, and stores this response.
#[track_caller]
fn answer(chat: &mut Chat, body: &Value, id: &str) {
    assert_eq!(apply(chat, body), RequestEffect::NewResponse);
    respond(chat, id);
}

/// Stores the response of a request that has just been applied.
fn respond(chat: &mut Chat, id: &str) {
    begin(chat, id);
    finish(chat, id);
}

/// Makes a run write this response.
fn begin(chat: &mut Chat, id: &str) {
    set_live(chat, json!({"live": {"id": id, "isNew": true}}));
}

fn finish(chat: &mut Chat, id: &str) {
    set_live(chat, json!({}));
    chat.upsert_message(UiMessage::parse(&assistant(id).to_string()).unwrap());
}

fn set_live(chat: &mut Chat, runs: Value) {
    let mut stored = serde_json::to_value(&*chat).unwrap();
    stored["runs"] = runs;
    *chat = serde_json::from_value(stored).unwrap();
}

fn ids(chat: &Chat) -> Vec<&str> {
    chat.messages.iter().map(|message| message.id.as_str()).collect()
}

/// A chat of this many answered turns.
fn chat_of(turns: usize) -> Chat {
    let mut chat = Chat::new("chat", ada());
    for turn in 1..=turns {
        answer(&mut chat, &submit(&posted(turn)), &format!("a{turn}"));
    }
    chat
}

fn answered(id: &str) -> RequestEffect {
    RequestEffect::Answered(id.into())
}

#[test]
fn a_known_message_gets_its_response_and_removes_nothing() {
    let mut chat = chat_of(3);
    for turn in 1..=3 {
        let mut messages = posted(turn);
        let response = answered(&format!("a{turn}"));
        assert_eq!(repeat(&mut chat, &submit(&messages)), response);
        // A changed text without `messageId` may be an edit, or from before one.
        *messages.last_mut().unwrap() = user_message(format!("m{turn}"), "Changed");
        assert_eq!(repeat(&mut chat, &submit(&messages)), UNNAMED_EDIT);
        assert_eq!(repeat(&mut chat, &regenerate(&messages, None)), UNNAMED_EDIT);
        let id = format!("a{turn}");
        assert_eq!(repeat(&mut chat, &regenerate(&messages, Some(&id))), UNNAMED_EDIT);
        // With `messageId` an unchanged text is no edit.
        assert_eq!(repeat(&mut chat, &edit(&posted(turn))), response);
    }
    begin(&mut chat, "a4");
    assert_eq!(repeat(&mut chat, &submit(&posted(3))), answered("a3"));
}

#[test]
fn a_message_whose_response_is_being_written_waits_for_it() {
    let mut chat = chat_of(1);
    assert_eq!(apply(&mut chat, &submit(&posted(2))), RequestEffect::NewResponse);
    assert_eq!(repeat(&mut chat, &submit(&posted(2))), RequestEffect::NotAnswered);
    begin(&mut chat, "a2");
    assert_eq!(repeat(&mut chat, &submit(&posted(2))), RequestEffect::AwaitsResponse("a2".into()));
    // The run has written nothing.
    set_live(&mut chat, json!({}));
    assert_eq!(repeat(&mut chat, &submit(&posted(2))), RequestEffect::NotAnswered);
}

#[test]
fn an_edit_changes_the_chat_once_though_it_is_delivered_again_after_other_edits() {
    let mut chat = chat_of(3);
    let edits = ["one", "two"].map(|text| {
        let mut messages = posted(2);
        *messages.last_mut().unwrap() = user_message("m2", text);
        edit(&messages)
    });
    assert_eq!(apply(&mut chat, &edits[0]), RequestEffect::NewResponse);
    assert_eq!(ids(&chat), ["m1", "a1", "m2"]);
    respond(&mut chat, "b2");
    assert_eq!(repeat(&mut chat, &edits[0]), answered("b2"));
    answer(&mut chat, &edits[1], "c2");
    // The response does not answer the first edit.
    assert_eq!(repeat(&mut chat, &edits[0]), RequestEffect::NotAnswered);
    assert_eq!(repeat(&mut chat, &edits[1]), answered("c2"));
    // The requests of the removed messages.
    for (body, effect) in [
        (submit(&posted(2)), UNNAMED_EDIT),
        (submit(&posted(3)), RequestEffect::NotAnswered),
        (edit(&posted(3)), RequestEffect::NotAnswered),
        (submit(&[&posted(3)[..], &[assistant("a3")]].concat()), RequestEffect::NotAnswered),
    ] {
        assert_eq!(repeat(&mut chat, &body), effect, "{body}");
    }
    // A stored chat recognizes them as well.
    let stored = serde_json::to_string(&chat).unwrap();
    let mut stored: Chat = serde_json::from_str(&stored).unwrap();
    assert_eq!(repeat(&mut stored, &edits[0]), RequestEffect::NotAnswered);
    assert_eq!(repeat(&mut stored, &edits[1]), answered("c2"));
    assert_eq!(repeat(&mut stored, &submit(&posted(3))), RequestEffect::NotAnswered);
}

#[test]
fn a_body_with_one_message_removes_messages_only_if_it_names_an_edit() {
    let with_message = |message: Value, id: Option<&str>| json!({"id": "chat", "message": message, "messageId": id});
    for posted_history in [Keep, Truncate] {
        let mut chat = chat_of(3);
        let changed = user_message("m2", "Changed");
        let unnamed = with_message(changed.clone(), None);
        assert_eq!(apply_with(&mut chat, &unnamed, posted_history), UNNAMED_EDIT);
        let unchanged = with_message(user_message("m2", "Hi"), Some("m2"));
        assert_eq!(apply_with(&mut chat, &unchanged, posted_history), answered("a2"));
        assert_eq!(chat, chat_of(3));
        let edit = with_message(changed, Some("m2"));
        assert_eq!(apply_with(&mut chat, &edit, posted_history), RequestEffect::NewResponse);
        assert_eq!(ids(&chat), ["m1", "a1", "m2"]);
        respond(&mut chat, "b2");
        assert_eq!(repeat(&mut chat, &edit), answered("b2"));

        let mut chat = chat_of(3);
        let new = with_message(user_message("m4", "Hi"), None);
        assert_eq!(apply_with(&mut chat, &new, posted_history), RequestEffect::NewResponse);
        assert_eq!(ids(&chat), ["m1", "a1", "m2", "a2", "m3", "a3", "m4"]);
    }
}

#[test]
fn a_new_message_behind_a_part_of_the_history_removes_the_rest_only_if_the_host_wants_it() {
    let behind = |turns: usize, id: &str| {
        let mut messages = posted(turns + 1);
        *messages.last_mut().unwrap() = user_message(id, "Something else");
        submit(&messages)
    };
    for (turns, kept) in [(0, &[][..]), (1, &["m1", "a1"]), (2, &["m1", "a1", "m2", "a2"])] {
        let mut chat = chat_of(3);
        let body = behind(turns, "new");
        assert_eq!(apply_with(&mut chat, &body, Truncate), RequestEffect::NewResponse);
        assert_eq!(ids(&chat), [kept, &["new"]].concat());
        respond(&mut chat, "n");
        // Neither this request nor an earlier one removes anything again.
        let before = chat.clone();
        for again in [&body, &submit(&posted(2)), &submit(&posted(3))] {
            assert_ne!(apply_with(&mut chat, again, Truncate), RequestEffect::NewResponse);
        }
        assert_eq!(chat, before);

        let mut chat = chat_of(3);
        assert_eq!(apply(&mut chat, &body), RequestEffect::NewResponse);
        assert_eq!(ids(&chat), ["m1", "a1", "m2", "a2", "m3", "a3", "new"]);
    }
    // The whole history, and one that is no part of it.
    for messages in [
        [&posted(3)[..], &[assistant("a3"), user_message("new", "Hi")]].concat(),
        vec![user_message("m1", "Hi"), assistant("other"), user_message("new", "Hi")],
    ] {
        let mut chat = chat_of(3);
        let effect = apply_with(&mut chat, &submit(&messages), Truncate);
        assert_eq!((effect, chat.messages.len()), (RequestEffect::NewResponse, 7));
    }
}

#[test]
fn a_response_is_regenerated_again_only_after_it_was_written() {
    let mut chat = chat_of(2);
    let again = regenerate(&posted(2), None);
    for response in ["b2", "c2"] {
        assert_eq!(apply(&mut chat, &again), RequestEffect::NewResponse);
        assert_eq!(ids(&chat), ["m1", "a1", "m2"]);
        begin(&mut chat, response);
        let waits = RequestEffect::AwaitsResponse(response.into());
        assert_eq!(repeat(&mut chat, &again), waits);
        // By the id of the user message, and of the response that was replaced.
        assert_eq!(repeat(&mut chat, &regenerate(&posted(2), Some("a2"))), waits);
        finish(&mut chat, response);
        assert_eq!(repeat(&mut chat, &regenerate(&posted(2), Some("a2"))), answered(response));
    }
    // The user has sent another message since.
    answer(&mut chat, &submit(&posted(3)), "a3");
    assert_eq!(repeat(&mut chat, &again), answered("c2"));
    assert_eq!(repeat(&mut chat, &regenerate(&posted(2), Some("b2"))), answered("c2"));
}

#[test]
fn a_response_that_is_regenerated_by_its_id_is_replaced_once() {
    let mut chat = chat_of(3);
    let first = regenerate(&posted(2), Some("a2"));
    assert_eq!(apply(&mut chat, &first), RequestEffect::NewResponse);
    begin(&mut chat, "b2");
    assert_eq!(repeat(&mut chat, &first), RequestEffect::AwaitsResponse("b2".into()));
    finish(&mut chat, "b2");
    assert_eq!(repeat(&mut chat, &first), answered("b2"));
    assert_eq!(repeat(&mut chat, &regenerate(&posted(3), Some("a3"))), RequestEffect::NotAnswered);

    // A response that is being written is replaced, too.
    assert_eq!(apply(&mut chat, &submit(&posted(4))), RequestEffect::NewResponse);
    begin(&mut chat, "a4");
    let second = regenerate(&posted(4), Some("a4"));
    assert_eq!(apply(&mut chat, &second), RequestEffect::NewResponse);
    begin(&mut chat, "b4");
    assert_eq!(repeat(&mut chat, &second), RequestEffect::AwaitsResponse("b4".into()));
    finish(&mut chat, "b4");
    assert_eq!(repeat(&mut chat, &second), answered("b4"));
}

#[test]
fn a_response_that_is_regenerated_by_its_question_is_replaced_once_if_messages_follow() {
    let mut chat = chat_of(3);
    let body = regenerate(&posted(2), Some("m2"));
    answer(&mut chat, &body, "b2");
    let third = submit(&[&posted(2)[..], &[assistant("b2"), user_message("n3", "Hi")]].concat());
    answer(&mut chat, &third, "b3");
    assert_eq!(repeat(&mut chat, &body), answered("b2"));
}

/// The reload of an earlier answer, by a page that names no message.
#[test]
fn an_earlier_response_is_regenerated_once_and_the_messages_after_it_are_removed() {
    for (posted_history, id) in [(Keep, None), (Truncate, None), (Keep, Some("unknown"))] {
        let mut chat = chat_of(3);
        let body = regenerate(&posted(2), id);
        assert_eq!(apply_with(&mut chat, &body, posted_history), RequestEffect::NewResponse);
        assert_eq!(ids(&chat), ["m1", "a1", "m2"]);
        respond(&mut chat, "b2");
        let third =
            submit(&[&posted(2)[..], &[assistant("b2"), user_message("n3", "Hi")]].concat());
        assert_eq!(apply_with(&mut chat, &third, posted_history), RequestEffect::NewResponse);
        respond(&mut chat, "b3");
        // The same request again may be the first one.
        let before = chat.clone();
        for id in [None, Some("m2")] {
            let again = regenerate(&posted(2), id);
            assert_eq!(apply_with(&mut chat, &again, posted_history), answered("b2"));
        }
        assert_eq!(chat, before);
    }
}

#[test]
fn a_response_is_regenerated_again_after_its_question_was_edited() {
    for id in [None, Some("m1")] {
        let mut chat = chat_of(1);
        answer(&mut chat, &regenerate(&posted(1), id), "b1");
        let edited = [user_message("m1", "Changed")];
        answer(&mut chat, &edit(&edited), "c1");
        let second = submit(&[edited[0].clone(), assistant("c1"), user_message("n2", "Hi")]);
        answer(&mut chat, &second, "c2");
        // The first regeneration again, with its text and without one.
        assert_eq!(repeat(&mut chat, &regenerate(&posted(1), id)), UNNAMED_EDIT);
        assert_eq!(repeat(&mut chat, &regenerate(&[], Some("m1"))), answered("c1"));

        let again = regenerate(&edited, id);
        assert_eq!(apply(&mut chat, &again), RequestEffect::NewResponse);
        assert_eq!(ids(&chat), ["m1"]);
        respond(&mut chat, "d1");
    }
}

#[test]
fn an_edit_back_to_an_earlier_edit_does_not_get_the_response_to_another_text() {
    let mut chat = chat_of(1);
    let edits = ["A", "B"].map(|text| edit(&[user_message("m1", text)]));
    for (body, response) in edits.iter().zip(["b1", "c1"]) {
        answer(&mut chat, body, response);
    }
    assert_eq!(repeat(&mut chat, &edits[0]), RequestEffect::NotAnswered);
    assert_eq!(repeat(&mut chat, &edits[1]), answered("c1"));
}

#[test]
fn a_regeneration_without_messages_regenerates_what_the_chat_holds() {
    let without =
        |id: Option<&str>| json!({"id": "chat", "trigger": "regenerate-message", "messageId": id});
    for (body, kept) in [
        (without(None), &["m1", "a1", "m2"][..]),
        (without(Some("a2")), &["m1", "a1", "m2"]),
        (without(Some("a1")), &["m1"]),
        (without(Some("m1")), &["m1"]),
        (regenerate(&[], None), &["m1", "a1", "m2"]),
        (regenerate(&[], Some("a1")), &["m1"]),
    ] {
        let mut chat = chat_of(2);
        assert_eq!(apply(&mut chat, &body), RequestEffect::NewResponse, "{body}");
        assert_eq!(ids(&chat), kept, "{body}");
        begin(&mut chat, "b");
        let waits = RequestEffect::AwaitsResponse("b".into());
        assert_eq!(repeat(&mut chat, &body), waits, "{body}");
    }
}

#[test]
fn a_request_without_messages_lets_the_agent_speak_first_and_is_refused_afterwards() {
    let mut chat = Chat::new("chat", ada());
    assert_eq!(apply(&mut chat, &submit(&[])), RequestEffect::NewResponse);
    begin(&mut chat, "hello");
    assert_eq!(repeat(&mut chat, &submit(&[])), RequestEffect::AwaitsResponse("hello".into()));
    finish(&mut chat, "hello");
    assert_eq!(repeat(&mut chat, &submit(&[])), answered("hello"));
    let nothing = RequestEffect::Refused(RequestConflict::NothingNew);
    let mut asked = chat_of(1);
    assert_eq!(repeat(&mut asked, &submit(&[])), nothing);
    begin(&mut asked, "b");
    assert_eq!(repeat(&mut asked, &submit(&[])), nothing);
}

/// Delivered late, it would replace the response to a newer message.
#[test]
fn a_regeneration_that_names_no_message_of_the_chat_is_refused() {
    let other = [&posted(1)[..], &[assistant("other")]].concat();
    let nothing = RequestEffect::Refused(RequestConflict::NothingToRegenerate);
    assert_eq!(repeat(&mut chat_of(0), &regenerate(&[], None)), nothing);
    for body in [
        regenerate(&[], Some("unknown")),
        regenerate(&other, None),
        regenerate(&other, Some("unknown")),
    ] {
        for mut chat in [chat_of(0), chat_of(2)] {
            assert_eq!(repeat(&mut chat, &body), nothing, "{body}");
        }
    }
}

/// As a page posts them that does not cut its list, and one with two responses in a row.
#[test]
fn a_regeneration_whose_messages_end_with_a_response_replaces_it_once() {
    let mut chat = chat_of(2);
    let body = regenerate(&[&posted(2)[..], &[assistant("a2")]].concat(), None);
    assert_eq!(apply(&mut chat, &body), RequestEffect::NewResponse);
    assert_eq!(ids(&chat), ["m1", "a1", "m2"]);
    respond(&mut chat, "b2");
    assert_eq!(repeat(&mut chat, &body), answered("b2"));
    answer(&mut chat, &submit(&posted(3)), "a3");
    assert_eq!(repeat(&mut chat, &body), answered("b2"));

    let mut chat = Chat::new("chat", ada());
    chat.upsert_message(UiMessage::parse(&assistant("hello").to_string()).unwrap());
    let body = regenerate(&[assistant("hello")], None);
    assert_eq!(apply(&mut chat, &body), RequestEffect::NewResponse);
    assert_eq!(ids(&chat), Vec::<&str>::new());
}

#[test]
fn a_message_that_did_not_arrive_is_added_when_its_response_is_requested_again() {
    let mut chat = chat_of(1);
    assert_eq!(apply(&mut chat, &regenerate(&posted(2), None)), RequestEffect::NewResponse);
    assert_eq!(ids(&chat), ["m1", "a1", "m2"]);
}

#[tokio::test]
async fn a_post_that_changes_nothing_says_so() {
    let (host, mut client) = Host::with_alice("delete notes.txt").await;
    let before = state(&host).await;
    let mut with_call = client.last().clone();
    with_call["id"] = "invented".into();
    let question = client.messages[0]["id"].as_str().unwrap();
    let changed = user_message(question, "changed");
    let nothing = "so nothing was changed";
    for (body, why) in [
        (submit(&[]), nothing),
        (submit(&[assistant("invented")]), nothing),
        (submit(&[with_call]), nothing),
        // An edit names its message.
        (json!({"id": "chat", "message": changed}), "`messageId`"),
        (submit(std::slice::from_ref(&changed)), "`messageId`"),
        (regenerate(std::slice::from_ref(&changed), None), "`messageId`"),
        (regenerate(&[], Some("unknown")), "no such message to regenerate"),
        (json!({"id": "other", "trigger": "regenerate-message"}), "no such message to regenerate"),
    ] {
        let refused = host.chat("alice", body.to_string()).await;
        assert_eq!(refused.status, StatusCode::CONFLICT, "{body}: {}", refused.text);
        assert!(refused.text.contains(why), "{body}: {}", refused.text);
        assert_eq!(state(&host).await, before, "{body}");
    }
    // The question is still open.
    client.answer(&host, true).await;
    assert_eq!(host.tools.effects().len(), 1);
}

/// The stored history, the effects of the tools, and the number of model calls.
async fn state(host: &Host) -> (String, String, usize) {
    let history = host.get("alice", "/api/chat/chat").await.text;
    (history, format!("{:?}", host.tools.effects()), host.model.prompts().len())
}

/// The routes of a chat whose agent counts its calls and waits for a permit before it answers.
struct Slow {
    routes: Router,
    chats: ChatServer,
    calls: Arc<AtomicUsize>,
    permits: Arc<Semaphore>,
    /// How many responses have begun.
    responses: Arc<AtomicUsize>,
}

fn slow() -> Slow {
    let (calls, permits) = (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
    let (counted, awaited) = (Arc::clone(&calls), Arc::clone(&permits));
    let agent = move |_: Turn| {
        let number = counted.fetch_add(1, Ordering::SeqCst) + 1;
        let permits = Arc::clone(&awaited);
        stream::once(async move {
            permits.acquire().await.unwrap().forget();
            AgentEvent::text(format!("Answer {number}."))
        })
    };
    let limits = ChatLimits::default().with_max_user_readers(1_000);
    let chats = server_of(agent).with_limits(limits);
    let responses = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&responses);
    let count = map_response(move |response: Response| {
        counted.fetch_add(1, Ordering::SeqCst);
        async { response }
    });
    let routes = chat_routes(chats.clone()).layer(Extension(ada())).layer(count);
    Slow { routes, chats, calls, permits, responses }
}

impl Slow {
    /// Posts a request. Returns the status, the header `Retry-After` and the body.
    async fn post(&self, body: &Value, accept: &str) -> (StatusCode, Option<String>, String) {
        post_to(self.routes.clone(), body.to_string(), accept.to_owned()).await
    }

    async fn stored(&self) -> Vec<UiMessage> {
        stored(&self.chats).await.messages.iter().cloned().collect()
    }
}

async fn post_to(
    routes: Router,
    body: String,
    accept: String,
) -> (StatusCode, Option<String>, String) {
    let response = send(&routes, Method::POST, "/", &[("accept", &accept)], body).await;
    let retry_after = response.headers().get("retry-after");
    let retry_after = retry_after.map(|value| value.to_str().unwrap().to_owned());
    (response.status(), retry_after, text_of(response.into_body()).await)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_post_that_is_delivered_1000_times_before_during_and_after_its_answer_counts_once() {
    let server = slow();
    let body = submit(&posted(1));
    let at_once: Vec<_> = (0..300)
        .map(|_| tokio::spawn(post_to(server.routes.clone(), body.to_string(), String::new())))
        .collect();
    eventually(async || server.calls.load(Ordering::SeqCst) > 0).await;
    let later: Vec<_> = ["", "application/json"]
        .into_iter()
        .cycle()
        .take(400)
        .map(|accept| {
            (accept, tokio::spawn(post_to(server.routes.clone(), body.to_string(), accept.into())))
        })
        .collect();
    server.permits.add_permits(10);
    // All of them read the same run, or its message if it has ended.
    let mut answers = Vec::new();
    for post in at_once {
        let (status, _, text) = post.await.unwrap();
        assert_eq!(status, StatusCode::OK, "{text}");
        answers.push(text);
    }
    let message = message_of(None, &answers[0]);
    assert!(answers.iter().all(|answer| message_of(None, answer) == message));
    for (accept, post) in later {
        let (status, _, text) = post.await.unwrap();
        assert_eq!(status, StatusCode::OK, "{text}");
        match accept {
            "" => assert_eq!(message_of(None, &text), message),
            _ => {
                let response: Value = serde_json::from_str(&text).unwrap();
                assert_eq!(response["message"], serde_json::to_value(&message).unwrap());
            }
        }
    }
    let stored = server.stored().await;
    assert_eq!(stored.len(), 2);
    for _ in 0..150 {
        let (status, _, text) = server.post(&body, "").await;
        assert_eq!((status, message_of(None, &text)), (StatusCode::OK, message.clone()));
        let (status, _, text) = server.post(&body, "application/json").await;
        let response: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((status, &response["stopReason"]), (StatusCode::OK, &json!("stop")));
        assert_eq!(response["message"], serde_json::to_value(&stored[1]).unwrap());
    }
    assert_eq!(server.stored().await, stored);
    assert_eq!(server.calls.load(Ordering::SeqCst), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_regeneration_that_is_delivered_100_times_at_once_calls_the_model_once() {
    let server = slow();
    server.permits.add_permits(1);
    assert_eq!(server.post(&submit(&posted(1)), "").await.0, StatusCode::OK);
    for round in 2..5 {
        let body = regenerate(&posted(1), None).to_string();
        let mut posts: JoinSet<_> =
            (0..100).map(|_| post_to(server.routes.clone(), body.clone(), String::new())).collect();
        // A request that arrives after the run has ended would begin another one.
        let responses = 1 + 100 * (round - 1);
        eventually(async || server.responses.load(Ordering::SeqCst) >= responses).await;
        server.permits.add_permits(1);
        while let Some(posted) = posts.join_next().await {
            let (status, _, text) = posted.unwrap();
            assert!(status == StatusCode::OK, "{text}");
            assert!(text.contains(&format!("Answer {round}.")), "{text}");
        }
        assert_eq!(server.calls.load(Ordering::SeqCst), round);
        assert_eq!(server.stored().await.len(), 2);
    }
}

#[tokio::test]
async fn a_message_without_a_response_is_rejected_with_409_when_it_is_delivered_again() {
    let silent = |_: Turn| stream::empty::<AgentEvent>();
    let routes = chat_routes(server_of(silent)).layer(Extension(ada()));
    let body = submit(&posted(1)).to_string();
    let (status, ..) = post_to(routes.clone(), body.clone(), String::new()).await;
    assert_eq!(status, StatusCode::OK);
    let (status, retry_after, text) = post_to(routes, body, String::new()).await;
    assert_eq!((status, retry_after), (StatusCode::CONFLICT, None));
    assert!(text.contains("there is no response to it"), "{text}");
}

#[tokio::test]
async fn each_post_of_a_chat_of_20_turns_changes_nothing_when_it_is_delivered_again() {
    for posted_history in [Keep, Truncate] {
        deliver_each_post_of_20_turns_again(Host::new().with_posted_history(posted_history)).await;
    }
}

async fn deliver_each_post_of_20_turns_again(host: Host) {
    let mut page = Client::new("alice", "chat");
    let (mut bodies, mut edited) = (Vec::new(), Vec::new());
    for turn in 0..20 {
        let text = match turn % 5 {
            0 => "weather".to_owned(),
            1 => "delete notes.txt".to_owned(),
            2 => "mixed".to_owned(),
            _ => format!("turn {turn}"),
        };
        page.messages.push(user_message(format!("m{turn}"), &text));
        let body = page.body();
        bodies.push(body.clone());
        page.send(&host).await;
        if !page.pending_parts().is_empty() {
            page.respond(turn % 2 == 1);
            bodies.push(page.body());
            page.send(&host).await;
        }
        if turn % 7 == 3 {
            edited.push(body);
            // The user edits the message, and then requests another response.
            page.messages.truncate(page.messages.len() - 2);
            page.messages.push(user_message(format!("m{turn}"), "edited"));
            let mut body = edit(&page.messages);
            bodies.push(body.clone());
            page.apply_response(&host.chat("alice", body.to_string()).await);
            let replaced = page.messages.pop().unwrap();
            body = regenerate(&page.messages, replaced["id"].as_str());
            bodies.push(body.clone());
            page.apply_response(&host.chat("alice", body.to_string()).await);
        }
    }
    let before = state(&host).await;
    let stored: Value = serde_json::from_str(&before.0).unwrap();
    assert_eq!(stored["messages"].as_array().unwrap().len(), page.messages.len());
    for body in &bodies {
        let answer = host.chat("alice", body.to_string()).await;
        // The stored response answers the edited message.
        let status = if edited.contains(body) { StatusCode::CONFLICT } else { StatusCode::OK };
        assert_eq!(answer.status, status, "{}", answer.text);
        assert_eq!(state(&host).await, before, "{body}");
    }
}

/// The message of a stored response shows its approval request as the history does.
#[tokio::test]
async fn a_repeated_post_shows_an_approval_request_that_has_expired_as_closed() {
    let host = Host::new();
    let mut page = Client::new("alice", "chat");
    page.messages.push(user_message("m1", "delete notes.txt"));
    let body = page.body();
    page.send(&host).await;
    let mut again = page.clone();
    again.messages.pop();
    host.wait(Duration::from_secs(400 * 24 * 3600));
    again.apply_response(&host.chat("alice", body.to_string()).await);
    assert_eq!(again.approval_ids(), Vec::<String>::new());
    let history = host.get("alice", "/api/chat/chat").await.json();
    let mut shown = again.last()["parts"].as_array().unwrap().clone();
    // The input comes as a streamed one, whose text a client keeps with an error.
    shown.iter_mut().for_each(|part| _ = part.as_object_mut().unwrap().remove("rawInput"));
    assert!(shown.starts_with(history["messages"][1]["parts"].as_array().unwrap()), "{shown:?}");
    let alice = Principal::new("alice");
    let complete = host.chats.complete_response(&alice, request(&body)).await.unwrap();
    assert_eq!(serde_json::to_value(&complete.message).unwrap(), history["messages"][1]);
    assert_eq!(complete.stop_reason, StopReason::Stop);
}
