//! [`messages`]: converts model messages to rig's messages.

use std::collections::{HashMap, HashSet};

use rig_core::message::{
    self, AssistantMessage, Audio, AudioMediaType, CallId, Document, DocumentMediaType,
    DocumentSourceKind, Image, ImageMediaType, MediaType, Message, MimeType, Opaque, Origin,
    ToolFunction, ToolName, ToolResult, ToolResultContent, Video,
};
use serde_json::Value;

use super::provider_state::{ProviderState, with_image_data};
use super::provider_tools;
use ui_message_stream::id::ToolCallId;
use ui_message_stream::metadata::ProviderMetadata;
use ui_message_stream::model::files::{as_text, is_http_url, media_type_essence, placeholder};
use ui_message_stream::model::{
    AssistantContent, CallIdRule, FileContent, FileSource, ModelMessage, NotExecutedReason,
    ToolApprovalResponseContent, ToolCallContent, ToolContent, ToolResult as ModelToolResult,
    UserContent,
};

/// Converts model messages to rig's messages.
///
/// Results are in the user message after the calls. Reasoning is sent only to the model that
/// produced it; reasoning without stored state is left out. A call that the provider executed is
/// sent as its original item, which rig leaves out for other models. A call without such an item,
/// or with an item of another model than that of the message, is sent as an ordinary call. An image
/// that the provider generated is described as text for other models. An approval is only in
/// the request that sends it to the provider.
pub(crate) fn messages(messages: &[ModelMessage]) -> Vec<Message> {
    let mut history = HistoryBuilder {
        executed_requests: approved_request_ids(messages),
        ..HistoryBuilder::default()
    };
    for (at, message) in messages.iter().enumerate() {
        match message {
            ModelMessage::System { text } => history.messages.push(Message::system(text)),
            ModelMessage::User { content } => {
                content.iter().for_each(|content| history.push_user(user_content(content)));
            }
            ModelMessage::Assistant { content } => {
                history.push_assistant(content, messages.get(at + 1));
            }
            ModelMessage::Tool { content } => {
                content.iter().for_each(|content| history.push_tool(content));
            }
        }
    }
    history.messages
}

#[derive(Default)]
struct HistoryBuilder {
    messages: Vec<Message>,
    /// rig's ids and names of the calls.
    calls: HashMap<ToolCallId, (CallId, ToolName)>,
    /// The approval requests whose result is in another item of the provider.
    executed_requests: HashSet<String>,
}

impl HistoryBuilder {
    fn push_user(&mut self, content: message::UserContent) {
        match self.messages.last_mut() {
            Some(Message::User { content: said }) => said.push(content),
            _ => self.messages.push(Message::User { content: vec![content] }),
        }
    }

    fn push_assistant(&mut self, content: &[AssistantContent], next: Option<&ModelMessage>) {
        let state: Vec<ProviderState> =
            content.iter().map(|content| ProviderState::from_metadata(metadata(content))).collect();
        let origin = state.iter().rev().find_map(|state| state.origin.clone());
        let states = state.into_iter().map(|state| state_of_model(state, origin.as_ref()));
        let states: Vec<ProviderState> = states.collect();
        let mut said = Vec::new();
        let mut results = Vec::new();
        let mut answers = Vec::new();
        for (at, (piece, state)) in content.iter().zip(&states).enumerate() {
            let mut state = state.clone();
            let behind = std::mem::take(&mut state.behind);
            match piece {
                AssistantContent::Text(text) => {
                    let mut block = message::Text::new(&text.text);
                    block.native = state.native;
                    said.push(message::AssistantContent::Text(block));
                }
                // Without its model the reasoning would be treated as text.
                AssistantContent::Reasoning(_) if origin.is_none() => {}
                AssistantContent::Reasoning(thought) => {
                    said.extend(reasoning(&thought.text, state))
                }
                // The item that generated the file contains it.
                AssistantContent::File(_) if image(content, &states, at + 1).is_some() => {}
                AssistantContent::File(file) => said.push(assistant_file(file, state)),
                AssistantContent::ToolCall(call) => {
                    let item = state.opaque.take().filter(is_sent_back);
                    let item = match item.filter(|_| call.provider_executed) {
                        Some(item) if provider_tools::is_approval_request(&item) => {
                            let result = provider_tools::result(content, &call.tool_call_id);
                            match self.approval_state(
                                &item,
                                result,
                                provider_tools::approval_response_in(next, &call.tool_call_id),
                            ) {
                                ApprovalState::Executed => {
                                    provider_tools::drop_trailing_reasoning(&mut said);
                                    continue;
                                }
                                ApprovalState::Unknown => None,
                                ApprovalState::Responded(answer) => {
                                    answers.push(message::AssistantContent::Opaque(answer));
                                    Some(item)
                                }
                            }
                        }
                        // The item lacks its image.
                        Some(item) if provider_tools::is_image(&item) => None,
                        item => item,
                    };
                    said.extend(match (image(content, &states, at), item) {
                        (Some(image), _) => Some(image),
                        (None, Some(item)) => Some(message::AssistantContent::Opaque(item)),
                        (None, None) => self.call(call, state),
                    });
                }
                AssistantContent::ToolResult(result) => {
                    let item = state.opaque.filter(is_sent_back);
                    let own =
                        item.filter(|item| item.kind().is_some_and(provider_tools::is_result));
                    said.extend(own.map(message::AssistantContent::Opaque));
                    results.push((&result.tool_call_id, &result.result));
                }
            }
            said.extend(
                behind.into_iter().filter(is_sent_back).map(message::AssistantContent::Opaque),
            );
        }
        remove_trailing_reasoning(&mut said);
        said.extend(answers);
        match self.messages.last_mut() {
            _ if said.is_empty() => {}
            // Only an approval response for the provider can stand between the two messages, and it
            // is added after its request.
            Some(Message::Assistant(before)) if may_be_same_model(before, origin.as_ref()) => {
                before.origin = before.origin.take().or(origin);
                before.content.append(&mut said);
            }
            _ => {
                let message = AssistantMessage::new(said).with_origin(origin);
                self.messages.push(Message::Assistant(message));
            }
        }
        for (id, result) in results {
            self.push_result(id, result);
        }
    }

