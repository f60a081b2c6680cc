//! The recorded conversations of `fixtures/`: a response that is cut after any byte continues without
//! a gap and without a repetition, and readers that join at any time get the same bytes. The same
//! over HTTP, with the real client: `crates/chat/tests/client/cut_conversations.rs`.
//!
//! `JOINING_READERS=100 cargo test --test chat recorded_conversations` has 100 readers
//! join each conversation.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use chat_test_support::answers::server_of;
use chat_test_support::recorded_conversations::{Permits, Recording, recorded_agent, recordings};
use futures::StreamExt;
use serde_json::{Value, json};
use test_support::external_processes::{number, say};
use test_support::requests::{ada, send, user_message};
use test_support::responses::{message_of, text_of};
use test_support::rng::Dice;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use ui_message_stream::{ChatRequest, UiMessage};
use ui_message_stream_chat::{ChatError, ChatServer, ChatStream};

/// A conversation with an agent that says one event of its last turn for each permit.
struct Conversation {
    chats: ChatServer,
    permits: Permits,
    /// The message that the client holds before the last turn.
    held: Option<UiMessage>,
    /// The last request.
    request: ChatRequest,
}

impl Conversation {
    /// Begins a conversation, up to the last turn.
    async fn new(recordings: &Arc<Vec<Recording>>, recording: &Recording) -> Self {
        let permits = Arc::new(Semaphore::new(0));
        let of_all = Arc::clone(&permits);
        let permits_of = move |name: &str| (Arc::clone(&of_all), name.to_owned());
        let agent = recorded_agent(Arc::clone(recordings), permits_of);
        let question = user_message("m1", &recording.name);
        let request = send("chat", &json!([question]));
        let chats = server_of(agent);
        let mut conversation = Conversation { chats, permits, held: None, request };
        if recording.continued.is_some() {
            let first = text_of(conversation.post().await.unwrap()).await;
            let mut held = serde_json::to_value(message_of(None, &first)).unwrap();
            for part in held["parts"].as_array_mut().unwrap() {
                if part["state"] == "input-available" {
                    (part["state"], part["output"]) = ("output-available".into(), "done".into());
                }
            }
            conversation.request = send("chat", &json!([question, held]));
            conversation.held = Some(UiMessage::parse(&held.to_string()).unwrap());
        }
        conversation
    }

    /// Sends the request of the last turn.
    async fn post(&self) -> Result<ChatStream, ChatError> {
        self.chats.stream_response(&ada(), self.request.clone()).await
    }

    /// Reconnects.
    async fn get(&self, last_event_id: Option<&str>) -> Option<ChatStream> {
        self.chats.resume_stream(&ada(), &"chat".into(), last_event_id).await.unwrap()
    }
}

/// The last id in the frames of a response that have arrived whole, and these frames.
fn whole_frames(response: &str) -> (Option<&str>, &str) {
    let whole = response.rfind("\n\n").map_or("", |end| &response[..end + 2]);
    let id = whole.lines().rev().find_map(|line| line.strip_prefix("id: "));
    (id, whole)
}

/// What follows the frames without ids, which only the readers from the beginning get.
fn numbered(response: &str) -> &str {
    &response[response.find("id: ").unwrap()..]
}

#[tokio::test(start_paused = true)]
async fn a_recorded_response_that_is_cut_after_any_byte_continues_with_the_next_frame() {
    let recordings = Arc::new(recordings());
    assert!(recordings.len() >= 100);
    let (mut cuts, mut continued, mut repeated) = (0, 0, 0);
    for recording in &*recordings {
        let conversation = Conversation::new(&recordings, recording).await;
        conversation.permits.add_permits(recording.events.len());
        let whole = text_of(conversation.post().await.unwrap()).await;
        assert!(whole.ends_with("data: [DONE]\n\n"), "{}: {whole}", recording.name);
        let message = message_of(conversation.held.clone(), &whole);
        // What follows an id depends on nothing else.
        let mut rests: HashMap<&str, String> = HashMap::new();
        for cut in (0..=whole.len()).filter(|cut| whole.is_char_boundary(*cut)) {
            cuts += 1;
            let place = || format!("{} after {cut} bytes of {whole}", recording.name);
            match whole_frames(&whole[..cut]) {
                (Some(id), arrived) => {
                    if !rests.contains_key(id) {
                        continued += 1;
                        let rest = conversation
                            .get(Some(id))
                            .await
                            .unwrap_or_else(|| panic!("{}", place()));
                        rests.insert(id, text_of(rest).await);
                    }
                    assert_eq!(format!("{arrived}{}", rests[id]), whole, "{}", place());
                }
                // The client repeats its request, and gets the message that the server has stored.
                (None, _) if !rests.contains_key("") => {
                    repeated += 1;
                    match conversation.post().await {
                        Ok(again) => {
                            let again = text_of(again).await;
                            let again = message_of(conversation.held.clone(), &again);
                            // This client keeps what a repeated model call has written before.
                            if !recording.repeats_a_model_call() {
                                assert_eq!(shown(&again), shown(&message), "{}", place());
                            }
                        }
                        // Nothing was stored.
                        Err(ChatError::AlreadyReceived { .. }) => {
                            assert!(shown(&message).is_empty(), "{}", place());
                        }
                        Err(error) => panic!("{error:?} {}", place()),
                    }
                    rests.insert("", String::new());
                }
                (None, _) => {}
            }
        }
        let ids = whole.lines().filter(|line| line.starts_with("id: ")).count();
        let frames = whole.lines().filter(|line| line.starts_with("data: ")).count();
        assert_eq!((ids, rests.len()), (frames, frames + 1), "{}", recording.name);
    }
    say(&format!(
        "{} recorded conversations cut after {cuts} bytes: {continued} continued after an id, \
         {repeated} requests repeated",
        recordings.len()
    ));
}

