//! A rolling deploy: servers of two versions share their stores. The new ones write chats that the old
//! ones read, until the last old server is gone.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures::{StreamExt, stream};
use serde_json::{Value, json};
use ui_message_stream::approval::{Approvals, EmptyToolbox, Principal};
use ui_message_stream::chat::store::{
    ChatPage, ChatStore, ChatStoreError, InMemoryChatStore, InMemoryRunStore, ListChats, RunStore,
    SaveChat, SaveResult, VersionedChat,
};
use ui_message_stream::chat::{Chat, ChatError, ChatServer, ChatStream, Turn, WriteFormat};
use ui_message_stream::event::ToolCall;
use ui_message_stream::id::ChatId;
use ui_message_stream::request::Limits;
use ui_message_stream::{AgentEvent, BoxFuture, ChatRequest, Json};

const OLD_FORMAT: u64 = 2;

fn format_of(chat: &Chat) -> u64 {
    serde_json::to_value(chat).unwrap()["format"].as_u64().unwrap()
}

/// The store of all servers, as a server of the version before sees it: a chat of a newer format is an
/// error.
#[derive(Debug)]
struct OldServer(Arc<InMemoryChatStore>);

impl ChatStore for OldServer {
    fn load<'a>(
        &'a self,
        owner: &'a Principal,
        id: &'a ChatId,
    ) -> BoxFuture<'a, Result<Option<VersionedChat>, ChatStoreError>> {
        Box::pin(async move {
            let loaded = self.0.load(owner, id).await?;
            match loaded.as_ref().map(|loaded| format_of(&loaded.chat)) {
                Some(format) if format > OLD_FORMAT => {
                    Err(ChatStoreError::new(format!("chat record: format {format} is newer")))
                }
                _ => Ok(loaded),
            }
        })
    }

    fn save<'a>(&'a self, save: SaveChat<'a>) -> BoxFuture<'a, Result<SaveResult, ChatStoreError>> {
        self.0.save(save)
    }

    fn list<'a>(
        &'a self,
        owner: &'a Principal,
        list: ListChats<'a>,
    ) -> BoxFuture<'a, Result<ChatPage, ChatStoreError>> {
        self.0.list(owner, list)
    }

    fn delete<'a>(
        &'a self,
        owner: &'a Principal,
        id: &'a ChatId,
        revision: u64,
    ) -> BoxFuture<'a, Result<bool, ChatStoreError>> {
        self.0.delete(owner, id, revision)
    }
}

fn ada() -> Principal {
    Principal::new("ada")
}

fn post(id: &str, text: &str) -> ChatRequest {
    let part = json!({"type": "text", "text": text});
    let message = json!({"id": id, "role": "user", "parts": [part]});
    let body = json!({"id": "chat", "messages": [message]}).to_string();
    ChatRequest::parse(body.as_bytes(), &Limits::default()).unwrap()
}

async fn text_of(stream: ChatStream) -> String {
    let frames: Vec<_> = stream.map(|bytes| bytes.unwrap()).collect().await;
    String::from_utf8(frames.concat()).unwrap()
}

/// A new server and an old one. The agent ends a step, begins the next one, and waits in it until
/// `goes_on`.
struct Deploy {
    store: Arc<InMemoryChatStore>,
    new: ChatServer,
    old: ChatServer,
    goes_on: Arc<AtomicBool>,
    calls: Arc<AtomicUsize>,
}

