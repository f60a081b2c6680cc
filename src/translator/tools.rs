//! Tool calls on their way out: announcement, input, question, result.

use std::borrow::Cow;

use super::tool_calls::{Announcement, Call, CallState, Settled, StreamedInput};
use super::{Out, TranslateError, Translator};
use crate::chunk::{Chunk, InputEncoding, Version};
use crate::event::{Executor, ToolCall};
use crate::id::{ApprovalId, ToolCallId};
use crate::json::Json;
use crate::metadata::{ProviderMetadata, ToolMetadata};

/// What a call or its result may carry beside itself, on clients that know it.
#[derive(Clone, Copy)]
pub(super) struct Attached<'a> {
    pub(super) provider_metadata: Option<&'a ProviderMetadata>,
    pub(super) tool_metadata: Option<&'a ToolMetadata>,
}

impl<'a> Attached<'a> {
    pub(super) const NONE: Self = Attached { provider_metadata: None, tool_metadata: None };

    fn of(announced: Option<&'a ToolCall>) -> Self {
        Attached {
            provider_metadata: announced.and_then(|call| call.provider_metadata.as_ref()),
            tool_metadata: announced.and_then(|call| call.tool_metadata.as_ref()),
        }
    }
}

/// A tool's output with what belongs to it.
pub(super) struct Output<'a> {
    pub(super) output: &'a Json,
    pub(super) preliminary: bool,
    pub(super) attached: Attached<'a>,
}

impl<'a> Output<'a> {
    pub(super) fn plain(output: &'a Json, preliminary: bool) -> Self {
        Output { output, preliminary, attached: Attached::NONE }
    }
}

/// A question to the person with what belongs to it.
pub(super) struct Question<'a> {
    pub(super) approval_id: &'a ApprovalId,
    pub(super) descriptor: Option<&'a Json>,
    pub(super) input_schema_input: Option<&'a Json>,
    pub(super) signature: Option<&'a str>,
}

impl Translator {
    pub(super) fn start_tool_input(
        &mut self,
        call: &ToolCall,
        encoding: Option<InputEncoding>,
        out: Out<'_>,
    ) -> Result<(), TranslateError> {
        match self.announce(call, out)? {
            Announcement::Held => Ok(()),
            Announcement::Streaming(_) => Err(TranslateError::CallOpen(call.id.clone())),
            Announcement::New(index) => {
                let version = self.version;
                if let Some(known) = self.calls.at(index) {
                    known.state = CallState::Streaming(StreamedInput::new(encoding));
                    let chunk = Chunk::ToolInputStart {
                        tool_call_id: Cow::Borrowed(&known.wire_id),
                        tool_name: Cow::Borrowed(&known.tool_name),
                        input_encoding: encoding,
                        provider_executed: known.provider_executed(),
                        provider_metadata: call.provider_metadata.as_ref().map(Cow::Borrowed),
                        tool_metadata: call.tool_metadata.as_ref().map(Cow::Borrowed),
                        dynamic: known.dynamic_flag(),
                        title: call.title.as_deref().map(Cow::Borrowed),
                    };
                    out(chunk.for_version(version));
                }
                Ok(())
            }
        }
    }

    pub(super) fn add_tool_input(
        &mut self,
        id: &ToolCallId,
        delta: &str,
        out: Out<'_>,
    ) -> Result<(), TranslateError> {
        let call = self.calls.named(id)?;
        if call.is_held_whole() {
            return Ok(());
        }
        let input = match &mut call.state {
            CallState::Streaming(input) => input,
            // The response that could have gone on with it is over.
            CallState::Abandoned => return Err(TranslateError::UnknownCall(id.clone())),
            _ => return Err(TranslateError::InputComplete(id.clone())),
        };
        if !delta.is_empty() {
            input.text.push_str(delta);
            out(Chunk::ToolInputDelta {
                tool_call_id: Cow::Borrowed(&call.wire_id),
                input_text_delta: Cow::Borrowed(delta),
            });
        }
        Ok(())
    }