    /// Returns how an approval request of the provider is sent.
    fn approval_state(
        &self,
        request: &Opaque,
        result: Option<&ModelToolResult>,
        answer: Option<&ToolApprovalResponseContent>,
    ) -> ApprovalState {
        let id = provider_tools::id(request).unwrap_or_default();
        match (answer, result) {
            (Some(answer), _) => ApprovalState::Responded(provider_tools::approval_response(
                id,
                answer.approved,
                answer.reason.as_deref(),
            )),
            (None, None) => ApprovalState::Executed,
            (None, _) if self.executed_requests.contains(id) => ApprovalState::Executed,
            // The call may have been executed, under an id that is not known here.
            (
                None,
                Some(
                    ModelToolResult::Output(_)
                    | ModelToolResult::Error(_)
                    | ModelToolResult::Executing
                    | ModelToolResult::OutcomeUnknown { .. },
                ),
            ) => ApprovalState::Unknown,
            (None, Some(no)) => ApprovalState::Responded(provider_tools::approval_response(
                id,
                false,
                Some(&no.text()),
            )),
        }
    }

    fn call(
        &mut self,
        call: &ToolCallContent,
        state: ProviderState,
    ) -> Option<message::AssistantContent> {
        let name = ToolName::new(&*call.tool_name).ok()?;
        // If two responses use one id for two calls, rig gives one of them a new id.
        // Another adapter may have made the call.
        let id = || CallId::from_wire(&*CALL_IDS.apply(&call.tool_call_id));
        let id = state.call.unwrap_or_else(id);
        self.calls.insert(call.tool_call_id.clone(), (id.clone(), name.clone()));
        let input: Value = call.input.decode().unwrap_or_default();
        let mut call = message::ToolCall::new(id, ToolFunction::new(name, input));
        call.native = state.native;
        Some(message::AssistantContent::ToolCall(call))
    }

    fn push_tool(&mut self, content: &ToolContent) {
        match content {
            ToolContent::Result(result) => self.push_result(&result.tool_call_id, &result.result),
            // The provider that would execute the call is not the one behind this adapter.
            ToolContent::ProviderApproval(answer) if answer.approved => {
                self.push_result(&answer.tool_call_id, &NotExecutedReason::Rejected.into());
            }
            ToolContent::ProviderApproval(answer) => {
                let denied = ModelToolResult::Denied { reason: answer.reason.clone() };
                self.push_result(&answer.tool_call_id, &denied);
            }
        }
    }

    fn push_result(&mut self, id: &ToolCallId, result: &ModelToolResult) {
        let Some((call, name)) = self.calls.get(id).cloned() else { return };
        self.push_user(message::UserContent::ToolResult(ToolResult {
            call,
            name,
            content: output(result),
            is_error: result.is_error(),
        }));
    }
}

/// The state of an approval request of the provider.
enum ApprovalState {
    /// The request has this response.
    Responded(Opaque),
    /// Another item contains the result, or there is none.
    Executed,
    /// The call may have been approved, and only the history contains the result.
    Unknown,
}

