//! [`Tool`]: a function that a model may call, with what has to hold before it runs.

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

use super::any_tool::AnyTool;
use super::context::{ApprovalContext, Beside, ToolContext};
use super::model::ToolDescription;
use crate::adapter::tools::DEFAULT_MAX_OUTPUT_BYTES;
use crate::approval::TOOL_FAILED;
use crate::json::Json;
use crate::ledger_store::BoxFuture;
use crate::run::ToolEvent;
use crate::stream::BoxError;

/// A tool whose input is an `I`.
///
/// Its description, for the model, is the documentation of `I`, and the schema of its input is that
/// of `I`. The input is held against the schema before anything else happens.
///
/// ```
/// use schemars::JsonSchema;
/// use serde::Deserialize;
/// use ui_message_stream::agent::Tool;
///
/// /// Deletes a file for good.
/// #[derive(Deserialize, JsonSchema)]
/// struct DeleteFile {
///     path: String,
/// }
///
/// let delete = Tool::new("delete_file", async |input: DeleteFile| {
///     tokio::fs::remove_file(input.path).await.map(|()| "deleted")
/// });
/// let delete = delete.needs_approval().describe(|input| format!("Delete {}", input.path));
/// # let _ = delete;
/// ```
pub struct Tool<I> {
    pub(super) about: About,
    pub(super) handle: Arc<Handle<I>>,
    pub(super) approval: NeedsApproval<I>,
    pub(super) describe: Option<Arc<Describe<I>>>,
    pub(super) idempotent: bool,
    pub(super) timeout: Duration,
    pub(super) time_to_answer: Option<Duration>,
    pub(super) most_output_bytes: usize,
    pub(super) model_output: Option<Arc<ModelOutput>>,
}

/// What every tool has.
pub(super) struct About {
    pub(super) name: Box<str>,
    pub(super) title: Option<Box<str>>,
    pub(super) description: Box<str>,
    pub(super) input_schema: Json,
}

impl About {
    pub(super) fn description(&self) -> ToolDescription {
        ToolDescription {
            name: self.name.clone(),
            description: self.description.clone(),
            input_schema: self.input_schema.clone(),
        }
    }
}

pub(super) type Handle<I> =
    dyn Fn(I, ToolContext) -> BoxFuture<'static, Result<Json, BoxError>> + Send + Sync;
pub(super) type Describe<I> = dyn Fn(&I) -> String + Send + Sync;
pub(super) type ModelOutput = dyn Fn(&Json) -> Json + Send + Sync;
type When<I> = dyn Fn(&I, &ApprovalContext) -> bool + Send + Sync;
type If<I> = dyn Fn(Arc<I>, ApprovalContext) -> BoxFuture<'static, bool> + Send + Sync;

pub(super) enum NeedsApproval<I> {
    /// As the agent says.
    Unsaid,
    Never,
    Always,
    When(Arc<When<I>>),
    If(Arc<If<I>>),
}

/// A tool that the client runs: there is nothing to run here.
#[derive(Debug, Clone, Copy)]
pub enum ClientExecuted {}

/// What runs a tool: an async function of its input, or of its input and a [`ToolContext`].
pub trait Handler<I, Form>: Send + Sync + 'static {
    /// Runs it.
    fn call(&self, input: I, context: ToolContext) -> BoxFuture<'static, Result<Json, BoxError>>;
}

/// The form of a handler that takes the input alone.
#[derive(Debug)]
pub struct WithoutContext(PhantomData<()>);

/// The form of a handler that takes the input and the context.
#[derive(Debug)]
pub struct WithContext(PhantomData<()>);

impl<F, Fut, I, O, E> Handler<I, WithoutContext> for F
where
    F: Fn(I) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<O, E>> + Send + 'static,
    O: Serialize,
    E: Into<BoxError>,
{
    fn call(&self, input: I, _: ToolContext) -> BoxFuture<'static, Result<Json, BoxError>> {
        let output = self(input);
        Box::pin(async move { Ok(Json::of(&output.await.map_err(Into::into)?)?) })
    }
}

impl<F, Fut, I, O, E> Handler<I, WithContext> for F
where
    F: Fn(I, ToolContext) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<O, E>> + Send + 'static,
    O: Serialize,
    E: Into<BoxError>,
{
    fn call(&self, input: I, context: ToolContext) -> BoxFuture<'static, Result<Json, BoxError>> {
        let output = self(input, context);
        Box::pin(async move { Ok(Json::of(&output.await.map_err(Into::into)?)?) })
    }
}

