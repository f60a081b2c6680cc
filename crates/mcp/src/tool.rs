//! [`McpTool`]: a tool of a server, with the settings of the host.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ::rmcp::ServiceError;
use ::rmcp::model::{
    CallToolRequestParams, CallToolResponse, ErrorCode, JsonObject, Tool, ToolAnnotations,
};

use super::connection::Connection;
use super::listed_tool::ListedTool;
use super::{input, result};
use ui_message_stream::UserText;
use ui_message_stream::approval::{OnNewMessage, Principal};
use ui_message_stream::id::log_text;
use ui_message_stream::json::Json;
use ui_message_stream::model::{ToolDefinition, sanitize_tool_name};
use ui_message_stream::{BoxError, BoxFuture};
use ui_message_stream_agent::tool_policy::{ApprovalRequirement, ToolPolicy};
use ui_message_stream_agent::{
    ApprovalContext, DynTool, DynToolDefinition, IntoTool, ToolContext, ToolError,
};

/// A tool of a Model Context Protocol server.
///
/// Unless the host sets an approval policy, the annotations of the tool decide: a tool that claims
/// to only read runs without approval, and every other tool needs a user's approval. A claim that a
/// tool is not destructive is not enough, because a tool that sends messages may make that claim.
/// If the agent [requires approval by default], no claim of the server is trusted. In any case a
/// call needs approval if the server's definition, including the annotations, differs from the one
/// with which the agent was built, because only that definition was trusted.
///
/// The model reads the current definition. Inputs are not validated against the schema here: the
/// server validates them, and the schema of a server can be written so that its evaluation takes
/// unbounded time. The server's refusal of an input is shown to the model and the user.
///
/// A name that model providers accept stays as it is. Any other name is replaced by its ASCII letters and
/// digits, followed by a hash of the original name: `größe` is called
/// `gr_e_cd38f49a`, and `files.read` is not called as `files/read`. It depends on no other tool, so it is
/// the same on each server of the host: approvals are bound to it. The original name is then the title,
/// unless the server sends one.
///
/// [requires approval by default]: ui_message_stream_agent::Agent::require_approval_by_default
///
/// ```
/// use serde::Deserialize;
/// use ui_message_stream_mcp::McpTool;
///
/// #[derive(Deserialize)]
/// struct Payment {
///     to: String,
///     cents: u64,
/// }
///
/// fn with_approval(tool: McpTool) -> McpTool {
///     tool.needs_approval_when(|input, _| match input.decode::<Payment>() {
///         Ok(payment) => payment.cents > 1_000,
///         Err(_) => true,
///     })
///     .with_approval_description(|input| match input.decode::<Payment>() {
///         Ok(payment) => format!("Send {} cents to {}?", payment.cents, payment.to),
///         Err(_) => format!("Make this payment? {}", input.as_str()),
///     })
/// }
/// # let _ = with_approval;
/// ```
#[derive(Clone)]
pub struct McpTool {
    server: Arc<Connection>,
    /// The prefix of the name, of accepted characters.
    prefix: Box<str>,
    /// The name by which the model calls the tool.
    name: Box<str>,
    /// The tool as it was when the host received it.
    listed: Arc<ListedTool>,
    title: Option<Box<str>>,
    policy: ToolPolicy,
}

impl McpTool {
    pub(super) fn new(server: &Arc<Connection>, listed: &Arc<ListedTool>) -> Self {
        let mut policy = ToolPolicy::default().with_model_output(result::without_media);
        let needs_approval = !is_read_only(listed.tool.annotations.as_ref());
        policy.approval = ApprovalRequirement::Unspecified { needs_approval };
        McpTool {
            server: Arc::clone(server),
            prefix: "".into(),
            name: callable_name("", &listed.tool.name),
            listed: Arc::clone(listed),
            title: None,
            policy,
        }
    }

    /// Returns the tool as the server listed it when the host received it, with its name on the
    /// server and its annotations.
    pub fn listed_tool(&self) -> &Tool {
        &self.listed.tool
    }

    /// Adds a prefix to the name, because two servers may have tools of the same name.
    ///
    /// Model providers accept 64 characters for the prefix and the name together.
    #[must_use]
    pub fn with_prefix(mut self, prefix: &str) -> Self {
        if !prefix.is_empty() {
            self.prefix = sanitize_tool_name(&format!("{prefix}{}", self.prefix));
            self.name = callable_name(&self.prefix, &self.listed.tool.name);
        }
        self
    }

    /// Sets the title, which the user reads instead of the title that the server sent.
    #[must_use]
    pub fn with_title(mut self, title: impl Into<Box<str>>) -> Self {
        self.title = Some(title.into());
        self
    }

