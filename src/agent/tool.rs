//! [`Tool`]: a function that a model can call, and the conditions under which it runs.

use std::fmt;
use std::future::{Future, poll_fn};
use std::marker::PhantomData;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_core::Stream;
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::task::yield_now;

use super::context::{ApprovalContext, PartEmitter, ToolContext};
use super::dyn_tool::DynTool;
use crate::agent::tool_loop::ToolEvent;
use crate::agent::tool_policy::DEFAULT_MAX_OUTPUT_BYTES;
use crate::approval::TOOL_FAILED;
use crate::approval::store::BoxFuture;
use crate::json::Json;
use crate::model::ToolDefinition;
use crate::response::BoxError;

/// A tool whose input is an `I`.
///
/// The model reads the documentation of `I` as the description of the tool, and the schema of `I`
/// as the schema of its input. Each input is validated against the schema before anything else
/// happens.
///
/// ```
/// use schemars::JsonSchema;
/// use serde::Deserialize;
/// use ui_message_stream::agent::Tool;
///
/// /// Deletes a file permanently.
/// #[derive(Deserialize, JsonSchema)]
/// struct DeleteFile {
///     path: String,
/// }
///
/// let delete = Tool::new("delete_file", async |input: DeleteFile| {
///     tokio::fs::remove_file(input.path).await.map(|()| "deleted")
/// });
/// let delete = delete
///     .needs_approval()
///     .approval_description(|input| format!("Delete {}", input.path));
/// # let _ = delete;
/// ```
pub struct Tool<I> {
    pub(super) meta: ToolMeta,
    pub(super) handler: Arc<HandlerFn<I>>,
    pub(super) approval: NeedsApproval<I>,
    pub(super) approval_description: Option<Arc<ApprovalDescriptionFn<I>>>,
    pub(super) is_idempotent: bool,
    pub(super) timeout: Duration,
    pub(super) approval_ttl: Option<Duration>,
    pub(super) max_output_bytes: usize,
    pub(super) model_output: Option<Arc<ModelOutputFn>>,
}

/// The name, title, description and input schema of a tool.
pub(super) struct ToolMeta {
    pub(super) name: Box<str>,
    pub(super) title: Option<Box<str>>,
    pub(super) description: Box<str>,
    pub(super) input_schema: Json,
}

impl ToolMeta {
    pub(super) fn definition(&self) -> ToolDefinition {
        ToolDefinition {
            name: self.name.clone(),
            description: self.description.clone(),
            input_schema: self.input_schema.clone(),
        }
    }
}

pub(super) type HandlerFn<I> =
    dyn Fn(I, ToolContext) -> BoxFuture<'static, Result<Json, BoxError>> + Send + Sync;
pub(super) type ApprovalDescriptionFn<I> = dyn Fn(&I) -> String + Send + Sync;
pub(super) type ModelOutputFn = dyn Fn(&Json) -> Json + Send + Sync;
type PredicateFn<I> = dyn Fn(&I, &ApprovalContext) -> bool + Send + Sync;
type AsyncPredicateFn<I> =
    dyn Fn(Arc<I>, ApprovalContext) -> BoxFuture<'static, bool> + Send + Sync;

pub(super) enum NeedsApproval<I> {
    /// The host set no policy. The agent decides.
    Unspecified,
    Never,
    Always,
    When(Arc<PredicateFn<I>>),
    WhenAsync(Arc<AsyncPredicateFn<I>>),
}

/// The input type of a tool that the client executes. It has no values, because no handler runs
/// here.
#[derive(Debug, Clone, Copy)]
pub enum ClientExecuted {}

/// A handler of a tool: an async function of the input, or of the input and a [`ToolContext`].
pub trait ToolHandler<I, Form>: Send + Sync + 'static {
    /// Runs the handler on one input.
    fn call(&self, input: I, context: ToolContext) -> BoxFuture<'static, Result<Json, BoxError>>;
}

/// Marks a handler that takes only the input.
#[derive(Debug)]
pub struct WithoutContext(PhantomData<()>);