impl<I: DeserializeOwned + JsonSchema + Send + Sync + 'static> Tool<I> {
    /// A tool that this function runs. Of its errors the model and the person read what is [`Told`].
    ///
    /// # Panics
    /// If the schema of `I` is not JSON that can be sent, which no derived one is.
    #[track_caller]
    pub fn new<Form>(name: impl Into<Box<str>>, handler: impl Handler<I, Form>) -> Self {
        Self::handled(name.into(), Arc::new(move |input, context| handler.call(input, context)))
    }

    /// A tool whose output grows: each item of the stream replaces the one before, for the person as
    /// it comes, and the last one is the output, for the model as well. What an error is told, and
    /// what is shown of an approved call, is as of any tool.
    ///
    /// ```
    /// use futures::stream;
    /// use ui_message_stream::agent::{Told, Tool};
    ///
    /// /// Counts.
    /// #[derive(serde::Deserialize, schemars::JsonSchema)]
    /// struct Count {
    ///     to: u64,
    /// }
    ///
    /// let count = Tool::streaming("count", |count: Count, _| {
    ///     stream::iter((1..=count.to).map(Ok::<_, Told>))
    /// });
    /// # let _ = count;
    /// ```
    ///
    /// # Panics
    /// As [`new`](Self::new).
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
        let handle = move |input, context: ToolContext| {
            let beside = context.beside.clone();
            let outputs = handler(input, context);
            let last: BoxFuture<'static, _> = Box::pin(last_of(outputs, beside));
            last
        };
        Self::handled(name.into(), Arc::new(handle))
    }

    #[track_caller]
    fn handled(name: Box<str>, handle: Arc<Handle<I>>) -> Self {
        let schema = schemars::schema_for!(I);
        let description = schema.get("description").and_then(|text| text.as_str());
        let about = About {
            name,
            title: None,
            description: description.unwrap_or_default().into(),
            input_schema: Json::of(&schema).expect("a derived schema is plain JSON"),
        };
        Tool {
            about,
            handle,
            approval: NeedsApproval::Unsaid,
            describe: None,
            idempotent: false,
            timeout: Duration::from_secs(60),
            time_to_answer: None,
            most_output_bytes: DEFAULT_MAX_OUTPUT_BYTES,
            model_output: None,
        }
    }

    /// What the model reads of it, instead of the documentation of `I`.
    #[must_use]
    pub fn with_description(mut self, description: impl Into<Box<str>>) -> Self {
        self.about.description = description.into();
        self
    }

    /// A person is asked before each call.
    #[must_use]
    pub fn needs_approval(mut self) -> Self {
        self.approval = NeedsApproval::Always;
        self
    }

    /// Nobody is asked before a call, also where the agent
    /// [asks by default](super::Agent::with_approval_by_default).
    #[must_use]
    pub fn needs_no_approval(mut self) -> Self {
        self.approval = NeedsApproval::Never;
        self
    }

    /// A person is asked where this says so. The input is the model's: it says what an injected text
    /// may have made it say. If it panics, a person is asked.
    #[must_use]
    pub fn needs_approval_when(
        mut self,
        asks: impl Fn(&I, &ApprovalContext) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.approval = NeedsApproval::When(Arc::new(asks));
        self
    }

    /// As [`needs_approval_when`](Self::needs_approval_when), where looking takes time. An error in
    /// it means: ask. So does more time than the tool itself [may take](Self::with_timeout).
    ///
    /// ```
    /// # use ui_message_stream::agent::{Told, Tool};
    /// # #[derive(serde::Deserialize, schemars::JsonSchema)] struct Transfer { to: String }
    /// # async fn is_known(_account: &str) -> Result<bool, std::io::Error> { Ok(true) }
    /// let transfer = Tool::new("transfer", async |_: Transfer| Ok::<_, Told>("sent"))
    ///     .needs_approval_if(async |transfer, _| Ok(!is_known(&transfer.to).await?));
    /// # let _ = transfer;
    /// ```
    #[must_use]
    pub fn needs_approval_if<F, Fut>(mut self, asks: F) -> Self
    where
        F: Fn(Arc<I>, ApprovalContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<bool, BoxError>> + Send + 'static,
    {
        let asks = Arc::new(asks);
        self.approval = NeedsApproval::If(Arc::new(move |input, context| {
            let asks = Arc::clone(&asks);
            // Called where it is awaited: it may panic before there is anything to await.
            Box::pin(async move {
                asks(input, context).await.unwrap_or_else(|error| {
                    tracing::error!(%error, "whether a call needs approval is not known: it does");
                    true
                })
            })
        }));
        self
    }

    /// What the person is asked, made from the input; the tool's name and the input unless set.
    #[must_use]
    pub fn describe(mut self, describe: impl Fn(&I) -> String + Send + Sync + 'static) -> Self {
        self.describe = Some(Arc::new(describe));
        self
    }

    /// Calls that it gets twice it recognises, by [`ToolContext::idempotency_key`]: it may be run
    /// again after a crash.
    #[must_use]
    pub fn idempotent(mut self) -> Self {
        self.idempotent = true;
        self
    }

    /// How long it may take; a minute unless set. Then it has failed, and is dropped at the point it
    /// waits at. One that never waits cannot be stopped: what blocks belongs into
    /// `tokio::task::spawn_blocking`, or it keeps a thread of the server until it is done.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// How long its output may be, in bytes of JSON; 256 KiB unless set. One that is longer fails:
    /// the client sends what it holds back with every request, and those have their
    /// [`Limits`](crate::request::Limits).
    #[must_use]
    pub fn with_most_output_bytes(mut self, most: usize) -> Self {
        self.most_output_bytes = most;
        self
    }

    /// What the model reads of an output, where that is not what the person sees: less, as a rule. It
    /// is asked in every turn. If it panics, the model reads the output.
    ///
    /// ```
    /// use schemars::JsonSchema;
    /// use serde::Deserialize;
    /// use ui_message_stream::Json;
    /// use ui_message_stream::agent::{Told, Tool};
    ///
    /// /// Draws a map.
    /// #[derive(Deserialize, JsonSchema)]
    /// struct Map {
    ///     of: String,
    /// }
    ///
    /// let map = Tool::new("map", async |map: Map| Ok::<_, Told>(format!("<svg>{}</svg>", map.of)))
    ///     .with_model_output(|_| Json::string("The person sees the map."));
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

    /// How long an answer of the person is waited for, if not as long as for other tools.
    #[must_use]
    pub fn with_time_to_answer(mut self, time: Duration) -> Self {
        self.time_to_answer = Some(time);
        self
    }
}

