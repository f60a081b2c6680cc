//! Chunks that an agent emits directly, translated under the same rules as events.

use std::borrow::Cow;

use super::open_parts::{Kind, PartEnd};
use super::out::Out;
use super::tool_chunks::CallMetadata;
use super::tools::{ApprovalRequest, Output};
use super::{TranslateError, Translator};
use crate::chunk::{Chunk, FinishReason};
use crate::event::{Data, Executor, Text, ToolCall};
use crate::id::{ApprovalId, PartId, ToolCallId};
use crate::json::Json;

/// Translates a chunk that an agent emits.
pub(super) fn pass_through(
    translator: &mut Translator,
    chunk: &Chunk<'static>,
    out: &mut Out<'_>,
) -> Result<(), TranslateError> {
    match chunk {
        Chunk::Start { message_id, message_metadata } => {
            // If the message has an id already, another id would make a second message.
            if !translator.started && translator.message_id.is_none() {
                translator.message_id = message_id.as_deref().map(Into::into);
            }
            translator.ensure_started(out);
            if let Some(metadata) = message_metadata {
                translator.add_metadata(metadata, out)?;
            }
        }
        Chunk::StartStep {} => translator.start_step(out),
        Chunk::TextStart { id, provider_metadata } => {
            translator.start_part(Kind::Text, &part(id), provider_metadata.as_deref(), out);
        }
        Chunk::TextDelta { id, delta, provider_metadata } => {
            let metadata = provider_metadata.as_deref();
            translator.add_to_part(Kind::Text, Some(&part(id)), delta, metadata, out);
        }
        Chunk::TextEnd { id, citations, provider_metadata } => {
            let metadata = provider_metadata.as_deref();
            let end = PartEnd { citations: citations.as_deref(), metadata };
            translator.parts.end(Kind::Text, Some(&part(id)), end, out)?;
        }
        Chunk::ReasoningStart { id, provider_metadata } => {
            translator.start_part(Kind::Reasoning, &part(id), provider_metadata.as_deref(), out);
        }
        Chunk::ReasoningDelta { id, delta, provider_metadata } => {
            let metadata = provider_metadata.as_deref();
            translator.add_to_part(Kind::Reasoning, Some(&part(id)), delta, metadata, out);
        }
        Chunk::ReasoningEnd { id, provider_metadata } => {
            let end = PartEnd { metadata: provider_metadata.as_deref(), ..PartEnd::default() };
            translator.parts.end(Kind::Reasoning, Some(&part(id)), end, out)?;
        }
        Chunk::ToolInputStart { input_encoding, .. } => {
            if let Some(call) = announced(chunk) {
                translator.start_tool_input(&call, *input_encoding, out)?;
            }
        }
        Chunk::ToolInputDelta { tool_call_id, input_text_delta } => {
            translator.add_tool_input(&call_id(tool_call_id), input_text_delta, out)?;
        }
        Chunk::ToolInputAvailable { input, .. } => {
            if let Some(call) = announced(chunk) {
                translator.tool_input(&call, &json(input), out)?;
            }
        }
        Chunk::ToolInputError { input, error_text, .. } => {
            if let Some(call) = announced(chunk) {
                translator.invalid_tool_input(&call, &json(input), error_text, out)?;
            }
        }
        Chunk::ToolApprovalRequest {
            approval_id,
            tool_call_id,
            approval_descriptor,
            input_schema_input,
            reason,
            is_automatic,
            signature,
        } => {
            let approval_id = ApprovalId::new(&**approval_id);
            let request = ApprovalRequest {
                approval_id: &approval_id,
                descriptor: approval_descriptor.as_deref(),
                input_schema_input: input_schema_input.as_deref(),
                reason: reason.as_deref(),
                is_automatic: *is_automatic,
                signature: signature.as_deref(),
            };
            translator.request_approval(&call_id(tool_call_id), &request, out)?;
        }
        Chunk::ToolOutputAvailable {
            tool_call_id,
            output,
            provider_executed,
            provider_metadata,
            tool_metadata,
            dynamic: _,
            preliminary,
        } => {
            let result = Output {
                output: &json(output),
                preliminary: *preliminary == Some(true),
                metadata: CallMetadata {
                    provider_executed: *provider_executed == Some(true),
                    provider_metadata: provider_metadata.as_deref(),
                    tool_metadata: tool_metadata.as_deref(),
                },
            };
            translator.tool_output(&call_id(tool_call_id), &result, out)?;
        }
        Chunk::ToolOutputError {
            tool_call_id,
            error_text,
            provider_executed,
            provider_metadata,
            tool_metadata,
            dynamic: _,
        } => {
            let metadata = CallMetadata {
                provider_executed: *provider_executed == Some(true),
                provider_metadata: provider_metadata.as_deref(),
                tool_metadata: tool_metadata.as_deref(),
            };
            translator.tool_failed(&call_id(tool_call_id), error_text, metadata, out)?;
        }
        Chunk::ToolOutputDenied { tool_call_id } => translator.deny(&call_id(tool_call_id), out)?,
        Chunk::SourceUrl { .. } | Chunk::SourceDocument { .. } => {
            translator.source_chunk(chunk.clone(), out)?;
        }
        Chunk::File { url, .. } | Chunk::ReasoningFile { url, .. } => {
            translator.file(url, chunk, out)?;
        }
        Chunk::Custom { .. } => translator.content(chunk, out),
        Chunk::ToolApprovalResponse { approval_id, approved, .. } => {
            let approval_id = ApprovalId::new(&**approval_id);
            translator.respond_approval(&approval_id, *approved, chunk, out)?;
        }
        Chunk::ResetStep {} => translator.reset_step(out),
        Chunk::Data { name, id, data, transient } => {
            let data = Data {
                name: text(name),
                id: id.as_deref().map(text),
                data: json(data).into_owned(),
                transient: *transient == Some(true),
            };
            translator.data(&data, out);
        }
        Chunk::MessageMetadata { message_metadata } => {
            translator.add_metadata(&json(message_metadata), out)?;
        }
        Chunk::FinishStep {} => translator.finish_step(out),
        Chunk::Error { error_text } => translator.end_failed(error_text, out),
        Chunk::Abort { reason } => translator.end_aborted(reason.as_deref(), out),
        Chunk::Finish { finish_reason, message_metadata } => {
            let reason: Option<FinishReason> = *finish_reason;
            translator.end_finished(reason, message_metadata.as_deref(), out)?;
        }
    }
    Ok(())
}