    /// Sets who may make a call of the tool. If `authorize` returns `false` or panics, the call does
    /// not run, and the model and the user read that it is not permitted. No approval is requested.
    ///
    /// `authorize` receives the owner of the chat, in whose name the tool runs, and the input. It is
    /// called for each call: before it runs without approval, before an approval is requested, and
    /// again when an approval is redeemed. If this method is called several times, a call is
    /// permitted only if all functions return `true`. It does not decide who may approve a call: see
    /// [`Approvals::authorize_decision`](ui_message_stream::approval::Approvals::authorize_decision).
    #[must_use]
    pub fn authorize(
        mut self,
        authorize: impl Fn(&Principal, &Json) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.policy = self.policy.with_authorization(authorize);
        self
    }

    /// Sets who may make a call of the tool, by an asynchronous function.
    ///
    /// The call is not permitted either if the function returns an error, panics, or runs for longer
    /// than the [timeout](Self::with_timeout) of the tool. Otherwise as
    /// [`authorize`](Self::authorize).
    #[must_use]
    pub fn authorize_async<F, Fut>(mut self, authorize: F) -> Self
    where
        F: Fn(Principal, Json) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<bool, BoxError>> + Send + 'static,
    {
        self.policy = self.policy.with_authorization_async(authorize);
        self
    }

    /// Requires a user's approval for each call, independent of the claims of the server.
    #[must_use]
    pub fn needs_approval(mut self) -> Self {
        self.policy.approval = ApprovalRequirement::Always;
        self
    }

    /// Requires no approval for any call, independent of the claims of the server, as long as the
    /// server's definition has not changed.
    #[must_use]
    pub fn never_needs_approval(mut self) -> Self {
        self.policy.approval = ApprovalRequirement::Never;
        self
    }

    /// Requires a user's approval for each call for which the predicate returns `true`, independent
    /// of the claims of the server, and for each call after the server's definition has changed.
    ///
    /// The input comes from the model, so text that was injected into its context can control it.
    /// If the predicate panics, or if it [reads an incomplete history](ApprovalContext), the call
    /// requires approval.
    #[must_use]
    pub fn needs_approval_when(
        mut self,
        predicate: impl Fn(&Json, &ApprovalContext) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.policy.approval = ApprovalRequirement::when(predicate);
        self
    }

    /// Sets the text of the approval request, made from the input. By default, and if the function
    /// panics, the user sees the name of the tool and the input.
    #[must_use]
    pub fn with_approval_description(
        mut self,
        describe: impl Fn(&Json) -> String + Send + Sync + 'static,
    ) -> Self {
        self.policy = self.policy.with_approval_description(move |input| Some(describe(input)));
        self
    }

    /// Allows the tool to run again after a crash. The annotation of the server is not trusted for
    /// this.
    #[must_use]
    pub fn idempotent(mut self) -> Self {
        self.policy.idempotent = true;
        self
    }

    /// Sets how long a call may run. The default is 60 seconds. After the timeout the request to
    /// the server is cancelled.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.policy.timeout = timeout;
        self
    }

    /// Sets how long an approval request of this tool stays open, if it differs from other tools.
    #[must_use]
    pub fn with_approval_ttl(mut self, ttl: Duration) -> Self {
        self.policy.approval_ttl = Some(ttl);
        self
    }

    /// Sets what happens to an approval request of this tool when the user sends a newer message, if
    /// it differs from other tools.
    #[must_use]
    pub fn on_new_message(mut self, policy: OnNewMessage) -> Self {
        self.policy.on_new_message = Some(policy);
        self
    }

    /// Lets other principals than the requester decide on the calls of this tool, for example a
    /// manager. `Approvals::authorize_decision` says which.
    ///
    /// An approval by the requester does not count. Newer messages of the requester do not close the
    /// approval requests.
    #[must_use]
    pub fn decided_by_others(mut self) -> Self {
        self.policy.decided_by_others = true;
        self
    }

    /// Sets the maximum length of the output, in bytes of JSON. The default is 256 KiB.
    ///
    /// A call with a longer output fails: the client sends the messages back with every request,
    /// and requests have [`Limits`](ui_message_stream::request::Limits).
    #[must_use]
    pub fn with_max_output_bytes(mut self, max: usize) -> Self {
        self.policy.max_output_bytes = max;
        self
    }

    pub(super) fn callable_name(&self) -> &str {
        &self.name
    }

    /// Returns the title that the server sent, or the name on the server if the model reads another
    /// one.
    fn claimed_title(&self) -> Option<Box<str>> {
        let Tool { name, title, annotations, .. } = &self.listed.tool;
        let sent = title.as_deref().or_else(|| annotations.as_ref()?.title.as_deref());
        let is_renamed = self.name.strip_prefix(&*self.prefix) != Some(name);
        sent.or(is_renamed.then_some(name)).map(Into::into)
    }
}

impl fmt::Debug for McpTool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("McpTool")
            .field("name", &self.name)
            .field("listed_name", &log_text(&self.listed.tool.name))
            .field("policy", &self.policy)
            .finish_non_exhaustive()
    }
}

