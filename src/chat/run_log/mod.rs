//! What the log of a run holds: [`LogWriter`] writes events and results as entries, and [`RunRecord`]
//! makes the message of them. Both do no I/O.
//!
//! ```text
//! events, results ──▶ LogWriter ──▶ entries ──▶ RunRecord ──▶ message in the chat
//! ```

mod record;
mod writer;

pub(crate) use self::writer::{LogClient, LogWriter};

use self::record::{OpenChunks, RunRecord};
use crate::chat::conversation::{Chat, LiveRun};
use crate::chat::log::LogEntry;
use crate::chunk::ReceivedChunk;
use crate::message::{Part, UiMessage};
use crate::reducer::Reducer;
use crate::sse::Decoder;

/// Returns this version of a conversation with what a log holds.
pub(crate) fn keep_log(chat: &Chat, live: &LiveRun, entries: &[LogEntry]) -> Chat {
    RunRecord::of_log(chat, live, entries).keep_in(chat)
}

/// Returns how many parts of a message are content.
pub(crate) fn content_parts(message: &UiMessage) -> usize {
    message.parts.iter().filter(|part| is_content(part)).count()
}

/// Whether a part is content. Step starts are not, and neither are `data-run-end` parts: the client
/// may hold one at the end of a response that the server does not hold.
pub(crate) fn is_content(part: &Part) -> bool {
    match part {
        Part::Data(data) => &*data.name != "run-end",
        part => !matches!(part, Part::StepStart { .. }),
    }
}

/// Returns after how many entries of a log a client stands that holds this many parts of the message,
/// of those that are content. Returns `None` if the log holds fewer parts.
pub(crate) fn position_of(
    begun: Option<&UiMessage>,
    entries: &[LogEntry],
    parts: usize,
) -> Option<u64> {
    let mut reducer = begun.cloned().map_or_else(Reducer::new, Reducer::continuing);
    let mut open = OpenChunks::default();
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
        if !open.has_text() && content_parts(reducer.message()) >= parts {
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
