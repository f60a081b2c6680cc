//! Of several runs in one chat, one goes on: not before everything is answered that was asked, and
//! once, however often the answer comes. What still runs is never said not to have run.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
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
use ui_message_stream::chat::{ChatServer, Turn};
use ui_message_stream::event::{AgentEvent, ToolCall};
use ui_message_stream::request::Limits;
use ui_message_stream::{ChatRequest, Json};

/// A tool that comes to its end when it may.
#[derive(Debug, Clone)]
struct Slow(Arc<Semaphore>);

impl Toolbox for Slow {
    fn tool(&self, name: &str) -> Option<ToolInfo> {
        Some(ToolInfo::new(DefinitionDigest::new(name, "Is slow.", &Json::null())))
    }

    fn permits<'a>(&'a self, _: &'a ApprovedCall) -> BoxFuture<'a, bool> {
        Box::pin(std::future::ready(true))
    }

    fn run(&self, _: ApprovedCall) -> BoxFuture<'static, ToolOutcome> {
        let may = Arc::clone(&self.0);
        Box::pin(async move {
            may.acquire().await.unwrap().forget();
            ToolOutcome::Output(Json::string("done"))
        })
    }
}

struct Host {
    chats: ChatServer,
    /// Lets the agent go on, and the tool.
    agent: Arc<Semaphore>,
    tool: Arc<Semaphore>,
    /// How often it was called, and what the model read then.
    read: Arc<Mutex<Vec<String>>>,
}

/// The agent asks once, twice if the person says so, with time between, or leaves a call to the
/// client; when it is called again it takes its time and says so.
fn host() -> Host {
    let (agent, tool) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let read: Arc<Mutex<Vec<String>>> = Arc::default();
    let (may, heard) = (Arc::clone(&agent), Arc::clone(&read));
    let calls = AtomicUsize::new(0);
    let respond = move |turn: Turn| {
        let messages = turn.to_model_messages().model_messages(&turn.chat.messages);
        heard.lock().unwrap().push(serde_json::to_string(&messages).unwrap());
        let (may, call) = (Arc::clone(&may), calls.fetch_add(1, Ordering::SeqCst));
        let said = serde_json::to_string(&turn.chat.messages[0]).unwrap();
        stream! {
            if call > 0 {
                may.acquire().await.unwrap().forget();
                yield Ok::<_, std::io::Error>(AgentEvent::text("Went on"));
                return;
            }
            if said.contains("where") {
                let call = ToolCall::new("place", "where").client_executed();
                yield Ok(AgentEvent::tool_input(call, Json::null()));
                return;
            }
            for name in ["first", "second"].into_iter().take(1 + usize::from(said.contains("twice"))) {
                let call = ToolCall::new(name, "slow");
                let (id, input) = (call.id.clone(), Json::null());
                yield Ok(AgentEvent::tool_input(call, input.clone()));
                let asked = turn.approvals.request_approval(&turn.message_id, &id, "slow", &input, None).await;
                yield Ok(asked.unwrap().event(id));
                if name == "first" && said.contains("twice") {
                    may.acquire().await.unwrap().forget();
                }
            }
        }
    };
    let chats = ChatServer::new(respond, Approvals::new(Slow(Arc::clone(&tool))));
    Host { chats, agent, tool, read }
}

fn ada() -> Principal {
    Principal::new("ada")
}

fn user(id: &str, text: &str) -> Value {
    json!({"id": id, "role": "user", "parts": [{"type": "text", "text": text}]})
}

async fn a_while() {
    tokio::time::sleep(Duration::from_secs(1)).await;
}

impl Host {
    async fn post(&self, message: Value) -> String {
        let body = json!({"id": "chat", "messages": [message]}).to_string();
        let request = ChatRequest::parse(body.as_bytes(), &Limits::default()).unwrap();
        let response = self.chats.stream_response(&ada(), request).await.unwrap();
        let bytes = response.map(|bytes| bytes.unwrap().to_vec()).collect::<Vec<_>>().await;
        String::from_utf8(bytes.concat()).unwrap()
    }

    async fn approve(&self, call: &str) {
        let pending = self.chats.approvals().pending(&ada()).await.unwrap();
        let it = pending.iter().find(|it| it.record.tool_call_id.as_str() == call).unwrap();
        let approval_id = it.approval_id.clone();
        let decision = ApprovalDecision { approval_id, approved: true, reason: None };
        assert!(self.chats.decide(&ada(), vec![decision]).await.unwrap()[0].accepted);
    }

