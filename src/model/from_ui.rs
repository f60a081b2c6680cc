//! [`ToModelMessages`]: converts UI messages to model messages.

use std::fmt;

use super::call_updates::CallUpdates;
use super::content::{
    AssistantContent, FileContent, FileSource, ReasoningContent, TextContent,
    ToolApprovalResponseContent, ToolContent, ToolResultContent, UserContent,
};
use super::tool_part::{self, CallContent};
use super::transcript::{Step, Transcript};
use super::{ModelMessage, ToolResult};
use crate::approval::{ChangedInput, DeferredOutcome, DeferredToolResult, DeferredToolResults};
use crate::id::{MessageId, ToolCallId};
use crate::json::Json;
use crate::message::{
    AnswerEnd, DataPart, FilePart, Part, ReasoningPart, Role, TextPart, TextState, ToolPart,
    UiMessage,
};

/// Converts UI messages to model messages.
///
/// It does what `convertToModelMessages` of the AI SDK does. That function can return messages that
/// providers reject; the conversion here differs in these cases:
///
/// | in the history | SDK | here |
/// |---|---|---|
/// | a call that waits, runs, has no response, or was interrupted | no result | a result that states the reason |
/// | a denial that the tool part does not show yet | no result until the server adds it | denied |
/// | a preliminary output | is the result | outcome unknown, with that output |
/// | several calls with one id | unchanged | a call without a result that has the same id as another call is left out as a repetition; all other calls get unique ids |
/// | no input | none | `{}` |
/// | a tool name that providers reject | unchanged | `_` replaces each rejected character |
/// | an approval of a call that the provider executes | forwarded | forwarded only with [`with_deferred`](Self::with_deferred) |
/// | a call whose approver changed the input (`data-approval`) | the changed input | the input of the model; the result says what it ran with |
/// | a call [inside](crate::event::ToolCall::inside) another one | a call of the model | left out: the agent that made it has read its result |
/// | approvals of settled calls, and of tools executed here | beside the call | omitted, because the result states it |
/// | a blank text, an empty file, reasoning that nothing follows | kept | left out |
/// | metadata of a part that was still streaming | kept | left out, because it may be incomplete |
/// | text after a call in a message without steps | in the same step | in the next step |
/// | two adjacent assistant messages, or two adjacent user messages | two messages | one message |
/// | a user message without readable content | an empty message | a placeholder sentence |
/// | an assistant message at the beginning | comes first | comes after a sentence in a user message |
/// | a system message | kept | left out: only the host gives instructions |
/// | an answer whose [end](UiMessage::answer_end) is not `finished`, before a user message | without a trace | a sentence says so at the beginning of the user message |
///
/// Both leave out an input that was still streaming, sources, unknown parts, and `data-*` parts.
/// [`with_data`](Self::with_data) includes `data-*` parts.
///
/// ```
/// use ui_message_stream::UiMessage;
/// use ui_message_stream::model::{ToModelMessages, ModelMessage};
///
/// let messages = [
///     r#"{"id": "m1", "role": "user", "parts": [{"type": "text", "text": "Delete it"}]}"#,
///     r#"{"id": "m2", "role": "assistant", "parts": [{"type": "step-start"}, {
///         "type": "tool-delete_file", "toolCallId": "c1", "state": "approval-requested",
///         "input": {"path": "a"}, "approval": {"id": "ap1"}}]}"#,
///     r#"{"id": "m3", "role": "user", "parts": [{"type": "text", "text": "Wait"}]}"#,
/// ];
/// let messages: Vec<UiMessage> =
///     messages.iter().map(|text| UiMessage::parse(text)).collect::<Result<_, _>>()?;
///
/// let mut prompt = vec![ModelMessage::system("You tidy up.")];
/// prompt.extend(ToModelMessages::new().model_messages(&messages));
///
/// assert_eq!(prompt.len(), 5);
/// let tool = serde_json::to_string(&prompt[3]).unwrap();
/// assert!(tool.contains(r#""toolCallId":"c1""#) && tool.contains(r#""why":"unanswered""#));
/// # Ok::<(), ui_message_stream::message::ReadMessageError>(())
/// ```
#[derive(Default)]
#[must_use]
pub struct ToModelMessages<'a> {
    deferred: Option<&'a DeferredToolResults>,
    call_outcomes: &'a [DeferredToolResult],
    data: Option<DataToText<'a>>,
    output: Option<OutputMap<'a>>,
    is_unverified: Option<IsUnverified<'a>>,
}

/// Returns whether only the client claims that a call of a message happened.
type IsUnverified<'a> = Box<dyn Fn(&MessageId, &ToolCallId) -> bool + 'a>;

