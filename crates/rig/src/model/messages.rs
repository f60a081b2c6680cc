//! [`messages`]: model messages as rig takes them.

use std::collections::{HashMap, HashSet};

use rig_core::message::{
    self, AssistantMessage, Audio, AudioMediaType, CallId, Document, DocumentMediaType,
    DocumentSourceKind, Image, ImageMediaType, MediaType, Message, MimeType, Opaque, Origin,
    ToolFunction, ToolName, ToolResult, ToolResultContent, Video,
};
use serde_json::Value;

use super::provider_state::{Kept, with_picture};
use super::provider_tools;
use ui_message_stream::adapter::files::{as_text, is_http_url, media_type_essence, placeholder};
use ui_message_stream::id::ToolCallId;
use ui_message_stream::metadata::ProviderMetadata;
use ui_message_stream::model_message::{
    AssistantContent, FileContent, FileSource, ModelMessage, NotExecuted, ProviderApprovalContent,
    ToolCallContent, ToolContent, ToolResult as Became, UserContent,
};

/// Model messages as rig takes them. Results stand in the user's message behind the calls.
///
/// Thoughts go back to who thought them: what has nothing kept with it is left out. A call that the
/// provider ran goes back as the item that it was, which rig leaves out for any other of its models;
/// one of which no such item is kept, or the item of another model than said the message, is a call as
/// any other. Of a picture that the provider made they are told. A yes for the provider stands only in
/// the request that tells it.
pub(crate) fn messages(messages: &[ModelMessage]) -> Vec<Message> {
    let mut transcript = Transcript { ran: approved_calls(messages), ..Transcript::default() };
    for (at, message) in messages.iter().enumerate() {
        match message {
            ModelMessage::System { text } => transcript.messages.push(Message::system(text)),
            ModelMessage::User { content } => {
                content.iter().for_each(|content| transcript.push_user(said_by_person(content)));
            }
            ModelMessage::Assistant { content } => {
                transcript.push_assistant(content, messages.get(at + 1));
            }
            ModelMessage::Tool { content } => {
                content.iter().for_each(|content| transcript.push_tool(content));
            }
        }
    }
    transcript.messages
}

#[derive(Default)]
struct Transcript {
    messages: Vec<Message>,
    /// What rig calls the calls.
    calls: HashMap<ToolCallId, (CallId, ToolName)>,
    /// The questions of which an item of the provider says what came of it.
    ran: HashSet<String>,
}

impl Transcript {
    fn push_user(&mut self, content: message::UserContent) {
        match self.messages.last_mut() {
            Some(Message::User { content: said }) => said.push(content),
            _ => self.messages.push(Message::User { content: vec![content] }),
        }
    }

    fn push_assistant(&mut self, content: &[AssistantContent], next: Option<&ModelMessage>) {
        let kept: Vec<Kept> = content.iter().map(|said| Kept::of(metadata(said))).collect();
        let origin = kept.iter().rev().find_map(|kept| kept.origin.clone());
        let of_all = kept.into_iter().map(|kept| of_same_model(kept, origin.as_ref()));
        let of_all: Vec<Kept> = of_all.collect();
        let (mut said, mut results, mut answers) = (Vec::new(), Vec::new(), Vec::new());
        for (at, (piece, kept)) in content.iter().zip(&of_all).enumerate() {
            let mut kept = kept.clone();
            let behind = std::mem::take(&mut kept.behind);
            match piece {
                AssistantContent::Text(text) => {
                    let mut block = message::Text::new(&text.text);
                    block.native = kept.native;
                    said.push(message::AssistantContent::Text(block));
                }
                // Without its model it would be taken for words.
                AssistantContent::Reasoning(_) if origin.is_none() => {}
                AssistantContent::Reasoning(thought) => said.extend(reasoning(&thought.text, kept)),
                // It stands where the item is that made it.
                AssistantContent::File(_) if picture(content, &of_all, at + 1).is_some() => {}
                AssistantContent::File(file) => said.push(made_file(file, kept)),
                AssistantContent::ToolCall(call) => {
                    let item = kept.opaque.take().filter(goes_back);
                    let item = match item.filter(|_| call.provider_executed) {
                        Some(item) if provider_tools::is_question(&item) => {
                            let result = provider_tools::result(content, &call.tool_call_id);
                            match self.asked(
                                &item,
                                result,
                                provider_tools::answer(next, &call.tool_call_id),
                            ) {
                                Asked::Ran => {
                                    provider_tools::without_thoughts_before(&mut said);
                                    continue;
                                }
                                Asked::Unknown => None,
                                Asked::Answered(answer) => {
                                    answers.push(message::AssistantContent::Opaque(answer));
                                    Some(item)
                                }
                            }
                        }
                        // Without its picture.
                        Some(item) if provider_tools::is_picture(&item) => None,
                        item => item,
                    };
                    said.extend(match (picture(content, &of_all, at), item) {
                        (Some(picture), _) => Some(picture),
                        (None, Some(item)) => Some(message::AssistantContent::Opaque(item)),
                        (None, None) => self.call(call, kept),
                    });
                }
                AssistantContent::ToolResult(result) => {
                    let item = kept.opaque.filter(goes_back);
                    let own =
                        item.filter(|item| item.kind().is_some_and(provider_tools::is_result));
                    said.extend(own.map(message::AssistantContent::Opaque));
                    results.push((&result.tool_call_id, &result.result));
                }
            }
            said.extend(
                behind.into_iter().filter(goes_back).map(message::AssistantContent::Opaque),
            );
        }
        without_last_thoughts(&mut said);
        said.extend(answers);
        match self.messages.last_mut() {
            _ if said.is_empty() => {}
            // What stands between them is an answer for the provider, which stands with its question.
            Some(Message::Assistant(before)) if is_of_one_model(before, origin.as_ref()) => {
                before.origin = before.origin.take().or(origin);
                before.content.append(&mut said);
            }
            _ => {
                let message = AssistantMessage::new(said).with_origin(origin);
                self.messages.push(Message::Assistant(message));
            }
        }
        for (id, became) in results {
            self.push_result(id, became);
        }
    }