    pub(super) fn tool_input(
        &mut self,
        call: &ToolCall,
        input: &Json,
        out: Out<'_>,
    ) -> Result<(), TranslateError> {
        let index = match self.announce(call, out)? {
            Announcement::Held => return Ok(()),
            Announcement::New(index) | Announcement::Streaming(index) => index,
        };
        let version = self.version;
        if let Some(known) = self.calls.at(index) {
            // The first word on a call may not say yet that the client runs it.
            if (known.executed_by, call.executed_by) == (Executor::Server, Executor::Client) {
                known.executed_by = Executor::Client;
            }
            known.state = CallState::Ready;
            out(input_available(known, Some(call), input).for_version(version));
        }
        Ok(())
    }

    pub(super) fn invalid_tool_input(
        &mut self,
        call: &ToolCall,
        input: &Json,
        error: &str,
        out: Out<'_>,
    ) -> Result<(), TranslateError> {
        let index = match self.announce(call, out) {
            Ok(Announcement::New(index) | Announcement::Streaming(index)) => index,
            // Its input is on the wire already: what is left to say is that the call failed.
            Ok(Announcement::Held) | Err(TranslateError::CallOpen(_)) => {
                return self.tool_failed(&call.id, error, Attached::NONE, out);
            }
            Err(error) => return Err(error),
        };
        let version = self.version;
        if let Some(known) = self.calls.at(index) {
            if version.knows_approvals() {
                out(input_error(known, Some(call), input, error).for_version(version));
            } else {
                // ai@5 has no chunk for it: the input as it came, then the failure.
                out(input_available(known, Some(call), input).for_version(version));
                out(output_error(known, error, Attached::NONE).for_version(version));
            }
            known.state = CallState::Settled(Settled::InputError);
        }
        Ok(())
    }

    pub(super) fn request_approval(
        &mut self,
        id: &ToolCallId,
        question: &Question<'_>,
        out: Out<'_>,
    ) -> Result<(), TranslateError> {
        match self.calls.named(id)?.state {
            CallState::Asked => return Err(TranslateError::ApprovalOpen(id.clone())),
            CallState::Running => return Err(TranslateError::AlreadyRunning(id.clone())),
            CallState::Settled(_) => return Err(TranslateError::CallSettled(id.clone())),
            CallState::Abandoned => return Err(TranslateError::InputOpen(id.clone())),
            CallState::Streaming(_) | CallState::Ready | CallState::Answered { .. } => {}
        }
        if self.can_ask() && self.calls.has_approval_id(question.approval_id) {
            return Err(TranslateError::ApprovalIdUsed(question.approval_id.clone()));
        }
        self.complete_input(id, out)?;
        if matches!(self.calls.named(id)?.state, CallState::Streaming(_)) {
            return Err(TranslateError::InputOpen(id.clone()));
        }
        if !self.can_ask() {
            return self.tool_failed(id, NO_APPROVALS, Attached::NONE, out);
        }
        self.calls.use_approval_id(question.approval_id);
        self.ensure_started(out);
        let version = self.version;
        let call = self.calls.named(id)?;
        call.state = CallState::Asked;
        let chunk = Chunk::ToolApprovalRequest {
            approval_id: Cow::Borrowed(question.approval_id),
            tool_call_id: Cow::Borrowed(&call.wire_id),
            approval_descriptor: question.descriptor.map(Cow::Borrowed),
            input_schema_input: question.input_schema_input.map(Cow::Borrowed),
            signature: question.signature.map(Cow::Borrowed),
        };
        out(chunk.for_version(version));
        Ok(())
    }

