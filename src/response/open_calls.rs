//! [`OpenCalls`]: the tool calls of a response that wait for the user or the client.

use std::collections::HashMap;

use crate::approval::PendingToolCall;
use crate::chunk::Chunk;
use crate::id::ToolCallId;
use crate::json::Json;

/// The tool calls that a response has announced and that have no result yet.
///
/// A call of the continued message is not among them, because its input comes from the client, unless it was
/// approved and the client has to execute it.
#[derive(Debug, Default)]
pub(super) struct OpenCalls {
    calls: Vec<PendingToolCall>,
    /// The calls whose input has no end yet: the name of the tool, and the text of the input so far.
    streamed: HashMap<ToolCallId, (Box<str>, String)>,
}

impl OpenCalls {
    pub(super) fn push_chunk(&mut self, chunk: &Chunk<'_>) {
        match chunk {
            Chunk::ToolInputStart { tool_call_id, tool_name, .. } => {
                let input = ((&**tool_name).into(), String::new());
                self.streamed.insert((&**tool_call_id).into(), input);
            }
            Chunk::ToolInputDelta { tool_call_id, input_text_delta } => {
                if let Some((_, text)) = self.streamed.get_mut(&**tool_call_id) {
                    text.push_str(input_text_delta);
                }
            }
            Chunk::ToolInputAvailable {
                tool_call_id, tool_name, input, provider_executed, ..
            } => {
                self.streamed.remove(&**tool_call_id);
                let input = input.as_deref().cloned().unwrap_or_else(Json::null);
                let call = PendingToolCall::client_executed(&**tool_call_id, &**tool_name, input);
                self.calls.push(match provider_executed {
                    Some(true) => call.provider_executed(),
                    _ => call,
                });
            }
            Chunk::ToolInputError { tool_call_id, .. } => {
                self.streamed.remove(&**tool_call_id);
            }
            Chunk::ToolApprovalRequest { approval_id, tool_call_id, .. } => {
                // The input of a call that the client executes ends when the call is approved.
                if let Some((name, text)) = self.streamed.remove(&**tool_call_id)
                    && let Ok(input) = Json::parse(&text)
                {
                    let call = PendingToolCall::client_executed(&**tool_call_id, name, input);
                    self.calls.push(call);
                }
                let mut calls = self.calls.iter_mut();
                if let Some(call) = calls.find(|call| *call.tool_call_id == **tool_call_id) {
                    call.approval_id = Some((&**approval_id).into());
                }
            }
            Chunk::ToolOutputAvailable {
                tool_call_id, preliminary: None | Some(false), ..
            }
            | Chunk::ToolOutputError { tool_call_id, .. }
            | Chunk::ToolOutputDenied { tool_call_id, .. } => {
                self.calls.retain(|call| *call.tool_call_id != **tool_call_id);
            }
            _ => {}
        }
    }

    /// Returns the calls that wait for the user, and, if the response is complete, those that wait
    /// for the client. Before that, a call without a result may be executed by the server.
    pub(super) fn into_calls(mut self, is_complete: bool) -> Vec<PendingToolCall> {
        self.calls
            .retain(|call| call.approval_id.is_some() || is_complete && !call.provider_executed);
        self.calls
    }
}
