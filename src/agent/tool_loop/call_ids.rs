//! Unique ids for the calls of a run, independent of the ids that the model uses.

use std::collections::{HashMap, HashSet};

use crate::event::ToolCall;
use crate::id::ToolCallId;

/// Maps the tool call ids of the model to ids that are unique in the message.
///
/// Some models restart the numbering of their calls in each response, and some give two calls of
/// one response the same id. An id of the model refers to the call that was begun under it until
/// the input of that call is complete. After that, the same id begins another call, and results
/// with this id belong to the latest call.
#[derive(Debug, Default)]
pub(super) struct CallIdMap {
    /// All ids that calls of the message have.
    used: HashSet<ToolCallId>,
    /// The model's ids of the current step, with the call that each refers to.
    mapped: HashMap<ToolCallId, MappedId>,
    /// The number of calls of the current step.
    begun: usize,
}

/// The unique id of a call, its number in the step, and whether its input is complete.
#[derive(Debug)]
struct MappedId {
    id: ToolCallId,
    number: usize,
    is_complete: bool,
}

impl CallIdMap {
    /// Marks ids as used, so that no new call receives them.
    pub(super) fn reserve(&mut self, ids: impl IntoIterator<Item = ToolCallId>) {
        self.used.extend(ids);
    }

    /// Forgets the model's ids of the previous step.
    pub(super) fn next_step(&mut self) {
        self.mapped.clear();
        self.begun = 0;
    }

    /// Gives a unique and short id to the call whose input begins under its id. Returns the number of
    /// the call in the step, from 0.
    pub(super) fn begin(&mut self, call: &mut ToolCall) -> usize {
        self.assign(call, false)
    }

    /// Gives a unique and short id to the call whose input is now complete. Returns the number of the
    /// call in the step, from 0.
    pub(super) fn complete(&mut self, call: &mut ToolCall) -> usize {
        self.assign(call, true)
    }

    /// Returns the number of the call of this step that this id of the model refers to.
    pub(super) fn number(&self, id: &ToolCallId) -> Option<usize> {
        self.mapped.get(id).map(|mapped| mapped.number)
    }

    fn assign(&mut self, call: &mut ToolCall, is_complete: bool) -> usize {
        let (id, number) = self.map(&call.id, is_complete);
        let model_id = std::mem::replace(&mut call.id, id);
        if model_id.shortened().is_some() {
            call.model_id = Some(model_id);
        }
        number
    }

    /// Returns the unique id of the call that this id refers to. An id of an earlier step is
    /// returned unchanged, or shortened.
    pub(super) fn resolve(&self, id: &ToolCallId) -> ToolCallId {
        let mapped = self.mapped.get(id).map(|mapped| mapped.id.clone());
        mapped.or_else(|| id.shortened()).unwrap_or_else(|| id.clone())
    }

    /// Returns the unique id and the number of the incomplete call under this id, or of a new call if
    /// there is none.
    fn map(&mut self, id: &ToolCallId, is_complete: bool) -> (ToolCallId, usize) {
        if let Some(mapped) = self.mapped.get_mut(id).filter(|mapped| !mapped.is_complete) {
            mapped.is_complete = is_complete;
            return (mapped.id.clone(), mapped.number);
        }
        let (unused, number) = (self.unused(id), self.begun);
        self.begun += 1;
        self.used.insert(unused.clone());
        self.mapped.insert(id.clone(), MappedId { id: unused.clone(), number, is_complete });
        (unused, number)
    }

    /// Returns `id`, or a short id in its place, if no call has it. Otherwise adds a number that
    /// makes it unique.
    fn unused(&self, id: &ToolCallId) -> ToolCallId {
        let id = &id.shortened().unwrap_or_else(|| id.clone());
        if !self.used.contains(id) {
            return id.clone();
        }
        let candidates = (self.used.len()..).map(|n| ToolCallId::from(format!("{id}-{n}")));
        let mut unused = candidates.filter(|candidate| !self.used.contains(candidate));
        // There are more numbers than used ids, so one candidate is unused.
        unused.next().unwrap_or_else(|| id.clone())
    }
}
