//! Holds what a run says and begins against what it promises.

use std::collections::{BTreeSet, HashMap, HashSet};

use ui_message_stream::agent::tool_loop::{Action, Effect, RunEnd};
use ui_message_stream::event::{AgentEvent, Executor};
use ui_message_stream::id::ToolCallId;

pub(crate) struct Watch {
    most_steps: u32,
    model_calls: u32,
    /// All that was begun.
    pub(crate) errands: Vec<Effect>,
    /// How many of them were seen to their end.
    done: usize,
    /// The ids that name a call.
    named: HashSet<ToolCallId>,
    /// The calls that the run decides about, and whether they have their end.
    own: HashMap<ToolCallId, bool>,
    asked: HashSet<ToolCallId>,
    is_in_step: bool,
    said_last: bool,
    end: Option<RunEnd>,
    is_renamed: bool,
}

impl Watch {
    pub(crate) fn new(most_steps: u32, taken: Vec<ToolCallId>) -> Self {
        Watch {
            most_steps,
            model_calls: 0,
            errands: Vec::new(),
            done: 0,
            named: taken.into_iter().collect(),
            own: HashMap::new(),
            asked: HashSet::new(),
            is_in_step: false,
            said_last: false,
            end: None,
            is_renamed: false,
        }
    }

    /// What was begun and not seen to its end.
    pub(crate) fn next_errand(&mut self) -> Option<Effect> {
        self.done += 1;
        self.errands.get(self.done - 1).cloned()
    }

    pub(crate) fn see(&mut self, step: Action) {
        match step {
            Action::Emit(event) => self.hear(&event),
            Action::Start(errand) => self.begin(errand),
            Action::Wait => assert!(self.end.is_none()),
            Action::End(end) => self.end(end),
            other => panic!("{other:?}"),
        }
    }

    fn hear(&mut self, event: &AgentEvent) {
        assert!(!self.said_last, "{event:?} follows the last word");
        match event {
            AgentEvent::StepStart => {
                assert!(!std::mem::replace(&mut self.is_in_step, true), "a step in a step");
            }
            AgentEvent::StepFinish => {
                assert!(std::mem::replace(&mut self.is_in_step, false), "the end of no step");
            }
            AgentEvent::ToolInput { call, .. } => {
                if call.executed_by == Executor::Provider {
                    self.named.insert(call.id.clone());
                } else {
                    let known = self.own.insert(call.id.clone(), false);
                    assert_eq!(known, None, "announced twice");
                }
                self.is_renamed |= call.id.len() > 4;
            }
            AgentEvent::ToolInputInvalid { call, .. } => {
                assert!(!self.own.contains_key(&call.id), "announced twice");
            }
            AgentEvent::ToolOutput { tool_call_id, preliminary: true, .. } => {
                assert_ne!(self.own.get(tool_call_id), Some(&true), "news behind the end");
            }
            AgentEvent::ToolOutput { tool_call_id, .. }
            | AgentEvent::ToolDenied { tool_call_id }
            | AgentEvent::ToolFailed { tool_call_id, .. } => {
                if let Some(ended) = self.own.get_mut(tool_call_id) {
                    assert!(!std::mem::replace(ended, true), "{tool_call_id} ends twice");
                    assert!(!self.asked.contains(tool_call_id), "what waits has no end");
                }
            }
            AgentEvent::ApprovalRequested { tool_call_id, .. } => {
                if let Some(ended) = self.own.get(tool_call_id) {
                    assert!(!ended, "asked about what is done");
                    assert!(self.asked.insert(tool_call_id.clone()), "asked twice");
                }
            }
            AgentEvent::Finish { .. } | AgentEvent::Error { .. } | AgentEvent::Abort { .. } => {
                self.said_last = true;
            }
            _ => {}
        }
    }

