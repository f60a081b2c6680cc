//! [`ToolList`]: the tools of a host that executes approved calls itself.

use std::collections::HashMap;
use std::future::ready;

use super::toolbox::{ApprovedCall, ToolInfo, Toolbox};
use crate::approval::{DefinitionDigest, REFUSED, ToolOutcome};
use crate::boxed::BoxFuture;
use crate::id::log_text;
use crate::json::Json;

/// A list of tools, for a host that executes approved calls itself: with
/// [`Approvals::run`](super::Approvals::run), or one by one with
/// [`Approvals::redeem`](super::Approvals::redeem), not with a `ChatServer`.
///
/// An approval is bound to the definition of its tool. If the definition has changed when the user
/// approves, or the tool is not in the list any more, the call is not executed.
///
/// ```
/// use ui_message_stream::Json;
/// use ui_message_stream::approval::{Approvals, ToolList};
///
/// let takes = Json::parse(r#"{"type": "object", "properties": {"path": {"type": "string"}}}"#)?;
/// let tools = ToolList::new()
///     .tool("delete_file", "Deletes a file.", &takes)
///     .client_executed("get_location");
/// let approvals = Approvals::new(tools);
/// # let _ = approvals;
/// # Ok::<(), ui_message_stream::json::JsonError>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct ToolList(HashMap<Box<str>, ToolInfo>);

impl ToolList {
    /// Creates an empty list.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a tool that the host executes. Its calls may be approved.
    #[must_use]
    pub fn tool(self, name: &str, description: &str, input_schema: &Json) -> Self {
        self.with(name, ToolInfo::new(DefinitionDigest::new(name, description, input_schema)))
    }

    /// Adds a tool that the client executes. The outputs that the client sends for it are returned
    /// by [`DeferredCalls::unverified_outputs`](super::DeferredCalls::unverified_outputs).
    #[must_use]
    pub fn client_executed(self, name: &str) -> Self {
        let info = ToolInfo::new(DefinitionDigest::new(name, "", &Json::null()));
        self.with(name, info.client_executed())
    }

    /// Adds a tool with these properties, or replaces the tool with this name.
    #[must_use]
    pub fn with(mut self, name: &str, info: ToolInfo) -> Self {
        self.0.insert(name.into(), info);
        self
    }
}

impl Toolbox for ToolList {
    fn tool(&self, name: &str) -> Option<ToolInfo> {
        self.0.get(name).cloned()
    }

    fn permits<'a>(&'a self, _: &'a ApprovedCall) -> BoxFuture<'a, bool> {
        Box::pin(ready(true))
    }

    fn run(&self, call: ApprovedCall) -> BoxFuture<'static, ToolOutcome> {
        tracing::error!(
            tool = &*log_text(&call.tool_name),
            "a `ToolList` cannot execute an approved call: call `Approvals::run` with a function that \
             executes it, or implement `Toolbox`"
        );
        Box::pin(ready(ToolOutcome::Failed(REFUSED.to_owned())))
    }
}
