//! [`Known`]: what this turn knows of open calls beyond the history, and of which ones.

use std::collections::HashMap;

use crate::approval::{DeferredOutcome, DeferredToolResult, DeferredToolResults, OpenCall};
use crate::id::{ApprovalId, ToolCallId};
use crate::message::{Role, UiMessage};

/// What this turn knows of an open call beyond the history.
#[derive(Debug, Clone, Copy)]
pub(super) enum News<'a> {
    /// What became of it.
    Became(&'a DeferredToolResult),
    /// It still waits.
    Pending,
    /// The person wrote past it.
    Superseded,
}

/// What this turn knows of open calls, by where they stand: message, then part.
#[derive(Debug, Default)]
pub(super) struct Known<'a>(HashMap<(usize, usize), News<'a>>);

impl<'a> Known<'a> {
    /// Finds the open call of each word: by the question if a call has it, else the latest one of
    /// the id.
    pub(super) fn of(deferred: &'a DeferredToolResults, messages: &[UiMessage]) -> Self {
        let open = OpenParts::of(messages);
        let still_open = |calls: &'a [OpenCall], news: News<'a>| {
            calls.iter().map(move |call| (call.approval_id.as_ref(), &call.tool_call_id, news))
        };
        let became = deferred.results().iter().map(|result| {
            (result.approval_id.as_ref(), &result.tool_call_id, News::Became(result))
        });
        let words = still_open(deferred.pending(), News::Pending)
            .chain(still_open(deferred.superseded(), News::Superseded))
            .chain(became);
        let mut known = HashMap::new();
        let mut by_id_only = HashMap::new();
        for (question, id, news) in words {
            if let Some(place) = question.and_then(|question| open.by_question.get(question)) {
                known.insert(*place, news);
            } else if let Some((place, was_asked)) = open.by_id.get(id)
                && (*was_asked || !is_about_a_question(question, news))
            {
                by_id_only.insert(*place, news);
            }
        }
        for (place, news) in by_id_only {
            // What the client was told in this turn outranks that the question is open still.
            if !matches!(known.get(&place), Some(News::Became(_))) {
                known.insert(place, news);
            }
        }
        Known(known)
    }

    /// What is known of the call that stands there.
    pub(super) fn of_part(&self, message: usize, part: usize) -> Option<News<'a>> {
        self.0.get(&(message, part)).copied()
    }
}

/// Whether a word says something of an answer to a question. Of a call that nobody was asked about
/// it says nothing, whatever a client claims: that one may have run.
fn is_about_a_question(question: Option<&ApprovalId>, news: News<'_>) -> bool {
    let is_refused =
        matches!(news, News::Became(result) if result.outcome == DeferredOutcome::Refused);
    question.is_some() || is_refused
}

/// Where the calls stand that have no result.
#[derive(Debug, Default)]
struct OpenParts<'m> {
    by_question: HashMap<&'m ApprovalId, (usize, usize)>,
    /// The latest of each id, and whether a person was asked about it.
    by_id: HashMap<&'m ToolCallId, ((usize, usize), bool)>,
}

impl<'m> OpenParts<'m> {
    fn of(messages: &'m [UiMessage]) -> Self {
        let mut open = OpenParts::default();
        let assistants =
            messages.iter().enumerate().filter(|(_, message)| message.role == Role::Assistant);
        for (at, message) in assistants {
            let overruled = message.overruled_tool_parts();
            for (place, part) in message.parts.iter().enumerate() {
                let part = part.as_tool().filter(|part| !part.is_settled());
                let Some(part) = part.filter(|_| overruled.binary_search(&place).is_err()) else {
                    continue;
                };
                let question = part.approval_id();
                open.by_id.insert(&part.tool_call_id, ((at, place), question.is_some()));
                if let Some(question) = question {
                    open.by_question.insert(question, (at, place));
                }
            }
        }
        open
    }
}
