//! [`ToolPolicy`]: who may make a call of a tool, when the call needs approval, and its limits. It is
//! the same for all tools, wherever a tool comes from.

use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use super::context::ApprovalContext;
use ui_message_stream::approval::{ChangedInput, EditableInput, OnNewMessage, Principal};
use ui_message_stream::id::{log_error, log_text};
use ui_message_stream::json::Json;
use ui_message_stream::{BoxError, BoxFuture};

/// Who may make the calls of a tool, when the calls need approval, and their limits.
///
/// [`Tool`](super::Tool) sets it with typed functions. A tool of another source sets it for itself
/// and returns it from [`DynTool::policy`](super::DynTool::policy).
///
/// ```
/// use ui_message_stream::Json;
/// use ui_message_stream_agent::ApprovalContext;
/// use ui_message_stream_agent::tool_policy::{ApprovalRequirement, ToolPolicy};
/// use ui_message_stream::approval::Principal;
/// use ui_message_stream_chat::Chat;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let mut policy = ToolPolicy::default();
/// policy.approval = ApprovalRequirement::when(|input, _| *input != Json::string("notes.txt"));
/// let policy = policy.with_approval_description(|input| Some(format!("Delete {input}?")));
///
/// let context = ApprovalContext::new("call_1", Chat::new("chat", Principal::new("ada")));
/// let input = Json::string("plan.txt");
/// assert!(policy.requires_approval("delete_file", &input, context).await);
/// let description = policy.approval_description("delete_file", &input);
/// assert_eq!(description.as_deref(), Some(r#"Delete "plan.txt"?"#));
/// # }
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct ToolPolicy {
    /// Whether a call needs a user's approval.
    pub approval: ApprovalRequirement,
    /// How long an approval request stays open. `None` for the time of
    /// [`Approvals::with_approval_ttl`](ui_message_stream::approval::Approvals::with_approval_ttl).
    pub approval_ttl: Option<Duration>,
    /// What happens to an approval request when the user sends a newer message. `None` for the
    /// policy of [`Approvals::on_new_message`](ui_message_stream::approval::Approvals::on_new_message).
    pub on_new_message: Option<OnNewMessage>,
    /// Whether other principals than the requester decide on the calls. See
    /// [`ToolInfo::decided_by_others`](ui_message_stream::approval::ToolInfo::decided_by_others()).
    pub decided_by_others: bool,
    /// What the approver of a call may change of its input.
    pub editable: EditableInput,
    /// How long a call may run. The same limit applies to an asynchronous predicate of
    /// [`approval`](Self::approval). The default is 60 seconds.
    pub timeout: Duration,
    /// The maximum length of an output, in bytes of JSON. The default is 256 KiB.
    ///
    /// A client sends outputs back with every request. If an output were longer than a request may
    /// be, the chat could not continue.
    pub max_output_bytes: usize,
    /// Whether an approved call may run again after the process that ran it has crashed.
    pub idempotent: bool,
    authorizations: Vec<Authorization>,
    change_checks: Vec<Arc<CheckChange>>,
    approval_description: Option<Arc<ReadJson<String>>>,
    model_output: Option<Arc<ReadJson<Json>>>,
}

type ReadJson<T> = dyn Fn(&Json) -> Option<T> + Send + Sync;

type CheckChange = dyn Fn(&ChangedInput) -> Result<(), String> + Send + Sync;

/// Whether a call of a tool needs a user's approval.
#[derive(Clone)]
#[non_exhaustive]
pub enum ApprovalRequirement {
    /// The host has not chosen. If the agent [requires approval by
    /// default](super::Agent::require_approval_by_default), each call needs approval.
    Unspecified {
        /// Whether each call needs approval even if the agent does not require approval by default.
        /// A source of tools can set it to `true` for a tool that it does not trust.
        needs_approval: bool,
    },
    /// No call needs approval.
    Never,
    /// Each call needs approval.
    Always,
    /// A call needs approval if the predicate returns `true`. See [`when`](Self::when).
    When(Arc<Predicate>),
    /// A call needs approval if the predicate returns `true`. See [`when_async`](Self::when_async).
    WhenAsync(Arc<AsyncPredicate>),
}

/// A function that decides whether a principal may make a call.
#[derive(Clone)]
enum Authorization {
    Sync(Arc<Authorize>),
    Async(Arc<AuthorizeAsync>),
}

type Authorize = dyn Fn(&Principal, &Json) -> bool + Send + Sync;
type AuthorizeAsync =
    dyn Fn(Principal, Json) -> BoxFuture<'static, Result<bool, BoxError>> + Send + Sync;

type Predicate = dyn Fn(&Json, &ApprovalContext) -> bool + Send + Sync;
type AsyncPredicate =
    dyn Fn(Json, ApprovalContext) -> BoxFuture<'static, Result<bool, BoxError>> + Send + Sync;

