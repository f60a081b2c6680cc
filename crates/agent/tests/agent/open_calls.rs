//! What the model reads of calls that are open, or are executed, while it is called.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use chat_test_support::answers::{decide, post, read_until, stored};
use chat_test_support::model_double::{says, tool_call, tool_contents};
use futures::{StreamExt, stream};
use schemars::JsonSchema;
use serde::Deserialize;
use test_support::ledger_double::{Fault, LedgerDouble, Operation};
use test_support::requests::ada;
use test_support::responses::text_of;
use test_support::{eventually, within_patience};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use ui_message_stream::approval::{Approvals, OnNewMessage};
use ui_message_stream::chunk::FinishReason;
use ui_message_stream::message::ToolState;
use ui_message_stream::model::{
    Model, ModelEvent, ModelRequest, ModelStream, NotExecutedReason, ToolContent,
};
use ui_message_stream_agent::{Agent, Tool, ToolError};
use ui_message_stream_chat::ChatServer;

#[derive(Deserialize, JsonSchema)]
struct Nothing {}

/// A model that makes these calls, one step after the other, and says "Done." in a step without calls.
#[derive(Debug, Clone)]
struct Script {
    steps: Arc<Mutex<VecDeque<&'static [&'static str]>>>,
    /// The results of the calls that it has read, by step.
    read: Arc<Mutex<Vec<String>>>,
}

impl Model for Script {
    fn call(&self, request: ModelRequest) -> ModelStream {
        let results = tool_contents(&request).filter_map(|content| match content {
            ToolContent::Result(read) => {
                Some(format!("{}: {}", read.tool_name, read.result.text()))
            }
            ToolContent::ProviderApproval(_) => None,
        });
        let mut read = self.read.lock().unwrap();
        read.push(results.collect::<Vec<_>>().join("\n"));
        let calls = self.steps.lock().unwrap().pop_front().unwrap_or_default();
        if calls.is_empty() {
            return Box::pin(stream::iter(says("Done.")).map(Ok));
        }
        let call = |tool: &&str| tool_call(&format!("{tool}_{}", read.len()), tool, "{}");
        let finished = ModelEvent::Finished(FinishReason::ToolCalls);
        let events: Vec<_> = calls.iter().map(call).chain([finished]).collect();
        Box::pin(stream::iter(events).map(Ok))
    }
}

/// Holds a tool until it is opened.
#[derive(Debug, Clone)]
struct Gate {
    begun: Arc<Semaphore>,
    open: Arc<Semaphore>,
}

impl Gate {
    fn new() -> Self {
        let closed = || Arc::new(Semaphore::new(0));
        Gate { begun: closed(), open: closed() }
    }

    fn tool(&self, name: &'static str) -> Tool<Nothing> {
        let gate = self.clone();
        Tool::new(name, move |_: Nothing| {
            let gate = gate.clone();
            async move {
                gate.begun.add_permits(1);
                gate.open.acquire().await.unwrap().forget();
                Ok::<_, ToolError>(format!("{name} has ended"))
            }
        })
    }

    async fn begun(&self) {
        within_patience(self.begun.acquire()).await.unwrap().forget();
    }

    fn open(&self) {
        self.open.add_permits(1);
    }
}

/// A chat with the gated tools `build`, which asks for approval and stays open when the user sends a message,
/// and `look`. The tool `send` asks and runs at once.
struct Host {
    chats: ChatServer,
    model: Script,
    build: Gate,
    look: Gate,
    /// Nothing can be loaded from the ledger.
    is_unreadable: Arc<AtomicBool>,
}

impl Host {
    fn new(steps: &[&'static [&'static str]]) -> Self {
        Self::with(steps, |approvals| approvals)
    }

    fn with(steps: &[&'static [&'static str]], set: impl FnOnce(Approvals) -> Approvals) -> Self {
        let steps = Arc::new(Mutex::new(steps.iter().copied().collect()));
        let model = Script { steps, read: Arc::default() };
        let (build, look) = (Gate::new(), Gate::new());
        let send = Tool::new("send", async |_: Nothing| Ok::<_, ToolError>("sent"));
        let agent = Agent::new(model.clone())
            .tool(build.tool("build").needs_approval().on_new_message(OnNewMessage::Run))
            .tool(look.tool("look"))
            .tool(send.needs_approval());
        let is_unreadable = Arc::new(AtomicBool::new(false));
        let fails = Arc::clone(&is_unreadable);
        let ledger = LedgerDouble::new(move |operation| match operation {
            Operation::Load(_) => fails.load(Ordering::SeqCst).then_some(Fault::NotDone("away")),
            _ => None,
        });
        let approvals = Approvals::new(agent.clone()).with_ledger(Arc::new(ledger));
        let chats = ChatServer::new(agent, set(approvals));
        Host { chats, model, build, look, is_unreadable }
    }

    /// Sends a message, and reads the answer while it is written.
    async fn begin(&self, id: &str) -> JoinHandle<String> {
        tokio::spawn(text_of(post(&self.chats, id, "Go").await))
    }

    async fn say(&self, id: &str) {
        within_patience(self.begin(id).await).await.unwrap();
    }

    async fn approve(&self, tool: &str) {
        let pending = self.chats.approvals().pending(&ada()).await.unwrap();
        let asked = pending.iter().find(|pending| &*pending.record.tool_name == tool).unwrap();
        assert!(decide(&self.chats, &asked.approval_id, true).await);
    }

    /// Lets the approved call end, and waits until it has its result.
    async fn end_build(&self) {
        self.build.open();
        eventually(async || {
            let chat = stored(&self.chats).await;
            let mut parts = chat.messages.iter().flat_map(|message| message.tool_parts());
            let build = parts.find(|part| &*part.tool_name == "build").unwrap();
            matches!(build.state, ToolState::OutputAvailable { .. })
        })
        .await;
    }

    /// Returns what the model has read in each call.
    fn read(&self) -> Vec<String> {
        self.model.read.lock().unwrap().clone()
    }
}

