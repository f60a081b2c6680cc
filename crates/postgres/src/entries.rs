//! The entries of an append, as bytes.

use bytes::{Buf, Bytes};
use ui_message_stream::chat::log::LogEntry;

use crate::error::PostgresError;

/// Returns the entries as they are stored: for each its kind, the number of its bytes, its bytes.
pub(crate) fn encode(entries: &[LogEntry]) -> Result<Vec<u8>, PostgresError> {
    let bytes = entries.iter().map(|entry| HEADER_BYTES + entry.bytes().len()).sum();
    let mut body = Vec::with_capacity(bytes);
    for entry in entries {
        let length = u32::try_from(entry.bytes().len());
        body.push(match entry {
            LogEntry::Frame(_) => FRAME,
            LogEntry::Note(_) => NOTE,
        });
        body.extend(length.map_err(|_| PostgresError::Unreadable("entry"))?.to_be_bytes());
        body.extend_from_slice(entry.bytes());
    }
    Ok(body)
}

/// Returns the entries that were stored as these bytes.
pub(crate) fn decode(mut body: Bytes) -> impl Iterator<Item = Result<LogEntry, PostgresError>> {
    std::iter::from_fn(move || {
        (!body.is_empty())
            .then(|| decode_first(&mut body).ok_or(PostgresError::Unreadable("entry")))
    })
}

fn decode_first(body: &mut Bytes) -> Option<LogEntry> {
    let (kind, length) = (body.try_get_u8().ok()?, body.try_get_u32().ok()?);
    let length = usize::try_from(length).ok().filter(|length| *length <= body.len())?;
    let bytes = body.split_to(length);
    match kind {
        FRAME => Some(LogEntry::Frame(bytes)),
        NOTE => Some(LogEntry::Note(bytes)),
        _ => None,
    }
}

const FRAME: u8 = 0;
const NOTE: u8 = 1;

/// The bytes before those of an entry.
const HEADER_BYTES: usize = 5;
