//! Unique ids for the calls of a run, independent of the ids that the model uses.

use std::collections::{HashMap, HashSet};

use ui_message_stream::event::ToolCall;
use ui_message_stream::id::ToolCallId;

/// Maps the tool call ids of the model to ids that are unique in the message.
///
/// Some models restart the numbering of their calls in each response, and some give two calls of
/// one response the same id. An id of the model refers to the call that was begun under it until
/// the input of that call is complete. After that, the same id begins another call, and results
/// with this id belong to the latest call for which the step has room.
#[derive(Debug)]
pub(super) struct CallIdMap {
    /// All ids that calls of the message have.
    used: HashSet<ToolCallId>,
    /// The model's ids of the current step, with the call that each refers to.
    mapped: HashMap<ToolCallId, MappedId>,
    /// The same for results: without the calls for which the step has no room.
    with_room: HashMap<ToolCallId, ToolCallId>,
    /// The calls of the current step whose input was begun before it was complete.
    announced: HashSet<ToolCallId>,
    /// The number of calls of the current step.
    begun: usize,
    /// The maximum number of calls of a step.
    max_step_calls: usize,
}

/// The unique id of a call, whether the step has room for it, and whether its input is complete.
#[derive(Debug)]
struct MappedId {
    id: ToolCallId,
    has_room: bool,
    is_complete: bool,
}

impl CallIdMap {
    /// Creates a map for steps that have room for so many calls.
    pub(super) fn new(max_step_calls: usize) -> Self {
        CallIdMap {
            used: HashSet::new(),
            mapped: HashMap::new(),
            with_room: HashMap::new(),
            announced: HashSet::new(),
            begun: 0,
            max_step_calls,
        }
    }

    /// Sets the maximum number of calls of a step.
    pub(super) fn set_max_step_calls(&mut self, calls: usize) {
        self.max_step_calls = calls;
    }

    /// Returns the maximum number of calls of a step.
    pub(super) fn max_step_calls(&self) -> usize {
        self.max_step_calls
    }

    /// Marks ids as used, so that no new call receives them.
    pub(super) fn reserve(&mut self, ids: impl IntoIterator<Item = ToolCallId>) {
        self.used.extend(ids);
    }

    /// Forgets the model's ids of the previous step.
    pub(super) fn next_step(&mut self) {
        self.mapped.clear();
        self.with_room.clear();
        self.announced.clear();
        self.begun = 0;
    }

    /// Gives a unique and short id to the call whose input begins under its id. Returns whether the step
    /// has room for the call. Far beyond that room, a call is known only when it is complete.
    pub(super) fn begin(&mut self, call: &mut ToolCall) -> bool {
        if self.is_full() {
            return false;
        }
        let has_room = self.assign(call, false);
        if has_room {
            self.announced.insert(call.id.clone());
        }
        has_room
    }

    /// Returns whether the input of the call with this unique id was [begun](Self::begin) in this step.
    pub(super) fn has_begun(&self, id: &ToolCallId) -> bool {
        self.announced.contains(id)
    }

    /// Gives a unique and short id to the call whose input is now complete. Returns whether the step has
    /// room for the call.
    pub(super) fn complete(&mut self, call: &mut ToolCall) -> bool {
        self.assign(call, true)
    }

    fn assign(&mut self, call: &mut ToolCall, is_complete: bool) -> bool {
        let (id, has_room) = self.map(&call.id, is_complete);
        let model_id = std::mem::replace(&mut call.id, id);
        if model_id.shortened().is_some() {
            call.model_id = Some(model_id);
        }
        has_room
    }

    /// Returns the unique id of the call whose input is under this id. Returns `None` if the step has no
    /// room for it. An id of an earlier step is returned unchanged, or shortened.
    pub(super) fn resolve_input(&self, id: &ToolCallId) -> Option<ToolCallId> {
        match self.mapped.get(id) {
            Some(mapped) => mapped.has_room.then(|| mapped.id.clone()),
            None if self.is_full() => None,
            None => Some(id.on_wire()),
        }
    }

    fn is_full(&self) -> bool {
        self.begun >= self.max_step_calls.saturating_add(MAX_INCOMPLETE)
    }

    /// Returns the unique id of the call that has a result under this id, as
    /// [`resolve_input`](Self::resolve_input) does.
    pub(super) fn resolve_result(&self, id: &ToolCallId) -> Option<ToolCallId> {
        self.with_room.get(id).cloned().or_else(|| self.resolve_input(id))
    }

    /// Returns the unique id of the incomplete call under this id, or of a new call if there is none,
    /// and whether the step has room for it.
    fn map(&mut self, id: &ToolCallId, is_complete: bool) -> (ToolCallId, bool) {
        if let Some(mapped) = self.mapped.get_mut(id).filter(|mapped| !mapped.is_complete) {
            mapped.is_complete = is_complete;
            return (mapped.id.clone(), mapped.has_room);
        }
        let unused = self.unused(id);
        let has_room = self.begun < self.max_step_calls;
        self.begun += 1;
        self.used.insert(unused.clone());
        self.mapped.insert(id.clone(), MappedId { id: unused.clone(), has_room, is_complete });
        if has_room {
            self.with_room.insert(id.clone(), unused.clone());
        }
        (unused, has_room)
    }

    /// Returns `id`, or a short id in its place, if no call has it. Otherwise adds a number that
    /// makes it unique.
    fn unused(&self, id: &ToolCallId) -> ToolCallId {
        let id = &id.on_wire();
        if !self.used.contains(id) {
            return id.clone();
        }
        let candidates = (self.used.len()..).map(|n| ToolCallId::from(format!("{id}-{n}")));
        let mut unused = candidates.filter(|candidate| !self.used.contains(candidate));
        // There are more numbers than used ids, so one candidate is unused.
        unused.next().unwrap_or_else(|| id.clone())
    }
}

/// How many calls are known that have begun without room for them.
const MAX_INCOMPLETE: usize = 1_000;
