//! [`messages`]: model messages as rig takes them.

use std::collections::HashMap;

use rig_core::message::{
    self, AssistantMessage, Audio, AudioMediaType, CallId, Document, DocumentMediaType,
    DocumentSourceKind, Image, ImageMediaType, MediaType, Message, MimeType, Origin, ToolFunction,
    ToolName, ToolResult, ToolResultContent, Video,
};
use serde_json::Value;

use super::super::files::{essence, in_words, is_web, told};
use super::kept::Kept;
use crate::id::ToolCallId;
use crate::metadata::ProviderMetadata;
use crate::model_message::{
    AssistantContent, FileContent, FileSource, ModelMessage, NotExecuted, ToolCallContent,
    ToolContent, ToolResult as Became, UserContent,
};

/// Model messages as rig takes them. Results stand in the user's message behind the calls.
///
/// Thoughts go back to who thought them: what has nothing kept with it is left out. A call that some
/// provider ran elsewhere is a call as any other.
pub(crate) fn messages(messages: &[ModelMessage]) -> Vec<Message> {
    let mut transcript = Transcript::default();
    for message in messages {
        match message {
            ModelMessage::System { text } => transcript.messages.push(Message::system(text)),
            ModelMessage::User { content } => {
                content.iter().for_each(|content| transcript.push_user(said_by_person(content)));
            }
            ModelMessage::Assistant { content } => transcript.push_assistant(content),
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
}

impl Transcript {
    fn push_user(&mut self, content: message::UserContent) {
        match self.messages.last_mut() {
            Some(Message::User { content: said }) => said.push(content),
            _ => self.messages.push(Message::User { content: vec![content] }),
        }
    }

    fn push_assistant(&mut self, content: &[AssistantContent]) {
        let kept: Vec<Kept> = content.iter().map(|said| Kept::of(metadata(said))).collect();
        let origin = kept.iter().rev().find_map(|kept| kept.origin.clone());
        let (mut said, mut results) = (Vec::new(), Vec::new());
        for (content, kept) in content.iter().zip(kept) {
            let kept = of_same_model(kept, origin.as_ref());
            match content {
                AssistantContent::Text(text) => {
                    let mut block = message::Text::new(&text.text);
                    block.native = kept.native;
                    said.push(message::AssistantContent::Text(block));
                }
                // Without its model it would be taken for words.
                AssistantContent::Reasoning(_) if origin.is_none() => {}
                AssistantContent::Reasoning(thought) => said.extend(reasoning(&thought.text, kept)),
                AssistantContent::File(file) => said.push(made_file(file)),
                AssistantContent::ToolCall(call) => said.extend(self.call(call, kept)),
                AssistantContent::ToolResult(result) => {
                    results.push((&result.tool_call_id, &result.result));
                }
            }
        }
        without_last_thoughts(&mut said);
        if !said.is_empty() {
            let message = AssistantMessage::new(said).with_origin(origin);
            self.messages.push(Message::Assistant(message));
        }
        for (id, became) in results {
            self.push_result(id, became);
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

/// Leaves out thoughts that no words and no call follow: rig may leave out what does follow, and a
/// provider refuses a message that ends in a thought.
fn without_last_thoughts(said: &mut Vec<message::AssistantContent>) {
    let is_said = |block: &message::AssistantContent| {
        matches!(block, message::AssistantContent::Text(_) | message::AssistantContent::ToolCall(_))
    };
    let after = said.iter().rposition(is_said).map_or(0, |last| last + 1);
    let rest = said.split_off(after);
    let is_thought = |block: &message::AssistantContent| {
        matches!(block, message::AssistantContent::Reasoning(_))
    };
    said.extend(rest.into_iter().filter(|block| !is_thought(block)));
}

/// What was kept, if the model that said it is the one that said the message.
fn of_same_model(kept: Kept, origin: Option<&Origin>) -> Kept {
    let is_same = kept.origin.is_none() || kept.origin.as_ref() == origin;
    if is_same { kept } else { Kept { call: kept.call, ..Kept::default() } }
}

fn reasoning(text: &str, kept: Kept) -> Option<message::AssistantContent> {
    if let Some(opaque) = kept.opaque {
        return Some(message::AssistantContent::Opaque(opaque));
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
        AssistantContent::File(_) | AssistantContent::ToolResult(_) => None,
    }
}

fn made_file(file: &FileContent) -> message::AssistantContent {
    match shown(file) {
        Some((MediaType::Image(kind), data)) => message::AssistantContent::Image(Image {
            data,
            media_type: Some(kind),
            ..Image::default()
        }),
        _ => message::AssistantContent::text(in_words(file)),
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
        None => message::UserContent::text(told(file)),
    }
}

/// A file as rig takes it. It stays in the history, so that what is not known to be taken is left
/// to be told; what a model does not read, rig tells.
fn shown(file: &FileContent) -> Option<(MediaType, DocumentSourceKind)> {
    let kind = match &*essence(&file.media_type) {
        "audio/mpeg" => MediaType::Audio(AudioMediaType::MP3),
        "audio/x-wav" => MediaType::Audio(AudioMediaType::WAV),
        "image/jpg" => MediaType::Image(ImageMediaType::JPEG),
        name => MediaType::from_mime_type(name)?,
    };
    let is_document = matches!(kind, MediaType::Document(_));
    let is_text = is_document && !matches!(kind, MediaType::Document(DocumentMediaType::PDF));
    let data = match &file.source {
        _ if is_text => return None,
        FileSource::Url(url) if is_web(url) => DocumentSourceKind::Url(url.clone()),
        FileSource::Url(_) => return None,
        FileSource::Base64(data) => DocumentSourceKind::Base64(data.clone()),
    };
    Some((kind, data))
}
