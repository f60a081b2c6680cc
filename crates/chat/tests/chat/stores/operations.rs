//! What each request asks of the stores: the operations in their order. A new one is a round trip for each user of
//! each store, and needs a reason.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Extension;
use axum::Router;
use axum::http::Method;
use chat_test_support::answers;
use futures::{StreamExt, stream};
use serde_json::{Value, json};
use test_support::ledger_double::{LedgerDouble, Operation};
use test_support::requests::{ada, respond_to_all, user_message};
use test_support::responses::text_of;
use ui_message_stream::approval::store::LedgerStore;
use ui_message_stream::approval::{Approvals, Principal, ToolList};
use ui_message_stream::event::ToolCall;
use ui_message_stream::{AgentEvent, Json};
use ui_message_stream_chat::axum::{approval_routes, chat_routes};
use ui_message_stream_chat::store::{
    AppendLog, AppendResult, ChatPage, InMemoryLogStore, ListChats, LoadLog, LoadedLog, LogPage,
    LogStore, PutSnapshot, ReadLogEntries,
};
use ui_message_stream_chat::{ChatServer, Turn};

use chat_test_support::log_double::{Answer, Intercepts, LogDouble};

/// The names of the operations since the last look.
type Names = Arc<Mutex<Vec<&'static str>>>;

#[derive(Debug)]
struct NamedLogs(InMemoryLogStore, Names);

impl NamedLogs {
    fn name(&self, name: &'static str) -> &InMemoryLogStore {
        self.1.lock().unwrap().push(name);
        &self.0
    }
}

impl Intercepts for NamedLogs {
    fn store(&self) -> &dyn LogStore {
        &self.0
    }

    fn load<'a>(&'a self, load: LoadLog<'a>) -> Answer<'a, Option<LoadedLog>> {
        self.name("load").load(load)
    }

    fn read<'a>(&'a self, read: ReadLogEntries<'a>) -> Answer<'a, Option<LogPage>> {
        self.name("read").read(read)
    }

    fn append<'a>(&'a self, append: AppendLog<'a>) -> Answer<'a, AppendResult> {
        self.name("append").append(append)
    }

    fn put_snapshot<'a>(&'a self, put: PutSnapshot<'a>) -> Answer<'a, bool> {
        self.name("put_snapshot").put_snapshot(put)
    }

    fn list<'a>(&'a self, owner: &'a Principal, list: ListChats<'a>) -> Answer<'a, ChatPage> {
        self.name("list").list(owner, list)
    }
}

/// A ledger in memory that names its operations.
fn named_ledger(names: Names) -> impl LedgerStore {
    LedgerDouble::new(move |operation| {
        names.lock().unwrap().push(match operation {
            Operation::Insert(_) => "insert_all",
            Operation::Load(_) => "load of approvals",
            Operation::List => "read_list",
            Operation::Replace(_) => "compare_and_swap",
        });
        None
    })
}