impl ToolPolicy {
    /// Sets the function that makes the text of an approval request from the input. If there is no
    /// such function, or if it returns `None` or panics, the text is the name of the tool and the
    /// beginning of the input.
    #[must_use]
    pub fn with_approval_description(
        mut self,
        describe: impl Fn(&Json) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        self.approval_description = Some(Arc::new(describe));
        self
    }

    /// Sets the function that converts the output for the model. The user sees the output itself.
    /// If there is no such function, or if it returns `None` or panics, the model reads the output
    /// itself.
    #[must_use]
    pub fn with_model_output(
        mut self,
        read: impl Fn(&Json) -> Option<Json> + Send + Sync + 'static,
    ) -> Self {
        self.model_output = Some(Arc::new(read));
        self
    }

    /// Adds a function that decides whether a principal may make a call with this input. A call is
    /// permitted only if all such functions return `true`.
    ///
    /// The principal is the owner of the chat, in whose name the tool runs. The functions are called
    /// for each call: before it runs without approval, before an approval is requested, and again
    /// when an approval is redeemed.
    #[must_use]
    pub fn with_authorization(
        mut self,
        authorize: impl Fn(&Principal, &Json) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.authorizations.push(Authorization::Sync(Arc::new(authorize)));
        self
    }

    /// Adds an asynchronous function that decides whether a principal may make a call with this
    /// input. Otherwise as [`with_authorization`](Self::with_authorization).
    #[must_use]
    pub fn with_authorization_async<F, Fut>(mut self, authorize: F) -> Self
    where
        F: Fn(Principal, Json) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<bool, BoxError>> + Send + 'static,
    {
        self.authorizations.push(Authorization::Async(Arc::new(move |principal, input| {
            Box::pin(authorize(principal, input))
        })));
        self
    }

    /// Adds a function that checks how an approver changes an [editable](Self::editable) input. A change is
    /// accepted only if all such functions return `Ok`. The approver reads the text of an error.
    #[must_use]
    pub fn with_change_check(
        mut self,
        check: impl Fn(&ChangedInput) -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        self.change_checks.push(Arc::new(check));
        self
    }

    /// Checks how an approver changes the input of a call of the tool with this name. A change is not
    /// accepted either if a check panics.
    ///
    /// # Errors
    /// The text for the approver.
    pub fn check_change(&self, tool: &str, input: &ChangedInput) -> Result<(), String> {
        self.change_checks.iter().try_for_each(|check| {
            catch_unwind(AssertUnwindSafe(|| check(input))).unwrap_or_else(|_| {
                let tool = &*log_text(tool);
                tracing::error!(tool, "the check of a changed input panicked: it is not accepted");
                Err("the change could not be checked".to_owned())
            })
        })
    }

    /// Returns whether this principal may make a call of the tool with this name and input.
    ///
    /// The call is not permitted if an authorization panics, and if an asynchronous authorization
    /// returns an error or takes longer than the [timeout](Self::timeout).
    ///
    /// # Cancel safety
    /// If the future is dropped, an asynchronous authorization is stopped.
    pub async fn authorizes(&self, tool: &str, principal: &Principal, input: &Json) -> bool {
        for authorization in &self.authorizations {
            let decision = match authorization {
                Authorization::Sync(authorize) => call(|| authorize(principal, input)),
                Authorization::Async(authorize) => {
                    let authorize = Arc::clone(authorize);
                    let principal = principal.clone();
                    let input = input.clone();
                    self.call_async(async move { authorize(principal, input).await }).await
                }
            };
            match decision {
                Ok(true) => {}
                Ok(false) => {
                    let tool = &*log_text(tool);
                    tracing::info!(tool, "a tool call is not permitted");
                    return false;
                }
                Err(problem) => {
                    tracing::error!(
                        problem = %log_error(&problem),
                        tool = &*log_text(tool),
                        "the authorization failed: the tool call is not permitted"
                    );
                    return false;
                }
            }
        }
        true
    }

    /// Returns whether a call of the tool with this name and input needs a user's approval.
    ///
    /// The call needs approval if a predicate panics, and if an asynchronous predicate returns an
    /// error or takes longer than the [timeout](Self::timeout). It also needs approval if a predicate
    /// [reads](ApprovalContext::chat) an incomplete history.
    ///
    /// # Cancel safety
    /// If the future is dropped, an asynchronous predicate is stopped.
    pub async fn requires_approval(
        &self,
        tool: &str,
        input: &Json,
        context: ApprovalContext,
    ) -> bool {
        // A clone knows whether the predicate has read the chat.
        let read = context.clone();
        let decision = match &self.approval {
            ApprovalRequirement::Unspecified { needs_approval } => return *needs_approval,
            ApprovalRequirement::Never => return false,
            ApprovalRequirement::Always => return true,
            ApprovalRequirement::When(predicate) => call(|| predicate(input, &context)),
            ApprovalRequirement::WhenAsync(predicate) => {
                let predicate = Arc::clone(predicate);
                let input = input.clone();
                self.call_async(async move { predicate(input, context).await }).await
            }
        };
        match decision {
            Ok(needs_approval) if needs_approval || !read.has_read_incomplete_history() => {
                needs_approval
            }
            Ok(_) => {
                tracing::info!(
                    tool = &*log_text(tool),
                    "the approval predicate read an incomplete history: the call needs approval"
                );
                true
            }
            Err(problem) => {
                tracing::error!(
                    problem = %log_error(&problem),
                    tool = &*log_text(tool),
                    "the approval predicate failed: the call needs approval"
                );
                true
            }
        }
    }

