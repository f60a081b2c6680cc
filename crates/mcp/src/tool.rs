//! [`McpTool`]: a tool of a server, with what the host decides about it.

use std::fmt;
use std::future::ready;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use ::rmcp::ServiceError;
use ::rmcp::model::{CallToolRequestParams, CallToolResponse, JsonObject, Tool, ToolAnnotations};

use super::{Connection, result};
use ui_message_stream::adapter::tools::{DEFAULT_MAX_OUTPUT_BYTES, predicate_or_ask};
use ui_message_stream::agent::{
    AnyTool, ApprovalContext, IntoTool, Told, ToolContext, ToolDescription,
};
use ui_message_stream::json::Json;
use ui_message_stream::ledger_store::BoxFuture;
use ui_message_stream::model_message::sanitize_tool_name;
use ui_message_stream::stream::BoxError;

/// A tool of a server.
///
/// Whether a person is asked before it runs, its annotations say, unless the host does: one that
/// claims only to read runs, every other one asks. To destroy nothing is not enough: what sends a
/// message may claim that. Where the agent [asks by default], no claim of the server is believed. In
/// any case a person is asked once the server's definition of it, annotations included, is not the
/// one that the agent was made with: what anybody trusted was that one.
///
/// The model reads its current definition, and an input is held against the current schema. Its name
/// goes to the model with `_` for what model providers do not take in names.
///
/// [asks by default]: ui_message_stream::agent::Agent::with_approval_by_default
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
/// fn with_a_person(tool: McpTool) -> McpTool {
///     tool.needs_approval_when(|input, _| match input.to::<Payment>() {
///         Ok(payment) => payment.cents > 1_000,
///         Err(_) => true,
///     })
///     .describe(|input| match input.to::<Payment>() {
///         Ok(payment) => format!("Send {} cents to {}?", payment.cents, payment.to),
///         Err(_) => format!("Make this payment? {}", input.as_str()),
///     })
/// }
/// # let _ = with_a_person;
/// ```
#[derive(Clone)]
pub struct McpTool {
    server: Arc<Connection>,
    /// What the model calls it by.
    name: Box<str>,
    /// What it was when the host took it.
    taken: Arc<Listed>,
    title: Option<Box<str>>,
    /// `None` where the host says nothing.
    needs_approval: Option<NeedsApproval>,
    describe: Option<Arc<Describe>>,
    idempotent: bool,
    timeout: Duration,
    time_to_answer: Option<Duration>,
    most_output_bytes: usize,
}

#[derive(Clone)]
enum NeedsApproval {
    Never,
    Always,
    When(Arc<When>),
}

type When = dyn Fn(&Json, &ApprovalContext) -> bool + Send + Sync;
type Describe = dyn Fn(&Json) -> String + Send + Sync;

impl McpTool {
    pub(super) fn of(server: &Arc<Connection>, listed: &Arc<Listed>) -> Self {
        McpTool {
            server: Arc::clone(server),
            name: callable(&listed.tool.name),
            taken: Arc::clone(listed),
            title: None,
            needs_approval: None,
            describe: None,
            idempotent: false,
            timeout: Duration::from_secs(60),
            time_to_answer: None,
            most_output_bytes: DEFAULT_MAX_OUTPUT_BYTES,
        }
    }

    /// What the server said of it when the host took it: its name there, its annotations.
    pub fn definition(&self) -> &Tool {
        &self.taken.tool
    }

    /// Puts this before its name: two servers may have tools of one name. Model providers take 64
    /// characters of both together.
    #[must_use]
    pub fn with_prefix(mut self, prefix: &str) -> Self {
        self.name = callable(&format!("{prefix}{}", self.name));
        self
    }

    /// What a person reads for its name, instead of what the server says.
    #[must_use]
    pub fn with_title(mut self, title: impl Into<Box<str>>) -> Self {
        self.title = Some(title.into());
        self
    }

    /// A person is asked before each call, whatever the server claims.
    #[must_use]
    pub fn needs_approval(mut self) -> Self {
        self.needs_approval = Some(NeedsApproval::Always);
        self
    }

    /// Nobody is asked before a call, whatever the server claims, for as long as its definition is
    /// what it was.
    #[must_use]
    pub fn needs_no_approval(mut self) -> Self {
        self.needs_approval = Some(NeedsApproval::Never);
        self
    }

    /// A person is asked where this says so, whatever the server claims, and once its definition is
    /// not what it was. The input is the model's: it says what an injected text may have made it say.
    /// If it panics, a person is asked.
    #[must_use]
    pub fn needs_approval_when(
        mut self,
        asks: impl Fn(&Json, &ApprovalContext) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.needs_approval = Some(NeedsApproval::When(Arc::new(asks)));
        self
    }

    /// What the person is asked, made from the input; the tool's name and the input unless set, and
    /// if it panics.
    #[must_use]
    pub fn describe(mut self, describe: impl Fn(&Json) -> String + Send + Sync + 'static) -> Self {
        self.describe = Some(Arc::new(describe));
        self
    }

    /// It may be run again after a crash. The server's own word for that is not taken.
    #[must_use]
    pub fn idempotent(mut self) -> Self {
        self.idempotent = true;
        self
    }

    /// How long it may take; a minute unless set. The server is told then that nobody waits any more.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// How long an answer of the person is waited for, if not as long as for other tools.
    #[must_use]
    pub fn with_time_to_answer(mut self, time: Duration) -> Self {
        self.time_to_answer = Some(time);
        self
    }

    /// How long its output may be, in bytes of JSON; 256 KiB unless set. One that is longer fails:
    /// the client sends what it holds back with every request, and those have their
    /// [`Limits`](ui_message_stream::request::Limits).
    #[must_use]
    pub fn with_most_output_bytes(mut self, most: usize) -> Self {
        self.most_output_bytes = most;
        self
    }

