//! How a response ends: everything that is open is closed, and no client is left asking for ever.

use std::borrow::Cow;

use super::tool_calls::{CallState, Settled};
use super::tools::{Attached, close_streaming, output_error};
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
            reason.or_else(|| self.calls.wait_for_somebody().then_some(FinishReason::ToolCalls));
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

    /// Inputs cannot go on in a later step: the client would make a second part of them.
    pub(super) fn close_streaming_inputs(&mut self, out: Out<'_>) {
        let version = self.version;
        for call in self.calls.iter_mut() {
            close_streaming(call, INPUT_CUT_OFF, version, out);
        }
    }

    /// Closes parts, gives every call that this response owes a result its result, and closes the
    /// step. `up_to` is the last executor whose open calls are owed one: a run that finishes may
    /// leave a provider's call for later, one that breaks off may not.
    fn close_run(&mut self, up_to: Executor, out: Out<'_>) {
        self.ensure_started(out);
        self.ended = true;
        self.close_parts(out);
        self.close_streaming_inputs(out);
        let (version, can_ask) = (self.version, self.can_ask());
        // Something else is waited for, and what the person allowed is told the provider then.
        let goes_on = up_to == Executor::Server && self.calls.wait_for_somebody();
        for call in self.calls.iter_mut() {
            match call.state {
                CallState::Answered { approved: true }
                    if call.executed_by == Executor::Provider && goes_on => {}
                // It was told the provider, or will not be: nobody here knows which.
                CallState::Answered { approved: true }
                    if call.executed_by == Executor::Provider =>
                {
                    call.state = CallState::Settled(Settled::Error);
                    out(output_error(call, OUTCOME_UNKNOWN, Attached::NONE).for_version(version));
                }
                // The client resubmits an answer until it is settled.
                CallState::Answered { approved: false } if can_ask => {
                    call.state = CallState::Settled(Settled::Denied);
                    out(Chunk::ToolOutputDenied { tool_call_id: Cow::Borrowed(&call.wire_id) });
                }
                CallState::Answered { .. } => {
                    call.state = CallState::Settled(Settled::Error);
                    out(output_error(call, NOT_RUN, Attached::NONE).for_version(version));
                }
                CallState::Ready | CallState::Running
                    if call.owed
                        && (call.executed_by == Executor::Server
                            || call.executed_by == Executor::Provider
                                && up_to == Executor::Provider) =>
                {
                    call.state = CallState::Settled(Settled::Error);
                    out(output_error(call, NO_RESULT, Attached::NONE).for_version(version));
                }
                _ => {}
            }
        }
        self.finish_step(out);
    }

    /// A last step whose tool calls are all done makes a client send the same request at once, and
    /// again, for ever. A further step with content ends it; data is content that nobody reads
    /// aloud and no model is shown.
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

/// Said of a call whose input stopped half way.
const INPUT_CUT_OFF: &str = "The input of this tool call was cut off.";

/// Said of a call that the person approved and the run left alone.
const NOT_RUN: &str = "This tool call was approved, but it did not run.";

/// Said of a call that the run left without a result.
const NO_RESULT: &str = "This tool call gave no result.";
