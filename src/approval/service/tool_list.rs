//! [`ToolList`]: the tools of a host that executes approved calls itself.

use std::collections::HashMap;
use std::fmt;
use std::future::ready;
use std::sync::Arc;

use super::progress::Progress;
use super::toolbox::{ApprovedCall, ToolInfo, Toolbox};
use crate::UserText;
use crate::approval::{ChangedInput, DefinitionDigest, EditableInput, ToolOutcome};
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
#[derive(Clone, Default)]
pub struct ToolList(HashMap<Box<str>, ListedTool>);

#[derive(Clone)]
struct ListedTool {
    info: ToolInfo,
    check: Option<Arc<Check>>,
}

/// Checks a change of an input by an approver.
type Check = dyn Fn(&ChangedInput) -> Result<(), String> + Send + Sync;

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
        self.0.insert(name.into(), ListedTool { info, check: None });
        self
    }

    /// Lets approvers change the input of a tool that was added before. `check` gets the original input and
    /// the changed one, and says whether an approver may make this change, and whether the tool accepts the
    /// changed input, for every user. The approver reads its error. A check that depends on the user needs a
    /// [`Toolbox`] of your own.
    ///
    /// ```
    /// use ui_message_stream::Json;
    /// use ui_message_stream::approval::{ChangedInput, EditableInput, ToolList};
    ///
    /// #[derive(serde::Deserialize)]
    /// struct Transfer {
    ///     amount: u64,
    /// }
    ///
    /// // The approver may lower the amount, and not raise it.
    /// let tools = ToolList::new()
    ///     .tool("transfer", "Transfers money.", &Json::no_schema())
    ///     .editable("transfer", EditableInput::Fields(vec!["amount".into()]), |input| {
    ///         let input: ChangedInput<Transfer> =
    ///             input.decode().map_err(|_| "amount: must be a whole number".to_owned())?;
    ///         if input.changed.amount <= input.original.amount {
    ///             Ok(())
    ///         } else {
    ///             Err("amount: may be lowered, not raised".to_owned())
    ///         }
    ///     });
    /// # let _ = tools;
    /// ```
    ///
    /// # Panics
    /// If the list has no tool with this name.
    #[must_use]
    #[track_caller]
    pub fn editable(
        mut self,
        name: &str,
        editable: EditableInput,
        check: impl Fn(&ChangedInput) -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        let tool = self.0.get_mut(name);
        let tool = tool.unwrap_or_else(|| panic!("there is no tool named {name:?} to be editable"));
        tool.info.editable = editable;
        tool.check = Some(Arc::new(check));
        self
    }
}

impl Toolbox for ToolList {
    fn tool(&self, name: &str) -> Option<ToolInfo> {
        self.0.get(name).map(|tool| tool.info.clone())
    }

    fn check_input(&self, name: &str, input: &ChangedInput) -> Result<(), String> {
        let check = self.0.get(name).and_then(|tool| tool.check.as_ref());
        check.map_or_else(|| Err(NOT_CHECKED.to_owned()), |check| check(input))
    }

    fn editable_tool(&self) -> Option<Box<str>> {
        let mut editable = self.0.iter().filter(|(_, tool)| !tool.info.editable.is_nothing());
        editable.next().map(|(name, _)| name.clone())
    }

    fn permits<'a>(&'a self, _: &'a ApprovedCall) -> BoxFuture<'a, bool> {
        Box::pin(ready(true))
    }

    fn run(&self, call: ApprovedCall, _: Progress) -> BoxFuture<'static, ToolOutcome> {
        tracing::error!(
            tool = &*log_text(&call.tool_name),
            "a `ToolList` cannot execute an approved call: call `Approvals::run` with a function that \
             executes it, or implement `Toolbox`"
        );
        Box::pin(ready(ToolOutcome::Failed(UserText::Refused.to_string())))
    }
}

impl fmt::Debug for ToolList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.0.iter().map(|(name, tool)| (name, &tool.info))).finish()
    }
}

const NOT_CHECKED: &str = "this server does not check changed inputs: use `ToolList::editable`";
