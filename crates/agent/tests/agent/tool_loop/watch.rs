//! Checks the events and effects of a run against the rules of the loop.

use std::collections::{BTreeSet, HashMap, HashSet};

use ui_message_stream::event::{AgentEvent, Executor};
use ui_message_stream::id::ToolCallId;
use ui_message_stream_agent::tool_loop::{Action, Effect, RunEnd};

pub(crate) struct LoopObserver {
    most_steps: u32,
    model_calls: u32,
    /// All started effects.
    pub(crate) effects: Vec<Effect>,
    /// The number of effects that `next_effect` has returned.
    returned: usize,
    /// The ids of all known calls.
    named: HashSet<ToolCallId>,
    /// The calls that the run decides about, and whether they have ended.
    own_calls: HashMap<ToolCallId, bool>,
    /// The calls that were decided before they were announced.
    unannounced: HashSet<ToolCallId>,
    /// The client's calls whose inputs have begun as streamed ones, each with whether the input had text.
    streamed: HashMap<ToolCallId, bool>,
    awaiting_approval: HashSet<ToolCallId>,
    is_in_step: bool,
    is_stream_ended: bool,
    end: Option<RunEnd>,
    is_renamed: bool,
}

impl LoopObserver {
    pub(crate) fn new(most_steps: u32, taken: Vec<ToolCallId>) -> Self {
        LoopObserver {
            most_steps,
            model_calls: 0,
            effects: Vec::new(),
            returned: 0,
            named: taken.into_iter().collect(),
            own_calls: HashMap::new(),
            unannounced: HashSet::new(),
            streamed: HashMap::new(),
            awaiting_approval: HashSet::new(),
            is_in_step: false,
            is_stream_ended: false,
            end: None,
            is_renamed: false,
        }
    }

    /// The next started effect that was not returned yet.
    pub(crate) fn next_effect(&mut self) -> Option<Effect> {
        self.returned += 1;
        self.effects.get(self.returned - 1).cloned()
    }

    pub(crate) fn observe(&mut self, step: Action) {
        match step {
            Action::Emit(event) => self.check_event(&event),
            Action::Start(effect) => self.check_effect(effect),
            Action::Wait => assert!(self.end.is_none()),
            Action::End(end) => self.end(end),
            other => panic!("{other:?}"),
        }
    }

    fn check_event(&mut self, event: &AgentEvent) {
        assert!(!self.is_stream_ended, "{event:?} follows the end of the stream");
        match event {
            AgentEvent::StepStart => {
                assert!(!std::mem::replace(&mut self.is_in_step, true), "a step within a step");
            }
            AgentEvent::StepFinish => {
                assert!(
                    std::mem::replace(&mut self.is_in_step, false),
                    "a step end without a step"
                );
            }
            AgentEvent::ToolInputStart { call } if call.executed_by == Executor::Client => {
                self.streamed.entry(call.id.clone()).or_insert(false);
            }
            AgentEvent::ToolInputDelta { tool_call_id, delta } => {
                if let Some(has_text) = self.streamed.get_mut(tool_call_id) {
                    *has_text |= !delta.trim().is_empty();
                }
            }
            AgentEvent::ToolInput { call, .. } => {
                if call.executed_by == Executor::Provider {
                    self.named.insert(call.id.clone());
                } else {
                    let known = self.own_calls.insert(call.id.clone(), false);
                    assert_eq!(known, None, "announced twice");
                    let was_decided = self.unannounced.contains(&call.id);
                    assert_eq!(was_decided, call.executed_by == Executor::Client, "{call:?}");
                }
                self.is_renamed |= call.id.len() > 4;
            }
            AgentEvent::ToolInputInvalid { call, .. } => {
                assert!(!self.own_calls.contains_key(&call.id), "announced twice");
            }
            AgentEvent::ToolOutput { tool_call_id, preliminary: true, .. } => {
                assert_ne!(
                    self.own_calls.get(tool_call_id),
                    Some(&true),
                    "an output after the end"
                );
            }
            AgentEvent::ToolOutput { tool_call_id, .. }
            | AgentEvent::ToolDenied { tool_call_id }
            | AgentEvent::DenialOverruled { tool_call_id }
            | AgentEvent::InputChanged { tool_call_id, .. }
            | AgentEvent::ToolRefused { tool_call_id, .. }
            | AgentEvent::ToolFailed { tool_call_id, .. } => {
                if let Some(ended) = self.own_calls.get_mut(tool_call_id) {
                    assert!(!std::mem::replace(ended, true), "{tool_call_id} ends twice");
                    assert!(
                        !self.awaiting_approval.contains(tool_call_id),
                        "a call awaiting approval has no result"
                    );
                }
            }
            AgentEvent::ApprovalRequested { tool_call_id, .. } => {
                if let Some(ended) = self.own_calls.get(tool_call_id) {
                    assert!(!ended, "an approval request for an ended call");
                    assert!(
                        self.awaiting_approval.insert(tool_call_id.clone()),
                        "an approval is requested twice"
                    );
                }
            }
            AgentEvent::Finish { .. } | AgentEvent::Error { .. } | AgentEvent::Abort { .. } => {
                self.is_stream_ended = true;
            }
            _ => {}
        }
    }