    /// What became of a question of the provider's.
    fn asked(
        &self,
        question: &Opaque,
        result: Option<&Became>,
        answer: Option<&ProviderApprovalContent>,
    ) -> Asked {
        let id = provider_tools::id(question).unwrap_or_default();
        match (answer, result) {
            (Some(answer), _) => {
                Asked::Answered(provider_tools::told(id, answer.approved, answer.reason.as_deref()))
            }
            (None, None) => Asked::Ran,
            (None, _) if self.ran.contains(id) => Asked::Ran,
            // It may have run, under an id that is not known here.
            (None, Some(Became::Output(_) | Became::Error(_) | Became::Unknown { .. })) => {
                Asked::Unknown
            }
            (None, Some(no)) => Asked::Answered(provider_tools::told(id, false, Some(&no.text()))),
        }
    }

    fn call(&mut self, call: &ToolCallContent, kept: Kept) -> Option<message::AssistantContent> {
        let name = ToolName::new(&*call.tool_name).ok()?;
        // Where two calls of two answers have one id, rig gives one of them another.
        let id = kept.call.unwrap_or_else(|| CallId::from_wire(call.tool_call_id.as_str()));
        self.calls.insert(call.tool_call_id.clone(), (id.clone(), name.clone()));
        let input: Value = call.input.to().unwrap_or_default();
        let mut call = message::ToolCall::new(id, ToolFunction::new(name, input));
        call.native = kept.native;
        Some(message::AssistantContent::ToolCall(call))
    }

    fn push_tool(&mut self, content: &ToolContent) {
        match content {
            ToolContent::Result(result) => self.push_result(&result.tool_call_id, &result.result),
            // Whoever was to run it is not here.
            ToolContent::ProviderApproval(answer) if answer.approved => {
                self.push_result(&answer.tool_call_id, &NotExecuted::Refused.into());
            }
            ToolContent::ProviderApproval(answer) => {
                let denied = Became::Denied { reason: answer.reason.clone() };
                self.push_result(&answer.tool_call_id, &denied);
            }
        }
    }

    fn push_result(&mut self, id: &ToolCallId, became: &Became) {
        let Some((call, name)) = self.calls.get(id).cloned() else { return };
        self.push_user(message::UserContent::ToolResult(ToolResult {
            call,
            name,
            content: output(became),
            is_error: became.is_error(),
        }));
    }
}

/// What became of a question of the provider's.
enum Asked {
    /// It has this answer.
    Answered(Opaque),
    /// Another item says what came of it, or nothing does.
    Ran,
    /// It may have been allowed, and nothing says what came of it but the history.
    Unknown,
}

/// The questions that the calls of tool servers were approved by.
fn approved_calls(messages: &[ModelMessage]) -> HashSet<String> {
    let content = messages.iter().filter_map(|message| match message {
        ModelMessage::Assistant { content } => Some(content),
        _ => None,
    });
    let kept = content.flatten().map(|said| Kept::of(metadata(said)));
    let items = kept.flat_map(|kept| kept.opaque.into_iter().chain(kept.behind));
    let questions =
        items.filter_map(|opaque| provider_tools::approved_by(&opaque.item).map(str::to_owned));
    questions.collect()
}