    /// Returns the text of the approval request for a call of the tool with this name and input.
    pub fn approval_description(&self, tool: &str, input: &Json) -> Option<String> {
        let describe = self.approval_description.as_ref()?;
        catch_unwind(AssertUnwindSafe(|| describe(input))).unwrap_or_else(|_| {
            let tool = &*log_text(tool);
            tracing::error!(tool, "the description of a call panicked");
            None
        })
    }

    /// Returns what the model reads instead of this output.
    pub fn model_output(&self, output: &Json) -> Option<Json> {
        let read = self.model_output.as_ref()?;
        catch_unwind(AssertUnwindSafe(|| read(output))).unwrap_or(None)
    }

    /// Calls an asynchronous function of the host that decides about a call.
    ///
    /// The function runs on a task of its own, so that the [timeout](Self::timeout) applies even if
    /// it blocks its thread.
    ///
    /// # Errors
    /// The error of the function, its panic, or its timeout.
    async fn call_async(
        &self,
        decide: impl Future<Output = Result<bool, BoxError>> + Send + 'static,
    ) -> Result<bool, BoxError> {
        match timeout(self.timeout, AbortOnDropHandle::new(tokio::spawn(decide))).await {
            Ok(Ok(decision)) => decision,
            Ok(Err(panic)) => Err(panic.into()),
            Err(elapsed) => Err(elapsed.into()),
        }
    }
}

impl Default for ToolPolicy {
    /// The host has not chosen whether calls need approval, and the limits are the defaults.
    fn default() -> Self {
        ToolPolicy {
            approval: ApprovalRequirement::Unspecified { needs_approval: false },
            approval_ttl: None,
            on_new_message: None,
            decided_by_others: false,
            editable: EditableInput::Nothing,
            timeout: Duration::from_secs(60),
            max_output_bytes: 256 * 1024,
            idempotent: false,
            authorizations: Vec::new(),
            change_checks: Vec::new(),
            approval_description: None,
            model_output: None,
        }
    }
}

impl ApprovalRequirement {
    /// Creates a requirement that depends on the call. A call needs approval if `predicate` returns
    /// `true` for its input and context, or if it [reads an incomplete history](ApprovalContext).
    ///
    /// The model writes the input. An attacker who injects text into the model's context can
    /// therefore choose the input, and with it the result of the predicate.
    pub fn when(
        predicate: impl Fn(&Json, &ApprovalContext) -> bool + Send + Sync + 'static,
    ) -> Self {
        ApprovalRequirement::When(Arc::new(predicate))
    }

    /// Creates a requirement that depends on the call and is decided asynchronously. Otherwise as
    /// [`when`](Self::when).
    pub fn when_async<F, Fut>(predicate: F) -> Self
    where
        F: Fn(Json, ApprovalContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<bool, BoxError>> + Send + 'static,
    {
        ApprovalRequirement::WhenAsync(Arc::new(move |input, context| {
            Box::pin(predicate(input, context))
        }))
    }

    /// Returns whether a predicate makes the decision. The predicate then needs the conversation up
    /// to the call.
    pub fn depends_on_call(&self) -> bool {
        matches!(self, ApprovalRequirement::When(_) | ApprovalRequirement::WhenAsync(_))
    }
}

/// Calls a function of the host that decides about a call. A panic is an error.
fn call(decide: impl FnOnce() -> bool) -> Result<bool, BoxError> {
    catch_unwind(AssertUnwindSafe(decide)).map_err(|_| "it panicked".into())
}

impl fmt::Debug for ToolPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToolPolicy")
            .field("authorizations", &self.authorizations.len())
            .field("approval", &self.approval)
            .field("approval_ttl", &self.approval_ttl)
            .field("on_new_message", &self.on_new_message)
            .field("decided_by_others", &self.decided_by_others)
            .field("editable", &self.editable)
            .field("change_checks", &self.change_checks.len())
            .field("timeout", &self.timeout)
            .field("max_output_bytes", &self.max_output_bytes)
            .field("idempotent", &self.idempotent)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for ApprovalRequirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ApprovalRequirement::Unspecified { needs_approval } => {
                let mut unspecified = f.debug_struct("Unspecified");
                return unspecified.field("needs_approval", needs_approval).finish();
            }
            ApprovalRequirement::Never => "Never",
            ApprovalRequirement::Always => "Always",
            ApprovalRequirement::When(_) => "When(..)",
            ApprovalRequirement::WhenAsync(_) => "WhenAsync(..)",
        })
    }
}
