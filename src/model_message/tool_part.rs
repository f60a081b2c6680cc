//! What a model is told of one tool part: the call, and what became of it.

use super::content::{ToolCallContent, object_of};
use super::news::News;
use super::{NotExecuted, ToolResult};
use crate::approval::{
    DeferredOutcome, DeferredToolResult, EXPIRED, OUTCOME_UNKNOWN, REFUSED, REVOKED, ToolOutcome,
};
use crate::id::{ApprovalId, ToolCallId};
use crate::json::Json;
use crate::message::{PastApproval, ToolKind, ToolPart, ToolState};
use crate::metadata::ProviderMetadata;

/// What became of a call.
pub(super) enum Became {
    /// It has this result.
    Result(ToolResult),
    /// The provider waits for an answer, and gets this one.
    Answered { approval_id: ApprovalId, approved: bool, reason: Option<String> },
}

impl Became {
    /// What became of the call of a part, or `None` if the model is told of no call.
    ///
    /// An input that was still on its way is no call: it may read as another one than was meant,
    /// and nobody acted on it. A state of a later version is not guessed at either.
    pub(super) fn of(
        part: &ToolPart,
        news: Option<News<'_>>,
        person_wrote_on: bool,
    ) -> Option<Self> {
        if matches!(part.state, ToolState::InputStreaming { .. } | ToolState::Unknown { .. }) {
            return None;
        }
        if part.provider_executed == Some(true)
            && let Some(answered) = answered(part, news, person_wrote_on)
        {
            return Some(answered);
        }
        let result = news_in(news).or_else(|| told(part)).unwrap_or_else(|| match &part.state {
            ToolState::ApprovalRequested { .. } => waits(news, person_wrote_on).into(),
            ToolState::InputAvailable { .. } if matches!(news, Some(News::Pending)) => {
                NotExecuted::AwaitsClient.into()
            }
            ToolState::OutputAvailable { output, .. } => {
                ToolResult::Unknown { so_far: output.clone() }
            }
            _ => ToolResult::Unknown { so_far: None },
        });
        Some(Became::Result(result))
    }
}

/// The call of a part.
pub(super) fn call(part: &ToolPart, tool_call_id: ToolCallId) -> ToolCallContent {
    let fallback = match &part.state {
        ToolState::OutputError { raw_input, result_provider_metadata, .. } => {
            (raw_input.as_ref(), result_provider_metadata.as_ref())
        }
        _ => (None, None),
    };
    let input = part.input().filter(|input| !input.is_null() || fallback.0.is_none());
    ToolCallContent {
        tool_call_id,
        tool_name: sanitize_tool_name(&part.tool_name),
        input: input.or(fallback.0).cloned().unwrap_or_else(|| object_of("")),
        provider_executed: part.provider_executed == Some(true),
        provider_metadata: part.call_provider_metadata.as_ref().or(fallback.1).cloned(),
    }
}

/// What the provider wants back with the result.
pub(super) fn result_metadata(part: &ToolPart) -> Option<ProviderMetadata> {
    let own = match &part.state {
        ToolState::OutputAvailable { result_provider_metadata, .. }
        | ToolState::OutputError { result_provider_metadata, .. } => {
            // Of a tool that the provider does not run, the provider knows the call only.
            result_provider_metadata.as_ref().filter(|_| part.provider_executed == Some(true))
        }
        _ => None,
    };
    own.or(part.call_provider_metadata.as_ref()).cloned()
}

/// The answer to a provider that asked about a call that it runs, while there is no result. One that
/// was told yes before waits for none.
fn answered(part: &ToolPart, news: Option<News<'_>>, person_wrote_on: bool) -> Option<Became> {
    if let Some(News::Became(result)) = news
        && matches!(result.outcome, DeferredOutcome::Forwarded | DeferredOutcome::OutcomeUnknown)
    {
        return None;
    }
    let (approval_id, said, otherwise) = match &part.state {
        ToolState::ApprovalRequested { approval, .. } => {
            (&approval.id, None, waits(news, person_wrote_on))
        }
        ToolState::ApprovalResponded { approval, .. } => {
            let no = (!approval.approved).then(|| approval.reason.clone());
            (&approval.id, no, NotExecuted::Refused)
        }
        ToolState::OutputDenied { approval: Some(approval), .. } => {
            let no = is_no(approval).then(|| approval.reason.clone());
            (&approval.id, no, NotExecuted::Refused)
        }
        _ => return None,
    };
    let (approved, reason) = match news {
        // Forwarded once: only what was verified and redeemed in this turn.
        Some(News::Became(DeferredToolResult {
            outcome: DeferredOutcome::ForProvider { approved: true, reason, .. },
            approval_id: Some(redeemed),
            is_final: true,
            ..
        })) if redeemed == approval_id => (true, reason.clone()),
        _ => (false, no(news_in(news), said, otherwise)),
    };
    Some(Became::Answered { approval_id: approval_id.clone(), approved, reason })
}