#[tokio::test]
async fn a_message_during_an_approved_call_finds_it_running_and_the_next_model_call_has_its_result()
{
    let host = Host::new(&[&["build"], &["look"]]);
    host.say("u1").await;
    host.approve("build").await;
    host.build.begun().await;
    let answer = host.begin("u2").await;
    host.look.begun().await;
    let read = host.read();
    assert!(read[1].starts_with("build: This tool call is running"), "{read:#?}");
    // The next model call of the same answer.
    host.end_build().await;
    host.look.open();
    within_patience(answer).await.unwrap();
    let read = host.read();
    assert_eq!(read[2], "build: build has ended\nlook: look has ended");
    host.say("u3").await;
    assert_eq!(host.read()[3], read[2]);
}

#[tokio::test]
async fn an_answer_that_goes_on_with_another_approval_reads_that_an_older_call_runs() {
    let host = Host::new(&[&["build"], &["send"]]);
    host.say("u1").await;
    host.approve("build").await;
    host.build.begun().await;
    host.say("u2").await;
    host.approve("send").await;
    eventually(async || host.read().len() == 3).await;
    let read = host.read();
    assert!(read[2].starts_with("build: This tool call is running"), "{read:#?}");
    assert!(read[2].ends_with("\nsend: sent"), "{read:#?}");
    host.end_build().await;
    host.say("u3").await;
    assert_eq!(host.read()[3], "build: build has ended\nsend: sent");
}

#[tokio::test]
async fn a_call_that_is_approved_while_a_later_answer_is_written_runs_for_its_next_model_call() {
    let host = Host::new(&[&["build"], &["look"]]);
    host.say("u1").await;
    let answer = host.begin("u2").await;
    host.look.begun().await;
    let read = host.read();
    assert!(read[1].contains("waits for the person to approve it"), "{read:#?}");
    host.approve("build").await;
    host.build.begun().await;
    host.look.open();
    within_patience(answer).await.unwrap();
    let read = host.read();
    assert!(read[2].starts_with("build: This tool call is running"), "{read:#?}");
    host.end_build().await;
}

#[tokio::test(start_paused = true)]
async fn the_model_is_not_called_while_it_is_not_known_whether_an_open_call_runs() {
    let host = Host::new(&[&["build"], &["look"]]);
    host.say("u1").await;
    let answer = host.begin("u2").await;
    host.look.begun().await;
    host.is_unreadable.store(true, Ordering::SeqCst);
    host.look.open();
    let answer = within_patience(answer).await.unwrap();
    assert!(answer.contains(r#""type":"error""#), "{answer}");
    assert_eq!(host.read().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_question_expires_while_another_call_of_its_step_runs_and_the_model_reads_both_results() {
    // Shorter than a tool may take.
    let ttl = Duration::from_secs(10);
    let host = Host::with(&[&["look", "send"]], |approvals| approvals.with_approval_ttl(ttl));
    let mut answer = post(&host.chats, "u1", "Go").await;
    let expired = read_until(&mut answer, "tool-output-error");
    timeout(ttl * 2, expired).await.expect("the question expires");
    assert_eq!(host.read().len(), 1, "the other call runs");
    host.look.open();
    let rest = within_patience(text_of(answer)).await;
    assert!(rest.contains("Done.") && !rest.contains("tool-output-error"), "{rest}");
    let read = host.read();
    let [_, results] = &read[..] else { panic!("{read:#?}") };
    let (look, send) = results.split_once('\n').unwrap();
    assert_eq!(look, "look: look has ended");
    assert_eq!(send, format!("send: {}", NotExecutedReason::Expired));
}
