//! [`OuterCall`]: the call inside which an approval is requested, and the state from which it goes on.
//!
//! # A call can be made inside another one
//!
//! The tool of a call may be an agent. What that agent needs an approval for, the chat asks for: the call inside is
//! a part of the chat's message, with the id of the outer call in its provider metadata and the names of the agents
//! in its record and in `data-approval`. It stands in a step of its own, because a client sends its answers when
//! all calls of the last step have one, and the outer call has none. So a call that may ask does not run beside
//! calls that wait. The tool of the outer call ends with its state (`ToolEvent::Suspended`), which the ledger keeps
//! in the first record of the calls inside: the question and the state are one insertion, every store has both, and
//! no client sees the state. The record also binds tool and input of the outer call. A call inside is claimed and
//! executed like every other one; only its tool is found among the inner tools.
//!
//! When all of them have results, the run that reads them takes the state from the ledger, once, with the results
//! as the ledger has them, and starts the tool again before it calls the model. In the log this run is in a step
//! from its entry `Step` on, although nothing is emitted yet: if its server is lost then, it is not known what the
//! tool has done. Before that the call waits, also if its run is lost. The model of the chat reads the outer call
//! alone. A newer message closes the calls inside, and ends the outer one.

use serde::{Deserialize, Serialize};

use super::{CanonicalJson, DefinitionDigest};
use crate::id::ToolCallId;
use crate::json::Json;

/// A call whose tool is an agent. It waits while the user decides about the calls that the agent wants to
/// make, and goes on once, from the state that it has left.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct OuterCall {
    /// The id of the call in the message.
    pub tool_call_id: ToolCallId,
    /// The digest of its tool's name and of its input.
    pub(super) digest: DefinitionDigest,
    /// The names of the tools that ask, from the outermost one. Each is an agent.
    pub agents: Vec<Box<str>>,
    /// What the tool needs to go on. Of the records of one step only the first has it, until it is taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) state: Option<Json>,
}

debug_without_content!(OuterCall { tool_call_id, agents });

impl OuterCall {
    /// Creates the outer call of a request, a call of this tool with this input. The tool goes on from this
    /// state.
    pub fn new(
        tool_call_id: &ToolCallId,
        tool_name: &str,
        input: &Json,
        agents: Vec<Box<str>>,
        state: Json,
    ) -> Self {
        OuterCall {
            tool_call_id: tool_call_id.on_wire(),
            digest: digest_of(tool_name, input),
            agents,
            state: Some(state),
        }
    }
}

/// A store of messages may write the input in another way.
pub(super) fn digest_of(tool_name: &str, input: &Json) -> DefinitionDigest {
    let canonical = CanonicalJson::new(input).ok();
    let canonical = canonical.and_then(|input| Json::parse(input.as_str()).ok());
    DefinitionDigest::new(tool_name, "", canonical.as_ref().unwrap_or(input))
}