/// Returns the call that a chunk announces.
///
/// A chunk does not state whether the server or the client runs the tool. An agent that emits chunks
/// leaves a call open on purpose, so an open call is taken as executed by the client.
fn announced(chunk: &Chunk<'static>) -> Option<ToolCall> {
    let (Chunk::ToolInputStart {
        tool_call_id,
        tool_name,
        provider_executed,
        provider_metadata,
        tool_metadata,
        dynamic,
        title,
        ..
    }
    | Chunk::ToolInputAvailable {
        tool_call_id,
        tool_name,
        provider_executed,
        provider_metadata,
        tool_metadata,
        dynamic,
        title,
        ..
    }
    | Chunk::ToolInputError {
        tool_call_id,
        tool_name,
        provider_executed,
        provider_metadata,
        tool_metadata,
        dynamic,
        title,
        ..
    }) = chunk
    else {
        return None;
    };
    let mut call = ToolCall::new(call_id(tool_call_id), text(tool_name));
    call.executed_by =
        if *provider_executed == Some(true) { Executor::Provider } else { Executor::Client };
    call.dynamic = *dynamic == Some(true);
    call.title = title.as_deref().map(text);
    call.tool_metadata = tool_metadata.as_deref().cloned();
    call.provider_metadata = provider_metadata.as_deref().cloned();
    Some(call)
}

fn part(id: &str) -> PartId {
    PartId::from(id)
}

fn call_id(id: &str) -> ToolCallId {
    ToolCallId::from(id)
}

fn text(text: &str) -> Text {
    Text::from(text.to_owned())
}

/// Returns the value, or `null` if it is absent: without a value the message would lose the key.
fn json<'a>(json: &'a Option<Cow<'static, Json>>) -> Cow<'a, Json> {
    match json {
        Some(json) => Cow::Borrowed(json.as_ref()),
        None => Cow::Owned(Json::null()),
    }
}
