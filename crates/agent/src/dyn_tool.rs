//! [`DynTool`]: a tool without its input type.

use std::fmt;
use std::future::ready;
use std::sync::Arc;

use super::context::ToolContext;
use super::tool_policy::ToolPolicy;
use ui_message_stream::json::Json;
use ui_message_stream::model::ToolDefinition;
use ui_message_stream::{BoxError, BoxFuture};

/// A type-erased tool: the interface of a tool without its Rust input type.
///
/// [`Tool`](super::Tool) implements it. Implement it for tools that are defined elsewhere, for
/// example by a tool server.
///
/// ```
/// use ui_message_stream::{BoxError, BoxFuture, Json};
/// use ui_message_stream_agent::tool_policy::ToolPolicy;
/// use ui_message_stream_agent::{DynTool, DynToolDefinition, ToolContext};
/// use ui_message_stream::model::ToolDefinition;
///
/// /// A tool that a plugin brings.
/// #[derive(Debug)]
/// struct Plugin {
///     name: String,
///     input_schema: Json,
///     policy: ToolPolicy,
/// }
///
/// impl DynTool for Plugin {
///     fn name(&self) -> &str {
///         &self.name
///     }
///
///     fn definition(&self) -> Option<DynToolDefinition> {
///         let schema = self.input_schema.clone();
///         let mut definition =
///             DynToolDefinition::new(ToolDefinition::new(&*self.name, "A plugin.", schema));
///         definition.is_dynamic = true;
///         Some(definition)
///     }
///
///     fn policy(&self) -> &ToolPolicy {
///         &self.policy
///     }
///
///     fn check(&self, _: &Json) -> Result<(), String> {
///         Ok(())
///     }
///
///     fn call(&self, input: Json, _: ToolContext) -> BoxFuture<'static, Result<Json, BoxError>> {
///         Box::pin(async { Ok(input) })
///     }
/// }
/// ```
pub trait DynTool: Send + Sync + fmt::Debug + 'static {
    /// Returns the name by which the model calls the tool. It must not change.
    fn name(&self) -> &str;

    /// Returns the current definition of the tool.
    ///
    /// The definition may change between two calls of this method. `None` means that the tool is
    /// not available. Its calls then do not run.
    fn definition(&self) -> Option<DynToolDefinition>;

    /// Returns where the tool comes from, if its name is not the host's choice: its name there and,
    /// for example, the name of a tool server. The default is `None`, for a tool of the host.
    ///
    /// A tool of the host takes the name of such a tool, which the agent then leaves out. Of two such
    /// tools, the agent leaves out the one that is added later. The log has a warning with both.
    fn origin(&self) -> Option<String> {
        None
    }

    /// Returns why the tool cannot be called now, although the model may know it. The model and the user
    /// read it as the error of the call, and no approval is requested. For an approved call,
    /// [`refresh`](Self::refresh) decides instead. The default is `None`.
    fn unavailable(&self) -> Option<String> {
        None
    }

    /// Returns when a call needs approval, and the limits of a call.
    fn policy(&self) -> &ToolPolicy;

    /// Fetches the current definition, if the tool is defined elsewhere. The default does nothing.
    ///
    /// This method is called immediately before an approved call is claimed. The call does not run
    /// if the definition differs from the one in the approval request.
    ///
    /// # Errors
    /// The reason why its origin cannot be reached. The model and the user read it as the error of the
    /// approved call, which has used up its approval, and never runs.
    fn refresh(&self) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(ready(Ok(())))
    }

    /// Checks an input that matches the schema, for rules that the schema cannot express.
    ///
    /// # Errors
    /// The reason why the tool does not accept the input. The model and the user read it.
    fn check(&self, input: &Json) -> Result<(), String>;

    /// Returns the tools that a running call may ask for. See
    /// [`ToolContext::request_approval`](super::ToolContext::request_approval). The default is none.
    fn inner_tools(&self) -> &[Arc<dyn DynTool>] {
        &[]
    }

    /// Runs the tool.
    fn call(&self, input: Json, context: ToolContext)
    -> BoxFuture<'static, Result<Json, BoxError>>;
}

/// The definition of a [`DynTool`]: what the model, the client and the approvals need to know.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct DynToolDefinition {
    /// What the model reads.
    pub model: ToolDefinition,
    /// The schema of the output, for the [types of the page](crate::Agent::schemas).
    pub output_schema: Option<Json>,
    /// The title that the user reads instead of the name.
    pub title: Option<Box<str>>,
    /// Further facts about the tool on which a user or a policy may base an approval.
    ///
    /// If they have changed when the user responds, the call does not run.
    pub extras: Option<Json>,
    /// Whether the definition has changed since the host chose the [policy](DynTool::policy). If it
    /// is `true`, each call needs approval.
    pub has_changed: bool,
    /// Whether the client has no type for this tool, so that its parts are `dynamic-tool` parts.
    pub is_dynamic: bool,
    /// Whether the client executes the tool. [`Agent::require_approval_by_default`](crate::Agent::require_approval_by_default)
    /// is not about its calls.
    pub is_client_executed: bool,
    /// Whether inputs are validated against the schema. Set it to `false` for a schema from an
    /// untrusted origin: its evaluation can take unbounded time.
    pub validates_schema: bool,
}

impl DynToolDefinition {
    /// Creates the definition of a tool that the server executes, for which the client has a type,
    /// and whose inputs are validated against the schema.
    pub fn new(model: ToolDefinition) -> Self {
        DynToolDefinition {
            model,
            output_schema: None,
            title: None,
            extras: None,
            has_changed: false,
            is_dynamic: false,
            is_client_executed: false,
            validates_schema: true,
        }
    }
}

/// A type that can be added to an [`Agent`](super::Agent) as a tool.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a tool",
    note = "a tool is made with `Tool::new(name, handler)`, `Tool::streaming` or `Tool::client_executed`"
)]
pub trait IntoTool {
    /// Converts the value into a type-erased tool.
    fn into_tool(self) -> Arc<dyn DynTool>;
}

impl<T: DynTool> IntoTool for Arc<T> {
    fn into_tool(self) -> Arc<dyn DynTool> {
        self
    }
}

/// Allows tools of different types in one list.
impl IntoTool for Arc<dyn DynTool> {
    fn into_tool(self) -> Arc<dyn DynTool> {
        self
    }
}
