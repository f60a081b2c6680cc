//! Translation of tool call events: announcement, input, approval request, result.

use std::borrow::Cow;

use super::out::Out;
use super::tool_calls::{Announcement, Call, CallState, ResultKind, StreamedInput};
use super::tool_chunks::{
    CallMetadata, input_available, input_error, input_start, output_error, shortened_title,
};
use super::{TranslateError, Translator};
use crate::UserText;
use crate::chunk::{Chunk, InputEncoding, Version};
use crate::event::{Executor, ToolCall};
use crate::id::{ApprovalId, ToolCallId};
use crate::json::Json;
use crate::metadata::ProviderMetadata;

/// An output of a tool.
pub(super) struct Output<'a> {
    pub(super) output: &'a Json,
    pub(super) preliminary: bool,
    pub(super) metadata: CallMetadata<'a>,
}

impl<'a> Output<'a> {
    pub(super) fn plain(output: &'a Json, preliminary: bool) -> Self {
        Output { output, preliminary, metadata: CallMetadata::NONE }
    }
}

/// An approval request and what the server attaches to it.
pub(super) struct ApprovalRequest<'a> {
    pub(super) approval_id: &'a ApprovalId,
    pub(super) descriptor: Option<&'a Json>,
    pub(super) input_schema_input: Option<&'a Json>,
    pub(super) reason: Option<&'a str>,
    pub(super) is_automatic: Option<bool>,
    pub(super) signature: Option<&'a str>,
}

impl Translator {
    pub(super) fn start_tool_input(
        &mut self,
        call: &ToolCall,
        encoding: Option<InputEncoding>,
        out: &mut Out<'_>,
    ) -> Result<(), TranslateError> {
        let call = &*self.for_output(call);
        match self.announce(call, out)? {
            Announcement::FromHistory => Ok(()),
            Announcement::Streaming(_) => Err(TranslateError::CallOpen(call.id.clone())),
            Announcement::New(index) => {
                if let Some(known) = self.calls.at(index) {
                    known.state = CallState::Streaming(StreamedInput::new(encoding));
                    out.emit(input_start(known, call, encoding));
                }
                Ok(())
            }
        }
    }

