//! [`Toolbox`]: the tools, as [`Approvals`](super::Approvals) uses them.

use std::fmt;
use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use super::progress::Progress;
use crate::UserText;
use crate::approval::{
    ApprovalRecord, ChangedInput, Claim, DefinitionDigest, EditableInput, OnNewMessage, Principal,
    RecordId, RecordedDecision, ToolOutcome,
};
use crate::boxed::BoxFuture;
use crate::id::{ChatId, ToolCallId};
use crate::json::Json;

/// The tools whose calls need approval. `Agent` implements it. A host that executes approved calls
/// itself passes a [`ToolList`](super::ToolList) instead.
///
/// A tool is looked up twice: when the approval is requested, and again when the approval response
/// is redeemed, which can be days later. If the tool has been removed, has changed, or is no longer
/// permitted, the call is not executed.
///
/// ```
/// use std::future::ready;
///
/// use ui_message_stream::{BoxFuture, Json};
/// use ui_message_stream::approval::{
///     ApprovedCall, DefinitionDigest, Progress, ToolInfo, ToolOutcome, Toolbox,
/// };
///
/// #[derive(Debug)]
/// struct Bell;
///
/// impl Toolbox for Bell {
///     fn tool(&self, name: &str) -> Option<ToolInfo> {
///         let takes = Json::parse(r#"{"type": "object"}"#).ok()?;
///         let bell = ToolInfo::new(DefinitionDigest::new("ring", "Rings the bell.", &takes));
///         (name == "ring").then_some(bell)
///     }
///
///     fn permits<'a>(&'a self, call: &'a ApprovedCall) -> BoxFuture<'a, bool> {
///         Box::pin(ready(call.input.is_object()))
///     }
///
///     fn run(&self, _: ApprovedCall, _: Progress) -> BoxFuture<'static, ToolOutcome> {
///         Box::pin(async { ToolOutcome::Output(Json::string("it rang")) })
///     }
/// }
/// ```
pub trait Toolbox: Send + Sync + fmt::Debug + 'static {
    /// Returns the tool with this name, as it is now, or `None` if there is none.
    fn tool(&self, name: &str) -> Option<ToolInfo>;

    /// Fetches the current definition of a tool from its source, for example a remote server, so
    /// that [`tool`](Self::tool) returns it.
    ///
    /// Called just before an approved call is claimed. The default does nothing.
    ///
    /// # Errors
    /// The text that the model and the user read if the source is not available. The call is then
    /// claimed, so that it never runs later, and fails with this text: [`run`](Self::run) is not
    /// called.
    fn refresh<'a>(&'a self, _name: &'a str) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(ready(Ok(())))
    }

    /// Returns whether this call may be executed now: by the policy, the schema of the input and
    /// the permissions of the user. If the approver has changed the input, `call` holds
    /// [both versions](ApprovedCall::changed_input).
    ///
    /// Called just before an approved call is claimed. If this returns `false`, the approval
    /// request is revoked, and the user sees that the call is not permitted.
    fn permits<'a>(&'a self, call: &'a ApprovedCall) -> BoxFuture<'a, bool>;

    /// Checks a change of an input by the approver, before anything is stored and again before the call is
    /// claimed: whether the approver may make this change, for example lower an amount and not raise it
    /// ([example](ChangedInput)), and whether the tool accepts the changed input, for example by its schema.
    /// [`permits`](Self::permits) is called afterwards.
    ///
    /// The default accepts no changed input.
    ///
    /// # Errors
    /// The text that the approver reads: what is wrong, and where.
    fn check_input(&self, _name: &str, _input: &ChangedInput) -> Result<(), String> {
        Err("this server does not check changed inputs: implement `Toolbox::check_input`"
            .to_owned())
    }

    /// Returns the name of a tool whose input an approver may change, if there is one.
    ///
    /// [`Approvals::stateless_replayable`](super::Approvals::stateless_replayable) refuses it. The
    /// default returns `None`: a toolbox with such a tool has to name it. If it does not, a stateless host
    /// rejects each changed input.
    fn editable_tool(&self) -> Option<Box<str>> {
        None
    }

    /// Executes an approved and claimed call.
    ///
    /// The returned future is polled to completion on its own task, even if no request waits for
    /// the outcome any more. A panic counts as a failure of the tool. What it emits with `progress`
    /// reaches the stream and the message before the outcome.
    fn run(&self, call: ApprovedCall, progress: Progress) -> BoxFuture<'static, ToolOutcome>;
}

impl<T: Toolbox + ?Sized> Toolbox for Arc<T> {
    fn tool(&self, name: &str) -> Option<ToolInfo> {
        (**self).tool(name)
    }

    fn refresh<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), String>> {
        (**self).refresh(name)
    }

    fn permits<'a>(&'a self, call: &'a ApprovedCall) -> BoxFuture<'a, bool> {
        (**self).permits(call)
    }

    fn check_input(&self, name: &str, input: &ChangedInput) -> Result<(), String> {
        (**self).check_input(name, input)
    }

    fn editable_tool(&self) -> Option<Box<str>> {
        (**self).editable_tool()
    }

    fn run(&self, call: ApprovedCall, progress: Progress) -> BoxFuture<'static, ToolOutcome> {
        (**self).run(call, progress)
    }
}

