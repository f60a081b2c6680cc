//! What the person takes away while it is being answered: the answer goes where it belongs, or
//! nowhere, and a conversation that was forgotten does not begin anew.

use std::sync::Arc;
use std::time::Duration;

use async_stream::stream;
use futures::StreamExt;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use ui_message_stream::approval::store::BoxFuture;
use ui_message_stream::approval::{
    ApprovalDecision, Approvals, ApprovedCall, DefinitionDigest, Principal, ToolInfo, ToolOutcome,
    Toolbox,
};
use ui_message_stream::chat::store::InMemoryChatStore;
use ui_message_stream::chat::{ChatServer, Turn};
use ui_message_stream::event::{AgentEvent, ToolCall};
use ui_message_stream::message::Part;
use ui_message_stream::request::Limits;
use ui_message_stream::{ChatRequest, Json};

/// A tool of which it is only counted how often it ran.
#[derive(Debug, Clone, Default)]
struct Deletes(Arc<std::sync::atomic::AtomicUsize>);

impl Toolbox for Deletes {
    fn tool(&self, name: &str) -> Option<ToolInfo> {
        Some(ToolInfo::new(DefinitionDigest::new(name, "Deletes.", &Json::null())))
    }

    fn permits<'a>(&'a self, _: &'a ApprovedCall) -> BoxFuture<'a, bool> {
        Box::pin(std::future::ready(true))
    }

    fn run(&self, _: ApprovedCall) -> BoxFuture<'static, ToolOutcome> {
        self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        Box::pin(std::future::ready(ToolOutcome::Output(Json::string("deleted"))))
    }
}

/// Answers what the person says last: "slow" only once it may, "delete" with a question.
fn chats(may: &Arc<Semaphore>, deletes: &Deletes) -> ChatServer {
    let may = Arc::clone(may);
    let respond = move |turn: Turn| {
        let may = Arc::clone(&may);
        stream! {
            let said = turn.chat.messages.last().map(|message| text(&message.parts)).unwrap_or_default();
            if said.contains("slow") {
                may.acquire().await.unwrap().forget();
            }
            if said.contains("delete") {
                let input = Json::string("notes.txt");
                let call = ToolCall::new("call", "delete");
                yield Ok::<_, std::io::Error>(AgentEvent::tool_input(call, input.clone()));
                let id = "call".into();
                let asked = turn.approvals.request_approval(&turn.message_id, &id, "delete", &input, None).await;
                yield Ok(asked.unwrap().event(id));
                return;
            }
            yield Ok(AgentEvent::text(format!("An answer to {said}")));
        }
    };
    ChatServer::new(respond, Approvals::new(deletes.clone()))
}

fn text(parts: &[Part]) -> String {
    let texts = parts.iter().filter_map(|part| match part {
        Part::Text(part) => Some(part.text.as_str()),
        _ => None,
    });
    texts.collect()
}

fn ada() -> Principal {
    Principal::new("ada")
}

fn user(id: &str, text: &str) -> Value {
    json!({"id": id, "role": "user", "parts": [{"type": "text", "text": text}]})
}

async fn post(chats: &ChatServer, body: Value) -> String {
    let request = ChatRequest::parse(body.to_string().as_bytes(), &Limits::default()).unwrap();
    let response = chats.stream_response(&ada(), request).await.unwrap();
    let bytes = response.map(|bytes| bytes.unwrap().to_vec()).collect::<Vec<_>>().await.concat();
    String::from_utf8(bytes).unwrap()
}

async fn say(chats: &ChatServer, id: &str, text: &str) -> String {
    post(chats, json!({"id": "chat", "messages": [user(id, text)]})).await
}

/// Says something, and stops reading.
async fn say_and_leave(chats: &ChatServer, id: &str, text: &str) {
    let body = json!({"id": "chat", "messages": [user(id, text)]}).to_string();
    let request = ChatRequest::parse(body.as_bytes(), &Limits::default()).unwrap();
    drop(chats.stream_response(&ada(), request).await.unwrap());
    tokio::time::sleep(Duration::from_secs(1)).await;
}

/// Lets what is slow go on, and gives it time.
async fn go_on(may: &Semaphore) {
    may.add_permits(1);
    tokio::time::sleep(Duration::from_secs(1)).await;
}

