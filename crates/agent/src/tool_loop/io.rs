//! The inputs and outputs of the tool loop.

use serde::{Deserialize, Serialize};

use ui_message_stream::approval::PendingToolCall;
use ui_message_stream::event::{
    AgentEvent, ApprovalRequestDetails, Data, File, Source, Text, ToolCall,
};
use ui_message_stream::id::{ApprovalId, ToolCallId};
use ui_message_stream::json::Json;
use ui_message_stream::model::ModelEvent;

/// What the driver must do next.
#[derive(Debug, Clone, PartialEq)]
#[must_use]
#[non_exhaustive]
pub enum Action {
    /// Emit this event of the agent.
    Emit(AgentEvent),
    /// Start this effect without waiting for it. Its inputs go to
    /// [`ToolLoop::handle`](super::ToolLoop::handle).
    Start(Effect),
    /// Wait until a started effect produces an input.
    Wait,
    /// Stop. The run has ended.
    End(RunEnd),
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
#[non_exhaustive]
pub enum RunEnd {
    /// The model made no more calls.
    Finished,
    /// Some calls wait for the user's approval; others may wait for the client. The next request
    /// continues the turn from the messages: no other state needs to be stored.
    AwaitingApproval {
        /// The calls that wait.
        waiting: Vec<PendingToolCall>,
    },
    /// Some calls wait for the client. No call waits for an approval.
    AwaitingClient {
        /// The calls that wait.
        waiting: Vec<PendingToolCall>,
    },
    /// The maximum number of steps was reached before the model finished.
    StepLimit,
    /// The model failed.
    Failed,
    /// The model ended its answer without text, reasoning, a file or a call. The user reads an error.
    Empty,
}

/// An operation for the driver to start.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Effect {
    /// Call the model with the current messages. Produces [`Input::Model`] until
    /// [`ModelEvent::Finished`], or [`Input::ModelFailed`].
    CallModel {
        /// The number of this model call in the run, from 1.
        step: u32,
    },
    /// Validate the input of a call against its tool, after the response of the model has ended well. Produces
    /// [`Input::InputValidated`]. The loop announces the call only after that input, so the driver must produce it immediately.
    ValidateInput(PendingToolCall),
    /// Decide whether a call may run, and where. Produces [`Input::ApprovalDecided`].
    DecideApproval(PendingToolCall),
    /// Request the user's approval of all calls of the step that need it. Produces for each call
    /// [`Input::ApprovalRequested`], or [`Input::Tool`] with the reason if no approval can be
    /// requested.
    ///
    /// Started once in a step: after the model has finished, and after all its calls were decided.
    RequestApprovals(Vec<PendingToolCall>),
    /// Run the tool. Produces [`Input::Tool`] until an output, a failure, or [`ToolEvent::Suspended`].
    RunTool(PendingToolCall),
    /// Run a tool that was suspended again, with the results of the calls that it has asked for.
    /// Produces the same inputs as [`Effect::RunTool`].
    ResumeTool(PendingToolCall),
    /// Check the text of the last step against the schema of the structured output. Produces
    /// [`Input::OutputChecked`]. If a model call follows, the model reads what was wrong.
    CheckOutput,
}

/// A result of an effect.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Input {
    /// An event of the model.
    Model(ModelEvent),
    /// The model failed. The text is shown to the user. The calls of its response are not started.
    ModelFailed(Text),
    /// The input of a call was validated.
    InputValidated {
        /// The id of the call.
        tool_call_id: ToolCallId,
        /// Whether the tool accepts the input. The error is the reason, which the model and the
        /// user read.
        result: Result<(), String>,
    },
    /// The decision about a call was made.
    ApprovalDecided {
        /// The id of the call.
        tool_call_id: ToolCallId,
        /// The decision.
        decision: CallDecision,
    },
    /// The approval request was created.
    ApprovalRequested {
        /// The id of the call.
        tool_call_id: ToolCallId,
        /// The id of the approval request.
        approval_id: ApprovalId,
        /// The details that are sent with the approval request.
        details: Option<Box<ApprovalRequestDetails>>,
    },
    /// An event of a running tool.
    Tool {
        /// The id of the call.
        tool_call_id: ToolCallId,
        /// The event.
        event: ToolEvent,
    },
    /// The structured output was checked. The error text is shown to the user, unless the model is called again.
    OutputChecked(Result<(), Text>),
}

/// The decision about a tool call.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum CallDecision {
    /// The call runs on the server.
    Run,
    /// The call runs on the server, and its tool may ask for calls inside it. It runs when all other
    /// calls of the step are decided, and fails if one of them waits: a client sends the answers to
    /// calls of two steps only if those of the last one come last.
    RunLast,
    /// The call needs a user's approval first.
    RequireApproval,
    /// The client executes the call.
    ClientExecuted,
    /// The call is not permitted and does not run. The model and the user read
    /// [`UserText::NotPermitted`](ui_message_stream::UserText::NotPermitted).
    NotPermitted,
}

/// An event of a running tool.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum ToolEvent {
    /// A preliminary output, which a later output replaces.
    Preliminary(Json),
    /// Application data, which the user sees next to the call.
    Data(Box<Data>),
    /// A source that the tool used.
    Source(Box<Source>),
    /// A file that the tool made.
    File(Box<File>),
    /// The final output.
    Output(Json),
    /// The failure, as text for the user and the model.
    Failed(String),
    /// The tool is an agent, which needs the results of these calls. It ends, and is resumed later.
    Suspended {
        /// What it needs to go on.
        state: Json,
        /// The calls. Each needs the user's approval.
        calls: Vec<InnerCall>,
    },
}

/// A call that an agent makes inside the call of which it is the tool.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct InnerCall {
    /// The call, with the id of the [outer one](ToolCall::inside).
    pub call: ToolCall,
    /// Its input.
    pub input: Json,
    /// The names of the agents, from the outermost one to the one that asks.
    pub agents: Vec<Box<str>>,
}