/// Returns the ids of the approval requests whose calls are in the messages.
fn approved_request_ids(messages: &[ModelMessage]) -> HashSet<String> {
    let content = messages.iter().filter_map(|message| match message {
        ModelMessage::Assistant { content } => Some(content),
        _ => None,
    });
    let state = content.flatten().map(|content| ProviderState::from_metadata(metadata(content)));
    let items = state.flat_map(|state| state.opaque.into_iter().chain(state.behind));
    let approval_ids =
        items.filter_map(|opaque| provider_tools::approved_by(&opaque.item).map(str::to_owned));
    approval_ids.collect()
}

/// Returns the image that the provider generated if the item at this position is the call that
/// generated it and is sent back. The image is the file before the call. The model that generated
/// the image gets the original item, and other models get a text.
fn image(
    content: &[AssistantContent],
    state: &[ProviderState],
    at: usize,
) -> Option<message::AssistantContent> {
    let AssistantContent::File(file) = content.get(at.checked_sub(1)?)? else { return None };
    let AssistantContent::ToolCall(call) = content.get(at)? else { return None };
    let opaque = state.get(at)?.opaque.as_ref().filter(|_| call.provider_executed)?;
    let FileSource::Base64(data) = &file.source else { return None };
    if !provider_tools::is_image(opaque) || !is_sent_back(opaque) {
        return None;
    }
    let mut item = opaque.item.clone();
    item.as_object_mut()?.insert("result".to_owned(), data.as_str().into());
    // Not an image of rig: rig leaves such an image out, with its item, for a model that cannot
    // read images.
    Some(message::AssistantContent::text(placeholder(file)).with_native(item))
}

/// Whether a stored item is sent. Approval responses never come from stored state: they come from
/// the user, and are sent once.
fn is_sent_back(opaque: &Opaque) -> bool {
    opaque.replay && !provider_tools::is_approval_response(opaque)
}

/// Removes reasoning at the end that neither text nor a call follows: rig may leave out what does
/// follow, and a provider rejects a message that ends with reasoning.
fn remove_trailing_reasoning(said: &mut Vec<message::AssistantContent>) {
    let is_content = |block: &message::AssistantContent| match block {
        message::AssistantContent::Text(_) | message::AssistantContent::ToolCall(_) => true,
        message::AssistantContent::Opaque(opaque) => !provider_tools::is_conditional(opaque),
        _ => false,
    };
    let after = said.iter().rposition(is_content).map_or(0, |last| last + 1);
    let rest = said.split_off(after);
    let is_reasoning = |block: &message::AssistantContent| {
        matches!(block, message::AssistantContent::Reasoning(_))
    };
    said.extend(rest.into_iter().filter(|block| !is_reasoning(block)));
}

/// Whether the next content may come from the model that produced this message.
fn may_be_same_model(said: &AssistantMessage, next: Option<&Origin>) -> bool {
    let (Some(origin), Some(next)) = (&said.origin, next) else { return true };
    origin == next
}

/// Returns the state if the model of the part is the model of the message. Otherwise returns only
/// the id of the call.
fn state_of_model(state: ProviderState, origin: Option<&Origin>) -> ProviderState {
    let is_same = state.origin.is_none() || state.origin.as_ref() == origin;
    if is_same { state } else { ProviderState { call: state.call, ..ProviderState::default() } }
}

fn reasoning(text: &str, state: ProviderState) -> Option<message::AssistantContent> {
    if let Some(opaque) = state.opaque {
        // An item that was too large to store is still named, because of the reasoning before it.
        let is_answer = provider_tools::is_approval_response(&opaque);
        return (!is_answer).then_some(message::AssistantContent::Opaque(opaque));
    }
    if state.native.is_none() && !state.redacted {
        return None;
    }
    let mut thought = message::Reasoning::new(text);
    thought.redacted = state.redacted;
    thought.native = state.native;
    Some(message::AssistantContent::Reasoning(thought))
}

fn output(result: &ModelToolResult) -> Vec<ToolResultContent> {
    let ModelToolResult::Output(output) = result else {
        return vec![ToolResultContent::text(result.text())];
    };
    if let Ok(content) = output.decode::<Vec<ToolResultContent>>()
        && has_only_inline_images(&content)
    {
        return content.into_iter().map(with_readable_image).collect();
    }
    match output.decode::<Value>() {
        Ok(value) if !value.is_string() => vec![ToolResultContent::json(value)],
        _ => vec![ToolResultContent::text(result.text())],
    }
}

