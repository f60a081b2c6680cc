//! [`Tool`]: a function that a model can call, and the conditions under which it runs.

use std::fmt;
use std::future::{Future, ready};
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use futures_core::Stream;
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::context::{ApprovalContext, ToolContext};
use super::dyn_tool::{DynTool, DynToolDefinition, IntoTool};
use super::schema::schema_json;
use super::schemas::serialized_schema;
use super::tool_handler::{ToolHandler, emit_outputs};
use super::tool_policy::{ApprovalRequirement, ToolPolicy};
use ui_message_stream::approval::{ChangedInput, EditableInput, OnNewMessage, Principal};
use ui_message_stream::json::Json;
use ui_message_stream::model::ToolDefinition;
use ui_message_stream::{BoxError, BoxFuture};

/// A function that a model can call, with an input of the type `I`.
///
/// The model reads the documentation of `I` as the description of the tool, and the schema of `I`
/// as the schema of its input. Each input is validated against the schema before approval is
/// requested and before the tool runs.
///
/// ```
/// use schemars::JsonSchema;
/// use serde::Deserialize;
/// use ui_message_stream_agent::Tool;
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
///     .with_approval_description(|input| format!("Delete {}", input.path));
/// # let _ = delete;
/// ```
pub struct Tool<I> {
    definition: DynToolDefinition,
    policy: ToolPolicy,
    check: fn(&Json) -> Result<(), String>,
    handler: Box<HandlerFn>,
    inner_tools: Vec<Arc<dyn DynTool>>,
    input: PhantomData<fn(I)>,
}

type HandlerFn =
    dyn Fn(Json, ToolContext) -> BoxFuture<'static, Result<Json, BoxError>> + Send + Sync;

/// The input type of a tool that the client executes. It has no values, because no handler runs
/// here.
#[derive(Debug, Clone, Copy)]
pub enum ClientExecuted {}