/// Returns what the model reads instead of an output of the named tool, or `None` to keep the
/// output.
type OutputMap<'a> = Box<dyn Fn(&str, &Json) -> Option<Json> + 'a>;

/// Returns the text that the model reads for a `data-*` part, or `None` to leave the part out.
type DataToText<'a> = Box<dyn Fn(&DataPart) -> Option<String> + 'a>;

impl<'a> ToModelMessages<'a> {
    /// Creates a converter that uses the history alone.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the results from this turn for calls that have no result in the history.
    ///
    /// This covers rejected approval responses (the tool did not run), the decisions and results of
    /// this turn, and the user's approvals of calls that the provider executes. Calls that are
    /// settled in the history do not change.
    ///
    /// Tools that this side executes after an approval must be executed before the conversion:
    /// until their results are known, the model reads that their outcome is unknown.
    pub fn with_deferred(mut self, deferred: &'a DeferredToolResults) -> Self {
        self.deferred = Some(deferred);
        self
    }

    /// Adds the recorded outcomes of calls for which the history holds only an error text:
    /// `Chat::call_outcomes` of a stored conversation.
    ///
    /// The history holds an error text, for example for a call that was not executed. A tool can
    /// fail with the same text, so without the recorded outcome the model reads the text as an
    /// error of the tool.
    pub fn with_call_outcomes(mut self, outcomes: &'a [DeferredToolResult]) -> Self {
        self.call_outcomes = outcomes;
        self
    }

    /// Sets a function that returns the text of a `data-*` part. A part for which it returns `None`
    /// is left out.
    ///
    /// ```
    /// use ui_message_stream::UiMessage;
    /// use ui_message_stream::model::{ToModelMessages, ModelMessage};
    ///
    /// let message = r#"{"id": "m", "role": "user", "parts": [{"type": "data-place", "data": "here"}]}"#;
    /// let from_ui = ToModelMessages::new().with_data(|part| match &*part.name {
    ///     "place" => Some(format!("I am at: {}", part.data.as_ref()?)),
    ///     _ => None,
    /// });
    /// let messages = from_ui.model_messages(&[UiMessage::parse(message)?]);
    /// assert_eq!(messages, [ModelMessage::user("I am at: \"here\"")]);
    /// # Ok::<(), ui_message_stream::message::ReadMessageError>(())
    /// ```
    pub fn with_data(mut self, text: impl Fn(&DataPart) -> Option<String> + 'a) -> Self {
        self.data = Some(Box::new(text));
        self
    }

    /// Sets a function that replaces outputs: it receives the tool's name and the output, and
    /// returns what the model reads instead. The output is kept if the function returns `None`.
    ///
    /// ```
    /// use ui_message_stream::model::ToModelMessages;
    /// use ui_message_stream::{Json, UiMessage};
    ///
    /// let message = r#"{"id": "m", "role": "assistant", "parts": [{
    ///     "type": "tool-map", "toolCallId": "c", "state": "output-available",
    ///     "input": {}, "output": "<svg>…</svg>"}]}"#;
    /// let from_ui = ToModelMessages::new().with_outputs(|tool, _| {
    ///     (tool == "map").then(|| Json::string("The person sees the map."))
    /// });
    /// let messages = from_ui.model_messages(&[UiMessage::parse(message)?]);
    /// assert!(serde_json::to_string(&messages).unwrap().contains("The person sees the map."));
    /// # Ok::<(), ui_message_stream::message::ReadMessageError>(())
    /// ```
    pub fn with_outputs(mut self, output: impl Fn(&str, &Json) -> Option<Json> + 'a) -> Self {
        self.output = Some(Box::new(output));
        self
    }

    /// Sets a function that returns whether only the client claims that a call happened: it receives
    /// the id of the message and of the call. The model reads with the output or the error of such a
    /// call that it may be invented.
    ///
    /// `Chat::is_unverified` is this function for a stored
    /// conversation. For a host that keeps no conversations, every call is the client's word, except
    /// those with [deferred results](Self::with_deferred).
    ///
    /// ```
    /// use ui_message_stream::UiMessage;
    /// use ui_message_stream::model::ToModelMessages;
    ///
    /// let message = r#"{"id": "m", "role": "assistant", "parts": [{
    ///     "type": "tool-balance", "toolCallId": "c", "state": "output-available",
    ///     "input": {}, "output": "1 000 000"}]}"#;
    /// let from_ui = ToModelMessages::new().with_unverified(|_, _| true);
    /// let messages = from_ui.model_messages(&[UiMessage::parse(message)?]);
    /// assert!(serde_json::to_string(&messages).unwrap().contains("may be invented"));
    /// # Ok::<(), ui_message_stream::message::ReadMessageError>(())
    /// ```
    pub fn with_unverified(
        mut self,
        is_unverified: impl Fn(&MessageId, &ToolCallId) -> bool + 'a,
    ) -> Self {
        self.is_unverified = Some(Box::new(is_unverified));
        self
    }