fn deploy(write_format: WriteFormat) -> Deploy {
    let (goes_on, calls) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let (waits, counted) = (Arc::clone(&goes_on), Arc::clone(&calls));
    let agent = move |_: Turn| {
        counted.fetch_add(1, Ordering::SeqCst);
        let waits = Arc::clone(&waits);
        let first = [
            AgentEvent::tool_input(ToolCall::new("c1", "look"), Json::parse("{}").unwrap()),
            AgentEvent::tool_output("c1", Json::string("seen")),
            AgentEvent::StepFinish,
            AgentEvent::StepStart,
        ];
        stream::iter(first).chain(stream::once(async move {
            while !waits.load(Ordering::SeqCst) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            AgentEvent::text("All of it.")
        }))
    };
    let store = Arc::new(InMemoryChatStore::new());
    let runs: Arc<dyn RunStore> = Arc::new(InMemoryRunStore::new());
    let approvals = Approvals::new(EmptyToolbox);
    let server = ChatServer::new(agent, approvals).with_run_store(runs);
    let old = server.clone().with_store(Arc::new(OldServer(store.clone())));
    let old = old.with_write_format(WriteFormat::Previous);
    let new = server.with_store(store.clone()).with_write_format(write_format);
    Deploy { store, new, old, goes_on, calls }
}

impl Deploy {
    async fn stored_format(&self) -> u64 {
        let stored = self.store.load(&ada(), &ChatId::from("chat")).await.unwrap().unwrap();
        format_of(&stored.chat)
    }

    async fn types_of_parts(&self) -> Vec<Value> {
        let chat = self.new.chat(&ada(), &ChatId::from("chat")).await.unwrap();
        let message = serde_json::to_value(chat.messages.last().unwrap()).unwrap();
        message["parts"].as_array().unwrap().iter().map(|part| part["type"].clone()).collect()
    }
}

const ANSWER: [&str; 4] = ["step-start", "tool-look", "step-start", "text"];

#[tokio::test(start_paused = true)]
async fn old_servers_read_all_that_a_new_server_writes_with_the_previous_format() {
    let deploy = deploy(WriteFormat::Previous);
    let id = ChatId::from("chat");
    let response = deploy.new.stream_response(&ada(), post("m1", "Hi")).await.unwrap();
    // The run loads the chat at each third of its lease, and would store the step then.
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!(deploy.stored_format().await, OLD_FORMAT);
    let history = deploy.old.chat(&ada(), &id).await.unwrap();
    assert!(serde_json::to_string(&history).unwrap().contains("seen"), "the live run is shown");
    let followed = deploy.old.resume_stream(&ada(), &id, None).await.unwrap().unwrap();
    deploy.goes_on.store(true, Ordering::SeqCst);
    let (text, followed) = tokio::join!(text_of(response), text_of(followed));
    assert_eq!(text, followed);
    assert_eq!(deploy.types_of_parts().await, ANSWER);
    assert_eq!(deploy.calls.load(Ordering::SeqCst), 1);

    // The old server answers the next message, and the new one reads it.
    let answer = deploy.old.stream_response(&ada(), post("m2", "And now?")).await.unwrap();
    assert!(text_of(answer).await.contains("All of it."));
    assert_eq!(deploy.types_of_parts().await, ANSWER);
}

#[tokio::test(start_paused = true)]
async fn an_old_server_refuses_a_chat_of_the_newest_format_and_loses_nothing() {
    let deploy = deploy(WriteFormat::Newest);
    let id = ChatId::from("chat");
    let response = deploy.new.stream_response(&ada(), post("m1", "Hi")).await.unwrap();
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!(deploy.stored_format().await, OLD_FORMAT + 1);
    let error = deploy.old.chat(&ada(), &id).await.unwrap_err();
    assert!(matches!(error, ChatError::Store(_)), "{error}");
    let error = deploy.old.stream_response(&ada(), post("m2", "And now?")).await.unwrap_err();
    assert!(matches!(error, ChatError::Store(_)), "{error}");
    deploy.goes_on.store(true, Ordering::SeqCst);
    assert!(text_of(response).await.contains("All of it."));
    assert_eq!(deploy.types_of_parts().await, ANSWER);
    // A chat without a run has the format that both read.
    assert_eq!(deploy.stored_format().await, OLD_FORMAT);
    assert!(deploy.old.chat(&ada(), &id).await.is_ok());
}
