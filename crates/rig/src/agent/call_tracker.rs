//! [`Board`]: what the hook tells the reader of rig's stream.
//!
//! rig shows the results of a step once all of them are there, and none if the run is stopped
//! meanwhile. The hook sees each as it comes.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rig_core::effect::EffectId;
use rig_core::message::{CallId, Origin, Text};

use crate::model::{MadeCall, fresh_id};
use ui_message_stream::approval::ToolOutcome;
use ui_message_stream::approvals::Asked;
use ui_message_stream::event::ToolCall;
use ui_message_stream::id::ToolCallId;
use ui_message_stream::json::Json;

/// What happened to a call.
#[derive(Debug)]
pub(super) enum News {
    /// It is about to run, or to be asked about, with this input.
    Called { id: ToolCallId, tool: String, input: Json },
    /// It has an input that nobody can be shown: as it came, and why.
    NotShown { id: ToolCallId, tool: String, input: String, why: String },
    /// The provider asks before it runs a tool: the call, and the whole text of its input.
    ProviderAsks(Box<ToolCall>, Result<Json, (String, String)>),
    /// The person was asked.
    Asked(ToolCallId, Box<Asked>),
    /// It came to its end.
    Became(ToolCallId, ToolOutcome),
    /// The answer of this step is whole: which model gave it, and its texts.
    Answered(Box<Origin>, Vec<Text>),
    /// Which model gave the answer before this step.
    AnsweredBefore(Box<Origin>),
}

/// Shared by the hook and the reader, which are polled one after the other.
#[derive(Debug, Default)]
pub(super) struct Board(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The calls that the model made in this step, in their order. Some providers call two of them
    /// the same.
    made: HashMap<CallId, Vec<Made>>,
    /// What the calls that rig dispatched are called here.
    dispatched: HashMap<EffectId, ToolCallId>,
    called: HashSet<ToolCallId>,
    waiting: HashSet<ToolCallId>,
    news: VecDeque<News>,
}

#[derive(Debug)]
struct Made {
    id: ToolCallId,
    tool: String,
    /// Or never will be.
    is_dispatched: bool,
    has_result: bool,
}

impl Board {
    /// The model begins another step.
    pub(super) fn begin_step(&self) {
        self.state().made.clear();
    }

    /// The model made a call.
    pub(super) fn made(&self, made: &MadeCall) {
        let (id, function) = (made.id.clone(), &made.call.function);
        // Without usable arguments rig dispatches none.
        let is_dispatched = function.invalid_arguments.is_some();
        let tool = function.name.to_string();
        let made_call = Made { id, tool, is_dispatched, has_result: false };
        self.state().made.entry(made.call.id.clone()).or_default().push(made_call);
    }

    /// What a call that rig dispatches is called here, whether or not the model made it.
    pub(super) fn dispatched(
        &self,
        effect: EffectId,
        call: Option<&CallId>,
        tool: &str,
    ) -> ToolCallId {
        let state = &mut *self.state();
        if let Some(id) = state.dispatched.get(&effect) {
            return id.clone();
        }
        let made = call.and_then(|call| state.made.get_mut(call));
        let id = made.and_then(|made| {
            let is_open = |made: &Made| !made.is_dispatched;
            let of_tool = made.iter().position(|made| is_open(made) && made.tool == tool);
            // A hook may have put another tool in its place.
            let at = of_tool.or_else(|| made.iter().position(is_open))?;
            let made = made.get_mut(at)?;
            made.is_dispatched = true;
            Some(made.id.clone())
        });
        let id = id.unwrap_or_else(|| ToolCallId::from(fresh_id()));
        state.dispatched.insert(effect, id.clone());
        id
    }

    /// What the call is called here that rig shows a result of. It shows them in the calls' order.
    pub(super) fn has_result(&self, call: &CallId) -> Option<ToolCallId> {
        let mut state = self.state();
        let made = state.made.get_mut(call)?.iter_mut().find(|made| !made.has_result)?;
        made.has_result = true;
        Some(made.id.clone())
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
            News::ProviderAsks(..)
            | News::Became(..)
            | News::Answered(..)
            | News::AnsweredBefore(_) => {}
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

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
