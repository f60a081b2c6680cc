//! [`OpenCalls`]: the tool calls of a response that wait for the user or the client.

use crate::approval::PendingToolCall;
use crate::chunk::Chunk;
use crate::json::Json;

/// The tool calls that a response has announced and that have no result yet.
///
/// A call of the continued message is not among them: its input comes from the client.
#[derive(Debug, Default)]
pub(super) struct OpenCalls(Vec<PendingToolCall>);

impl OpenCalls {
    pub(super) fn push_chunk(&mut self, chunk: &Chunk<'_>) {
        match chunk {
            Chunk::ToolInputAvailable {
                tool_call_id, tool_name, input, provider_executed, ..
            } => {
                let input = input.as_deref().cloned().unwrap_or_else(Json::null);
                let call = PendingToolCall::client_executed(&**tool_call_id, &**tool_name, input);
                self.0.push(match provider_executed {
                    Some(true) => call.provider_executed(),
                    _ => call,
                });
            }
            Chunk::ToolApprovalRequest { approval_id, tool_call_id, .. } => {
                let call = self.0.iter_mut().find(|call| *call.tool_call_id == **tool_call_id);
                if let Some(call) = call {
                    call.approval_id = Some((&**approval_id).into());
                }
            }
            Chunk::ToolOutputAvailable {
                tool_call_id, preliminary: None | Some(false), ..
            }
            | Chunk::ToolOutputError { tool_call_id, .. }
            | Chunk::ToolOutputDenied { tool_call_id, .. } => {
                self.0.retain(|call| *call.tool_call_id != **tool_call_id);
            }
            _ => {}
        }
    }

    /// Returns the calls that wait for the user, and, if the response is complete, those that wait
    /// for the client. Before that, a call without a result may be executed by the server.
    pub(super) fn into_calls(mut self, is_complete: bool) -> Vec<PendingToolCall> {
        self.0.retain(|call| call.approval_id.is_some() || is_complete && !call.provider_executed);
        self.0
    }
}