    /// Asks, and shows what is to be known: in a part that every client keeps, too.
    pub(super) fn ask(
        &mut self,
        id: &ToolCallId,
        question: &Question<'_>,
        out: Out<'_>,
    ) -> Result<(), TranslateError> {
        self.request_approval(id, question, out)?;
        let call = self.calls.named(id)?;
        if let (CallState::Asked, Some(descriptor)) = (&call.state, question.descriptor) {
            let chunk = Chunk::Data {
                name: Cow::Borrowed("approval"),
                id: Some(Cow::Borrowed(&call.wire_id)),
                data: Some(Cow::Borrowed(descriptor)),
                transient: None,
            };
            out(chunk);
        }
        Ok(())
    }

    pub(super) fn deny(&mut self, id: &ToolCallId, out: Out<'_>) -> Result<(), TranslateError> {
        self.complete_input(id, out)?;
        let call = self.calls.named(id)?;
        let by_the_person = match call.state {
            CallState::Settled(_) => return Err(TranslateError::CallSettled(id.clone())),
            CallState::Asked | CallState::Answered { approved: false } => true,
            // After a yes, or where nobody was asked, the client's own validator refuses a denied
            // part: `validateUIMessages`.
            _ => false,
        };
        if by_the_person && self.can_ask() {
            self.ensure_started(out);
            let call = self.settle(id, Settled::Denied)?;
            out(Chunk::ToolOutputDenied { tool_call_id: Cow::Borrowed(&call.wire_id) });
            Ok(())
        } else {
            self.tool_failed(id, NOT_EXECUTED, Attached::NONE, out)
        }
    }

    pub(super) fn tool_output(
        &mut self,
        id: &ToolCallId,
        result: &Output<'_>,
        out: Out<'_>,
    ) -> Result<(), TranslateError> {
        self.complete_input(id, out)?;
        let call = self.calls.named(id)?;
        match call.state {
            CallState::Settled(_) => return Err(TranslateError::CallSettled(id.clone())),
            CallState::Streaming(_) => return Err(TranslateError::InputOpen(id.clone())),
            CallState::Answered { approved: false } => {
                return Err(TranslateError::Denied(id.clone()));
            }
            _ => {}
        }
        self.ensure_started(out);
        let version = self.version;
        let call = if !result.preliminary {
            self.settle(id, Settled::Output)?
        } else if version >= Version::V6 {
            let call = self.calls.named(id)?;
            call.state = CallState::Running;
            call.owed = true;
            call
        } else {
            // To ai@5 every output is final.
            return Ok(());
        };
        let chunk = Chunk::ToolOutputAvailable {
            tool_call_id: Cow::Borrowed(&call.wire_id),
            output: Some(Cow::Borrowed(result.output)),
            provider_executed: call.provider_executed(),
            provider_metadata: result.attached.provider_metadata.map(Cow::Borrowed),
            tool_metadata: result.attached.tool_metadata.map(Cow::Borrowed),
            dynamic: call.dynamic_flag(),
            preliminary: result.preliminary.then_some(true),
        };
        out(chunk.for_version(version));
        Ok(())
    }

    pub(super) fn tool_failed(
        &mut self,
        id: &ToolCallId,
        error: &str,
        attached: Attached<'_>,
        out: Out<'_>,
    ) -> Result<(), TranslateError> {
        let denied = {
            let call = self.calls.named(id)?;
            match &call.state {
                // The SDK says both of one call; the first says it all.
                CallState::Settled(Settled::InputError) => return Ok(()),
                CallState::Settled(_) => return Err(TranslateError::CallSettled(id.clone())),
                CallState::Streaming(_) => {
                    self.ensure_started(out);
                    let version = self.version;
                    close_streaming(self.calls.named(id)?, error, version, out);
                    return Ok(());
                }
                CallState::Answered { approved: false } => self.can_ask(),
                _ => false,
            }
        };
        if denied {
            return self.deny(id, out);
        }
        self.ensure_started(out);
        let version = self.version;
        let call = self.settle(id, Settled::Error)?;
        out(output_error(call, error, attached).for_version(version));
        Ok(())
    }

