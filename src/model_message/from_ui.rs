//! [`FromUi`]: UI messages as model messages.

use std::fmt;

use super::content::{
    AssistantContent, FileContent, FileSource, ProviderApprovalContent, ReasoningContent,
    TextContent, ToolContent, ToolResultContent, UserContent,
};
use super::news::Known;
use super::tool_part::{self, Became};
use super::transcript::{Step, Transcript};
use super::{ModelMessage, ToolResult};
use crate::approval::DeferredToolResults;
use crate::json::Json;
use crate::message::{
    DataPart, FilePart, Part, ReasoningPart, Role, TextPart, TextState, ToolPart, UiMessage,
};

/// Makes model messages of UI messages.
///
/// It does what `convertToModelMessages` of the AI SDK does, which leaves transcripts that providers
/// refuse, and differs where that is so:
///
/// | in the history | SDK | here |
/// |---|---|---|
/// | a call that waits, was not answered, was interrupted | no result; its own server then throws | a result that says so |
/// | a denial that the tool part does not show yet | no result until the server adds it | denied |
/// | a preliminary output | is the result | unknown, with that output |
/// | several calls of one id | as they are | an unsettled one beside another is its echo and left out, the others get ids of their own |
/// | no input | none | `{}` |
/// | a tool name that providers refuse | as it is | `_` for what they refuse |
/// | a yes about a call that the provider runs | forwarded | only with [`with_deferred`](Self::with_deferred) |
/// | approvals of settled calls, and of tools run here | beside the call | left out: the result says it |
/// | a blank text, an empty file, reasoning that nothing followed | kept | left out |
/// | metadata of a piece that was still streaming | kept | left out: it may be half of it |
/// | texts behind a call in a message without steps | in the same step | in the next step |
/// | two messages of the assistant, or two of the user | two | one |
/// | nothing to read in a user's message | an empty message | a sentence that says so |
/// | the assistant speaks first | it does | after a sentence in the place of the user |
/// | a message of the system | kept | left out: instructions are the host's |
///
/// An input that was still streaming is left out by both, and so are sources, unknown parts, and
/// `data-*` parts unless [`with_data`](Self::with_data) says otherwise.
///
/// ```
/// use ui_message_stream::UiMessage;
/// use ui_message_stream::model_message::{FromUi, ModelMessage};
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
/// prompt.extend(FromUi::new().model_messages(&messages));
///
/// assert_eq!(prompt.len(), 5);
/// let tool = serde_json::to_string(&prompt[3]).unwrap();
/// assert!(tool.contains(r#""toolCallId":"c1""#) && tool.contains(r#""why":"unanswered""#));
/// # Ok::<(), ui_message_stream::message::ReadMessageError>(())
/// ```
#[derive(Default)]
#[must_use]
pub struct FromUi<'a> {
    deferred: Option<&'a DeferredToolResults>,
    data: Option<DataText<'a>>,
    output: Option<ReadOutput<'a>>,
}

/// What a model reads of an output of this tool, if that is not the output.
type ReadOutput<'a> = Box<dyn Fn(&str, &Json) -> Option<Json> + 'a>;

/// What a model reads of a `data-*` part, if anything.
type DataText<'a> = Box<dyn Fn(&DataPart) -> Option<String> + 'a>;

impl<'a> FromUi<'a> {
    /// From the history alone.
    pub fn new() -> Self {
        Self::default()
    }

    /// Tells the model what this turn knows beyond the history of the calls that are open in it:
    /// that an answer did not count, so that the tool did not run; what was answered; and the
    /// person's yes to what the provider is to run. What is settled in the history stays.
    ///
    /// The tools that a yes lets run here are run before: until their results are known, these
    /// calls have none.
    pub fn with_deferred(mut self, deferred: &'a DeferredToolResults) -> Self {
        self.deferred = Some(deferred);
        self
    }

    /// Lets the model read a `data-*` part as this text.
    ///
    /// ```
    /// use ui_message_stream::UiMessage;
    /// use ui_message_stream::model_message::{FromUi, ModelMessage};
    ///
    /// let message = r#"{"id": "m", "role": "user", "parts": [{"type": "data-place", "data": "here"}]}"#;
    /// let from_ui = FromUi::new().with_data(|part| match &*part.name {
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

    /// Lets the model read this instead of the output of a tool, by the tool's name.
    ///
    /// ```
    /// use ui_message_stream::model_message::FromUi;
    /// use ui_message_stream::{Json, UiMessage};
    ///
    /// let message = r#"{"id": "m", "role": "assistant", "parts": [{
    ///     "type": "tool-map", "toolCallId": "c", "state": "output-available",
    ///     "input": {}, "output": "<svg>…</svg>"}]}"#;
    /// let from_ui = FromUi::new().with_outputs(|tool, _| {
    ///     (tool == "map").then(|| Json::string("The person sees the map."))
    /// });
    /// let messages = from_ui.model_messages(&[UiMessage::parse(message)?]);
    /// assert!(serde_json::to_string(&messages).unwrap().contains("The person sees the map."));
    /// # Ok::<(), ui_message_stream::message::ReadMessageError>(())
    /// ```
    pub fn with_outputs(mut self, read: impl Fn(&str, &Json) -> Option<Json> + 'a) -> Self {
        self.output = Some(Box::new(read));
        self
    }

