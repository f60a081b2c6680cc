//! What goes between a run and its driver.

use super::{RunEnd, Usage};
use crate::approval::OpenCall;
use crate::chunk::FinishReason;
use crate::event::{AgentEvent, Data, File, QuestionDetails, Source, Text, ToolCall};
use crate::id::{ApprovalId, ToolCallId};
use crate::json::Json;

/// What is to be done next.
#[derive(Debug, Clone, PartialEq)]
#[must_use]
#[non_exhaustive]
pub enum Step {
    /// The agent says this.
    Say(AgentEvent),
    /// This is to be begun, not awaited: what it brings comes back through [`Run::handle`](super::Run::handle).
    Begin(Errand),
    /// Nothing, until an errand has news.
    Wait,
    /// The run is over.
    End(RunEnd),
}

/// Something to begin.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Errand {
    /// Call the model with the messages as they are now: [`Input::Model`], until
    /// [`ModelEvent::Finished`], or [`Input::ModelFailed`].
    CallModel {
        /// Which call of this run it is, from 1.
        step: u32,
    },
    /// Hold the input of a call against what its tool takes: [`Input::Checked`]. Nothing is said of
    /// the call before, so this is to be answered at once.
    Check(OpenCall),
    /// Look whether a call may run, and where: [`Input::Prepared`].
    Prepare(OpenCall),
    /// Ask the person: [`Input::Asked`], or [`Input::Tool`] with the reason why nobody is asked.
    Ask(OpenCall),
    /// Run the tool: [`Input::Tool`], until an output or a failure.
    RunTool(OpenCall),
    /// Hold the text of the last step against what the answer is to look like:
    /// [`Input::OutputChecked`].
    CheckOutput,
}

/// What an errand brings.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Input {
    /// The model said something.
    Model(ModelEvent),
    /// The model is gone. The words are for the person. Tools that run come to their end first; what
    /// does not run yet does not begin any more.
    ModelFailed(Text),
    /// The input of a call was held against what its tool takes.
    Checked {
        /// Which call.
        tool_call_id: ToolCallId,
        /// Whether it takes it; if not, why not, for the model and the person.
        fits: Result<(), String>,
    },
    /// A call was looked at.
    Prepared {
        /// Which call.
        tool_call_id: ToolCallId,
        /// What is to become of it.
        verdict: Verdict,
    },
    /// The person was asked.
    Asked {
        /// About which call.
        tool_call_id: ToolCallId,
        /// What names the question.
        approval_id: ApprovalId,
        /// What comes with it.
        details: Option<Box<QuestionDetails>>,
    },
    /// A tool has news.
    Tool {
        /// Of which call.
        tool_call_id: ToolCallId,
        /// What it is.
        event: ToolEvent,
    },
    /// The answer was held against what it is to look like. If it does not, the words are for the
    /// person.
    OutputChecked(Result<(), Text>),
}

/// What a model says.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum ModelEvent {
    /// Text, reasoning, sources, files, a tool input as it streams in, a call that the provider
    /// runs: what needs no decision. Steps are the run's own; results of calls that it decides about
    /// are, too, and passed over here.
    Said(AgentEvent),
    /// A call, with the whole text of its input as the model wrote it. One that repeats the id of
    /// another call gets an id of its own.
    Call(Box<ToolCall>, String),
    /// A call that the provider runs if a person says yes, with the whole text of its input. The
    /// provider is told the answer with the next request; nothing is run here.
    ProviderAsks(Box<ToolCall>, String),
    /// What the call cost, as far as it is known.
    Used(Usage),
    /// The model has said everything.
    Finished(FinishReason),
}

/// What is to become of a call.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Verdict {
    /// It runs.
    Run,
    /// A person is asked first.
    AskPerson,
    /// The client runs it.
    LeaveToClient,
}

/// What a tool says while it runs.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum ToolEvent {
    /// An output that a later one replaces.
    Preliminary(Json),
    /// Data of the application, which the person sees beside the call.
    Data(Box<Data>),
    /// Something that it used.
    Source(Box<Source>),
    /// A file that it made.
    File(Box<File>),
    /// What it returned.
    Output(Json),
    /// Why it failed, in words for the person and the model.
    Failed(String),
}