    fn check_effect(&mut self, effect: Effect) {
        assert!(!self.is_stream_ended, "{effect:?} starts after the end of the stream");
        let twice = match &effect {
            Effect::CallModel { step } => {
                self.model_calls += 1;
                assert_eq!(*step, self.model_calls);
                assert!(self.model_calls <= self.most_steps, "one call too many");
                assert!(
                    self.own_calls.values().all(|ended| *ended),
                    "a call is open: {:?}",
                    self.own_calls
                );
                assert!(self.is_in_step);
                false
            }
            Effect::ValidateInput(call) => !self.named.insert(call.tool_call_id.clone()),
            Effect::RequestApprovals(calls) => {
                for call in calls {
                    // The client executes this call once it is approved, and not before.
                    let id = &call.tool_call_id;
                    if self.streamed.get(id) == Some(&true) {
                        self.own_calls.entry(id.clone()).or_insert(false);
                    }
                    assert_eq!(self.own_calls.get(id), Some(&false), "{effect:?}");
                }
                self.effects.iter().any(|started| match started {
                    Effect::RequestApprovals(before) => {
                        before.iter().any(|call| calls.contains(call))
                    }
                    Effect::RunTool(before) => calls.contains(before),
                    _ => false,
                })
            }
            Effect::DecideApproval(call) | Effect::RunTool(call) => {
                // A call that the client executes is announced when it is decided.
                let state = self.own_calls.get(&call.tool_call_id);
                let is_new = state.is_none() && matches!(effect, Effect::DecideApproval(_));
                assert!(is_new || state == Some(&false), "{effect:?}");
                if is_new {
                    self.unannounced.insert(call.tool_call_id.clone());
                }
                self.effects.iter().any(|started| match (started, &effect) {
                    (Effect::DecideApproval(a), Effect::DecideApproval(b)) => {
                        a.tool_call_id == b.tool_call_id
                    }
                    (Effect::RunTool(a), Effect::RunTool(b)) => a.tool_call_id == b.tool_call_id,
                    (Effect::RequestApprovals(before), Effect::RunTool(call)) => {
                        before.contains(call)
                    }
                    _ => false,
                })
            }
            Effect::CheckOutput => {
                assert!(
                    self.own_calls.values().all(|ended| *ended),
                    "a call is open: {:?}",
                    self.own_calls
                );
                // The model is asked again once.
                self.effects.iter().filter(|started| **started == effect).count() > 1
            }
            other => panic!("{other:?}"),
        };
        assert!(!twice, "{effect:?} starts twice");
        self.effects.push(effect);
    }

    fn end(&mut self, end: RunEnd) {
        if let Some(before) = &self.end {
            assert_eq!(*before, end);
            return;
        }
        assert!(self.is_stream_ended, "the stream has an end");
        let open: BTreeSet<&str> =
            self.own_calls.iter().filter(|(_, ended)| !**ended).map(|(id, _)| &**id).collect();
        match &end {
            RunEnd::AwaitingApproval { waiting } | RunEnd::AwaitingClient { waiting } => {
                let awaiting_approval = waiting.iter().any(|call| call.approval_id.is_some());
                assert_eq!(awaiting_approval, matches!(end, RunEnd::AwaitingApproval { .. }));
                let waiting: BTreeSet<&str> =
                    waiting.iter().map(|call| &*call.tool_call_id).collect();
                assert!(!waiting.is_empty());
                assert_eq!(open, waiting, "every call ended or is pending");
            }
            RunEnd::Failed | RunEnd::Empty => {}
            RunEnd::StepLimit => {
                assert_eq!(self.model_calls, self.most_steps);
                assert!(open.is_empty(), "{open:?}");
            }
            _ => assert!(open.is_empty(), "{open:?}"),
        }
        self.end = Some(end);
    }
}

/// Counts that show whether the cases covered enough.
#[derive(Debug, Default)]
pub(crate) struct Coverage {
    finished: u64,
    awaiting_approval: u64,
    awaiting_client: u64,
    step_limit: u64,
    failed: u64,
    several_steps: u64,
    several_calls: u64,
    renamed: u64,
}

impl Coverage {
    pub(crate) fn add(&mut self, observer: &LoopObserver, end: &RunEnd) {
        match end {
            RunEnd::Finished => self.finished += 1,
            RunEnd::AwaitingApproval { .. } => self.awaiting_approval += 1,
            RunEnd::AwaitingClient { .. } => self.awaiting_client += 1,
            RunEnd::StepLimit => self.step_limit += u64::from(observer.most_steps > 0),
            RunEnd::Failed | RunEnd::Empty => self.failed += 1,
            other => panic!("{other:?}"),
        }
        self.several_steps += u64::from(observer.model_calls > 1);
        self.several_calls += u64::from(observer.own_calls.len() > 2);
        self.renamed += u64::from(observer.is_renamed);
    }

    pub(crate) fn check(&self, cases: u64) {
        eprintln!("{cases} runs: {self:?}");
        let Coverage {
            finished,
            awaiting_approval,
            awaiting_client,
            step_limit,
            failed,
            several_steps,
            several_calls,
            renamed,
        } = *self;
        let all = [
            finished,
            awaiting_approval,
            awaiting_client,
            step_limit,
            failed,
            several_steps,
            several_calls,
            renamed,
        ];
        assert!(cases < 1_000 || all.iter().all(|count| *count > 10), "{self:?}");
    }
}