/// A tool that the client runs. It has no handler and needs no approval here.
impl Tool<ClientExecuted> {
    /// A tool that the client runs, with the schema of its input.
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
            about: About {
                name: name.into(),
                title: None,
                description: description.into(),
                input_schema,
            },
            handle: Arc::new(|input, _| match input {}),
            approval: NeedsApproval::Unsaid,
            describe: None,
            idempotent: false,
            timeout: Duration::ZERO,
            time_to_answer: None,
            most_output_bytes: DEFAULT_MAX_OUTPUT_BYTES,
            model_output: None,
        }
    }
}

impl<I> Tool<I> {
    /// What a person reads for its name.
    #[must_use]
    pub fn with_title(mut self, title: impl Into<Box<str>>) -> Self {
        self.about.title = Some(title.into());
        self
    }
}

impl<I> fmt::Debug for Tool<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tool").field("name", &self.about.name).finish_non_exhaustive()
    }
}

/// What an [`Agent`](super::Agent) takes for a tool.
pub trait IntoTool {
    /// The tool with its type of input forgotten.
    fn into_tool(self) -> Arc<dyn AnyTool>;
}

impl<T: AnyTool> IntoTool for Arc<T> {
    fn into_tool(self) -> Arc<dyn AnyTool> {
        self
    }
}

/// Tools of several types in one list.
impl IntoTool for Arc<dyn AnyTool> {
    fn into_tool(self) -> Arc<dyn AnyTool> {
        self
    }
}

/// An error whose words are for the model and the person, up to 10 000 characters. Those of every other
/// error are for the log alone, and "The tool failed." is said instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Told(pub String);

/// Shows each output as it comes; the last one is the tool's.
async fn last_of<O: Serialize, E: Into<BoxError>>(
    outputs: impl Stream<Item = Result<O, E>>,
    beside: Option<Beside>,
) -> Result<Json, BoxError> {
    let mut outputs = pin!(outputs);
    let mut last = None;
    while let Some(output) = poll_fn(|cx| outputs.as_mut().poll_next(cx)).await {
        let output = Json::of(&output.map_err(Into::into)?)?;
        match &beside {
            // Whether the last one is too long is seen at the end.
            Some(beside) => drop(beside.show(ToolEvent::Preliminary(output.clone())).await),
            None => yield_now().await,
        }
        last = Some(output);
    }
    last.ok_or_else(|| "the tool ended without an output".into())
}

/// What is told of an error.
pub(super) fn told(error: &BoxError) -> String {
    let shown = error.downcast_ref::<Told>();
    let told = |told: &Told| told.0.chars().take(MOST_TOLD).collect();
    shown.map_or_else(|| TOOL_FAILED.to_owned(), told)
}

/// How many characters of an error's words are told.
const MOST_TOLD: usize = 10_000;
