//! The chunks of a tool call: what each of them holds of the call.

use std::borrow::Cow;

use super::tool_calls::Call;
use crate::chunk::{Chunk, InputEncoding};
use crate::event::ToolCall;
use crate::json::Json;
use crate::metadata::{ProviderMetadata, ToolMetadata};

/// Metadata of a call or of its result. Sent only to clients that know the fields.
#[derive(Clone, Copy)]
pub(super) struct CallMetadata<'a> {
    /// The result says that the provider has executed the call.
    pub(super) provider_executed: bool,
    pub(super) provider_metadata: Option<&'a ProviderMetadata>,
    pub(super) tool_metadata: Option<&'a ToolMetadata>,
}

impl<'a> CallMetadata<'a> {
    pub(super) const NONE: Self =
        CallMetadata { provider_executed: false, provider_metadata: None, tool_metadata: None };

    fn new(announced: Option<&'a ToolCall>) -> Self {
        CallMetadata {
            provider_metadata: announced.and_then(|call| call.provider_metadata.as_ref()),
            tool_metadata: announced.and_then(|call| call.tool_metadata.as_ref()),
            ..CallMetadata::NONE
        }
    }
}

pub(super) fn output_error<'a>(
    call: &'a Call,
    error: &'a str,
    metadata: CallMetadata<'a>,
) -> Chunk<'a> {
    Chunk::ToolOutputError {
        tool_call_id: Cow::Borrowed(&call.wire_id),
        error_text: Cow::Borrowed(error),
        provider_executed: call.provider_executed(),
        provider_metadata: metadata.provider_metadata.map(Cow::Borrowed),
        tool_metadata: metadata.tool_metadata.map(Cow::Borrowed),
        dynamic: call.dynamic_flag(),
    }
}

pub(super) fn input_start<'a>(
    call: &'a Call,
    announced: &'a ToolCall,
    encoding: Option<InputEncoding>,
) -> Chunk<'a> {
    let metadata = CallMetadata::new(Some(announced));
    Chunk::ToolInputStart {
        tool_call_id: Cow::Borrowed(&call.wire_id),
        tool_name: Cow::Borrowed(&call.tool_name),
        input_encoding: encoding,
        provider_executed: call.provider_executed(),
        provider_metadata: metadata.provider_metadata.map(Cow::Borrowed),
        tool_metadata: metadata.tool_metadata.map(Cow::Borrowed),
        dynamic: call.dynamic_flag(),
        title: announced.title.as_deref().map(Cow::Borrowed),
    }
}

pub(super) fn input_available<'a>(
    call: &'a Call,
    announced: Option<&'a ToolCall>,
    input: &'a Json,
) -> Chunk<'a> {
    let metadata = CallMetadata::new(announced);
    Chunk::ToolInputAvailable {
        tool_call_id: Cow::Borrowed(&call.wire_id),
        tool_name: Cow::Borrowed(&call.tool_name),
        input: Some(Cow::Borrowed(input)),
        provider_executed: call.provider_executed(),
        provider_metadata: metadata.provider_metadata.map(Cow::Borrowed),
        tool_metadata: metadata.tool_metadata.map(Cow::Borrowed),
        dynamic: call.dynamic_flag(),
        title: announced.and_then(|announced| announced.title.as_deref()).map(Cow::Borrowed),
    }
}

pub(super) fn input_error<'a>(
    call: &'a Call,
    announced: Option<&'a ToolCall>,
    input: &'a Json,
    error: &'a str,
) -> Chunk<'a> {
    let metadata = CallMetadata::new(announced);
    Chunk::ToolInputError {
        tool_call_id: Cow::Borrowed(&call.wire_id),
        tool_name: Cow::Borrowed(&call.tool_name),
        input: Some(Cow::Borrowed(input)),
        error_text: Cow::Borrowed(error),
        provider_executed: call.provider_executed(),
        provider_metadata: metadata.provider_metadata.map(Cow::Borrowed),
        tool_metadata: metadata.tool_metadata.map(Cow::Borrowed),
        dynamic: call.dynamic_flag(),
        title: announced.and_then(|announced| announced.title.as_deref()).map(Cow::Borrowed),
    }
}

/// Returns the beginning of a title of more than [`MAX_TITLE_BYTES`], or `None` if it is short.
pub(super) fn shortened_title(title: &str) -> Option<String> {
    if title.len() <= MAX_TITLE_BYTES {
        return None;
    }
    let end = (0..=MAX_TITLE_BYTES).rev().find(|at| title.is_char_boundary(*at))?;
    Some(format!("{}…", &title[..end]))
}

/// The maximum number of bytes of a title. Tool servers choose titles, and each call of the tool
/// repeats its title.
const MAX_TITLE_BYTES: usize = 1024;
