//! The recorded streams in `fixtures/` as conversations: a scripted agent says what was recorded, one
//! event after the other.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use async_stream::stream;
use serde_json::Value;
use tokio::sync::Semaphore;
use ui_message_stream::chunk::{Chunk, FinishReason};
use ui_message_stream::event::ToolCall;
use ui_message_stream::message::{Part, Role};
use ui_message_stream::{AgentEvent, Json};
use ui_message_stream_chat::{ChatAgent, Turn};

use test_support::fixture_files::fixture_files;

/// A recorded stream.
#[derive(Debug)]
pub struct Recording {
    /// The user's message to which the agent says it.
    pub name: String,
    /// What the agent says, in its last turn.
    pub events: Vec<AgentEvent>,
    /// What the agent says in the turn before, if the recording continues a message: the contents of
    /// this message, and calls of the client, whose outputs begin the last turn.
    pub continued: Option<Vec<AgentEvent>>,
}

/// Returns all recordings in `fixtures/`: events of the translator's tests, and chunks that the AI
/// SDK sends or reads.
pub fn recordings() -> Vec<Recording> {
    let mut recordings = Vec::new();
    for folder in ["chunks", "upstream/streams", "upstream/older-clients"] {
        for path in fixture_files(folder, ".jsonl") {
            let text = fs::read_to_string(&path).unwrap();
            let lines: Vec<Value> =
                text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
            let message =
                lines.iter().find_map(|line| line.get("continues").or(line.get("message")));
            let has_events = lines.iter().any(|line| line.get("event").is_some());
            let events = lines.iter().filter_map(|line| match has_events {
                true => Some(serde_json::from_value(line.get("event")?.clone()).unwrap()),
                false => chunk(line.get("chunk")?),
            });
            recordings.push(Recording::new(folder, &path, message, events.collect()));
        }
    }
    for path in fixture_files("upstream/server", ".json") {
        let case: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        let chunks = case["expected"]["chunks"].as_array().unwrap();
        let message = case["messages"].as_array().unwrap().last();
        let message = message.filter(|message| message["role"] == "assistant");
        let events = chunks.iter().filter_map(chunk).collect();
        recordings.push(Recording::new("upstream/server", &path, message, events));
    }
    recordings
}

/// Returns the event that says a chunk. A chunk of no known kind has none.
fn chunk(chunk: &Value) -> Option<AgentEvent> {
    serde_json::from_value::<Chunk<'static>>(chunk.clone())
        .ok()
        .map(|chunk| AgentEvent::Chunk(Box::new(chunk)))
}

impl Recording {
    fn new(folder: &str, path: &Path, message: Option<&Value>, events: Vec<AgentEvent>) -> Self {
        let name = format!("{folder}/{}", path.file_stem().unwrap().to_str().unwrap());
        Recording { name, events, continued: message.map(contents) }
    }

    /// Returns whether the agent lets a model call be repeated.
    pub fn repeats_a_model_call(&self) -> bool {
        self.events.iter().any(|event| {
            matches!(event, AgentEvent::Chunk(chunk) if matches!(**chunk, Chunk::ResetStep {}))
        })
    }

    /// Returns the number of events of the last turn after which its run is surely live: those before
    /// the first one that may end it.
    pub fn live_events(&self) -> usize {
        let may_end = |event: &AgentEvent| match event {
            AgentEvent::Finish { .. } | AgentEvent::Error { .. } | AgentEvent::Abort { .. } => true,
            AgentEvent::Chunk(chunk) => matches!(&*chunk.kind(), "finish" | "error" | "abort"),
            _ => false,
        };
        let last = self.events.len().saturating_sub(1);
        self.events.iter().position(may_end).map_or(last, |end| end.min(last))
    }
}

/// Returns events that write the texts and the calls of a message. The client executes the calls that
/// have no output, and one more.
fn contents(message: &Value) -> Vec<AgentEvent> {
    let mut events = Vec::new();
    for part in message["parts"].as_array().unwrap() {
        let text = || part["text"].as_str().unwrap().to_owned();
        let kind = part["type"].as_str().unwrap();
        match kind {
            "text" => events.push(AgentEvent::text(text())),
            "reasoning" => events.push(AgentEvent::reasoning(text())),
            _ => {}
        }
        let Some(id) = part["toolCallId"].as_str() else { continue };
        let tool = kind.strip_prefix("tool-").or(part["toolName"].as_str()).unwrap();
        let json = |name: &str| Json::parse(&part[name].to_string()).unwrap();
        let call = ToolCall::new(id, tool.to_owned());
        let call = if kind == "dynamic-tool" { call.dynamic() } else { call };
        if part["state"] == "output-available" {
            events.push(AgentEvent::tool_input(call, json("input")));
            events.push(AgentEvent::tool_output(id, json("output")));
        } else {
            events.push(AgentEvent::tool_input(call.client_executed(), json("input")));
        }
    }
    let one_more = ToolCall::new("call-of-the-client", "go").client_executed();
    events.push(AgentEvent::tool_input(one_more, Json::null()));
    events.push(AgentEvent::finish(FinishReason::ToolCalls));
    events
}

/// The number of events of its last turn that an agent may say.
pub type Permits = Arc<Semaphore>;

/// Creates an agent that says the recording that the user names. `permits_of` returns the permits for
/// the user's text, and the name in it.
pub fn recorded_agent(
    recordings: Arc<Vec<Recording>>,
    permits_of: impl Fn(&str) -> (Permits, String) + Send + Sync + 'static,
) -> impl ChatAgent {
    move |turn: Turn| {
        let user = turn.chat.messages.iter().rfind(|message| message.role == Role::User);
        let text = user.map(|message| match &*message.parts {
            [Part::Text(text)] => text.text.clone(),
            other => panic!("{other:?}"),
        });
        let (permits, name) = permits_of(&text.unwrap_or_default());
        let recording = recordings.iter().position(|recording| recording.name == name);
        let place = recording.unwrap_or_else(|| panic!("there is no recording {name}"));
        let continues = turn.request.as_ref().is_some_and(|it| it.continued_message().is_some());
        let recordings = Arc::clone(&recordings);
        stream! {
            let recording = &recordings[place];
            if let Some(events) = recording.continued.as_ref().filter(|_| !continues) {
                for event in events {
                    yield event.clone();
                }
                return;
            }
            for event in &recording.events {
                permits.acquire().await.unwrap().forget();
                yield event.clone();
            }
        }
    }
}