    pub(super) fn callable_name(&self) -> &str {
        &self.name
    }
}

impl fmt::Debug for McpTool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("McpTool")
            .field("name", &self.name)
            .field("definition", &self.taken.tool)
            .finish_non_exhaustive()
    }
}

impl IntoTool for McpTool {
    fn into_tool(self) -> Arc<dyn AnyTool> {
        Arc::new(self)
    }
}

impl AnyTool for McpTool {
    fn name(&self) -> &str {
        &self.name
    }

    fn description(&self) -> Option<ToolDescription> {
        let now = self.server.tool(&self.taken.tool.name)?;
        let description = now.tool.description.as_deref().unwrap_or_default();
        Some(ToolDescription::new(self.name.clone(), description, now.input_schema.clone()))
    }

    fn further_definition(&self) -> Option<Json> {
        Some(self.server.tool(&self.taken.tool.name)?.claims.clone())
    }

    fn refresh(&self) -> BoxFuture<'_, bool> {
        Box::pin(async {
            let refreshed = self.server.refresh().await;
            if let Err(error) = &refreshed {
                tracing::warn!(%error, tool = &*self.name, "what a tool has become is not known");
            }
            refreshed.is_ok()
        })
    }

    fn is_dynamic(&self) -> bool {
        true
    }

    fn title(&self) -> Option<&str> {
        let Tool { title, annotations, .. } = &self.taken.tool;
        let claimed = || title.as_deref().or_else(|| annotations.as_ref()?.title.as_deref());
        self.title.as_deref().or_else(claimed)
    }

    fn check(&self, input: &Json) -> Result<(), String> {
        if input.is_object() { Ok(()) } else { Err("it is no object".to_owned()) }
    }

    fn has_approval_policy(&self) -> bool {
        self.needs_approval.is_some()
    }

    fn has_approval_predicate(&self) -> bool {
        matches!(self.needs_approval, Some(NeedsApproval::When(_)))
    }

    fn needs_approval(&self, input: &Json, context: ApprovalContext) -> BoxFuture<'static, bool> {
        let now = self.server.tool(&self.taken.tool.name);
        if now.is_none_or(|now| !now.is_same(&self.taken)) {
            return Box::pin(ready(true));
        }
        Box::pin(ready(match &self.needs_approval {
            None => !only_reads(self.taken.tool.annotations.as_ref()),
            Some(NeedsApproval::Never) => false,
            Some(NeedsApproval::Always) => true,
            Some(NeedsApproval::When(predicate)) => {
                predicate_or_ask(&self.name, || predicate(input, &context))
            }
        }))
    }

    fn describe(&self, input: &Json) -> Option<String> {
        let describe = self.describe.as_ref()?;
        catch_unwind(AssertUnwindSafe(|| describe(input))).ok()
    }

    fn is_idempotent(&self) -> bool {
        self.idempotent
    }

    fn model_output(&self, output: &Json) -> Option<Json> {
        result::without_media(output)
    }

    fn timeout(&self) -> Duration {
        self.timeout
    }

    fn time_to_answer(&self) -> Option<Duration> {
        self.time_to_answer
    }

    fn most_output_bytes(&self) -> usize {
        self.most_output_bytes
    }

    fn call(&self, input: Json, _: ToolContext) -> BoxFuture<'static, Result<Json, BoxError>> {
        let server = Arc::clone(&self.server);
        let params = CallToolRequestParams::new(self.taken.tool.name.clone());
        Box::pin(async move {
            if server.peer().is_transport_closed() {
                return Err(Told(GONE.to_owned()).into());
            }
            let params = params.with_arguments(input.to::<JsonObject>()?);
            match server.peer().call_tool_once(params).await {
                Ok(CallToolResponse::Complete(result)) => result::output(result),
                Ok(_) => Err("the server answered with a question or a task".into()),
                Err(ServiceError::TransportClosed) => Err(Told(WENT.to_owned()).into()),
                Err(error) => Err(error.into()),
            }
        })
    }
}

/// What a server says of a tool, if it can be called.
pub(super) struct Listed {
    pub(super) tool: Tool,
    input_schema: Json,
    /// Its title and its annotations.
    claims: Json,
}

impl Listed {
    pub(super) fn of(tool: Tool) -> Option<Self> {
        let input_schema = Json::of(&*tool.input_schema)
            .ok()
            .filter(|schema| ToolDescription::new("", "", schema.clone()).has_valid_schema());
        if input_schema.is_none() {
            tracing::warn!(tool = &*tool.name, "a tool whose schema is none is left out");
        }
        let claims = Json::of(&(&tool.title, &tool.annotations)).ok()?;
        Some(Listed { input_schema: input_schema?, claims, tool })
    }

    /// Whether everything is the same that a model, a person or a rule goes by.
    fn is_same(&self, other: &Listed) -> bool {
        self.tool.description == other.tool.description
            && self.tool.input_schema == other.tool.input_schema
            && self.claims == other.claims
    }
}

/// Whether that is what it claims. What claims to destroy in the same breath is not believed the
/// better one.
fn only_reads(annotations: Option<&ToolAnnotations>) -> bool {
    annotations.is_some_and(|annotations| {
        annotations.read_only_hint == Some(true) && annotations.destructive_hint != Some(true)
    })
}

/// A name that model providers take, unless there is nothing of it.
fn callable(name: &str) -> Box<str> {
    if name.is_empty() { name.into() } else { sanitize_tool_name(name) }
}

/// Said of a call whose server was gone before.
const GONE: &str = "This tool call was not executed: the tool server is gone.";

/// Said of a call whose server went while it ran.
const WENT: &str = "The tool server went away. What the tool did until then is not known.";