    fn begin(&mut self, errand: Effect) {
        assert!(!self.said_last, "{errand:?} begins behind the last word");
        let twice = match &errand {
            Effect::CallModel { step } => {
                self.model_calls += 1;
                assert_eq!(*step, self.model_calls);
                assert!(self.model_calls <= self.most_steps, "one call too many");
                assert!(self.own.values().all(|ended| *ended), "a call is open: {:?}", self.own);
                assert!(self.is_in_step);
                false
            }
            Effect::ValidateInput(call) => !self.named.insert(call.tool_call_id.clone()),
            Effect::DecideApproval(call)
            | Effect::RequestApproval(call)
            | Effect::RunTool(call) => {
                assert_eq!(self.own.get(&call.tool_call_id), Some(&false), "{errand:?}");
                self.errands.iter().any(|begun| match (begun, &errand) {
                    (Effect::DecideApproval(a), Effect::DecideApproval(b)) => {
                        a.tool_call_id == b.tool_call_id
                    }
                    (
                        Effect::RequestApproval(a) | Effect::RunTool(a),
                        Effect::RequestApproval(b) | Effect::RunTool(b),
                    ) => a.tool_call_id == b.tool_call_id,
                    _ => false,
                })
            }
            Effect::CheckOutput => {
                assert!(self.own.values().all(|ended| *ended), "a call is open: {:?}", self.own);
                self.errands.contains(&errand)
            }
            other => panic!("{other:?}"),
        };
        assert!(!twice, "{errand:?} begins twice");
        self.errands.push(errand);
    }

    fn end(&mut self, end: RunEnd) {
        if let Some(before) = &self.end {
            assert_eq!(*before, end);
            return;
        }
        assert!(self.said_last, "the stream has an end");
        let open: BTreeSet<&str> =
            self.own.iter().filter(|(_, ended)| !**ended).map(|(id, _)| &**id).collect();
        match &end {
            RunEnd::AwaitingApproval { waiting } | RunEnd::AwaitingClient { waiting } => {
                let asked = waiting.iter().any(|call| call.approval_id.is_some());
                assert_eq!(asked, matches!(end, RunEnd::AwaitingApproval { .. }));
                let waiting: BTreeSet<&str> =
                    waiting.iter().map(|call| &*call.tool_call_id).collect();
                assert!(!waiting.is_empty());
                assert_eq!(open, waiting, "every call ended or waits");
            }
            RunEnd::Failed => {}
            RunEnd::StepLimit => {
                assert_eq!(self.model_calls, self.most_steps);
                assert!(open.is_empty(), "{open:?}");
            }
            _ => assert!(open.is_empty(), "{open:?}"),
        }
        self.end = Some(end);
    }
}

/// Whether the cases were worth anything.
#[derive(Debug, Default)]
pub(crate) struct Met {
    finished: u64,
    asked: u64,
    left: u64,
    step_limit: u64,
    failed: u64,
    several_steps: u64,
    several_calls: u64,
    renamed: u64,
}

impl Met {
    pub(crate) fn add(&mut self, watch: &Watch, end: &RunEnd) {
        match end {
            RunEnd::Finished => self.finished += 1,
            RunEnd::AwaitingApproval { .. } => self.asked += 1,
            RunEnd::AwaitingClient { .. } => self.left += 1,
            RunEnd::StepLimit => self.step_limit += u64::from(watch.most_steps > 0),
            RunEnd::Failed => self.failed += 1,
            other => panic!("{other:?}"),
        }
        self.several_steps += u64::from(watch.model_calls > 1);
        self.several_calls += u64::from(watch.own.len() > 2);
        self.renamed += u64::from(watch.is_renamed);
    }

    pub(crate) fn check(&self, cases: u64) {
        eprintln!("{cases} runs: {self:?}");
        let Met {
            finished,
            asked,
            left,
            step_limit,
            failed,
            several_steps,
            several_calls,
            renamed,
        } = *self;
        let all =
            [finished, asked, left, step_limit, failed, several_steps, several_calls, renamed];
        assert!(cases < 1_000 || all.iter().all(|count| *count > 10), "{self:?}");
    }
}
