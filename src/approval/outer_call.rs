//! [`OuterCall`]: the call inside which an approval is requested, and the state from which it goes on.

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
