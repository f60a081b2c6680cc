//! An agent as a tool of another agent.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::builder::Agent;
use super::context::ToolContext;
use super::driver::{AgentRun, Approver, Inside};
use super::settings::Settings;
use super::tool::Tool;
use super::tool_error::ToolError;
use crate::tool_loop::RunEnd;
use ui_message_stream::BoxError;
use ui_message_stream::UserText;
use ui_message_stream::approval::{Approvals, EmptyToolbox};
use ui_message_stream::id::{MessageId, ToolCallId};
use ui_message_stream::json::Json;
use ui_message_stream::message::{Part, Role, UiMessage};
use ui_message_stream_chat::{Chat, HistoryCompleteness, Turn};

/// The input of an agent that is a tool.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct AgentInput {
    /// What the agent has to do, with all that it needs to know: it does not see the conversation.
    pub task: String,
}

impl Agent {
    /// Makes this agent a tool of another one. Its input is an [`AgentInput`]; its output is the text
    /// of the agent's last answer, or its [structured output](Self::with_output).
    ///
    /// The agent sees the task, and nothing else of the chat: a predicate of one of its tools reads an
    /// [incomplete history](super::ApprovalContext). Each call begins a new conversation. What its tools
    /// need an approval for, the user of the chat is asked for, under the name `<name>__<tool>`: as a call
    /// in a step of its own, with the names of the agents in its `data-approval` part, when the other calls
    /// of the step have ended. Meanwhile the call of this agent waits. The answers resume the agent where it
    /// stopped, also in another process: the ledger keeps its conversation, of at most 256 KiB, and gives
    /// it once. The calls that the agent has made before are not repeated.
    ///
    /// | meanwhile | the call inside | the call of the agent |
    /// |---|---|---|
    /// | approved | runs once | goes on with the output when all of its questions have an answer |
    /// | denied | does not run | goes on with the denial and its reason |
    /// | one of several expires | does not run | goes on with that when the others have an answer |
    /// | all expire | do not run | ends with the next message of the user |
    /// | a newer message | does not run, also if the tool [stays open](Tool::on_new_message) | ends with an error |
    /// | a stop | waits on; an approval runs it | waits on, and ends with the next message |
    /// | the server is lost, or shut down, before the agent goes on | waits on, or ran at most once | goes on at another server |
    /// | the server is lost when the agent goes on | ran at most once | ends: it is not known what it has done |
    /// | another call of the step waits for the user or the client | – | is not executed; the model may make it again |
    ///
    /// Calls of the agent need no approval themselves, unless the tool
    /// [demands it](Tool::needs_approval): such a call cannot ask, because the user has approved it
    /// itself. Approvals [without a ledger](Approvals::stateless_replayable) cannot ask either: the agent
    /// reads that its call was not executed. The [maximum number of steps](Self::with_max_steps) counts all
    /// steps of a call. A [transform](Self::with_transform) of this agent is not used.
    ///
    /// A call may run for ten minutes; [`Tool::with_timeout`] sets another time.
    ///
    /// ```
    /// use schemars::JsonSchema;
    /// use serde::Deserialize;
    /// use ui_message_stream::BoxError;
    /// use ui_message_stream_agent::{Agent, Tool};
    /// # use ui_message_stream::model::{Model, ModelRequest, ModelStream};
    /// # #[derive(Debug)]
    /// # struct MyModel;
    /// # impl Model for MyModel {
    /// #     fn call(&self, _: ModelRequest) -> ModelStream { Box::pin(futures::stream::empty()) }
    /// # }
    ///
    /// /// Deletes a file.
    /// #[derive(Deserialize, JsonSchema)]
    /// struct Delete {
    ///     path: String,
    /// }
    ///
    /// let delete = Tool::new("delete", async |delete: Delete| Ok::<_, BoxError>(delete.path));
    /// let janitor = Agent::new(MyModel).tool(delete.needs_approval());
    /// let agent = Agent::new(MyModel).tool(janitor.as_tool("janitor", "Tidies up folders."));
    /// # let _ = agent;
    /// ```
    ///
    /// # Panics
    /// The agent that gets the tool panics under the conditions of [`tool`](Self::tool), if a name
    /// `<name>__<tool>` that the host chose is that of another tool, and if the client executes a tool of
    /// this agent.
    pub fn as_tool(
        &self,
        name: impl Into<Box<str>>,
        description: impl Into<Box<str>>,
    ) -> Tool<AgentInput> {
        let settings = Arc::clone(&self.0);
        // They request nothing: the chat of the outer call does.
        let approvals = Approvals::new(EmptyToolbox);
        let inner_tools = settings.tools.all();
        let handler = move |input: AgentInput, context: ToolContext| {
            run(Arc::clone(&settings), approvals.clone(), input, context)
        };
        Tool::new(name, handler)
            .with_description(description)
            .with_timeout(MAX_TIME)
            .never_needs_approval()
            .with_inner_tools(inner_tools)
    }
}

