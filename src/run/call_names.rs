//! What the calls of a run are named by: each by an id of its own, whatever the model calls them.

use std::collections::{HashMap, HashSet};

use crate::id::ToolCallId;

/// The ids of the calls in the message, and which of them the model means now.
///
/// Some models number their calls anew in each answer, and some give two calls of one answer the
/// same id. What was begun under an id is meant by it until its input is complete; after that it
/// names another call, and results under it are those of the last one.
#[derive(Debug, Default)]
pub(super) struct CallNames {
    used: HashSet<ToolCallId>,
    /// The model's ids of this step.
    meant: HashMap<ToolCallId, Meant>,
}

#[derive(Debug)]
struct Meant {
    id: ToolCallId,
    is_complete: bool,
}

impl CallNames {
    pub(super) fn take(&mut self, ids: impl IntoIterator<Item = ToolCallId>) {
        self.used.extend(ids);
    }

    pub(super) fn next_step(&mut self) {
        self.meant.clear();
    }

    /// The call whose input begins under this id.
    pub(super) fn begin(&mut self, id: &ToolCallId) -> ToolCallId {
        self.named(id, false)
    }

    /// The call whose input is whole now.
    pub(super) fn complete(&mut self, id: &ToolCallId) -> ToolCallId {
        self.named(id, true)
    }

    /// The call that is meant by this id; one of an earlier step goes by its own.
    pub(super) fn of(&self, id: &ToolCallId) -> ToolCallId {
        self.meant.get(id).map_or(id, |meant| &meant.id).clone()
    }

    fn named(&mut self, id: &ToolCallId, is_complete: bool) -> ToolCallId {
        if let Some(meant) = self.meant.get_mut(id).filter(|meant| !meant.is_complete) {
            meant.is_complete = is_complete;
            return meant.id.clone();
        }
        let unused = self.unused(id);
        self.used.insert(unused.clone());
        self.meant.insert(id.clone(), Meant { id: unused.clone(), is_complete });
        unused
    }

    fn unused(&self, id: &ToolCallId) -> ToolCallId {
        if !self.used.contains(id) {
            return id.clone();
        }
        let candidates = (self.used.len()..).map(|n| ToolCallId::from(format!("{id}-{n}")));
        let mut unused = candidates.filter(|candidate| !self.used.contains(candidate));
        // The numbers do not run out before the ids do.
        unused.next().unwrap_or_else(|| id.clone())
    }
}