/// Asks for an approval, or is slow, if the last message says so.
fn agent(turn: Turn) -> impl futures::Stream<Item = AgentEvent> {
    let said = turn.chat.messages.last().map(|message| message.text()).unwrap_or_default();
    let (asks, is_slow) = (said == "Pay", said == "Slowly");
    stream::once(async move {
        if is_slow {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let input = Json::parse(r#"{"amount":5}"#).unwrap();
        let call = ToolCall::new("call", "pay");
        match asks {
            false => vec![AgentEvent::text("Hello"), AgentEvent::text(" there")],
            true => {
                let asked = turn.approvals.request_approval_of(&call, &input).await;
                vec![AgentEvent::tool_input(call, input), asked]
            }
        }
    })
    .flat_map(stream::iter)
}

struct Server {
    app: Router,
    names: Names,
}

impl Server {
    fn new() -> Self {
        let names = Names::default();
        let logs = LogDouble(NamedLogs(InMemoryLogStore::new(), names.clone()));
        let ledger = named_ledger(names.clone());
        let tools = ToolList::new().tool("pay", "Pays.", &Json::null());
        let approvals = Approvals::new(tools).with_ledger(Arc::new(ledger));
        let chats = ChatServer::new(agent, approvals).with_store(Arc::new(logs));
        let app = Router::new()
            .nest("/chat", chat_routes(chats.clone()))
            .nest("/approvals", approval_routes(chats))
            .layer(Extension(ada()));
        Server { app, names }
    }

    /// Returns the body of the response, and the operations until the server has nothing more to do.
    async fn send(&self, method: Method, path: &str, body: String) -> (String, Vec<&'static str>) {
        let response = answers::send(&self.app, method, path, &[], body).await;
        assert!(response.status().is_success(), "{path}: {}", response.status());
        let body = text_of(response.into_body()).await;
        // The clock is paused: it advances when no task can do anything.
        tokio::time::sleep(Duration::from_millis(1)).await;
        let names = std::mem::take(&mut *self.names.lock().unwrap());
        (body, names)
    }

    async fn say(&self, chat: &str, id: &str, text: &str) -> Vec<&'static str> {
        let body = json!({"id": chat, "message": user_message(id, text)}).to_string();
        let (stream, names) = self.send(Method::POST, "/chat", body).await;
        assert!(stream.ends_with("data: [DONE]\n\n"), "{stream}");
        names
    }
}

#[tokio::test(start_paused = true)]
async fn each_request_needs_these_operations_of_the_stores() {
    let server = Server::new();
    let get = async |path: &str| server.send(Method::GET, path, String::new()).await;
    assert_eq!(server.say("chat", "m1", "Hi").await, [FIRST_MESSAGE, END, READ].concat());
    assert_eq!(server.say("chat", "m2", "Go on").await, [MESSAGE, END, READ].concat());
    // The response begins in the store. This server has what comes later.
    let slow = [MESSAGE, &["read"], END].concat();
    assert_eq!(server.say("chat", "m3", "Slowly").await, slow);
    let asks = [MESSAGE, ASK, END, &["load"], READ].concat();
    assert_eq!(server.say("chat", "m4", "Pay").await, asks);
    assert_eq!(get("/chat/chat").await.1, ["read", "load of approvals"]);
    assert_eq!(get("/chat").await.1, ["list"]);
    assert_eq!(get("/chat/chat/stream").await.1, ["read"]);
    let (inbox, names) = get("/approvals").await;
    assert_eq!(names, ["read_list"]);
    let inbox: Value = serde_json::from_str(&inbox).unwrap();
    let id = &inbox["approvals"][0]["approvalId"];
    let body = json!({"decisions": [{"approvalId": id, "approved": false}]}).to_string();
    // The model reads the denial in a step that begins after it.
    let denial = [DENY, &["append"], END].concat();
    assert_eq!(server.send(Method::POST, "/approvals", body).await.1, denial);
    server.say("paid", "m1", "Pay").await;
    let history: Value = serde_json::from_str(&get("/chat/paid").await.0).unwrap();
    let mut message = history["messages"][1].clone();
    respond_to_all(&mut message, true);
    let body = json!({"id": "paid", "messageId": message["id"], "messages": [message]});
    let approval = [APPROVE, &["append"], END, READ].concat();
    assert_eq!(server.send(Method::POST, "/chat", body.to_string()).await.1, approval);
}

/// The list for the timer. The append has the message, the run, and its first step.
const FIRST_MESSAGE: &[&str] = &["read_list", "load", "append"];
/// The server has the state of the chat, and reads what was added to it.
const MESSAGE: &[&str] = &["read", "append"];
const ASK: &[&str] = &["load of approvals", "insert_all"];
const END: &[&str] = &[
    "append", // the frames of the step, its end, and that of the run
    "put_snapshot",
    "read_list", // requests that no message shows
];
/// The read of a response to an agent that has ended.
const READ: &[&str] = &["read"];
/// The denial, and the run that redeems it.
const DENY: &[&str] = &[
    "load of approvals",
    "read",
    "append", // a run
    "load of approvals",
    "compare_and_swap",
    "append", // the denial
];
/// The approval, its call, and the run that redeems it.
const APPROVE: &[&str] = &[
    "read",
    "append", // a run
    "load of approvals",
    "compare_and_swap", // the claim
    "append",           // the decision
    "load of approvals",
    "compare_and_swap", // the outcome
    "append",
];