/// Whether the content contains images in the form in which a rig tool returns them, all of them
/// with their data. A tool may have read an address or a file id of the provider from an untrusted
/// source.
fn has_only_inline_images(content: &[ToolResultContent]) -> bool {
    let mut images = content.iter().filter_map(|content| match content {
        ToolResultContent::Image(image) => Some(image),
        _ => None,
    });
    let is_own = |image: &Image| matches!(image.data, DocumentSourceKind::Base64(_));
    images.next().is_some_and(is_own) && images.all(is_own)
}

/// Replaces an image that not every provider reads. It stays in the history.
fn with_readable_image(content: ToolResultContent) -> ToolResultContent {
    match &content {
        ToolResultContent::Image(Image { media_type: Some(kind), .. }) if is_refused(kind) => {
            let image = FileContent::new(kind.to_mime_type(), FileSource::Base64(String::new()));
            ToolResultContent::text(placeholder(&image))
        }
        _ => content,
    }
}

/// Whether OpenAI refuses a conversation with an image of this type.
fn is_refused(kind: &ImageMediaType) -> bool {
    matches!(kind, ImageMediaType::HEIC | ImageMediaType::HEIF | ImageMediaType::SVG)
}

fn metadata(content: &AssistantContent) -> Option<&ProviderMetadata> {
    match content {
        AssistantContent::Text(text) => text.provider_metadata.as_ref(),
        AssistantContent::Reasoning(thought) => thought.provider_metadata.as_ref(),
        AssistantContent::ToolCall(call) => call.provider_metadata.as_ref(),
        AssistantContent::File(file) => file.provider_metadata.as_ref(),
        AssistantContent::ToolResult(result) => result.provider_metadata.as_ref(),
    }
}

fn assistant_file(file: &FileContent, state: ProviderState) -> message::AssistantContent {
    match rig_file(file) {
        Some((MediaType::Image(kind), data)) => {
            let native = match (&data, state.native) {
                (DocumentSourceKind::Base64(data), Some(native)) => {
                    with_image_data(native.item, data)
                }
                _ => None,
            };
            let image = Image { data, media_type: Some(kind), ..Image::default() };
            let image = message::AssistantContent::Image(image);
            match native {
                Some(item) => image.with_native(item),
                None => image,
            }
        }
        _ => message::AssistantContent::text(placeholder(file)),
    }
}

fn user_content(content: &UserContent) -> message::UserContent {
    let file = match content {
        UserContent::Text(text) => return message::UserContent::text(&text.text),
        UserContent::File(file) => file,
    };
    match rig_file(file) {
        Some((MediaType::Image(kind), data)) => {
            message::UserContent::Image(Image { data, media_type: Some(kind), ..Image::default() })
        }
        Some((MediaType::Audio(kind), data)) => {
            message::UserContent::Audio(Audio { data, media_type: Some(kind) })
        }
        Some((MediaType::Video(kind), data)) => {
            message::UserContent::Video(Video { data, media_type: Some(kind), ..Video::default() })
        }
        Some((MediaType::Document(kind), data)) => message::UserContent::Document(Document {
            data,
            media_type: Some(kind),
            ..Document::default()
        }),
        None => message::UserContent::text(as_text(file)),
    }
}

/// Returns the file in rig's form, or `None` if it is sent as text. A file stays in the history, so
/// a type that may be rejected is sent as text. rig converts a file that the model cannot read to
/// text.
fn rig_file(file: &FileContent) -> Option<(MediaType, DocumentSourceKind)> {
    let kind = match &*media_type_essence(&file.media_type) {
        "audio/mpeg" => MediaType::Audio(AudioMediaType::MP3),
        "audio/x-wav" => MediaType::Audio(AudioMediaType::WAV),
        name => MediaType::from_mime_type(name)?,
    };
    if matches!(&kind, MediaType::Image(kind) if is_refused(kind)) {
        return None;
    }
    let is_document = matches!(kind, MediaType::Document(_));
    let is_text = is_document && !matches!(kind, MediaType::Document(DocumentMediaType::PDF));
    let data = match &file.source {
        _ if is_text => return None,
        FileSource::Url(url) if is_http_url(url) => DocumentSourceKind::Url(url.clone()),
        FileSource::Url(_) => return None,
        FileSource::Base64(data) => DocumentSourceKind::Base64(data.clone()),
    };
    Some((kind, data))
}

/// What every provider of rig accepts.
const CALL_IDS: CallIdRule =
    CallIdRule::new(1..=40, |it| it.is_ascii_alphanumeric() || matches!(it, '_' | '-'));