    /// An agent may go on as if the input were whole when its text is.
    fn complete_input(&mut self, id: &ToolCallId, out: Out<'_>) -> Result<(), TranslateError> {
        let version = self.version;
        let call = self.calls.named(id)?;
        if let CallState::Streaming(streamed) = &mut call.state
            && let Some(input) = streamed.whole()
        {
            call.state = CallState::Ready;
            out(input_available(call, None, &input).for_version(version));
        }
        Ok(())
    }

    fn announce(&mut self, call: &ToolCall, out: Out<'_>) -> Result<Announcement, TranslateError> {
        if !self.calls.is_new(&call.id) {
            return self.calls.announce(call, self.step.number);
        }
        self.open_step(out);
        self.close_unnamed(out);
        self.calls.announce(call, self.step.number)
    }

    /// Notes that a call has its result.
    fn settle(&mut self, id: &ToolCallId, settled: Settled) -> Result<&Call, TranslateError> {
        let call = self.calls.named(id)?;
        call.state = CallState::Settled(settled);
        Ok(call)
    }
}

/// Ends one call whose input is still streaming.
pub(super) fn close_streaming(call: &mut Call, error: &str, version: Version, out: Out<'_>) {
    let CallState::Streaming(input) = &call.state else {
        return;
    };
    let input = Json::string(&input.text);
    if version.knows_approvals() {
        out(input_error(call, None, &input, error).for_version(version));
    } else {
        out(output_error(call, error, Attached::NONE).for_version(version));
    }
    call.state = CallState::Settled(Settled::InputError);
}

pub(super) fn output_error<'a>(
    call: &'a Call,
    error: &'a str,
    attached: Attached<'a>,
) -> Chunk<'a> {
    Chunk::ToolOutputError {
        tool_call_id: Cow::Borrowed(&call.wire_id),
        error_text: Cow::Borrowed(error),
        provider_executed: call.provider_executed(),
        provider_metadata: attached.provider_metadata.map(Cow::Borrowed),
        tool_metadata: attached.tool_metadata.map(Cow::Borrowed),
        dynamic: call.dynamic_flag(),
    }
}

fn input_available<'a>(
    call: &'a Call,
    announced: Option<&'a ToolCall>,
    input: &'a Json,
) -> Chunk<'a> {
    let attached = Attached::of(announced);
    Chunk::ToolInputAvailable {
        tool_call_id: Cow::Borrowed(&call.wire_id),
        tool_name: Cow::Borrowed(&call.tool_name),
        input: Some(Cow::Borrowed(input)),
        provider_executed: call.provider_executed(),
        provider_metadata: attached.provider_metadata.map(Cow::Borrowed),
        tool_metadata: attached.tool_metadata.map(Cow::Borrowed),
        dynamic: call.dynamic_flag(),
        title: announced.and_then(|announced| announced.title.as_deref()).map(Cow::Borrowed),
    }
}

fn input_error<'a>(
    call: &'a Call,
    announced: Option<&'a ToolCall>,
    input: &'a Json,
    error: &'a str,
) -> Chunk<'a> {
    let attached = Attached::of(announced);
    Chunk::ToolInputError {
        tool_call_id: Cow::Borrowed(&call.wire_id),
        tool_name: Cow::Borrowed(&call.tool_name),
        input: Some(Cow::Borrowed(input)),
        error_text: Cow::Borrowed(error),
        provider_executed: call.provider_executed(),
        provider_metadata: attached.provider_metadata.map(Cow::Borrowed),
        tool_metadata: attached.tool_metadata.map(Cow::Borrowed),
        dynamic: call.dynamic_flag(),
        title: announced.and_then(|announced| announced.title.as_deref()).map(Cow::Borrowed),
    }
}

/// Said of a call that needs an approval where nobody can be asked.
const NO_APPROVALS: &str =
    "This tool needs an approval, which cannot be given here. It did not run.";

/// Said of a call that the server refused.
const NOT_EXECUTED: &str = "This tool call was not executed.";
