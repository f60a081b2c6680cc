//! [`McpTool`]: a tool of a server, with what the host decides about it.

use std::sync::Arc;
use std::time::Duration;

use ::rmcp::ServiceError;
use ::rmcp::model::{CallToolRequestParams, CallToolResponse, JsonObject, Tool, ToolAnnotations};

use super::{Connection, result};
use crate::agent::{AnyTool, ApprovalContext, IntoTool, Told, ToolContext, ToolDescription};
use crate::json::Json;
use crate::ledger_store::BoxFuture;
use crate::model_message::spelled;
use crate::stream::BoxError;

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
/// [asks by default]: crate::agent::Agent::with_approval_by_default
#[derive(Debug, Clone)]
pub struct McpTool {
    server: Arc<Connection>,
    /// What the model calls it by.
    name: Box<str>,
    /// What it was when the host took it.
    taken: Arc<Listed>,
    needs_approval: Option<bool>,
    idempotent: bool,
    timeout: Duration,
    time_to_answer: Option<Duration>,
}

impl McpTool {
    pub(super) fn of(server: &Arc<Connection>, listed: &Arc<Listed>) -> Self {
        McpTool {
            server: Arc::clone(server),
            name: callable(&listed.tool.name),
            taken: Arc::clone(listed),
            needs_approval: None,
            idempotent: false,
            timeout: Duration::from_secs(60),
            time_to_answer: None,
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

    /// A person is asked before each call, whatever the server claims.
    #[must_use]
    pub fn needs_approval(mut self) -> Self {
        self.needs_approval = Some(true);
        self
    }

    /// Nobody is asked before a call, whatever the server claims, for as long as its definition is
    /// what it was.
    #[must_use]
    pub fn needs_no_approval(mut self) -> Self {
        self.needs_approval = Some(false);
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

    pub(super) fn callable_name(&self) -> &str {
        &self.name
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
        title.as_deref().or_else(|| annotations.as_ref()?.title.as_deref())
    }

    fn check(&self, input: &Json) -> Result<(), String> {
        if input.is_object() { Ok(()) } else { Err("it is no object".to_owned()) }
    }

    fn has_approval_policy(&self) -> bool {
        self.needs_approval.is_some()
    }

    fn needs_approval(&self, _: &Json, _: ApprovalContext) -> BoxFuture<'static, bool> {
        let now = self.server.tool(&self.taken.tool.name);
        let is_what_it_was = now.is_some_and(|now| now.is_same(&self.taken));
        let annotations = self.taken.tool.annotations.as_ref();
        let asks = self.needs_approval.unwrap_or_else(|| !only_reads(annotations));
        Box::pin(std::future::ready(asks || !is_what_it_was))
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
#[derive(Debug)]
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
            .filter(|schema| ToolDescription::new("", "", schema.clone()).validator().is_some());
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
    if name.is_empty() { name.into() } else { spelled(name) }
}

/// Said of a call whose server was gone before.
const GONE: &str = "This tool call was not executed: the tool server is gone.";

/// Said of a call whose server went while it ran.
const WENT: &str = "The tool server went away. What the tool did until then is not known.";