/// The properties of a tool that [`Approvals`](super::Approvals) needs.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ToolInfo {
    /// The digest of the tool's definition.
    pub definition: DefinitionDigest,
    /// Whether the tool recognises a repeated call by its
    /// [`idempotency_key`](ApprovedCall::idempotency_key), so that the call may be executed again
    /// after a crash.
    pub idempotent: bool,
    /// The time after which an unanswered approval request expires; `None` for the time of
    /// [`Approvals::with_approval_ttl`](super::Approvals::with_approval_ttl).
    pub approval_ttl: Option<Duration>,
    /// What happens to an approval request for this tool when the user sends a newer message;
    /// `None` for the policy of [`Approvals::on_new_message`](super::Approvals::on_new_message).
    pub on_new_message: Option<OnNewMessage>,
    /// Whether another principal than the requester decides on the calls of this tool. See
    /// [`decided_by_others`](Self::decided_by_others()).
    pub decided_by_others: bool,
    /// What the approver may change of the input.
    pub editable: EditableInput,
    /// Whether the client executes the tool.
    pub client_executed: bool,
}

impl ToolInfo {
    /// Creates the properties of a tool with this definition. Each call is executed at most once,
    /// and approval requests expire after the default time.
    pub fn new(definition: DefinitionDigest) -> Self {
        ToolInfo {
            definition,
            idempotent: false,
            approval_ttl: None,
            on_new_message: None,
            decided_by_others: false,
            editable: EditableInput::Nothing,
            client_executed: false,
        }
    }

    /// Lets the approver change the input. [`Toolbox::check_input`] checks the changed one.
    #[must_use]
    pub fn editable(mut self, editable: EditableInput) -> Self {
        self.editable = editable;
        self
    }

    /// Marks the tool as executed by the client.
    #[must_use]
    pub fn client_executed(mut self) -> Self {
        self.client_executed = true;
        self
    }

    /// Allows calls of this tool to be executed again after a crash. See
    /// [`idempotent`](Self#structfield.idempotent).
    #[must_use]
    pub fn idempotent(mut self) -> Self {
        self.idempotent = true;
        self
    }

    /// Sets the time after which an unanswered approval request for this tool expires.
    #[must_use]
    pub fn with_approval_ttl(mut self, ttl: Duration) -> Self {
        self.approval_ttl = Some(ttl);
        self
    }

    /// Sets what happens to an approval request for this tool when the user sends a newer message.
    #[must_use]
    pub fn on_new_message(mut self, policy: OnNewMessage) -> Self {
        self.on_new_message = Some(policy);
        self
    }

    /// Lets other principals than the requester decide on the calls of this tool:
    /// [`Approvals::authorize_decision`](super::Approvals::authorize_decision) says which.
    ///
    /// An approval by the requester does not count, and its request stays open. The requester can
    /// still deny the call. Newer messages of the requester do not close the request.
    #[must_use]
    pub fn decided_by_others(mut self) -> Self {
        self.decided_by_others = true;
        self
    }
}

/// An approved tool call.
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub struct ApprovedCall {
    /// The owner of the chat.
    pub requester: Principal,
    /// The id of the chat.
    pub chat_id: ChatId,
    /// The id of the tool call.
    pub tool_call_id: ToolCallId,
    /// The name of the tool.
    pub tool_name: Box<str>,
    /// The input of the approval request, byte for byte, or the one that its approver
    /// [changed](RecordedDecision::changed_input).
    pub input: Json,
    /// Both versions of the input, if its approver has changed it.
    pub changed_input: Option<ChangedInput>,
    /// Who approved the call, when and why.
    pub decision: RecordedDecision,
    /// The key of the call, the same on every attempt to execute it.
    pub idempotency_key: RecordId,
    /// The claim of this attempt. `None` in [`Toolbox::permits`], before the call is claimed.
    pub claim: Option<Claim>,
}

impl ApprovedCall {
    /// Creates the call that the toolbox checks or executes. `claim` is `None` for a check.
    pub(super) fn new(
        record: &ApprovalRecord,
        decision: RecordedDecision,
        claim: Option<Claim>,
    ) -> Self {
        let changed_input = decision.changed_input.clone().map(|changed| {
            let original = record.input.clone();
            ChangedInput { original, changed }
        });
        ApprovedCall {
            requester: record.requester.clone(),
            chat_id: record.chat_id.clone(),
            tool_call_id: record.tool_call_id.clone(),
            tool_name: record.tool_name.clone(),
            input: decision.changed_input.as_ref().unwrap_or(&record.input).clone(),
            changed_input,
            decision,
            idempotency_key: record.id,
            claim,
        }
    }
}

debug_without_content!(ApprovedCall {
    requester,
    chat_id,
    tool_call_id,
    tool_name,
    idempotency_key,
    claim
});

/// A toolbox without tools, for an agent that requests no approvals.
#[derive(Debug, Clone, Copy, Default)]
pub struct EmptyToolbox;

impl Toolbox for EmptyToolbox {
    fn tool(&self, _: &str) -> Option<ToolInfo> {
        None
    }

    fn permits<'a>(&'a self, _: &'a ApprovedCall) -> BoxFuture<'a, bool> {
        Box::pin(ready(false))
    }

    fn run(&self, _: ApprovedCall, _: Progress) -> BoxFuture<'static, ToolOutcome> {
        Box::pin(ready(ToolOutcome::Failed(UserText::Refused.to_string())))
    }
}
