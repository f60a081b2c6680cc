//! [`ResumedCall`]: what a call goes on with that has waited for the calls inside it.

use super::outer_call::digest_of;
use super::{
    ApprovalRecord, DeferredToolResult, OuterCall, PendingToolCall, Transition, UnixMillis,
};
use crate::json::Json;

/// What a call goes on with. [`ChatApprovals::take_outer_call`](super::ChatApprovals::take_outer_call)
/// returns it.
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub struct ResumedCall {
    /// The state that the tool has left.
    pub state: Json,
    /// The results of the calls inside it.
    pub results: Vec<DeferredToolResult>,
}

debug_without_content!(ResumedCall { ; results });

impl OuterCall {
    /// Returns the length of the state in bytes.
    pub(super) fn state_bytes(&self) -> usize {
        self.state.as_ref().map_or(0, |state| state.as_str().len())
    }

    /// Whether this is the call, with its tool and its input.
    fn is_of(&self, call: &PendingToolCall) -> bool {
        self.tool_call_id == call.tool_call_id.on_wire()
            && self.digest == digest_of(&call.tool_name, &call.input)
    }
}

impl ResumedCall {
    /// Returns what this call goes on with, if all of the records are of calls inside it and have a result.
    /// The state is still in its record.
    pub(super) fn of(
        call: &PendingToolCall,
        records: &[ApprovalRecord],
        now: UnixMillis,
    ) -> Option<Self> {
        let results = records.iter().map(|record| {
            record.outer.as_ref().filter(|outer| outer.is_of(call))?;
            let record = record.expire(now).next.unwrap_or_else(|| record.clone());
            let outcome = record.outcome_at(now)?;
            let message = record.message_id.clone();
            let id = record.tool_call_id.clone();
            let result = DeferredToolResult::new(message, id, record.tool_name.clone(), outcome);
            Some(result.described_by(record.descriptor(now).ok().as_ref()))
        });
        let results = results.collect::<Option<Vec<_>>>()?;
        let mut states = records.iter().filter_map(|record| record.outer.as_ref()?.state.clone());
        Some(ResumedCall { state: states.next()?, results })
    }
}

/// Takes the state out of a record. It is taken once.
pub(super) fn take_state(record: &ApprovalRecord) -> Transition<bool> {
    let Some(outer) = record.outer.as_ref().filter(|outer| outer.state.is_some()) else {
        return Transition { output: false, next: None };
    };
    let outer = Some(OuterCall { state: None, ..outer.clone() });
    Transition { output: true, next: Some(ApprovalRecord { outer, ..record.clone() }) }
}