/// What a message shows. A page that repeats its request reads the stored message. Its steps and its
/// end may be written in another way, and it may hold metadata for which the page is too old.
fn shown(message: &UiMessage) -> Vec<Value> {
    let message = serde_json::to_value(message).unwrap();
    let mut parts = message["parts"].as_array().unwrap().clone();
    parts.retain(|part| part["type"] != "step-start" && part["type"] != "data-run-end");
    for part in &mut parts {
        part.as_object_mut().unwrap().retain(|key, _| !UNSEEN.contains(&&**key));
    }
    parts
}

/// What a part holds for the model and the provider.
const UNSEEN: [&str; 4] =
    ["rawInput", "callProviderMetadata", "resultProviderMetadata", "providerMetadata"];

/// Half of the readers read from the beginning, and half after a frame that was written.
#[tokio::test(start_paused = true)]
async fn readers_that_join_a_recorded_conversation_at_random_get_the_same_bytes() {
    let recordings = Arc::new(recordings());
    let readers_of_each = number("JOINING_READERS", 20);
    let mut joined = [0, 0];
    for (number, recording) in recordings.iter().enumerate() {
        let conversation = Conversation::new(&recordings, recording).await;
        let mut response = conversation.post().await.unwrap();
        let so_far = Arc::new(Mutex::new(Vec::new()));
        let first = tokio::spawn({
            let so_far = Arc::clone(&so_far);
            async move {
                while let Some(bytes) = response.next().await {
                    so_far.lock().unwrap().extend_from_slice(&bytes.unwrap());
                }
            }
        });
        let mut dice = Dice::new(1, number as u64);
        let mut times: Vec<usize> =
            (0..readers_of_each).map(|_| dice.below(recording.live_events() + 1)).collect();
        times.sort_unstable();
        let mut times = times.into_iter().peekable();
        let mut from_start: Vec<JoinHandle<String>> = Vec::new();
        let mut after_frame: Vec<(String, JoinHandle<String>)> = Vec::new();
        for event in 0..=recording.live_events() {
            // All that was said is written.
            tokio::time::sleep(Duration::from_millis(100)).await;
            while times.next_if(|time| *time == event).is_some() {
                let arrived = String::from_utf8(so_far.lock().unwrap().clone()).unwrap();
                let ids: Vec<&str> =
                    arrived.lines().filter_map(|line| line.strip_prefix("id: ")).collect();
                let id = match ids.len() {
                    0 => None,
                    len => Some(ids[dice.below(len)]).filter(|_| dice.chance(50)),
                };
                let stream = conversation.get(id).await;
                let reader = tokio::spawn(text_of(stream.expect(&recording.name)));
                match id {
                    None => from_start.push(reader),
                    Some(id) => {
                        let end = arrived.find(&format!("id: {id}\n")).unwrap();
                        let end = end + arrived[end..].find("\n\n").unwrap() + 2;
                        after_frame.push((arrived[..end].to_owned(), reader));
                    }
                }
            }
            conversation.permits.add_permits(1);
        }
        conversation.permits.add_permits(recording.events.len());
        first.await.unwrap();
        let whole = String::from_utf8(so_far.lock().unwrap().clone()).unwrap();
        assert!(whole.ends_with("data: [DONE]\n\n"), "{}: {whole}", recording.name);
        let message = message_of(conversation.held.clone(), &whole);
        joined[0] += from_start.len();
        joined[1] += after_frame.len();
        for reader in from_start {
            let read = reader.await.unwrap();
            match &conversation.held {
                None => assert_eq!(read, whole, "{}", recording.name),
                // The message comes in front, which the page of the request holds.
                Some(held) => {
                    let front = &read[..read.len() - numbered(&read).len()];
                    assert!(whole.ends_with(numbered(&read)), "{}: {read}", recording.name);
                    assert_eq!(message_of(None, &read), message, "{}: {read}", recording.name);
                    let held = shown(held);
                    assert!(shown(&message_of(None, front)).len() >= held.len(), "{front}");
                }
            }
        }
        for (arrived, reader) in after_frame {
            assert_eq!(arrived + &reader.await.unwrap(), whole, "{}", recording.name);
        }
    }
    let [from_start, after_frame] = joined;
    assert_eq!(from_start + after_frame, readers_of_each * recordings.len());
    assert!(from_start > 0 && after_frame > 0);
    say(&format!(
        "{} recorded conversations with {from_start} readers that joined and read from the \
         beginning, and {after_frame} that read after a frame",
        recordings.len()
    ));
}