impl<I: DeserializeOwned + JsonSchema + Send + Sync + 'static> Tool<I> {
    /// Creates a tool that calls this handler.
    ///
    /// If the handler returns a [`ToolError`](super::ToolError), the model and the user read its
    /// message. Any other error is logged, and the model and the user read only "The tool failed."
    ///
    /// A handler that needs a database clones the handle for each call, because the future must not
    /// borrow from the closure. An `async move |input|` closure that uses a captured value does not
    /// compile here, for the same reason. In the handler, `?` converts every error to a
    /// [`BoxError`]:
    ///
    /// ```
    /// use ui_message_stream::BoxError;
    /// use ui_message_stream_agent::{Tool, ToolError};
    /// # #[derive(Clone)] struct Db;
    /// # impl Db {
    /// #     async fn find(&self, _name: &str) -> Result<Option<String>, std::io::Error> { Ok(None) }
    /// # }
    ///
    /// /// Finds a customer.
    /// #[derive(serde::Deserialize, schemars::JsonSchema)]
    /// struct Find {
    ///     name: String,
    /// }
    ///
    /// fn find(db: Db) -> Tool<Find> {
    ///     Tool::new("find", move |input: Find| {
    ///         let db = db.clone();
    ///         async move {
    ///             match db.find(&input.name).await? {
    ///                 Some(customer) => Ok::<_, BoxError>(customer),
    ///                 None => Err(ToolError("There is no such customer.".into()).into()),
    ///             }
    ///         }
    ///     })
    /// }
    /// # let _ = find;
    /// ```
    ///
    /// # Panics
    /// Panics if the schema of `I` cannot be written as JSON. A derived schema always can.
    #[doc(alias = "database")]
    #[track_caller]
    pub fn new<Form>(name: impl Into<Box<str>>, handler: impl ToolHandler<I, Form>) -> Self {
        Self::with_handler(name.into(), move |input, context| handler.call(input, context))
    }

    /// Creates a tool whose output changes while the tool runs. The handler returns a stream, and
    /// each item of the stream replaces the previous one.
    ///
    /// The user sees each item when it arrives. The last item is the output, which the model reads
    /// too. If a user approved the call, only the last item is shown. Errors are handled as in
    /// [`new`](Self::new).
    ///
    /// ```
    /// use futures::stream;
    /// use ui_message_stream_agent::{ToolError, Tool};
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
    /// With `try_stream!` of the crate `async-stream`, write the handler as a function. Its return
    /// type names the type of the error, which the macro leaves open:
    ///
    /// ```
    /// use async_stream::try_stream;
    /// use futures::Stream;
    /// use ui_message_stream_agent::{Tool, ToolContext, ToolError};
    ///
    /// /// Counts.
    /// #[derive(serde::Deserialize, schemars::JsonSchema)]
    /// struct Count {
    ///     to: u64,
    /// }
    ///
    /// fn count(count: Count, _: ToolContext) -> impl Stream<Item = Result<u64, ToolError>> {
    ///     try_stream! {
    ///         for number in 1..=count.to {
    ///             yield number;
    ///         }
    ///     }
    /// }
    ///
    /// let count = Tool::streaming("count", count);
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
        Self::with_handler(name.into(), move |input, context| {
            let emitter = context.emitter.clone();
            Box::pin(emit_outputs(handler(input, context), emitter))
        })
    }

    #[track_caller]
    fn with_handler(
        name: Box<str>,
        handler: impl Fn(I, ToolContext) -> BoxFuture<'static, Result<Json, BoxError>>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        let schema = schemars::schema_for!(I);
        let description = schema.get("description").and_then(|text| text.as_str());
        let description = description.unwrap_or_default();
        let input_schema = schema_json(&schema);
        Tool {
            definition: DynToolDefinition::new(ToolDefinition::new(
                name,
                description,
                input_schema,
            )),
            policy: ToolPolicy::default(),
            check: |input| input.decode::<I>().map(drop).map_err(|error| error.to_string()),
            handler: Box::new(move |input, context| match input.decode::<I>() {
                Ok(input) => handler(input, context),
                Err(error) => Box::pin(ready(Err(error.into()))),
            }),
            inner_tools: Vec::new(),
            input: PhantomData,
        }
    }

    /// Sets the description that the model reads, instead of the documentation of `I`.
    #[must_use]
    pub fn with_description(mut self, description: impl Into<Box<str>>) -> Self {
        self.definition.model.description = description.into();
        self
    }

    /// Sets who may make a call of the tool. If `authorize` returns `false` or panics, the call does
    /// not run, and the model and the user read that it is not permitted. No approval is requested.
    ///
    /// `authorize` receives the owner of the chat, in whose name the tool runs, and the input. It is
    /// called for each call: before it runs without approval, before an approval is requested, and
    /// again when an approval is redeemed, which can be much later. If this method is called several
    /// times, a call is permitted only if all functions return `true`.
    ///
    /// [`Approvals::authorize_decision`](ui_message_stream::approval::Approvals::authorize_decision) decides
    /// something else: who may approve the call of another principal.
    ///
    /// ```
    /// # use ui_message_stream_agent::{ToolError, Tool};
    /// # #[derive(serde::Deserialize, schemars::JsonSchema)] struct Refund { order: String }
    /// let refund = Tool::new("refund", async |_: Refund| Ok::<_, ToolError>("refunded"))
    ///     .authorize(|principal, refund| {
    ///         principal.tenant() == Some("support") && refund.order.starts_with("order-")
    ///     })
    ///     .needs_approval();
    /// # let _ = refund;
    /// ```
    #[must_use]
    pub fn authorize(
        mut self,
        authorize: impl Fn(&Principal, &I) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.policy = self.policy.with_authorization(move |principal, input| {
            input.decode::<I>().is_ok_and(|input| authorize(principal, &input))
        });
        self
    }

    /// Sets who may make a call of the tool, by an asynchronous function.
    ///
    /// The call is not permitted either if the function returns an error, panics, or runs for longer
    /// than the [timeout](Self::with_timeout) of the tool. Otherwise as
    /// [`authorize`](Self::authorize).
    ///
    /// ```
    /// # use ui_message_stream_agent::{ToolError, Tool};
    /// # #[derive(serde::Deserialize, schemars::JsonSchema)] struct Refund { order: String }
    /// # async fn owner_of(_order: &str) -> Result<String, std::io::Error> { Ok("ada".to_owned()) }
    /// let refund = Tool::new("refund", async |_: Refund| Ok::<_, ToolError>("refunded"))
    ///     .authorize_async(async |principal, refund| {
    ///         Ok(principal.id() == Some(&*owner_of(&refund.order).await?))
    ///     });
    /// # let _ = refund;
    /// ```
    #[must_use]
    pub fn authorize_async<F, Fut>(mut self, authorize: F) -> Self
    where
        F: Fn(Principal, Arc<I>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<bool, BoxError>> + Send + 'static,
    {
        let authorize = Arc::new(authorize);
        self.policy = self.policy.with_authorization_async(move |principal, input| {
            let authorize = Arc::clone(&authorize);
            async move { authorize(principal, Arc::new(input.decode()?)).await }
        });
        self
    }

    /// Requires no approval for any call, even if the agent [requires approval by
    /// default](super::Agent::require_approval_by_default).
    #[must_use]
    pub fn never_needs_approval(mut self) -> Self {
        self.policy.approval = ApprovalRequirement::Never;
        self
    }

    /// Requires a user's approval for each call for which the predicate returns `true`.
    ///
    /// The model writes the input. An attacker who injects text into the model's context can
    /// therefore choose the input, and with it the result of the predicate. If the predicate
    /// panics, or if it [reads an incomplete history](ApprovalContext), the call requires approval.
    #[must_use]
    pub fn needs_approval_when(
        mut self,
        predicate: impl Fn(&I, &ApprovalContext) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.policy.approval =
            ApprovalRequirement::when(move |input, context| match input.decode::<I>() {
                Ok(input) => predicate(&input, context),
                Err(_) => true,
            });
        self
    }

    /// Requires a user's approval for each call for which the asynchronous predicate returns
    /// `true`.
    ///
    /// The call also requires approval if the predicate returns an error, panics, [reads an
    /// incomplete history](ApprovalContext), or runs for longer than the
    /// [timeout](Self::with_timeout) of the tool. For a synchronous predicate see
    /// [`needs_approval_when`](Self::needs_approval_when).
    ///
    /// ```
    /// # use ui_message_stream_agent::{ToolError, Tool};
    /// # #[derive(serde::Deserialize, schemars::JsonSchema)] struct Transfer { to: String }
    /// # async fn is_known(_account: &str) -> Result<bool, std::io::Error> { Ok(true) }
    /// let transfer = Tool::new("transfer", async |_: Transfer| Ok::<_, ToolError>("sent"))
    ///     .needs_approval_when_async(async |transfer, _| Ok(!is_known(&transfer.to).await?));
    /// # let _ = transfer;
    /// ```
    #[must_use]
    pub fn needs_approval_when_async<F, Fut>(mut self, predicate: F) -> Self
    where
        F: Fn(Arc<I>, ApprovalContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<bool, BoxError>> + Send + 'static,
    {
        let predicate = Arc::new(predicate);
        self.policy.approval = ApprovalRequirement::when_async(move |input, context| {
            let predicate = Arc::clone(&predicate);
            async move { predicate(Arc::new(input.decode()?), context).await }
        });
        self
    }

    /// Sets the function that makes the text of the approval request from the input. By default the
    /// text is the name of the tool and the beginning of the input.
    #[must_use]
    pub fn with_approval_description(
        mut self,
        describe: impl Fn(&I) -> String + Send + Sync + 'static,
    ) -> Self {
        self.policy = self
            .policy
            .with_approval_description(move |input| Some(describe(&input.decode().ok()?)));
        self
    }

    /// Allows an approved call to run again after the process that ran it has crashed. The handler
    /// must recognise a repeated call by its [`ToolContext::idempotency_key`]. By default such a
    /// call does not run again, and its outcome is unknown.
    #[must_use]
    pub fn idempotent(mut self) -> Self {
        self.policy.idempotent = true;
        self
    }

    /// Sets how long a call may run. The default is 60 seconds.
    ///
    /// After the timeout the call fails, and the future of the handler is dropped at the `await`
    /// that it has reached. A handler that never awaits cannot be stopped and occupies a thread of
    /// the server until it ends. Run blocking code with `tokio::task::spawn_blocking`.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.policy.timeout = timeout;
        self
    }

    /// Sets the maximum length of the output, in bytes of JSON. The default is 256 KiB.
    ///
    /// A call with a longer output fails, because the client sends the output back with every
    /// request, and the size of a request is [limited](ui_message_stream::request::Limits).
    #[must_use]
    pub fn with_max_output_bytes(mut self, max: usize) -> Self {
        self.policy.max_output_bytes = max;
        self
    }

    /// Sets a function that converts the output for the model, usually to a shorter one. The user
    /// sees the output itself.
    ///
    /// The function is called each time the messages for the model are built. If it panics, the
    /// model reads the output.
    ///
    /// ```
    /// use schemars::JsonSchema;
    /// use serde::Deserialize;
    /// use ui_message_stream::Json;
    /// use ui_message_stream_agent::{ToolError, Tool};
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
        self.policy = self.policy.with_model_output(move |output| Some(read(output)));
        self
    }

    /// Sets the time after which an approval request of this tool expires. The default is the time
    /// that the [`Approvals`](ui_message_stream::approval::Approvals) set for all tools.
    #[must_use]
    pub fn with_approval_ttl(mut self, ttl: Duration) -> Self {
        self.policy.approval_ttl = Some(ttl);
        self
    }

    /// Sets what happens to the approval requests of this tool when the user sends a newer message.
    /// It overrides [`Approvals::on_new_message`](ui_message_stream::approval::Approvals::on_new_message).
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

    /// Lets the approver of a call change its whole input. The tool runs with the changed input, if it
    /// fits the schema, [`check_change`](Self::check_change) accepts the change, and
    /// [`authorize`](Self::authorize) permits the requester such a call. Otherwise the approver gets an error
    /// (status 400), and the approval request stays open. The model reads that the input was changed.
    #[must_use]
    pub fn editable(mut self) -> Self {
        self.policy.editable = EditableInput::Everything;
        self
    }

    /// Lets the approver of a call change these top-level fields of its input, as
    /// [`editable`](Self::editable) does for the whole input.
    #[must_use]
    pub fn editable_fields<N: Into<Box<str>>>(
        mut self,
        names: impl IntoIterator<Item = N>,
    ) -> Self {
        self.policy.editable = EditableInput::Fields(names.into_iter().map(Into::into).collect());
        self
    }

    /// Sets which changes an approver may make of an [editable](Self::editable) input. `check` gets the input
    /// that the model produced and the changed one. The approver reads the text of its error.
    ///
    /// `check` is called before anything is stored, and again before the call runs. If this method is called
    /// several times, all functions have to return `Ok`. A change is not accepted if one of them panics.
    ///
    /// ```
    /// use ui_message_stream_agent::Tool;
    ///
    /// /// Transfers money.
    /// #[derive(serde::Deserialize, schemars::JsonSchema)]
    /// struct Transfer {
    ///     to: String,
    ///     amount: u64,
    /// }
    ///
    /// let transfer = Tool::new("transfer", async |transfer: Transfer| {
    ///     Ok::<_, std::io::Error>(format!("{} to {}", transfer.amount, transfer.to))
    /// });
    /// // The approver may lower the amount, cannot raise it, and cannot send it to another account.
    /// let transfer = transfer.needs_approval().editable_fields(["amount"]).check_change(|input| {
    ///     if input.changed.amount <= input.original.amount {
    ///         Ok(())
    ///     } else {
    ///         Err("amount: may be lowered, not raised".to_owned())
    ///     }
    /// });
    /// # let _ = transfer;
    /// ```
    #[must_use]
    pub fn check_change(
        mut self,
        check: impl Fn(&ChangedInput<I>) -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        self.policy = self.policy.with_change_check(move |input| {
            check(&input.decode().map_err(|error| error.to_string())?)
        });
        self
    }
}

