//! The agent of the servers, and its agent inside: `janitor`, which looks, asks for two deletions, and sweeps.

use std::fmt::Display;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::{StreamExt, stream};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use test_support::kills::{Journal, Role, SEED};
use test_support::rng::Dice;
use tokio::time::sleep;
use ui_message_stream::BoxError;
use ui_message_stream::chunk::FinishReason;
use ui_message_stream::event::{AgentEvent, ToolCall};
use ui_message_stream::model::{
    Model, ModelEvent, ModelMessage, ModelRequest, ModelStream, UserContent,
};
use ui_message_stream_agent::{Agent, Tool, ToolContext};

/// What the tools and the models of one server share.
#[derive(Debug, Clone)]
pub(super) struct World {
    role: Role,
    random: Arc<Mutex<Dice>>,
}

impl World {
    pub(super) fn new(role: Role) -> Self {
        let random = Arc::new(Mutex::new(Dice::new(SEED, 2 * role.number)));
        World { role, random }
    }

    /// Writes what this server has done, or is about to do.
    pub(super) fn write(&self, what: &str, details: impl Display) {
        self.role.journal.write(format!("{what} {} {details}", self.role.number));
    }

    /// Returns the lines about a chat, and about the ends of turns and servers, with their numbers.
    pub(super) fn about(&self, chat: &str) -> String {
        about(&self.role.journal, chat)
    }

    /// Returns the agent of the chats. Its calls of `janitor` have ids that no other call of any server has.
    pub(super) fn agent(&self) -> Agent {
        let inner = Agent::new(Janitor(self.clone()))
            .tool(self.tool("look"))
            .tool(self.tool("delete").needs_approval())
            .tool(self.tool("sweep"));
        Agent::new(Outer(self.clone())).tool(inner.as_tool("janitor", "Tidies up."))
    }

    fn tool(&self, name: &'static str) -> Tool<Path> {
        let world = self.clone();
        Tool::new(name, move |input: Path, context: ToolContext| {
            let world = world.clone();
            async move {
                world.pause(40).await;
                let chat = &context.chat_id;
                world.write("ran", format!("{name} {chat} {}", input.path));
                world.pause(40).await;
                Ok::<_, BoxError>("done")
            }
        })
    }

    pub(super) fn below(&self, end: usize) -> usize {
        self.random.lock().unwrap().below(end)
    }

    pub(super) async fn pause(&self, milliseconds: usize) {
        sleep(Duration::from_millis(self.below(milliseconds) as u64)).await;
    }

    /// Emits these events, with pauses.
    fn says(&self, events: Vec<ModelEvent>) -> ModelStream {
        let world = self.clone();
        Box::pin(stream::iter(events).then(move |event| {
            let world = world.clone();
            async move {
                world.pause(10).await;
                Ok(event)
            }
        }))
    }
}

/// Returns the lines about a chat, and about the ends of turns and servers, with their numbers.
pub(super) fn about(journal: &Journal, chat: &str) -> String {
    let lines = journal.lines().into_iter().enumerate();
    let lines = lines.filter(|(_, line)| {
        line.split(' ').any(|word| word == chat || word == "ended" || word == "killed")
    });
    lines.map(|(at, line)| format!("{at} {line}\n")).collect()
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
struct Path {
    path: String,
}

/// The model of the chats: calls `janitor` for each message of the user, and answers when it has the result.
#[derive(Debug)]
struct Outer(World);

impl Model for Outer {
    fn call(&self, request: ModelRequest) -> ModelStream {
        if results_since_user(&request) > 0 {
            return self.0.says(answer(ANSWER));
        }
        let id = format!("j{}x{}", self.0.role.number, self.0.below(1_000_000_000));
        self.0.says(calls([(id.clone(), "janitor", json!({ "task": id }))]))
    }
}

/// The model of the agent inside. Its task is the id of the call of the agent.
#[derive(Debug)]
struct Janitor(World);

impl Model for Janitor {
    fn call(&self, request: ModelRequest) -> ModelStream {
        let task = request.messages.iter().find_map(|message| match message {
            ModelMessage::User { content } => content.iter().find_map(|content| match content {
                UserContent::Text(text) => Some(text.text.clone()),
                _ => None,
            }),
            _ => None,
        });
        let task = task.unwrap();
        let path = |path: String| json!({ "path": path });
        let delete = |name: &str| (name.to_owned(), "delete", path(format!("{task}/{name}")));
        let results = results_since_user(&request);
        if results == 2 {
            self.0.write("goes-on", &task);
        }
        self.0.says(match results {
            0 => calls([("look".to_owned(), "look", path(task))]),
            1 => calls(DELETED.map(delete)),
            2 => calls([("sweep".to_owned(), "sweep", path(task))]),
            _ => answer(TIDY),
        })
    }
}

/// Returns the number of steps with results after the last message of the user: models know no more than the
/// messages do.
fn results_since_user(request: &ModelRequest) -> usize {
    let messages = request.messages.iter().rev();
    let last = messages.take_while(|message| !matches!(message, ModelMessage::User { .. }));
    last.filter(|message| matches!(message, ModelMessage::Tool { .. })).count()
}

fn calls(calls: impl IntoIterator<Item = (String, &'static str, Value)>) -> Vec<ModelEvent> {
    let calls = calls.into_iter().map(|(id, tool, input)| {
        ModelEvent::ToolCall(Box::new(ToolCall::new(id, tool)), input.to_string())
    });
    calls.chain([ModelEvent::Finished(FinishReason::ToolCalls)]).collect()
}

fn answer(text: &'static str) -> Vec<ModelEvent> {
    vec![ModelEvent::Event(AgentEvent::text(text)), ModelEvent::Finished(FinishReason::Stop)]
}

/// The files that `janitor` deletes: the ids of its calls, and the names in their paths.
pub(super) const DELETED: [&str; 2] = ["a", "b"];

/// The answer of `janitor`.
pub(super) const TIDY: &str = "It is tidy.";

/// The answer in the chat.
pub(super) const ANSWER: &str = "That is done.";