/// What an agent needs to go on.
#[derive(Serialize, Deserialize)]
struct State {
    chat: Chat,
    suspended: HashMap<ToolCallId, Json>,
    /// How many model calls it has made.
    steps: u32,
}

async fn run(
    settings: Arc<Settings>,
    approvals: Approvals,
    input: AgentInput,
    context: ToolContext,
) -> Result<Json, BoxError> {
    let State { chat, suspended, steps } = match context.resumed() {
        Some(resumed) => {
            let mut state: State = serde_json::from_str(&resumed.state::<String>()?)?;
            resumed.record_in(&mut state.chat);
            state
        }
        None => {
            let mut chat = Chat::new(context.chat_id.clone(), context.principal.clone());
            let task = Part::text(input.task);
            chat.messages.push(UiMessage::new("task", Role::User, vec![task]));
            // A predicate that reads it does not see what has led to the task.
            chat.history = HistoryCompleteness::Truncated;
            State { chat, suspended: HashMap::new(), steps: 0 }
        }
    };
    let answer = MessageId::from("answer");
    let turn = Turn::new(chat, answer.clone(), &approvals);
    let approver = match &context.inner {
        Some(inner) => Approver::OuterCall(inner.clone()),
        None => Approver::None,
    };
    let tools = settings.tools.clone();
    let inside = Inside { approver, suspended, steps };
    let mut run = AgentRun::new(Arc::clone(&settings), tools, turn, inside);
    while run.next().await.is_some() {}
    match run.end() {
        Some(RunEnd::Finished) => {}
        Some(RunEnd::AwaitingApproval { waiting })
            if waiting.iter().all(|call| call.approval_id.is_some()) =>
        {
            let (chat, suspended, steps) = run.into_chat();
            // As text: a state of an agent inside this one nests deeper than JSON may.
            let state = serde_json::to_string(&State { chat, suspended, steps })?;
            return Err(context.suspend(&state));
        }
        Some(RunEnd::AwaitingApproval { .. } | RunEnd::AwaitingClient { .. }) => {
            return Err(ToolError(UserText::InnerAgentNeedsClient.to_string()).into());
        }
        Some(RunEnd::StepLimit) => {
            return Err(ToolError(UserText::InnerAgentStepLimit.to_string()).into());
        }
        Some(RunEnd::Failed | RunEnd::Empty) | None => {
            return Err(ToolError(UserText::InnerAgentFailed.to_string()).into());
        }
    }
    let (chat, ..) = run.into_chat();
    let Some(message) = chat.message(&answer) else {
        return Err(UserText::InnerAgentFailed.text().into());
    };
    match &settings.output {
        Some(output) => Ok(output.parse_message(message).map_err(|e| ToolError(e.to_string()))?),
        None => Ok(Json::string(&message.last_text())),
    }
}

/// How long a call of an agent may run.
const MAX_TIME: Duration = Duration::from_secs(600);