/// Marks a handler that takes the input and the context.
#[derive(Debug)]
pub struct WithContext(PhantomData<()>);

impl<F, Fut, I, O, E> ToolHandler<I, WithoutContext> for F
where
    F: Fn(I) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<O, E>> + Send + 'static,
    O: Serialize,
    E: Into<BoxError>,
{
    fn call(&self, input: I, _: ToolContext) -> BoxFuture<'static, Result<Json, BoxError>> {
        let output = self(input);
        Box::pin(async move { Ok(Json::from_serialize(&output.await.map_err(Into::into)?)?) })
    }
}

impl<F, Fut, I, O, E> ToolHandler<I, WithContext> for F
where
    F: Fn(I, ToolContext) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<O, E>> + Send + 'static,
    O: Serialize,
    E: Into<BoxError>,
{
    fn call(&self, input: I, context: ToolContext) -> BoxFuture<'static, Result<Json, BoxError>> {
        let output = self(input, context);
        Box::pin(async move { Ok(Json::from_serialize(&output.await.map_err(Into::into)?)?) })
    }
}

impl<I: DeserializeOwned + JsonSchema + Send + Sync + 'static> Tool<I> {
    /// Creates a tool that this handler runs.
    ///
    /// The model and the user read the message of an error of the handler only if the error is a
    /// [`ToolError`].
    ///
    /// # Panics
    /// Panics if the schema of `I` cannot be written as JSON. A derived schema always can.
    #[track_caller]
    pub fn new<Form>(name: impl Into<Box<str>>, handler: impl ToolHandler<I, Form>) -> Self {
        Self::with_handler(
            name.into(),
            Arc::new(move |input, context| handler.call(input, context)),
        )
    }

    /// Creates a tool whose output grows. Each item of the stream replaces the previous one.
    ///
    /// The user sees each item when it arrives. The last item is the output, which the model reads
    /// too. Errors are shown, and the output of an approved call is shown, as for any other tool.
    ///
    /// ```
    /// use futures::stream;
    /// use ui_message_stream::agent::{ToolError, Tool};
    ///
    /// /// Counts.
    /// #[derive(serde::Deserialize, schemars::JsonSchema)]
    /// struct Count {
    ///     to: u64,
    /// }
    ///
    /// let count = Tool::streaming("count", |count: Count, _| {
    ///     stream::iter((1..=count.to).map(Ok::<_, ToolError>))
    /// });
    /// # let _ = count;
    /// ```
    ///
    /// # Panics
    /// Panics under the conditions of [`new`](Self::new).
    #[track_caller]
    pub fn streaming<S, O, E>(
        name: impl Into<Box<str>>,
        handler: impl Fn(I, ToolContext) -> S + Send + Sync + 'static,
    ) -> Self
    where
        S: Stream<Item = Result<O, E>> + Send + 'static,
        O: Serialize + Send + 'static,
        E: Into<BoxError> + Send + 'static,
    {
        let handler_fn = move |input, context: ToolContext| {
            let emitter = context.emitter.clone();
            let outputs = handler(input, context);
            let last: BoxFuture<'static, _> = Box::pin(emit_outputs(outputs, emitter));
            last
        };
        Self::with_handler(name.into(), Arc::new(handler_fn))
    }

    #[track_caller]
    fn with_handler(name: Box<str>, handler: Arc<HandlerFn<I>>) -> Self {
        let schema = schemars::schema_for!(I);
        let description = schema.get("description").and_then(|text| text.as_str());
        let meta = ToolMeta {
            name,
            title: None,
            description: description.unwrap_or_default().into(),
            input_schema: Json::from_serialize(&schema).expect("a derived schema is plain JSON"),
        };
        Tool {
            meta,
            handler,
            approval: NeedsApproval::Unspecified,
            approval_description: None,
            is_idempotent: false,
            timeout: Duration::from_secs(60),
            approval_ttl: None,
            max_output_bytes: DEFAULT_MAX_OUTPUT_BYTES,
            model_output: None,
        }
    }

    /// Sets the description that the model reads, instead of the documentation of `I`.
    #[must_use]
    pub fn with_description(mut self, description: impl Into<Box<str>>) -> Self {
        self.meta.description = description.into();
        self
    }

    /// Requires a user's approval for each call.
    #[must_use]
    pub fn needs_approval(mut self) -> Self {
        self.approval = NeedsApproval::Always;
        self
    }

    /// Requires no approval for any call, even if the agent [requires approval by
    /// default](super::Agent::require_approval_by_default).
    #[must_use]
    pub fn never_needs_approval(mut self) -> Self {
        self.approval = NeedsApproval::Never;
        self
    }

    /// Requires a user's approval for each call for which the predicate returns `true`.
    ///
    /// The input comes from the model, so text that was injected into its context can control it.
    /// If the predicate panics, the call requires approval.
    #[must_use]
    pub fn needs_approval_when(
        mut self,
        asks: impl Fn(&I, &ApprovalContext) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.approval = NeedsApproval::When(Arc::new(asks));
        self
    }

    /// Requires a user's approval for each call for which the asynchronous predicate returns
    /// `true`.
    ///
    /// The call also requires approval if the predicate returns an error, panics, or runs for
    /// longer than the [timeout](Self::with_timeout) of the tool. For a synchronous predicate see
    /// [`needs_approval_when`](Self::needs_approval_when).
    ///
    /// ```
    /// # use ui_message_stream::agent::{ToolError, Tool};
    /// # #[derive(serde::Deserialize, schemars::JsonSchema)] struct Transfer { to: String }
    /// # async fn is_known(_account: &str) -> Result<bool, std::io::Error> { Ok(true) }
    /// let transfer = Tool::new("transfer", async |_: Transfer| Ok::<_, ToolError>("sent"))
    ///     .needs_approval_when_async(async |transfer, _| Ok(!is_known(&transfer.to).await?));
    /// # let _ = transfer;
    /// ```
    #[must_use]
    pub fn needs_approval_when_async<F, Fut>(mut self, asks: F) -> Self
    where
        F: Fn(Arc<I>, ApprovalContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<bool, BoxError>> + Send + 'static,
    {
        let asks = Arc::new(asks);
        self.approval = NeedsApproval::WhenAsync(Arc::new(move |input, context| {
            let asks = Arc::clone(&asks);
            // The predicate is called inside the future: it may panic before it returns a future.
            Box::pin(async move {
                asks(input, context).await.unwrap_or_else(|error| {
                    tracing::error!(%error, "whether a call needs approval is not known: it does");
                    true
                })
            })
        }));
        self
    }

    /// Sets the text of the approval request, made from the input. By default the user sees the
    /// name of the tool and the input.
    #[must_use]
    pub fn approval_description(
        mut self,
        describe: impl Fn(&I) -> String + Send + Sync + 'static,
    ) -> Self {
        self.approval_description = Some(Arc::new(describe));
        self
    }

    /// Allows the tool to run again after a crash. The tool recognises a repeated call by its
    /// [`ToolContext::idempotency_key`].
    #[must_use]
    pub fn idempotent(mut self) -> Self {
        self.is_idempotent = true;
        self
    }

    /// Sets how long a call may run. The default is 60 seconds.
    ///
    /// After the timeout the call has failed, and its future is dropped at the `await` it has
    /// reached. A handler that never awaits cannot be stopped: run blocking code with
    /// `tokio::task::spawn_blocking`, because it otherwise occupies a thread of the server until it
    /// ends.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets the maximum length of the output, in bytes of JSON. The default is 256 KiB.
    ///
    /// A call with a longer output fails: the client sends the messages back with every request,
    /// and requests have [`Limits`](crate::request::Limits).
    #[must_use]
    pub fn with_max_output_bytes(mut self, max: usize) -> Self {
        self.max_output_bytes = max;
        self
    }

    /// Sets what the model reads instead of the output that the user sees. It is usually shorter.
    ///
    /// The function is called each time the messages for the model are built. If it panics, the
    /// model reads the output.
    ///
    /// ```
    /// use schemars::JsonSchema;
    /// use serde::Deserialize;
    /// use ui_message_stream::Json;
    /// use ui_message_stream::agent::{ToolError, Tool};
    ///
    /// /// Draws a map.
    /// #[derive(Deserialize, JsonSchema)]
    /// struct Map {
    ///     of: String,
    /// }
    ///
    /// let map = Tool::new("map", async |map: Map| {
    ///     Ok::<_, ToolError>(format!("<svg>{}</svg>", map.of))
    /// });
    /// let map = map.with_model_output(|_| Json::string("The person sees the map."));
    /// # let _ = map;
    /// ```
    #[must_use]
    pub fn with_model_output(
        mut self,
        read: impl Fn(&Json) -> Json + Send + Sync + 'static,
    ) -> Self {
        self.model_output = Some(Arc::new(read));
        self
    }

    /// Sets how long an approval request of this tool stays open, if it differs from other tools.
    #[must_use]
    pub fn with_approval_ttl(mut self, ttl: Duration) -> Self {
        self.approval_ttl = Some(ttl);
        self
    }
}