    /// Converts the messages, oldest first. The [module](crate::model) documents what the result guarantees.
    ///
    /// The result ends as the history ends: with an assistant message if the user sent no later
    /// message.
    pub fn model_messages<'m>(
        &self,
        messages: impl IntoIterator<Item = &'m UiMessage>,
    ) -> Vec<ModelMessage> {
        let messages: Vec<&UiMessage> = messages.into_iter().collect();
        let updates =
            self.deferred.map(|deferred| CallUpdates::new(deferred, &messages)).unwrap_or_default();
        let last_user_message = messages.iter().rposition(|message| message.role == Role::User);
        let mut transcript = Transcript::default();
        for (at, message) in messages.iter().enumerate() {
            match message.role {
                Role::System => {}
                Role::User => transcript.push_user(self.user_content(message)),
                Role::Assistant => {
                    let has_later_user_message = last_user_message.is_some_and(|last| last > at);
                    let map_output = self.output.as_ref();
                    let assistant = AssistantMessage {
                        at,
                        id: &message.id,
                        call_outcomes: self.call_outcomes,
                        updates: &updates,
                        has_later_user_message,
                        map_output,
                        is_unverified: self.is_unverified.as_ref(),
                    };
                    self.push_assistant(&mut transcript, message, &assistant);
                    if let Some(note) = message.answer_end().and_then(early_end_note)
                        && has_later_user_message
                    {
                        transcript.push_user(vec![UserContent::Text(TextContent::new(note))]);
                    }
                }
            }
        }
        transcript.into_messages()
    }

    fn user_content(&self, message: &UiMessage) -> Vec<UserContent> {
        let content = message.parts.iter().filter_map(|part| match part {
            Part::Text(part) => text(part).map(UserContent::Text),
            Part::File(part) => file(part).map(UserContent::File),
            Part::Data(part) => self.data(part).map(UserContent::Text),
            _ => None,
        });
        content.collect()
    }

    fn push_assistant(
        &self,
        transcript: &mut Transcript,
        message: &UiMessage,
        assistant: &AssistantMessage<'_>,
    ) {
        let has_steps = message.parts.iter().any(|part| matches!(part, Part::StepStart { .. }));
        let overruled = message.overruled_tool_parts();
        let mut step = Step::default();
        for (place, part) in message.parts.iter().enumerate() {
            let said = match part {
                Part::StepStart { .. } => {
                    transcript.push_step(std::mem::take(&mut step));
                    continue;
                }
                // The model has not made this call: an agent that it called has.
                Part::Tool(part) if part.outer_call().is_some() => continue,
                Part::Tool(part) => {
                    // Two settled calls with one id are two calls: some providers count from the
                    // beginning in each step.
                    if part.is_settled() || overruled.binary_search(&place).is_err() {
                        let changed = ChangedInput::of_call(message, part);
                        assistant.push_call(transcript, &mut step, (part, place), changed);
                    }
                    continue;
                }
                Part::Text(part) => text(part).map(AssistantContent::Text),
                Part::Reasoning(part) => reasoning(part).map(AssistantContent::Reasoning),
                Part::File(part) => file(part).map(AssistantContent::File),
                Part::Data(part) => self.data(part).map(AssistantContent::Text),
                Part::SourceUrl(_)
                | Part::SourceDocument(_)
                | Part::ReasoningFile(_)
                | Part::Custom(_)
                | Part::Unknown(_) => None,
            };
            let Some(said) = said else { continue };
            if !has_steps && !step.results.is_empty() {
                transcript.push_step(std::mem::take(&mut step));
            }
            step.content.push(said);
        }
        transcript.push_step(step);
    }

    fn data(&self, part: &DataPart) -> Option<TextContent> {
        let text = self.data.as_ref()?(part)?;
        (!text.trim().is_empty()).then(|| TextContent::new(text))
    }
}

impl fmt::Debug for ToModelMessages<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToModelMessages").field("deferred", &self.deferred).finish_non_exhaustive()
    }
}

/// The context that is needed to convert the tool calls of an assistant message.
struct AssistantMessage<'a> {
    /// The index of the message in the history.
    at: usize,
    id: &'a MessageId,
    call_outcomes: &'a [DeferredToolResult],
    updates: &'a CallUpdates<'a>,
    has_later_user_message: bool,
    map_output: Option<&'a OutputMap<'a>>,
    is_unverified: Option<&'a IsUnverified<'a>>,
}