/// Tools that the client executes. They have no handler.
impl Tool<ClientExecuted> {
    /// Creates a tool that the client executes, with the schema of its input.
    ///
    /// ```
    /// use ui_message_stream::Json;
    /// use ui_message_stream_agent::Tool;
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
        let model = ToolDefinition::new(name, description, input_schema);
        Tool {
            definition: DynToolDefinition {
                is_client_executed: true,
                ..DynToolDefinition::new(model)
            },
            policy: ToolPolicy::default(),
            check: |_| Ok(()),
            handler: Box::new(|_, _| {
                Box::pin(ready(Err("a client-executed tool has no handler here".into())))
            }),
            inner_tools: Vec::new(),
            input: PhantomData,
        }
    }

    /// Accepts inputs that do not fit the schema. For a schema from an untrusted origin, whose
    /// evaluation can take unbounded time.
    pub(super) fn without_schema_validation(mut self) -> Self {
        self.definition.validates_schema = false;
        self
    }
}

impl<I> Tool<I> {
    /// Sets the type of the output, for the [types of the page](super::Agent::schemas). It is the type that the
    /// handler returns. Neither the model nor an approval depends on it.
    ///
    /// ```
    /// # use schemars::JsonSchema;
    /// # use serde::{Deserialize, Serialize};
    /// # use ui_message_stream_agent::{Tool, ToolError};
    /// # #[derive(Deserialize, JsonSchema)] struct City { name: String }
    /// #[derive(Serialize, JsonSchema)]
    /// struct Weather {
    ///     celsius: f64,
    /// }
    ///
    /// let weather = Tool::new("weather", async |_: City| Ok::<_, ToolError>(Weather { celsius: 21.0 }))
    ///     .with_output_type::<Weather>();
    /// # let _ = weather;
    /// ```
    ///
    /// # Panics
    /// Panics if the schema of `O` cannot be written as JSON. A derived schema always can.
    #[must_use]
    #[track_caller]
    pub fn with_output_type<O: Serialize + JsonSchema>(mut self) -> Self {
        self.definition.output_schema = Some(serialized_schema::<O>());
        self
    }