/// The picture that the provider made, if a call of its tool for that stands there and goes back: the
/// file in front of the call, as the item that it was for the model that made it, in words for others.
fn picture(
    content: &[AssistantContent],
    kept: &[Kept],
    at: usize,
) -> Option<message::AssistantContent> {
    let AssistantContent::File(file) = content.get(at.checked_sub(1)?)? else { return None };
    let AssistantContent::ToolCall(call) = content.get(at)? else { return None };
    let opaque = kept.get(at)?.opaque.as_ref().filter(|_| call.provider_executed)?;
    let FileSource::Base64(data) = &file.source else { return None };
    if !provider_tools::is_picture(opaque) || !goes_back(opaque) {
        return None;
    }
    let mut item = opaque.item.clone();
    item.as_object_mut()?.insert("result".to_owned(), data.as_str().into());
    // Not a picture of rig's: those it leaves out for a model that reads none of its own, with the item.
    Some(message::AssistantContent::text(placeholder(file)).with_native(item))
}

/// Whether a kept item is sent. A yes is never what was kept: it is the person's, and is told once.
fn goes_back(opaque: &Opaque) -> bool {
    opaque.replay && !provider_tools::is_answer(opaque)
}

/// Leaves out thoughts that no words and no call follow: rig may leave out what does follow, and a
/// provider refuses a message that ends in a thought.
fn without_last_thoughts(said: &mut Vec<message::AssistantContent>) {
    let is_said = |block: &message::AssistantContent| match block {
        message::AssistantContent::Text(_) | message::AssistantContent::ToolCall(_) => true,
        message::AssistantContent::Opaque(opaque) => !provider_tools::may_be_left_out(opaque),
        _ => false,
    };
    let after = said.iter().rposition(is_said).map_or(0, |last| last + 1);
    let rest = said.split_off(after);
    let is_thought = |block: &message::AssistantContent| {
        matches!(block, message::AssistantContent::Reasoning(_))
    };
    said.extend(rest.into_iter().filter(|block| !is_thought(block)));
}

/// Whether what is said next may be of the model that said this.
fn is_of_one_model(said: &AssistantMessage, next: Option<&Origin>) -> bool {
    let (Some(origin), Some(next)) = (&said.origin, next) else { return true };
    origin == next
}

/// What was kept, if the model that said it is the one that said the message.
fn of_same_model(kept: Kept, origin: Option<&Origin>) -> Kept {
    let is_same = kept.origin.is_none() || kept.origin.as_ref() == origin;
    if is_same { kept } else { Kept { call: kept.call, ..Kept::default() } }
}

fn reasoning(text: &str, kept: Kept) -> Option<message::AssistantContent> {
    if let Some(opaque) = kept.opaque {
        // What was too large to be kept is named, for the sake of the thoughts in front of it.
        let is_answer = provider_tools::is_answer(&opaque);
        return (!is_answer).then_some(message::AssistantContent::Opaque(opaque));
    }
    if kept.native.is_none() && !kept.redacted {
        return None;
    }
    let mut thought = message::Reasoning::new(text);
    thought.redacted = kept.redacted;
    thought.native = kept.native;
    Some(message::AssistantContent::Reasoning(thought))
}

fn output(became: &Became) -> Vec<ToolResultContent> {
    let Became::Output(output) = became else {
        return vec![ToolResultContent::text(became.text())];
    };
    if let Ok(content) = output.to::<Vec<ToolResultContent>>()
        && has_only_pictures_of_its_own(&content)
    {
        return content;
    }
    match output.to::<Value>() {
        Ok(value) if !value.is_string() => vec![ToolResultContent::json(value)],
        _ => vec![ToolResultContent::text(became.text())],
    }
}

/// Whether it holds pictures, as a tool of rig returns them. What only says where one is, or which
/// of the provider's files it is, a tool may have read anywhere.
fn has_only_pictures_of_its_own(content: &[ToolResultContent]) -> bool {
    let mut pictures = content.iter().filter_map(|content| match content {
        ToolResultContent::Image(image) => Some(image),
        _ => None,
    });
    let is_own = |image: &Image| matches!(image.data, DocumentSourceKind::Base64(_));
    pictures.next().is_some_and(is_own) && pictures.all(is_own)
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

fn made_file(file: &FileContent, kept: Kept) -> message::AssistantContent {
    match shown(file) {
        Some((MediaType::Image(kind), data)) => {
            let native = match (&data, kept.native) {
                (DocumentSourceKind::Base64(data), Some(native)) => with_picture(native.item, data),
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

fn said_by_person(content: &UserContent) -> message::UserContent {
    let file = match content {
        UserContent::Text(text) => return message::UserContent::text(&text.text),
        UserContent::File(file) => file,
    };
    match shown(file) {
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

/// A file as rig takes it. It stays in the history, so that what is not known to be taken is left
/// to be told; what a model does not read, rig tells.
fn shown(file: &FileContent) -> Option<(MediaType, DocumentSourceKind)> {
    let kind = match &*media_type_essence(&file.media_type) {
        "audio/mpeg" => MediaType::Audio(AudioMediaType::MP3),
        "audio/x-wav" => MediaType::Audio(AudioMediaType::WAV),
        "image/jpg" => MediaType::Image(ImageMediaType::JPEG),
        name => MediaType::from_mime_type(name)?,
    };
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