    /// Makes the model messages. What they promise stands at the head of the
    /// [room](crate::model_message).
    ///
    /// They end as the history ends: with the assistant's words if nobody said anything since.
    pub fn model_messages(&self, messages: &[UiMessage]) -> Vec<ModelMessage> {
        let news = self.deferred.map(|deferred| Known::of(deferred, messages)).unwrap_or_default();
        let last_of_person = messages.iter().rposition(|message| message.role == Role::User);
        let mut transcript = Transcript::default();
        for (at, message) in messages.iter().enumerate() {
            match message.role {
                Role::System => {}
                Role::User => transcript.push_user(self.said_by_person(message)),
                Role::Assistant => {
                    let person_wrote_on = last_of_person.is_some_and(|last| last > at);
                    let read = self.output.as_ref();
                    let assistant = Assistant { at, news: &news, person_wrote_on, read };
                    self.push_assistant(&mut transcript, message, &assistant);
                }
            }
        }
        transcript.into_messages()
    }

    fn said_by_person(&self, message: &UiMessage) -> Vec<UserContent> {
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
        assistant: &Assistant<'_>,
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
                Part::Tool(part) => {
                    // Two settled calls of one id are two: some providers count anew in each step.
                    if part.is_settled() || overruled.binary_search(&place).is_err() {
                        assistant.push_call(transcript, &mut step, part, place);
                    }
                    continue;
                }
                Part::Text(part) => text(part).map(AssistantContent::Text),
                Part::Reasoning(part) => reasoning(part).map(AssistantContent::Reasoning),
                Part::File(part) => file(part).map(AssistantContent::File),
                Part::Data(part) => self.data(part).map(AssistantContent::Text),
                Part::SourceUrl(_) | Part::SourceDocument(_) | Part::Unknown(_) => None,
            };
            let Some(said) = said else { continue };
            if !has_steps && !step.results.is_empty() {
                transcript.push_step(std::mem::take(&mut step));
            }
            step.said.push(said);
        }
        transcript.push_step(step);
    }

    fn data(&self, part: &DataPart) -> Option<TextContent> {
        let text = self.data.as_ref()?(part)?;
        (!text.trim().is_empty()).then(|| TextContent::new(text))
    }
}

impl fmt::Debug for FromUi<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FromUi").field("deferred", &self.deferred).finish_non_exhaustive()
    }
}

/// What is to be known of an assistant message to say what became of its calls.
struct Assistant<'a> {
    /// Where the message stands in the history.
    at: usize,
    news: &'a Known<'a>,
    person_wrote_on: bool,
    read: Option<&'a ReadOutput<'a>>,
}

impl Assistant<'_> {
    fn push_call(
        &self,
        transcript: &mut Transcript,
        step: &mut Step,
        part: &ToolPart,
        place: usize,
    ) {
        let news = self.news.of_part(self.at, place);
        let Some(became) = Became::of(part, news, self.person_wrote_on) else { return };
        let tool_call_id = transcript.unique(&part.tool_call_id);
        let call = tool_part::call(part, tool_call_id.clone());
        let (tool_name, by_provider) = (call.tool_name.clone(), call.provider_executed);
        step.said.push(AssistantContent::ToolCall(call));
        let result = |result: ToolResult| ToolResultContent {
            tool_call_id: tool_call_id.clone(),
            tool_name,
            result,
            provider_metadata: tool_part::result_metadata(part),
        };
        match became {
            Became::Result(became) if by_provider => {
                step.said.push(AssistantContent::ToolResult(result(became)));
            }
            Became::Result(ToolResult::Output(output)) => {
                let read = self.read.and_then(|read| read(&part.tool_name, &output));
                let output = ToolResult::Output(read.unwrap_or(output));
                step.results.push(ToolContent::Result(result(output)));
            }
            Became::Result(became) => step.results.push(ToolContent::Result(result(became))),
            Became::Answered { approval_id, approved, reason } => {
                let answer =
                    ProviderApprovalContent { approval_id, tool_call_id, approved, reason };
                step.results.push(ToolContent::ProviderApproval(answer));
            }
        }
    }
}

fn text(part: &TextPart) -> Option<TextContent> {
    (!part.text.trim().is_empty()).then(|| TextContent {
        text: part.text.clone(),
        provider_metadata: part.provider_metadata.clone().filter(|_| is_whole(part.state)),
    })
}

/// Without its signature a provider cannot read its thoughts again; without words and signature
/// there is nothing to read.
fn reasoning(part: &ReasoningPart) -> Option<ReasoningContent> {
    let provider_metadata = part.provider_metadata.clone().filter(|_| is_whole(part.state));
    let says_something = !part.text.trim().is_empty() || provider_metadata.is_some();
    says_something.then(|| ReasoningContent { text: part.text.clone(), provider_metadata })
}

fn is_whole(state: Option<TextState>) -> bool {
    state != Some(TextState::Streaming)
}

fn file(part: &FilePart) -> Option<FileContent> {
    let source = FileSource::at(&part.url);
    let (FileSource::Url(content) | FileSource::Base64(content)) = &source;
    (!content.is_empty()).then(|| FileContent {
        filename: part.filename.clone(),
        provider_metadata: part.provider_metadata.clone(),
        ..FileContent::new(part.media_type.clone(), source)
    })
}