async fn kept(chats: &ChatServer) -> Vec<String> {
    let chat = chats.chat(&ada(), &"chat".into()).await.unwrap();
    chat.messages.iter().map(|message| text(&message.parts)).collect()
}

#[tokio::test(start_paused = true)]
async fn an_answer_stands_behind_its_question_though_the_person_wrote_on() {
    let may = Arc::new(Semaphore::new(0));
    let chats = chats(&may, &Deletes::default());
    say_and_leave(&chats, "m1", "slow").await;
    say(&chats, "m2", "hello").await;
    go_on(&may).await;
    let expected = ["slow", "An answer to slow", "hello", "An answer to hello"];
    assert_eq!(kept(&chats).await, expected);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_to_be_given_anew_is_given_once() {
    let may = Arc::new(Semaphore::new(0));
    let chats = chats(&may, &Deletes::default());
    say_and_leave(&chats, "m1", "slow").await;
    let anew = json!({
        "id": "chat", "messages": [user("m1", "slow")],
        "trigger": "regenerate-message", "messageId": "never-kept",
    });
    let (answer, ()) = futures::join!(post(&chats, anew), async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        // The old run first, then the new one.
        go_on(&may).await;
        go_on(&may).await;
    });
    assert!(answer.contains("An answer to slow"), "{answer}");
    assert_eq!(kept(&chats).await, ["slow", "An answer to slow"]);
}

#[tokio::test(start_paused = true)]
async fn an_answer_to_what_was_edited_is_not_kept() {
    let may = Arc::new(Semaphore::new(0));
    let chats = chats(&may, &Deletes::default());
    say(&chats, "m0", "hello").await;
    say_and_leave(&chats, "m1", "slow").await;
    say(&chats, "m1", "quick").await;
    go_on(&may).await;
    assert_eq!(kept(&chats).await, ["hello", "An answer to hello", "quick", "An answer to quick"]);
}

#[tokio::test(start_paused = true)]
async fn a_question_of_an_answer_that_nobody_wants_is_taken_back() {
    let may = Arc::new(Semaphore::new(0));
    let deletes = Deletes::default();
    let chats = chats(&may, &deletes);
    say_and_leave(&chats, "m1", "slow delete").await;
    say(&chats, "m1", "hello").await;
    go_on(&may).await;
    assert_eq!(kept(&chats).await, ["hello", "An answer to hello"]);
    assert_eq!(chats.approvals().pending(&ada()).await.unwrap(), []);
}

#[tokio::test(start_paused = true)]
async fn what_nobody_wants_any_more_is_not_worked_on() {
    let may = Arc::new(Semaphore::new(0));
    let chats = chats(&may, &Deletes::default());
    say_and_leave(&chats, "m1", "slow").await;
    say(&chats, "m1", "quick").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    // It would take the permit if it still waited for one.
    may.add_permits(1);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(may.available_permits(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_decision_about_a_chat_that_was_forgotten_begins_none() {
    let (may, deletes) = (Arc::new(Semaphore::new(0)), Deletes::default());
    let store = InMemoryChatStore::new();
    let chats = chats(&may, &deletes);
    say(&chats, "m1", "delete").await;
    let pending = chats.approvals().pending(&ada()).await.unwrap();
    let decision = ApprovalDecision {
        approval_id: pending[0].approval_id.clone(),
        approved: true,
        reason: None,
    };
    // The conversations are gone, the ledger is not.
    let chats = chats.with_store(Arc::new(store));
    let decided = chats.decide(&ada(), vec![decision]).await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(decided[0].accepted);
    assert_eq!(deletes.0.load(std::sync::atomic::Ordering::SeqCst), 1, "it was approved");
    assert!(chats.chat(&ada(), &"chat".into()).await.is_err(), "there is nothing to go on with");

    // What the page then sends is the beginning, as of any chat that the server does not know.
    let history = [
        user("m1", "hello"),
        json!({"id": "a1", "role": "assistant", "parts": [
            {"type": "text", "text": "Hi"},
        ]}),
        user("m2", "well"),
    ];
    post(&chats, json!({"id": "chat", "messages": history})).await;
    assert_eq!(kept(&chats).await, ["hello", "Hi", "well", "An answer to well"]);
}