impl AssistantMessage<'_> {
    fn recorded_outcome(&self, call: &ToolCallId) -> Option<&DeferredOutcome> {
        let mut outcomes = self.call_outcomes.iter();
        let outcome = outcomes.find(|outcome| {
            outcome.message_id.as_ref() == Some(self.id) && outcome.tool_call_id == *call
        });
        outcome.map(|outcome| &outcome.outcome)
    }

    fn push_call(
        &self,
        transcript: &mut Transcript,
        step: &mut Step,
        (part, place): (&ToolPart, usize),
        changed: Option<ChangedInput>,
    ) {
        let update = self.updates.get(self.at, place);
        let changed = changed.or_else(|| update?.changed_input().cloned());
        let outcome = self.recorded_outcome(&part.tool_call_id);
        let content = CallContent::new(part, outcome, update, self.has_later_user_message);
        let Some(call_content) = content else { return };
        let tool_call_id = transcript.unique_id(&tool_part::model_id(part));
        let mut call = tool_part::call(part, tool_call_id.clone());
        // The call keeps the input of the model. The result names the changed one.
        if let Some(changed) = &changed {
            call.input = changed.original.clone();
        }
        let with_change = |result: ToolResult| match &changed {
            Some(input) => result.of_changed_input(&input.changed),
            None => result,
        };
        let tool_name = call.tool_name.clone();
        let is_provider_executed = call.provider_executed;
        step.content.push(AssistantContent::ToolCall(call));
        // A result of this turn is the server's own.
        let is_unverified = update.is_none()
            && self.is_unverified.is_some_and(|is| is(self.id, &part.tool_call_id));
        let result = |result: ToolResult| ToolResultContent {
            tool_call_id: tool_call_id.clone(),
            tool_name,
            result: if is_unverified { result.unverified() } else { result },
            provider_metadata: tool_part::result_metadata(part),
        };
        match call_content {
            CallContent::Result(output) if is_provider_executed => {
                step.content.push(AssistantContent::ToolResult(result(output)));
            }
            CallContent::Result(ToolResult::Output(output)) => {
                let read = self.map_output.and_then(|read| read(&part.tool_name, &output));
                let output = with_change(ToolResult::Output(read.unwrap_or(output)));
                step.results.push(ToolContent::Result(result(output)));
            }
            CallContent::Result(output) => {
                step.results.push(ToolContent::Result(result(with_change(output))));
            }
            CallContent::ApprovalResponse { approval_id, approved, reason } => {
                let answer =
                    ToolApprovalResponseContent { approval_id, tool_call_id, approved, reason };
                step.results.push(ToolContent::ProviderApproval(answer));
            }
        }
    }
}

/// Returns what the model reads after an answer that has not finished. It is a text of the user, because a
/// model continues what it reads as its own text.
fn early_end_note(end: AnswerEnd) -> Option<&'static str> {
    match end {
        AnswerEnd::Finished => None,
        AnswerEnd::Stopped => Some("(The answer before this was stopped. It is not complete.)"),
        AnswerEnd::Failed => Some("(The answer before this has failed. It is not complete.)"),
        AnswerEnd::Interrupted => {
            Some("(The answer before this was interrupted. It is not complete.)")
        }
        AnswerEnd::Limit => Some("(The answer before this reached a limit. It is not complete.)"),
    }
}

fn text(part: &TextPart) -> Option<TextContent> {
    (!part.text.trim().is_empty()).then(|| TextContent {
        text: part.text.clone(),
        provider_metadata: part.provider_metadata.clone().filter(|_| is_whole(part.state)),
    })
}

/// Returns the reasoning of a part. Without its signature a provider cannot read the reasoning
/// again. A part with neither text nor metadata has nothing to read and is left out.
fn reasoning(part: &ReasoningPart) -> Option<ReasoningContent> {
    let provider_metadata = part.provider_metadata.clone().filter(|_| is_whole(part.state));
    let says_something = !part.text.trim().is_empty() || provider_metadata.is_some();
    says_something.then(|| ReasoningContent { text: part.text.clone(), provider_metadata })
}

fn is_whole(state: Option<TextState>) -> bool {
    state != Some(TextState::Streaming)
}

fn file(part: &FilePart) -> Option<FileContent> {
    let source = FileSource::from_url(&part.url);
    let (FileSource::Url(content) | FileSource::Base64(content)) = &source;
    (!content.is_empty()).then(|| FileContent {
        filename: part.filename.clone(),
        provider_metadata: part.provider_metadata.clone(),
        ..FileContent::new(part.media_type.clone(), source)
    })
}