/// Why the provider is told no.
fn no(
    news: Option<ToolResult>,
    said: Option<Option<String>>,
    otherwise: NotExecuted,
) -> Option<String> {
    match (news, said) {
        (Some(ToolResult::Denied { reason }), _) => reason,
        (Some(ToolResult::NotExecuted { why }), _) => Some(why.to_string()),
        (_, Some(reason)) => reason,
        (_, None) => Some(otherwise.to_string()),
    }
}

/// Of a question without an answer, whether it still waits for one.
fn waits(news: Option<News<'_>>, person_wrote_on: bool) -> NotExecuted {
    match news {
        Some(News::Pending) => NotExecuted::AwaitsApproval,
        _ if person_wrote_on => NotExecuted::Unanswered,
        _ => NotExecuted::AwaitsApproval,
    }
}

fn news_in(news: Option<News<'_>>) -> Option<ToolResult> {
    match news? {
        News::Became(result) => Some(of_deferred(&result.outcome)),
        News::Pending => None,
        News::Superseded => Some(NotExecuted::Unanswered.into()),
    }
}

fn of_deferred(outcome: &DeferredOutcome) -> ToolResult {
    match outcome {
        DeferredOutcome::Ran { outcome: ToolOutcome::Output(output) }
        | DeferredOutcome::Output { output } => ToolResult::Output(output.clone()),
        DeferredOutcome::Ran { outcome: ToolOutcome::Failed(error) }
        | DeferredOutcome::OutputError { error_text: error } => failed(error),
        // What is yet to run says nothing of how it ends.
        DeferredOutcome::Approved { .. }
        | DeferredOutcome::Running { .. }
        | DeferredOutcome::OutcomeUnknown
        | DeferredOutcome::Forwarded
        | DeferredOutcome::ForProvider { approved: true, .. } => {
            ToolResult::Unknown { so_far: None }
        }
        DeferredOutcome::Denied { reason }
        | DeferredOutcome::ForProvider { approved: false, reason, .. } => {
            ToolResult::Denied { reason: reason.clone() }
        }
        DeferredOutcome::Expired => NotExecuted::Expired.into(),
        DeferredOutcome::Revoked => NotExecuted::Revoked.into(),
        DeferredOutcome::Refused => NotExecuted::Refused.into(),
    }
}

/// What the part itself says became of the call.
fn told(part: &ToolPart) -> Option<ToolResult> {
    Some(match &part.state {
        ToolState::OutputAvailable { .. } if !part.is_settled() => return None,
        ToolState::OutputAvailable { .. } if part.kind == ToolKind::Unregistered => {
            ToolResult::Output(Json::string(OF_NO_TOOL))
        }
        ToolState::OutputAvailable { output, .. } => {
            ToolResult::Output(output.clone().unwrap_or_else(Json::null))
        }
        ToolState::OutputError { error_text, .. } => failed(error_text),
        ToolState::OutputDenied { approval: Some(approval), .. } if is_no(approval) => {
            ToolResult::Denied { reason: approval.reason.clone() }
        }
        ToolState::OutputDenied { .. } => NotExecuted::Refused.into(),
        ToolState::ApprovalResponded { approval, .. } if !approval.approved => {
            ToolResult::Denied { reason: approval.reason.clone() }
        }
        _ => return None,
    })
}

/// A denied part whose answer was a yes, or none, is a server's own refusal.
fn is_no(approval: &PastApproval) -> bool {
    approval.approved == Some(false)
}

/// Of the texts that this crate shows a person instead of a result, what they stand for.
fn failed(error_text: &str) -> ToolResult {
    match error_text {
        REFUSED => NotExecuted::Refused.into(),
        EXPIRED => NotExecuted::Expired.into(),
        REVOKED => NotExecuted::Revoked.into(),
        OUTCOME_UNKNOWN => ToolResult::Unknown { so_far: None },
        other => ToolResult::Error(other.to_owned()),
    }
}

/// Replaces each character of a tool's name that providers do not accept with `_`, and cuts the name
/// after 64 characters. A model may call a tool that does not exist, by any name.
///
/// OpenAI and Anthropic accept ASCII letters, digits, `_` and `-`.
///
/// ```
/// use ui_message_stream::model_message::sanitize_tool_name;
///
/// assert_eq!(&*sanitize_tool_name("files.read"), "files_read");
/// assert_eq!(&*sanitize_tool_name(""), "unnamed");
/// ```
pub fn sanitize_tool_name(name: &str) -> Box<str> {
    let is_accepted = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if name.is_empty() {
        return UNNAMED.into();
    }
    let accepted = name.chars().map(|c| if is_accepted(c) { c } else { '_' });
    accepted.take(LONGEST_NAME).collect::<String>().into()
}

/// What the output of a tool is replaced with that is not registered any more: nobody here could
/// say what it is, and the client could make it up.
const OF_NO_TOOL: &str = "The output is left out: this tool is no longer available.";

/// A call without a name is nobody's.
const UNNAMED: &str = "unnamed";

/// In characters: OpenAI's and Anthropic's limit.
const LONGEST_NAME: usize = 64;
