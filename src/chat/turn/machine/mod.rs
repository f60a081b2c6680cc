//! [`ChatTurn`]: one request to a conversation, from its arrival to the end of its response. It makes
//! decisions and never awaits.
//!
//! ```text
//! message, edit,      ┌──────────── every reply that brings something new ◀──────────────┐
//! answers, Stop, GET ─▶ Loading ─▶ decide ─┬─▶ Respond(Join) ─▶ Following ─▶ Over         │
//!                                          ├─▶ Respond(Stored) ─▶ Over                   │
//!                                          ├─▶ Taking ─▶ Reading ────────────────────────┤
//!                                          ├─▶ Closing: the ledger closes open calls ────┤
//!                                          ├─▶ Saving(fence) ─▶ Completing: the old log ─┤
//!                                          ├─▶ Beginning ────────────────────────────────┘
//!                                          └─▶ Saving(run) ─▶ EndingOld ─▶ Running
//! Running: Redeeming ─▶ Stepping ─▶ Claiming ─▶ Agent ─▶ Loading ─▶ Saving ─▶ Ending ─▶ Over
//!              │            ▲                              │
//!              └────────────┴── a result is unread ◀───────┘
//! Running ── an append is refused, or the chat names another run ─▶ StopAgent ─▶ Following
//! Following ── the lease of the run passed ─▶ Taking, to mend the conversation
//! ```
//!
//! The chapter "One run in a chat" of `DESIGN.md` gives the rules.

mod chat_turn;
mod decide;
mod io;
mod record;
mod running;
mod writer;

pub(crate) use self::chat_turn::{ChatTurn, TurnSettings};
pub(crate) use self::io::{Action, AgentCall, Effect, Input, Request, Response};

use crate::chat::conversation::{Chat, LiveRun};
use crate::chat::log::LogEntry;
use crate::chunk::ReceivedChunk;
use crate::message::UiMessage;
use crate::reducer::Reducer;
use crate::sse::Decoder;

/// Returns this version of a conversation with what a log holds.
pub(crate) fn keep_log(chat: &Chat, live: &LiveRun, entries: &[LogEntry]) -> Chat {
    self::record::RunRecord::of_log(chat, live, entries).keep_in(chat)
}

/// Returns after how many entries of a log a client stands that holds this many parts of the message.
/// `count` counts the parts of a message. Returns `None` if the log holds fewer parts.
pub(crate) fn position_of(
    begun: Option<&UiMessage>,
    entries: &[LogEntry],
    parts: usize,
    count: impl Fn(&UiMessage) -> usize,
) -> Option<u64> {
    let mut reducer = begun.cloned().map_or_else(Reducer::new, Reducer::continuing);
    let mut open = self::record::OpenChunks::default();
    for (at, entry) in entries.iter().enumerate() {
        let LogEntry::Frame(bytes) = entry else { continue };
        let mut decoder = Decoder::default();
        decoder.push(bytes);
        while let Some(event) = decoder.poll() {
            if let Ok(ReceivedChunk::Known { chunk, .. }) = ReceivedChunk::parse(&event.data) {
                let _ = reducer.push_chunk(&chunk);
                open.push(&chunk);
            }
        }
        if !open.has_text() && count(reducer.message()) >= parts {
            return u64::try_from(at + 1).ok();
        }
    }
    None
}

/// Returns the message that a client holds after it has read a log. `chat` is the conversation when
/// the run began.
#[cfg(test)]
pub(crate) fn message_shown_by(chat: &Chat, live: &LiveRun, entries: &[LogEntry]) -> UiMessage {
    let message = chat.message(&live.message_id).cloned();
    let mut reducer = message.map_or_else(Reducer::new, Reducer::continuing);
    for entry in entries {
        let LogEntry::Frame(bytes) = entry else { continue };
        let mut decoder = Decoder::default();
        decoder.push(bytes);
        while let Some(event) = decoder.poll() {
            if let Ok(chunk) = ReceivedChunk::parse(&event.data) {
                // A failure shows as a part that lacks its result.
                let _ = reducer.push(&chunk);
            }
        }
    }
    reducer.into_message()
}