/// Tools that the client executes. They have no handler and need no approval here.
impl Tool<ClientExecuted> {
    /// Creates a tool that the client executes, with the schema of its input.
    ///
    /// ```
    /// use ui_message_stream::Json;
    /// use ui_message_stream::agent::Tool;
    ///
    /// let schema = Json::parse(r#"{"type": "object"}"#)?;
    /// let location = Tool::client_executed("location", "Where the person is.", schema);
    /// # let _ = location;
    /// # Ok::<(), ui_message_stream::json::JsonError>(())
    /// ```
    pub fn client_executed(
        name: impl Into<Box<str>>,
        description: impl Into<Box<str>>,
        input_schema: Json,
    ) -> Self {
        Tool {
            meta: ToolMeta {
                name: name.into(),
                title: None,
                description: description.into(),
                input_schema,
            },
            handler: Arc::new(|input, _| match input {}),
            approval: NeedsApproval::Unspecified,
            approval_description: None,
            is_idempotent: false,
            timeout: Duration::ZERO,
            approval_ttl: None,
            max_output_bytes: DEFAULT_MAX_OUTPUT_BYTES,
            model_output: None,
        }
    }
}

impl<I> Tool<I> {
    /// Sets the title, which the user reads instead of the name.
    #[must_use]
    pub fn with_title(mut self, title: impl Into<Box<str>>) -> Self {
        self.meta.title = Some(title.into());
        self
    }
}

