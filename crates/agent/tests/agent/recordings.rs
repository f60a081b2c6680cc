//! A recorded conversation with approvals, replayed on a server that has never seen it.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use chat_test_support::model_double::{ModelDouble, text, tool_call};
use futures::FutureExt;
use test_support::responses::text_of;
use ui_message_stream::ChatRequest;
use ui_message_stream::approval::Principal;
use ui_message_stream::chunk::FinishReason;
use ui_message_stream::model::{Model, ModelEvent, ModelMessage};
use ui_message_stream::testing::{Conversation, Recording};
use ui_message_stream_agent::{Agent, Tool, ToolError};
use ui_message_stream_chat::{ChatServer, ChatStream};

use super::inputs::What;

/// A model that transfers and deletes in one step, transfers again, and says that it is done. Its
/// ids of calls are new in every answer.
fn bank(last_words: &'static str) -> impl Model {
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    let call = |tool: &str, input: &str| {
        let id = format!("call_{}", CALLS.fetch_add(1, Ordering::Relaxed));
        tool_call(&id, tool, input)
    };
    let is_result = |message: &&ModelMessage| matches!(message, ModelMessage::Tool { .. });
    ModelDouble::new(move |request, _| {
        let mut events = match request.messages.iter().filter(is_result).count() {
            0 => vec![
                call("transfer", r#"{"what":"1000 to Ada"}"#),
                call("delete", r#"{"what":"notes.txt"}"#),
            ],
            1 => vec![call("transfer", r#"{"what":"2000 to Grace"}"#)],
            _ => vec![text(last_words)],
        };
        events.push(ModelEvent::Finished(FinishReason::Stop));
        events
    })
}

/// A server with its own approvals, and what its tools have done.
#[derive(Clone)]
struct Server {
    chats: ChatServer,
    done: Arc<Mutex<Vec<String>>>,
}

impl Server {
    fn new(last_words: &'static str) -> Self {
        let done = Arc::new(Mutex::new(Vec::new()));
        let tool = |name: &'static str| {
            let done = Arc::clone(&done);
            let run = move |input: What| {
                done.lock().unwrap().push(format!("{name} {}", input.what));
                async { Ok::<_, ToolError>("done") }
            };
            Tool::new(name, run).needs_approval()
        };
        let agent = Agent::new(bank(last_words));
        let agent = agent.tool(tool("transfer")).tool(tool("delete"));
        Server { chats: agent.into_chat_server(), done }
    }

    async fn respond(&self, request: ChatRequest) -> ChatStream {
        self.chats.stream_response(&Principal::new("ada"), request).await.unwrap()
    }

    fn done(&self) -> Vec<String> {
        self.done.lock().unwrap().clone()
    }
}

const DONE: [&str; 2] = ["transfer 1000 to Ada", "transfer 2000 to Grace"];

/// A folder with the conversation that a browser has with a server: two approvals and a denial.
struct Recorded(PathBuf);

impl Recorded {
    async fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("recorded-{name}-{}", std::process::id()));
        drop(fs::remove_dir_all(&folder));
        fs::create_dir_all(&folder).unwrap();
        let recorded = Recorded(folder);
        let server = Server::new("Both transfers are made.");
        let mut browser = Conversation::new(async |request| server.respond(request).await);
        browser.send("Pay Ada and Grace, and delete my notes").await;
        recorded.write(1, &browser);
        let ids: Vec<String> =
            browser.messages()[1].tool_parts().map(|part| part.tool_call_id.to_string()).collect();
        browser.approve(&ids[0]).await;
        browser.deny(&ids[1], "I need them").await;
        recorded.write(2, &browser);
        let last = browser.messages()[1].tool_parts().last().unwrap().tool_call_id.to_string();
        browser.approve(&last).await;
        recorded.write(3, &browser);
        assert_eq!(browser.requests().len(), 3);
        assert_eq!(server.done(), DONE);
        recorded
    }

    /// Writes the last exchange as `ui-message-stream record` does.
    fn write(&self, number: usize, browser: &Conversation<'_>) {
        let mut lines = format!("{{\"request\":{}}}\n", browser.requests().last().unwrap());
        for (at, chunk) in browser.last_chunks().iter().enumerate() {
            let chunk = serde_json::to_string(chunk).unwrap();
            lines += &format!("{{\"at\":{at},\"chunk\":{chunk}}}\n");
        }
        fs::write(self.0.join(format!("{number:03}.jsonl")), lines).unwrap();
    }

    /// Replays the whole conversation, or one file of it. Returns what a test would print.
    async fn replay(&self, file: &str, server: &Server) -> Result<(), String> {
        let recording = Recording::read(self.0.join(file));
        let replay = recording.replay(async |request| server.respond(request).await);
        let result = std::panic::AssertUnwindSafe(replay).catch_unwind().await;
        result.map_err(|panic| *panic.downcast::<String>().unwrap())
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

#[tokio::test(start_paused = true)]
async fn two_approvals_and_a_denial_replay_on_new_approvals() {
    let recorded = Recorded::new("replays").await;
    for _ in 0..2 {
        let server = Server::new("Both transfers are made.");
        recorded.replay("", &server).await.unwrap();
        assert_eq!(server.done(), DONE);
    }
}

#[tokio::test(start_paused = true)]
async fn a_changed_answer_is_reported_with_its_file_and_line() {
    let recorded = Recorded::new("changed").await;
    let report = recorded.replay("", &Server::new("Done.")).await.unwrap_err();
    assert!(report.contains("003.jsonl, line "), "{report}");
    assert!(report.contains("the response has changed; `RECORD=1` records it again"), "{report}");
    assert!(report.contains("Both transfers are made.") && report.contains("Done."), "{report}");
}

#[tokio::test(start_paused = true)]
async fn an_approval_without_its_request_is_refused_and_the_refusal_is_not_recorded() {
    let recorded = Recorded::new("alone").await;
    let server = Server::new("Both transfers are made.");
    let report = recorded.replay("002.jsonl", &server).await.unwrap_err();
    assert!(report.contains("UnknownCalls") && !report.contains("RECORD=1"), "{report}");
    assert_eq!(server.done(), [] as [&str; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_new_refusal_is_reported_without_the_advice_to_record_it() {
    let recorded = Recorded::new("refused").await;
    let server = Server::new("Both transfers are made.");
    let refusing = async |request: ChatRequest| {
        let body = text_of(server.respond(request).await).await;
        body.replace(r#"{"type":"tool-output-available""#, r#"{"type":"tool-output-denied""#)
    };
    let recording = Recording::read(&recorded.0);
    let replay = std::panic::AssertUnwindSafe(recording.replay(refusing)).catch_unwind();
    let report = *replay.await.unwrap_err().downcast::<String>().unwrap();
    assert!(report.contains("002.jsonl, line "), "{report}");
    assert!(report.contains("find the reason before you record it again"), "{report}");
    assert!(!report.contains("RECORD=1"), "{report}");
}