    pub(super) fn add_tool_input(
        &mut self,
        id: &ToolCallId,
        delta: &str,
        out: &mut Out<'_>,
    ) -> Result<(), TranslateError> {
        let call = self.calls.named(id)?;
        if call.is_complete_in_history() {
            return Ok(());
        }
        let input = match &mut call.state {
            CallState::Streaming(input) => input,
            // The response that streamed its input has ended.
            CallState::Abandoned(_) => return Err(TranslateError::UnknownCall(id.clone())),
            _ => return Err(TranslateError::InputComplete(id.clone())),
        };
        if !delta.is_empty() {
            input.text.push_str(delta);
            out.emit(Chunk::ToolInputDelta {
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
        out: &mut Out<'_>,
    ) -> Result<(), TranslateError> {
        let call = &*self.for_output(call);
        let index = match self.announce(call, out)? {
            Announcement::FromHistory => return Ok(()),
            Announcement::New(index) | Announcement::Streaming(index) => index,
        };
        if let Some(known) = self.calls.at(index) {
            known.announce_again(call);
            known.state = CallState::Ready;
            out.emit(input_available(known, Some(call), input));
        }
        Ok(())
    }

    pub(super) fn invalid_tool_input(
        &mut self,
        call: &ToolCall,
        input: &Json,
        error: &str,
        out: &mut Out<'_>,
    ) -> Result<(), TranslateError> {
        let call = &*self.for_output(call);
        let (index, is_new) = match self.announce(call, out) {
            Ok(Announcement::New(index)) => (index, true),
            Ok(Announcement::Streaming(index)) => (index, false),
            // The input is on the wire already: only the failure is left to write.
            Ok(Announcement::FromHistory) | Err(TranslateError::CallOpen(_)) => {
                return self.tool_failed(&call.id, error, CallMetadata::NONE, out);
            }
            Err(error) => return Err(error),
        };
        if let Some(known) = self.calls.at(index) {
            known.announce_again(call);
            if out.version.knows_approvals() {
                out.emit(input_error(known, Some(call), input, error));
            } else {
                // ai@5 has no chunk for it: write the input unchanged, then the failure. A client executes a
                // call of its own when its input is available.
                if known.executed_by != Executor::Client {
                    out.emit(input_available(known, Some(call), input));
                } else if is_new {
                    out.emit(input_start(known, call, None));
                    out.emit(Chunk::ToolInputDelta {
                        tool_call_id: Cow::Borrowed(&known.wire_id),
                        input_text_delta: Cow::Borrowed(input.as_str()),
                    });
                }
                out.emit(output_error(known, error, CallMetadata::NONE));
            }
            known.state = CallState::Settled(ResultKind::InputError);
        }
        Ok(())
    }

    pub(super) fn request_approval(
        &mut self,
        id: &ToolCallId,
        request: &ApprovalRequest<'_>,
        out: &mut Out<'_>,
    ) -> Result<(), TranslateError> {
        match self.calls.named(id)?.state {
            CallState::ApprovalRequested => return Err(TranslateError::ApprovalOpen(id.clone())),
            CallState::Running => return Err(TranslateError::AlreadyRunning(id.clone())),
            CallState::Settled(_) => return Err(TranslateError::CallSettled(id.clone())),
            CallState::Abandoned(_) => return Err(TranslateError::InputOpen(id.clone())),
            CallState::Streaming(_) | CallState::Ready | CallState::ApprovalResponded { .. } => {}
        }
        if self.can_request_approval() && self.calls.has_approval_id(request.approval_id) {
            return Err(TranslateError::ApprovalIdUsed(request.approval_id.clone()));
        }
        self.complete_input_of_asked(id, out)?;
        if !self.can_request_approval() {
            return self.tool_failed(id, UserText::NotAnswerable.text(), CallMetadata::NONE, out);
        }
        self.calls.use_approval_id(request.approval_id, id);
        self.ensure_started(out);
        let call = self.calls.named(id)?;
        call.state = CallState::ApprovalRequested;
        let chunk = Chunk::ToolApprovalRequest {
            approval_id: Cow::Borrowed(request.approval_id),
            tool_call_id: Cow::Borrowed(&call.wire_id),
            approval_descriptor: request.descriptor.map(Cow::Borrowed),
            input_schema_input: request.input_schema_input.map(Cow::Borrowed),
            reason: request.reason.map(Cow::Borrowed),
            is_automatic: request.is_automatic,
            signature: request.signature.map(Cow::Borrowed),
        };
        out.emit(chunk);
        Ok(())
    }

    /// Completes the input of a call whose approval is requested. The client executes a call of its own when
    /// it reads that chunk, so such a call gets it once it is approved.
    fn complete_input_of_asked(
        &mut self,
        id: &ToolCallId,
        out: &mut Out<'_>,
    ) -> Result<(), TranslateError> {
        let call = self.calls.named(id)?;
        if let (CallState::Streaming(input), Executor::Client) = (&mut call.state, call.executed_by)
            && input.whole().is_some()
        {
            return Ok(());
        }
        self.complete_input(id, out)?;
        match self.calls.named(id)?.state {
            CallState::Streaming(_) => Err(TranslateError::InputOpen(id.clone())),
            _ => Ok(()),
        }
    }

    /// Requests an approval, and also writes its descriptor as a `data-approval` part, which every
    /// client keeps.
    pub(super) fn request_described_approval(
        &mut self,
        id: &ToolCallId,
        request: &ApprovalRequest<'_>,
        out: &mut Out<'_>,
    ) -> Result<(), TranslateError> {
        self.request_approval(id, request, out)?;
        let call = self.calls.named(id)?;
        if let (CallState::ApprovalRequested, Some(descriptor)) = (&call.state, request.descriptor)
        {
            let chunk = Chunk::Data {
                name: Cow::Borrowed("approval"),
                id: Some(Cow::Borrowed(&call.wire_id)),
                data: Some(Cow::Borrowed(descriptor)),
                transient: None,
            };
            out.emit(chunk);
        }
        Ok(())
    }

    /// Announces the answer to an approval request. A client that has given it holds it already.
    pub(super) fn respond_approval(
        &mut self,
        approval_id: &ApprovalId,
        approved: bool,
        response: &Chunk<'_>,
        out: &mut Out<'_>,
    ) -> Result<(), TranslateError> {
        let call = self.calls.asked_with(approval_id);
        let call = call.ok_or_else(|| TranslateError::UnknownApproval(approval_id.clone()))?;
        if let CallState::ApprovalRequested = call.state {
            call.state = CallState::ApprovalResponded { approved };
            self.ensure_started(out);
            out.emit(response.clone());
        }
        Ok(())
    }

    pub(super) fn deny(
        &mut self,
        id: &ToolCallId,
        out: &mut Out<'_>,
    ) -> Result<(), TranslateError> {
        self.complete_input(id, out)?;
        let call = self.calls.named(id)?;
        let is_denied_by_user = match call.state {
            CallState::Settled(_) => return Err(TranslateError::CallSettled(id.clone())),
            CallState::ApprovalRequested | CallState::ApprovalResponded { approved: false } => true,
            // The client's own validator `validateUIMessages` refuses a denied part if its approval
            // was granted or does not exist.
            _ => false,
        };
        if is_denied_by_user && self.can_request_approval() {
            self.ensure_started(out);
            let call = self.settle(id, ResultKind::Denied, CallMetadata::NONE)?;
            out.emit(Chunk::ToolOutputDenied { tool_call_id: Cow::Borrowed(&call.wire_id) });
            Ok(())
        } else {
            self.tool_failed(id, UserText::Refused.text(), CallMetadata::NONE, out)?;
            let call = self.calls.named(id)?;
            if let CallState::Settled(ResultKind::Error) = call.state {
                call.state = CallState::Settled(ResultKind::Rejected);
            }
            Ok(())
        }
    }

    /// Writes that the server has refused to run a call: as a denial by a policy, if the client knows it and the
    /// call waits for nothing, and else as a failure. Beside a call that the client executes it is a failure too: the
    /// client sends the outputs of a step only if all its calls have one, and a denied call has none. The same holds
    /// for the call of an inner agent, since later calls of that agent are in the same step.
    pub(super) fn refuse(
        &mut self,
        id: &ToolCallId,
        reason: &str,
        out: &mut Out<'_>,
    ) -> Result<(), TranslateError> {
        self.complete_input(id, out)?;
        let call = self.calls.named(id)?;
        let is_ready = matches!(call.state, CallState::Ready)
            && call.executed_by != Executor::Client
            && call.outer.is_none();
        let wire_id = call.wire_id.clone();
        let approval_id = self.calls.unused_approval_id(&wire_id);
        let response = Chunk::ToolApprovalResponse {
            approval_id: Cow::Borrowed(&approval_id),
            approved: false,
            reason: Some(Cow::Borrowed(reason)),
            provider_executed: None,
            provider_metadata: None,
        };
        let is_known = self.can_request_approval() && response.is_kind_known_to(out.version);
        if !is_known || !is_ready || self.calls.client_executes_beside(id) {
            return self.tool_failed(id, reason, CallMetadata::NONE, out);
        }
        let request = ApprovalRequest {
            approval_id: &approval_id,
            descriptor: None,
            input_schema_input: None,
            reason: None,
            is_automatic: Some(true),
            signature: None,
        };
        self.request_approval(id, &request, out)?;
        self.respond_approval(&approval_id, false, &response, out)?;
        self.deny(id, out)?;
        self.calls.named(id)?.state = CallState::Settled(ResultKind::Refused);
        Ok(())
    }

    /// Lets a call that the continued message holds as denied get the result that it has. The client
    /// then shows the result, and not a denial of a call that ran.
    pub(super) fn overrule_denial(&mut self, id: &ToolCallId) -> Result<(), TranslateError> {
        let call = self.calls.named(id)?;
        if let CallState::ApprovalResponded { approved } = &mut call.state {
            *approved = true;
        }
        Ok(())
    }

    /// Keeps the input that the approver changed until the first output of the call. The chunk alone
    /// would leave the call without its approval.
    pub(super) fn change_input(
        &mut self,
        id: &ToolCallId,
        input: &Json,
    ) -> Result<(), TranslateError> {
        let call = self.calls.named(id)?;
        let can_run = matches!(
            call.state,
            CallState::ApprovalRequested | CallState::ApprovalResponded { approved: true }
        );
        if can_run {
            call.changed_input = Some(input.clone());
        }
        Ok(())
    }

    /// Gives an approved call to the client that executes it. In another step the client would make a second
    /// part of the call.
    pub(super) fn hand_to_client(
        &mut self,
        id: &ToolCallId,
        input: &Json,
        out: &mut Out<'_>,
    ) -> Result<(), TranslateError> {
        let step = self.step.number;
        match self.calls.named(id)?.state {
            CallState::ApprovalRequested | CallState::ApprovalResponded { approved: true } => {}
            CallState::Settled(_) => return Err(TranslateError::CallSettled(id.clone())),
            CallState::ApprovalResponded { .. } => return Err(TranslateError::Denied(id.clone())),
            CallState::Streaming(_) | CallState::Abandoned(_) => {
                return Err(TranslateError::InputOpen(id.clone()));
            }
            CallState::Ready | CallState::Running => {
                return Err(TranslateError::AlreadyRunning(id.clone()));
            }
        }
        self.ensure_started(out);
        let call = self.calls.named(id)?;
        (call.state, call.executed_by, call.changed_input) =
            (CallState::Ready, Executor::Client, None);
        if call.step == step {
            out.emit(input_available(call, None, input));
        }
        Ok(())
    }

    /// Writes the input that the approver changed, directly before an output. In another step the client
    /// would make a second part of the call.
    fn write_changed_input(
        &mut self,
        id: &ToolCallId,
        out: &mut Out<'_>,
    ) -> Result<(), TranslateError> {
        let step = self.step.number;
        let call = self.calls.named(id)?;
        let changed = call.changed_input.take().filter(|_| call.step == step);
        if let Some(input) = changed.filter(|_| out.version.knows_approvals()) {
            out.emit(input_available(call, None, &input));
        }
        Ok(())
    }

    pub(super) fn tool_output(
        &mut self,
        id: &ToolCallId,
        result: &Output<'_>,
        out: &mut Out<'_>,
    ) -> Result<(), TranslateError> {
        self.complete_input(id, out)?;
        let call = self.calls.named(id)?;
        match call.state {
            CallState::Settled(_) => return Err(TranslateError::CallSettled(id.clone())),
            CallState::Streaming(_) => return Err(TranslateError::InputOpen(id.clone())),
            CallState::ApprovalResponded { approved: false } => {
                return Err(TranslateError::Denied(id.clone()));
            }
            _ => {}
        }
        self.ensure_started(out);
        self.write_changed_input(id, out)?;
        let call = if !result.preliminary {
            self.settle(id, ResultKind::Output, result.metadata)?
        } else if out.version != Version::V5 {
            let call = self.calls.named(id)?;
            call.state = CallState::Running;
            call.needs_result = true;
            call.set_executor(result.metadata);
            call
        } else {
            // To ai@5 every output is final.
            return Ok(());
        };
        let chunk = Chunk::ToolOutputAvailable {
            tool_call_id: Cow::Borrowed(&call.wire_id),
            output: Some(Cow::Borrowed(result.output)),
            provider_executed: call.provider_executed(),
            provider_metadata: result.metadata.provider_metadata.map(Cow::Borrowed),
            tool_metadata: result.metadata.tool_metadata.map(Cow::Borrowed),
            dynamic: call.dynamic_flag(),
            preliminary: result.preliminary.then_some(true),
        };
        out.emit(chunk);
        Ok(())
    }

    pub(super) fn tool_failed(
        &mut self,
        id: &ToolCallId,
        error: &str,
        metadata: CallMetadata<'_>,
        out: &mut Out<'_>,
    ) -> Result<(), TranslateError> {
        let denied = {
            let call = self.calls.named(id)?;
            match &call.state {
                // The SDK emits an input error and then an output error for one call. The first is
                // its result.
                CallState::Settled(ResultKind::InputError) => return Ok(()),
                CallState::Settled(_) => return Err(TranslateError::CallSettled(id.clone())),
                CallState::Streaming(_) => {
                    self.ensure_started(out);
                    let call = self.calls.named(id)?;
                    call.set_executor(metadata);
                    close_streaming(call, error, out);
                    return Ok(());
                }
                CallState::ApprovalResponded { approved: false } => self.can_request_approval(),
                _ => false,
            }
        };
        if denied {
            return self.deny(id, out);
        }
        self.ensure_started(out);
        self.write_changed_input(id, out)?;
        let call = self.settle(id, ResultKind::Error, metadata)?;
        out.emit(output_error(call, error, metadata));
        Ok(())
    }

    /// Completes the input of a call if its streamed text is one whole JSON value, because an agent
    /// may send a result or an approval request without the event for the complete input.
    fn complete_input(&mut self, id: &ToolCallId, out: &mut Out<'_>) -> Result<(), TranslateError> {
        let call = self.calls.named(id)?;
        if let CallState::Streaming(streamed) = &mut call.state
            && let Some(input) = streamed.whole()
        {
            call.state = CallState::Ready;
            out.emit(input_available(call, None, &input));
        }
        Ok(())
    }

    /// Shortens a long title. Adds the id that the model gave to the call to its metadata if the wire
    /// has another one and this translator is of a recorder: the stored message then holds it, and
    /// the wire does not.
    fn for_output<'c>(&self, call: &'c ToolCall) -> Cow<'c, ToolCall> {
        let mut call = Cow::Borrowed(call);
        if let Some(title) = call.title.as_deref().and_then(shortened_title) {
            call.to_mut().title = Some(title.into());
        }
        let short_id = call.id.shortened();
        let id = call.model_id.as_ref().or_else(|| short_id.as_ref().map(|_| &call.id));
        if let Some(id) = id.filter(|_| self.records_model_ids)
            && let Some(metadata) =
                ProviderMetadata::with_model_id(call.provider_metadata.as_ref(), id)
        {
            call.to_mut().provider_metadata = Some(metadata);
        }
        call
    }

    fn announce(
        &mut self,
        call: &ToolCall,
        out: &mut Out<'_>,
    ) -> Result<Announcement, TranslateError> {
        if !self.calls.is_new(&call.id) {
            return self.calls.announce(call, self.step.number);
        }
        self.open_step(out);
        self.parts.close_unnamed(out);
        self.calls.announce(call, self.step.number)
    }

    /// Marks a call as settled.
    fn settle(
        &mut self,
        id: &ToolCallId,
        result: ResultKind,
        metadata: CallMetadata<'_>,
    ) -> Result<&Call, TranslateError> {
        let call = self.calls.named(id)?;
        call.state = CallState::Settled(result);
        call.set_executor(metadata);
        Ok(call)
    }
}

impl Call {
    /// Takes over what an earlier announcement may not state: the executor and the final name.
    fn announce_again(&mut self, call: &ToolCall) {
        self.tool_name = call.tool_name.clone();
        match (self.executed_by, call.executed_by) {
            (Executor::Server, Executor::Client) | (_, Executor::Provider) => {
                self.executed_by = call.executed_by;
            }
            _ => {}
        }
    }

    /// Takes over from a result that the provider executed the call.
    fn set_executor(&mut self, metadata: CallMetadata<'_>) {
        if metadata.provider_executed {
            self.executed_by = Executor::Provider;
        }
    }
}

/// Ends a call whose input is still streaming, with an error as its result.
pub(super) fn close_streaming(call: &mut Call, error: &str, out: &mut Out<'_>) {
    let CallState::Streaming(input) = &call.state else {
        return;
    };
    let input = Json::string(&input.text);
    if out.version.knows_approvals() {
        out.emit(input_error(call, None, &input, error));
    } else {
        out.emit(output_error(call, error, CallMetadata::NONE));
    }
    call.state = CallState::Settled(ResultKind::InputError);
}
