//! The end of a response: closes everything that is open, and stops clients from resubmitting the
//! same request endlessly.

use std::borrow::Cow;

use super::tool_calls::{CallState, ResultKind};
use super::tools::{CallMetadata, close_streaming, output_error};
use super::{Out, TranslateError, Translator};
use crate::chunk::{Chunk, FinishReason};
use crate::event::{Executor, OUTCOME_UNKNOWN};
use crate::json::Json;

impl Translator {
    pub(super) fn end_finished(
        &mut self,
        reason: Option<FinishReason>,
        metadata: Option<&Json>,
        out: Out<'_>,
    ) -> Result<(), TranslateError> {
        self.close_run(Executor::Server, out);
        let reason =
            reason.or_else(|| self.calls.has_pending_calls().then_some(FinishReason::ToolCalls));
        self.end_resubmission(reason, out);
        let mergeable = metadata.filter(|metadata| self.can_merge(metadata));
        let chunk =
            Chunk::Finish { finish_reason: reason, message_metadata: mergeable.map(Cow::Borrowed) };
        self.emit(chunk, out);
        match metadata {
            Some(metadata) if mergeable.is_none() && !metadata.is_null() => {
                Err(TranslateError::Metadata)
            }
            _ => Ok(()),
        }
    }

    pub(super) fn end_aborted(&mut self, reason: Option<&str>, out: Out<'_>) {
        self.close_run(Executor::Provider, out);
        self.end_resubmission(None, out);
        self.emit(Chunk::Abort { reason: reason.map(Cow::Borrowed) }, out);
    }

    pub(super) fn end_failed(&mut self, error_text: &str, out: Out<'_>) {
        self.close_run(Executor::Provider, out);
        self.emit(Chunk::Error { error_text: Cow::Borrowed(error_text) }, out);
        let finish =
            Chunk::Finish { finish_reason: Some(FinishReason::Error), message_metadata: None };
        self.emit(finish, out);
    }

    /// Ends all streaming inputs, at the end of a step: in a later step the client would make a
    /// second part of them.
    pub(super) fn close_streaming_inputs(&mut self, out: Out<'_>) {
        let version = self.version;
        for call in self.calls.iter_mut() {
            close_streaming(call, INPUT_CUT_OFF, version, out);
        }
    }

    /// Closes all parts, gives a result to every call that needs one from this response, and closes
    /// the step.
    ///
    /// `up_to` is the last executor whose open calls need a result. A run that finishes may leave a
    /// provider's call open for a later one. A run that is aborted or fails may not.
    fn close_run(&mut self, up_to: Executor, out: Out<'_>) {
        self.ensure_started(out);
        self.ended = true;
        self.close_parts(out);
        self.close_streaming_inputs(out);
        let (version, can_request_approval) = (self.version, self.can_request_approval());
        // The turn waits for another answer. The turn after it sends the user's approval to the
        // provider.
        let is_paused = up_to == Executor::Server && self.calls.has_pending_calls();
        for call in self.calls.iter_mut() {
            match call.state {
                CallState::ApprovalResponded { approved: true }
                    if call.executed_by == Executor::Provider && is_paused => {}
                // The approval may have been sent to the provider or not: the translator cannot
                // know.
                CallState::ApprovalResponded { approved: true }
                    if call.executed_by == Executor::Provider =>
                {
                    call.state = CallState::Settled(ResultKind::OutcomeUnknown);
                    out(output_error(call, OUTCOME_UNKNOWN, CallMetadata::NONE)
                        .for_version(version));
                }
                // The client resubmits an answered approval until its call is settled.
                CallState::ApprovalResponded { approved: false } if can_request_approval => {
                    call.state = CallState::Settled(ResultKind::Denied);
                    out(Chunk::ToolOutputDenied { tool_call_id: Cow::Borrowed(&call.wire_id) });
                }
                CallState::ApprovalResponded { .. } => {
                    call.state = CallState::Settled(ResultKind::Error);
                    out(output_error(call, NOT_RUN, CallMetadata::NONE).for_version(version));
                }
                CallState::Ready | CallState::Running
                    if call.needs_result
                        && (call.executed_by == Executor::Server
                            || call.executed_by == Executor::Provider
                                && up_to == Executor::Provider) =>
                {
                    call.state = CallState::Settled(ResultKind::Error);
                    out(output_error(call, NO_RESULT, CallMetadata::NONE).for_version(version));
                }
                _ => {}
            }
        }
        self.finish_step(out);
    }

    /// Appends a step if the client would otherwise send the same request at once, again and again:
    /// it does so if all tool calls of the last step are done.
    ///
    /// The step needs content. It is data, which the client does not render as text and which no
    /// model receives.
    fn end_resubmission(&mut self, reason: Option<FinishReason>, out: Out<'_>) {
        if !self.calls.would_resubmit(self.step.number, self.version) {
            return;
        }
        let data = match reason {
            Some(reason) => format!(r#"{{"finishReason":"{}"}}"#, reason.as_str()),
            None => "{}".to_owned(),
        };
        self.step.number += 1;
        self.emit(Chunk::StartStep {}, out);
        let chunk = Chunk::Data {
            name: Cow::Borrowed("run-end"),
            id: None,
            data: Some(Cow::Owned(Json::parse(&data).unwrap_or_else(|_| Json::null()))),
            transient: None,
        };
        self.emit(chunk, out);
        self.emit(Chunk::FinishStep {}, out);
    }
}

/// The error of a call whose input is incomplete at the end of the step.
const INPUT_CUT_OFF: &str = "The input of this tool call was cut off.";

/// The error of a call that the user approved and the run did not execute.
const NOT_RUN: &str = "This tool call was approved, but it did not run.";

/// The error of a call without a result at the end of the run.
const NO_RESULT: &str = "This tool call gave no result.";