impl IntoTool for McpTool {
    fn into_tool(self) -> Arc<dyn DynTool> {
        Arc::new(self)
    }
}

impl DynTool for McpTool {
    fn name(&self) -> &str {
        &self.name
    }

    fn definition(&self) -> Option<DynToolDefinition> {
        let current = self.server.tool(&self.listed.tool.name)?;
        let description = current.tool.description.as_deref().unwrap_or_default();
        let schema = current.input_schema.clone();
        let model = ToolDefinition::new(self.name.clone(), description, schema);
        let mut definition = DynToolDefinition::new(model);
        definition.title = self.title.clone().or_else(|| self.claimed_title());
        definition.extras = Some(current.claims.clone());
        definition.has_changed = !current.is_equivalent(&self.listed);
        definition.is_dynamic = true;
        definition.validates_schema = false;
        Some(definition)
    }

    fn origin(&self) -> Option<String> {
        let tool = &*log_text(&self.listed.tool.name);
        Some(format!("{tool} of the tool server {}", log_text(&self.server.server)))
    }

    fn unavailable(&self) -> Option<String> {
        self.server.peer().is_none().then(|| self.server.named(UserText::ToolServerGone))
    }

    fn policy(&self) -> &ToolPolicy {
        &self.policy
    }

    fn refresh(&self) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async {
            self.server.refresh().await.map_err(|error| {
                self.server.warn(&error, "cannot refresh the tools of a server");
                self.server.named(UserText::ToolServerGone)
            })
        })
    }

    fn check(&self, input: &Json) -> Result<(), String> {
        if input.is_object() { Ok(()) } else { Err("it is no object".to_owned()) }
    }

    fn call(&self, input: Json, _: ToolContext) -> BoxFuture<'static, Result<Json, BoxError>> {
        let server = Arc::clone(&self.server);
        let params = CallToolRequestParams::new(self.listed.tool.name.clone());
        Box::pin(async move {
            let Some(peer) = server.peer() else {
                return Err(ToolError(server.named(UserText::ToolServerGone)).into());
            };
            let params = params.with_arguments(input.decode::<JsonObject>()?);
            match input::call(&peer, server.handler.as_deref(), params).await {
                Ok(CallToolResponse::Complete(result)) => result::output(result),
                Ok(CallToolResponse::InputRequired(_)) if server.handler.is_none() => {
                    Err("the tool asks for input, and `McpClient::from_peer` has no handler".into())
                }
                Ok(_) => Err("the server answered with a task, or asks again and again".into()),
                // Only the server validates the input, so only here the model learns what is wrong.
                Err(ServiceError::McpError(error)) if error.code == ErrorCode::INVALID_PARAMS => {
                    Err(result::error(&error.message, "the server refuses the input, and not why"))
                }
                Err(error) if is_lost(&error) => {
                    server.warn(&error, "a tool server went away while a tool ran");
                    Err(ToolError(server.named(UserText::ToolServerLost)).into())
                }
                Err(error) => Err(error.into()),
            }
        })
    }
}

/// Returns whether the server may have received the call, and cannot answer it any more.
fn is_lost(error: &ServiceError) -> bool {
    match error {
        ServiceError::TransportClosed => true,
        ServiceError::TransportSend(_) => !error.is_authorization_required(),
        _ => false,
    }
}

/// Returns whether the annotations claim that the tool only reads. A tool that also claims to be
/// destructive is not trusted.
fn is_read_only(annotations: Option<&ToolAnnotations>) -> bool {
    annotations.is_some_and(|annotations| {
        annotations.read_only_hint == Some(true) && annotations.destructive_hint != Some(true)
    })
}

/// Returns a name that model providers accept for the tool that a server lists under this name, or an
/// empty name if the server's is empty. It depends on nothing but the two names.
fn callable_name(prefix: &str, listed: &str) -> Box<str> {
    if listed.is_empty() {
        return listed.into();
    }
    let name = format!("{prefix}{listed}");
    let accepted = sanitize_tool_name(&name);
    if *accepted == *name {
        return accepted;
    }
    // Several names would become this one: `a.b` and `a/b`, or all of four characters in another script.
    let mut words =
        accepted.split('_').filter(|word| !word.is_empty()).collect::<Vec<_>>().join("_");
    let hash = format!("_{:08x}", hash(listed));
    words.truncate(MAX_NAME_CHARS - hash.len());
    let words = if words.is_empty() { "tool" } else { &words };
    format!("{words}{hash}").into()
}

/// Returns the 32 bits of FNV-1a, which are the same in each build, as those of the standard library
/// need not be.
fn hash(name: &str) -> u32 {
    let add = |hash: u32, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    name.bytes().fold(0x811c_9dc5, add)
}

/// The maximum length of the name of a tool, as OpenAI and Anthropic define it.
const MAX_NAME_CHARS: usize = 64;