    /// The last message, as a page sends it that has run the client's tool.
    async fn answering(&self) -> Value {
        let chat = self.chats.chat(&ada(), &"chat".into()).await.unwrap();
        let mut message = serde_json::to_value(chat.messages.last()).unwrap();
        for part in message["parts"].as_array_mut().unwrap() {
            if part["state"] == "input-available" {
                (part["state"], part["output"]) = (json!("output-available"), json!("here"));
            }
        }
        message
    }

    fn calls(&self) -> usize {
        self.read.lock().unwrap().len()
    }
}

#[tokio::test(start_paused = true)]
async fn a_decision_whose_tool_is_slow_does_not_go_on_before_what_was_asked_since() {
    let host = host();
    let asks = async {
        a_while().await;
        host.approve("first").await;
        a_while().await;
        // The second question, while the first tool runs.
        host.agent.add_permits(1);
        a_while().await;
        host.tool.add_permits(1);
        a_while().await;
    };
    futures::join!(host.post(user("m1", "twice")), asks);
    assert_eq!(host.calls(), 1, "the second question waits");
    host.agent.add_permits(1);
    host.tool.add_permits(1);
    host.approve("second").await;
    a_while().await;
    assert_eq!(host.calls(), 2);
    assert!(host.read.lock().unwrap()[1].matches("done").count() == 2, "{:?}", host.read);
}

#[tokio::test(start_paused = true)]
async fn the_same_output_of_the_client_while_the_first_is_answered_is_answered_once() {
    let host = host();
    host.post(user("m1", "where")).await;
    let page = host.answering().await;
    let twice = async {
        a_while().await;
        let again = async {
            a_while().await;
            host.agent.add_permits(2);
        };
        futures::join!(host.post(page.clone()), again).0
    };
    let (first, second) = futures::join!(host.post(page.clone()), twice);
    assert_eq!(host.calls(), 2);
    assert!(first.contains("Went on"), "{first}");
    assert!(second.contains("Went on"), "{second}");
    assert_eq!(host.answering().await.to_string().matches("Went on").count(), 1);
}

#[tokio::test(start_paused = true)]
async fn who_writes_on_while_an_approved_tool_runs_has_a_model_that_knows_it_may_have_run() {
    let host = host();
    host.post(user("m1", "once")).await;
    host.approve("first").await;
    a_while().await;
    host.agent.add_permits(9);
    host.post(user("m2", "and?")).await;
    let read = host.read.lock().unwrap().last().unwrap().clone();
    assert!(read.contains("unknown") && !read.contains("not-executed"), "{read}");
    host.tool.add_permits(1);
    a_while().await;
    host.post(user("m3", "and now?")).await;
    assert!(host.read.lock().unwrap().last().unwrap().contains("done"));
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_goes_on_and_is_taken_away_is_not_worked_on() {
    let host = host();
    host.post(user("m1", "once")).await;
    host.tool.add_permits(1);
    host.approve("first").await;
    a_while().await;
    assert_eq!(host.calls(), 2, "it went on, and takes its time");
    let edited = json!({"id": "chat", "messages": [user("m1", "once more")]}).to_string();
    let request = ChatRequest::parse(edited.as_bytes(), &Limits::default()).unwrap();
    drop(host.chats.stream_response(&ada(), request).await.unwrap());
    a_while().await;
    // The new answer takes one; the one that was taken away would take the other.
    host.agent.add_permits(2);
    a_while().await;
    assert_eq!(host.agent.available_permits(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_answer_whose_question_was_edited_away_while_its_tool_ran_leaves_nothing_behind() {
    let host = host();
    host.post(user("m1", "once")).await;
    // The yes comes in the chat, and the tool takes its time.
    let chat = host.chats.chat(&ada(), &"chat".into()).await.unwrap();
    let mut page = serde_json::to_value(chat.messages.last()).unwrap();
    for part in page["parts"].as_array_mut().unwrap() {
        if part["state"] == "approval-requested" {
            part["state"] = json!("approval-responded");
            part["approval"]["approved"] = json!(true);
        }
    }
    let edits = async {
        a_while().await;
        host.agent.add_permits(1);
        host.post(user("m1", "once more")).await;
        host.tool.add_permits(1);
        a_while().await;
    };
    futures::join!(host.post(page), edits);
    let chat = host.chats.chat(&ada(), &"chat".into()).await.unwrap();
    assert_eq!(chat.messages.len(), 2, "{:?}", chat.messages);
    assert!(!chat.messages[1].parts.is_empty());
    assert_eq!(host.calls(), 2);
}
