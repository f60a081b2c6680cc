//! The end of a response: the results of the calls that are still open, and the step that keeps
//! clients from resubmitting the same request endlessly.

use std::borrow::Cow;

use super::out::Out;
use super::tool_calls::{CallState, ResultKind, ToolCalls};
use super::tool_chunks::{CallMetadata, output_error};
use super::tools::close_streaming;
use crate::UserText;
use crate::chunk::{Chunk, FinishReason};
use crate::event::Executor;
use crate::json::Json;

/// Ends all streaming inputs, at the end of a step: in a later step the client would make a second
/// part of them.
pub(super) fn close_streaming_inputs(calls: &mut ToolCalls, out: &mut Out<'_>) {
    for call in calls.streaming_to_end() {
        close_streaming(call, UserText::InputCutOff.text(), out);
    }
}

/// Gives a result to every call that needs one from this response.
///
/// `up_to` is the last executor whose open calls need a result. A run that finishes may leave a
/// provider's call open for a later one. A run that is aborted or fails may not.
pub(super) fn close_calls(
    calls: &mut ToolCalls,
    up_to: Executor,
    can_request_approval: bool,
    out: &mut Out<'_>,
) {
    // The turn waits for another answer. The turn after it sends the user's approval to the
    // provider.
    let is_paused = up_to == Executor::Server && calls.has_pending_calls();
    let outer = calls.waiting_outer_calls();
    for call in calls.iter_mut() {
        match call.state {
            // It goes on after the answer, which can still come.
            CallState::Ready | CallState::Running if outer.contains(&call.wire_id) => {}
            CallState::ApprovalResponded { approved: true }
                if call.is_answered || call.executed_by == Executor::Provider && is_paused => {}
            // The approval may have been sent to the provider or not: the translator cannot
            // know.
            CallState::ApprovalResponded { approved: true }
                if call.executed_by == Executor::Provider =>
            {
                call.state = CallState::Settled(ResultKind::OutcomeUnknown);
                out.emit(output_error(call, UserText::OutcomeUnknown.text(), CallMetadata::NONE));
            }
            // The client resubmits an answered approval until its call is settled.
            CallState::ApprovalResponded { approved: false } if can_request_approval => {
                call.state = CallState::Settled(ResultKind::Denied);
                out.emit(Chunk::ToolOutputDenied { tool_call_id: Cow::Borrowed(&call.wire_id) });
            }
            CallState::ApprovalResponded { approved } => {
                call.state = CallState::Settled(ResultKind::Error);
                let error = if approved {
                    UserText::ApprovedButNotRun.text()
                } else {
                    UserText::Refused.text()
                };
                out.emit(output_error(call, error, CallMetadata::NONE));
            }
            CallState::Ready | CallState::Running
                if call.needs_result
                    && (call.executed_by == Executor::Server
                        || call.executed_by == Executor::Provider
                            && up_to == Executor::Provider) =>
            {
                call.state = CallState::Settled(ResultKind::Error);
                out.emit(output_error(call, UserText::NoResult.text(), CallMetadata::NONE));
            }
            _ => {}
        }
    }
}

/// Gives a result to every open call of a step whose model call is repeated.
pub(super) fn close_step(
    calls: &mut ToolCalls,
    step: u32,
    can_request_approval: bool,
    out: &mut Out<'_>,
) {
    for call in calls.iter_mut().filter(|call| call.step == step && !call.is_settled()) {
        let is_denied = matches!(call.state, CallState::ApprovalResponded { approved: false });
        if is_denied && can_request_approval {
            call.state = CallState::Settled(ResultKind::Denied);
            out.emit(Chunk::ToolOutputDenied { tool_call_id: Cow::Borrowed(&call.wire_id) });
        } else {
            call.state = CallState::Settled(ResultKind::Error);
            out.emit(output_error(call, UserText::NoResult.text(), CallMetadata::NONE));
        }
    }
}

/// Emits a step that keeps the client from sending the same request at once, again and again: it
/// does so if all tool calls of the last step are done.
///
/// The step needs content. It is data, which the client does not render as text and which no model
/// receives.
pub(super) fn run_end_step(reason: Option<FinishReason>, out: &mut Out<'_>) {
    let data = match reason {
        Some(reason) => format!(r#"{{"finishReason":"{}"}}"#, reason.as_str()),
        None => "{}".to_owned(),
    };
    out.emit(Chunk::StartStep {});
    out.emit(Chunk::Data {
        name: Cow::Borrowed("run-end"),
        id: None,
        data: Some(Cow::Owned(Json::parse(&data).unwrap_or_else(|_| Json::null()))),
        transient: None,
    });
    out.emit(Chunk::FinishStep {});
}
