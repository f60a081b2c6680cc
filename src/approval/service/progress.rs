//! [`Progress`]: what a running call shows before its outcome.
//!
//! # What an approved tool emits is shown, and its call waits for the ledger
//!
//! An approved call runs before the model is called, on a task of its own, and emits preliminary outputs and parts.
//! Parts are added to the message like those of a model call. A preliminary output is a frame that readers get and
//! the message does not: the call stays open until the ledger has its outcome, so that a server that is lost
//! meanwhile leaves a call that waits, and not one with half a result. While the log is slow, the turn does not
//! read on, and an output that is not read is replaced by the next one: a tool that emits often neither waits nor
//! fills the memory. Preliminary outputs get at most half of the bytes of a run. A reader that joins later gets
//! only what follows the results that it has. Its sources and files stay in the step of the calls: a step of their
//! own would end that of a call that still waits. Only the turn that writes the message shows what its calls emit:
//! an approval that is redeemed while another answer is written gets the outcome alone.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;

use futures_util::task::AtomicWaker;
use serde::Serialize;

use crate::event::{AgentEvent, Data, File, Source};
use crate::json::{Json, JsonError};

/// Emits what a running call shows before its outcome: preliminary outputs, each of which replaces the one
/// before, and parts of the message.
#[derive(Clone, Default)]
pub struct Progress(Arc<Unread>);

/// What the reader has not read. A slow reader skips older outputs, so that it neither stops the tool nor fills
/// the memory.
#[derive(Default)]
struct Unread {
    output: Mutex<Option<Json>>,
    parts: Mutex<VecDeque<AgentEvent>>,
    reader: AtomicWaker,
}

impl Progress {
    /// Sends a preliminary output to the client. It never waits, even if the client has
    /// disconnected.
    ///
    /// # Errors
    /// [`JsonError`] if the output cannot be written as [`Json`].
    pub fn emit(&self, output: impl Serialize) -> Result<(), JsonError> {
        let output = Json::from_serialize(&output)?;
        *self.0.output.lock().unwrap_or_else(PoisonError::into_inner) = Some(output);
        self.0.reader.wake();
        Ok(())
    }

    /// Adds application data to the message. It never waits. Data with an id replaces the data with the same
    /// name and id.
    ///
    /// # Errors
    /// [`TooManyParts`] if 64 parts wait for the reader.
    pub fn emit_data(&self, data: Data) -> Result<(), TooManyParts> {
        self.push(AgentEvent::Data(Box::new(data)))
    }

    /// Adds a source that the tool used to the message. It never waits.
    ///
    /// # Errors
    /// As [`emit_data`](Self::emit_data).
    pub fn emit_source(&self, source: Source) -> Result<(), TooManyParts> {
        self.push(AgentEvent::Source(Box::new(source)))
    }

    /// Adds a file that the tool made to the message. It never waits.
    ///
    /// # Errors
    /// As [`emit_data`](Self::emit_data).
    pub fn emit_file(&self, file: File) -> Result<(), TooManyParts> {
        self.push(AgentEvent::File(Box::new(file)))
    }

    fn push(&self, part: AgentEvent) -> Result<(), TooManyParts> {
        let mut parts = self.0.parts.lock().unwrap_or_else(PoisonError::into_inner);
        match parts.iter().position(|waiting| is_replaced(waiting, &part)) {
            Some(at) => parts[at] = part,
            None if parts.len() >= MAX_UNREAD_PARTS => return Err(TooManyParts),
            None => parts.push_back(part),
        }
        drop(parts);
        self.0.reader.wake();
        Ok(())
    }

    pub(super) fn register(&self, reader: &Waker) {
        self.0.reader.register(reader);
    }

    pub(super) fn take_output(&self) -> Option<Json> {
        self.0.output.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(super) fn take_part(&self) -> Option<AgentEvent> {
        self.0.parts.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }
}

/// Whether the second part is data that replaces the first one.
fn is_replaced(waiting: &AgentEvent, part: &AgentEvent) -> bool {
    match (waiting, part) {
        (AgentEvent::Data(waiting), AgentEvent::Data(data)) => {
            data.id.is_some() && (&waiting.name, &waiting.id) == (&data.name, &data.id)
        }
        _ => false,
    }
}

/// More parts wait for their reader than a running call may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "{MAX_UNREAD_PARTS} parts of this call wait for their reader; emit less often, or data with an id"
)]
pub struct TooManyParts;

/// How many parts of a call wait for their reader.
const MAX_UNREAD_PARTS: usize = 64;

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Progress").finish_non_exhaustive()
    }
}
