//! [`Board`]: what the hook tells the reader of rig's stream.
//!
//! rig shows the results of a step once all of them are there, and none if the run is stopped
//! meanwhile. The hook sees each as it comes.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rig_core::message::{CallId, Origin};

use crate::approval::ToolOutcome;
use crate::approvals::Asked;
use crate::id::ToolCallId;
use crate::json::Json;
use crate::model::rig::fresh_id;

/// What happened to a call.
#[derive(Debug)]
pub(super) enum News {
    /// It is about to run, or to be asked about, with this input.
    Called { id: ToolCallId, tool: String, input: Json },
    /// It has an input that nobody can be shown: as it came, and why.
    NotShown { id: ToolCallId, tool: String, input: String, why: String },
    /// The person was asked.
    Asked(ToolCallId, Box<Asked>),
    /// It came to its end.
    Became(ToolCallId, ToolOutcome),
    /// Which model made the calls of this step.
    Origin(Box<Origin>),
}

/// Shared by the hook and the reader, which are polled one after the other.
#[derive(Debug, Default)]
pub(super) struct Board(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// What the calls of rig are called here.
    names: HashMap<CallId, ToolCallId>,
    called: HashSet<ToolCallId>,
    waiting: HashSet<ToolCallId>,
    news: VecDeque<News>,
    is_paused: bool,
}

impl Board {
    /// The model made a call.
    pub(super) fn name(&self, call: &CallId, id: &ToolCallId) {
        self.state().names.insert(call.clone(), id.clone());
    }

    /// What a call is called here.
    pub(super) fn named(&self, call: &CallId) -> Option<ToolCallId> {
        self.state().names.get(call).cloned()
    }

    /// What a call is called here, whether or not the model made it.
    pub(super) fn id_of(&self, call: Option<&CallId>) -> ToolCallId {
        let known = call.and_then(|call| self.named(call));
        known.unwrap_or_else(|| {
            let id = ToolCallId::from(fresh_id());
            if let Some(call) = call {
                self.name(call, &id);
            }
            id
        })
    }

    pub(super) fn tell(&self, news: News) {
        let mut state = self.state();
        match &news {
            News::Called { id, .. } | News::NotShown { id, .. } => {
                state.called.insert(id.clone());
            }
            News::Asked(id, _) => {
                state.waiting.insert(id.clone());
            }
            News::Became(..) | News::Origin(_) => {}
        }
        state.news.push_back(news);
    }

    pub(super) fn next(&self) -> Option<News> {
        self.state().news.pop_front()
    }

    /// Whether it was told how a call looks.
    pub(super) fn is_called(&self, id: &ToolCallId) -> bool {
        self.state().called.contains(id)
    }

    /// Whether a person is asked about a call.
    pub(super) fn is_waiting(&self, id: &ToolCallId) -> bool {
        self.state().waiting.contains(id)
    }

    /// Whether a person is asked about anything.
    pub(super) fn waits(&self) -> bool {
        !self.state().waiting.is_empty()
    }

    /// The run ends here for the person to answer; nobody else stopped it.
    pub(super) fn pause(&self) {
        self.state().is_paused = true;
    }

    pub(super) fn is_paused(&self) -> bool {
        self.state().is_paused
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