    /// Requires a user's approval for each call. A client executes a call of its own tool once it is approved:
    /// until then it reads no `tool-input-available`.
    #[must_use]
    pub fn needs_approval(mut self) -> Self {
        self.policy.approval = ApprovalRequirement::Always;
        self
    }

    /// Sets the title, which the user reads instead of the name.
    #[must_use]
    pub fn with_title(mut self, title: impl Into<Box<str>>) -> Self {
        self.definition.title = Some(title.into());
        self
    }

    /// Adds tools that a running call may ask the user for, with
    /// [`ToolContext::request_approval`]. The model of the chat does not see them. They are asked for
    /// as `<tool>__<inner tool>`.
    #[must_use]
    pub fn with_inner_tools(mut self, tools: impl IntoIterator<Item: IntoTool>) -> Self {
        self.inner_tools.extend(tools.into_iter().map(IntoTool::into_tool));
        self
    }
}

impl<I: 'static> DynTool for Tool<I> {
    fn name(&self) -> &str {
        &self.definition.model.name
    }

    fn definition(&self) -> Option<DynToolDefinition> {
        Some(self.definition.clone())
    }

    fn policy(&self) -> &ToolPolicy {
        &self.policy
    }

    fn check(&self, input: &Json) -> Result<(), String> {
        (self.check)(input)
    }

    fn inner_tools(&self) -> &[Arc<dyn DynTool>] {
        &self.inner_tools
    }

    fn call(
        &self,
        input: Json,
        context: ToolContext,
    ) -> BoxFuture<'static, Result<Json, BoxError>> {
        (self.handler)(input, context)
    }
}

impl<I: 'static> IntoTool for Tool<I> {
    fn into_tool(self) -> Arc<dyn DynTool> {
        Arc::new(self)
    }
}

impl<I> fmt::Debug for Tool<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tool").field("name", &self.definition.model.name).finish_non_exhaustive()
    }
}