impl<I> fmt::Debug for Tool<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tool").field("name", &self.meta.name).finish_non_exhaustive()
    }
}

/// A type that can be added to an [`Agent`](super::Agent) as a tool.
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

/// A tool error whose message is shown to the model and the user, up to 10 000 characters. All
/// other errors are logged and shown as "The tool failed."
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ToolError(pub String);

/// Emits each output as a preliminary one and returns the last output of the stream.
async fn emit_outputs<O: Serialize, E: Into<BoxError>>(
    outputs: impl Stream<Item = Result<O, E>>,
    emitter: Option<PartEmitter>,
) -> Result<Json, BoxError> {
    let mut outputs = pin!(outputs);
    let mut last = None;
    while let Some(output) = poll_fn(|cx| outputs.as_mut().poll_next(cx)).await {
        let output = Json::from_serialize(&output.map_err(Into::into)?)?;
        match &emitter {
            // Ignored: the length of the last output is checked when the call ends.
            Some(emitter) => drop(emitter.emit(ToolEvent::Preliminary(output.clone())).await),
            None => yield_now().await,
        }
        last = Some(output);
    }
    last.ok_or_else(|| "the tool ended without an output".into())
}

/// Returns the text of an error that the model and the user read.
pub(super) fn user_message(error: &BoxError) -> String {
    let shown = error.downcast_ref::<ToolError>();
    let user_message =
        |user_message: &ToolError| user_message.0.chars().take(MAX_USER_MESSAGE_CHARS).collect();
    shown.map_or_else(|| TOOL_FAILED.to_owned(), user_message)
}

/// The maximum number of characters of an error message that are shown.
const MAX_USER_MESSAGE_CHARS: usize = 10_000;
