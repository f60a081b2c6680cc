//! [`Toolbox`]: what approvals ask of the tools.

use std::fmt;
use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use crate::approval::{
    Claim, Decision, DefinitionDigest, Principal, REFUSED, RecordId, ToolOutcome,
};
use crate::id::{ChatId, ToolCallId};
use crate::json::Json;
use crate::ledger_store::BoxFuture;

/// The tools, as far as approvals need to know them.
///
/// A tool is looked up twice: when a person is asked, and again when the answer is redeemed. Between
/// the two a day may have passed, and what was asked about may be gone, changed, or no longer
/// permitted: then it does not run.
///
/// ```
/// use std::future::ready;
///
/// use ui_message_stream::Json;
/// use ui_message_stream::approval::{DefinitionDigest, ToolOutcome};
/// use ui_message_stream::approvals::{ApprovedCall, ToolFacts, Toolbox};
/// use ui_message_stream::ledger_store::BoxFuture;
///
/// #[derive(Debug)]
/// struct Bell;
///
/// impl Toolbox for Bell {
///     fn tool(&self, name: &str) -> Option<ToolFacts> {
///         let takes = Json::parse(r#"{"type": "object"}"#).ok()?;
///         let bell = ToolFacts::new(DefinitionDigest::of("ring", "Rings the bell.", &takes));
///         (name == "ring").then_some(bell)
///     }
///
///     fn permits<'a>(&'a self, call: &'a ApprovedCall) -> BoxFuture<'a, bool> {
///         Box::pin(ready(call.input.is_object()))
///     }
///
///     fn run(&self, _: ApprovedCall) -> BoxFuture<'static, ToolOutcome> {
///         Box::pin(async { ToolOutcome::Output(Json::string("it rang")) })
///     }
/// }
/// ```
pub trait Toolbox: Send + Sync + fmt::Debug + 'static {
    /// The tool of this name, as it is now.
    fn tool(&self, name: &str) -> Option<ToolFacts>;

    /// Looks at the tool of this name where it comes from, if that is elsewhere, so that
    /// [`tool`](Self::tool) says what it is now. `false` if it cannot be seen.
    ///
    /// Asked just before an approved call is claimed. A call whose tool cannot be seen is closed as
    /// one whose tool is gone.
    fn refresh<'a>(&'a self, _name: &'a str) -> BoxFuture<'a, bool> {
        Box::pin(ready(true))
    }

    /// Whether this call may run now: the policy, the schema of the input, what the person may do.
    ///
    /// Asked just before an approved call is claimed. A call that may not run is closed for good, and
    /// the person is told so.
    fn permits<'a>(&'a self, call: &'a ApprovedCall) -> BoxFuture<'a, bool>;

    /// Runs a call that was approved, and claimed for you.
    ///
    /// It is polled on a task of its own, to its end, whether or not somebody still waits for the
    /// outcome. A panic counts as a failure of the tool.
    fn run(&self, call: ApprovedCall) -> BoxFuture<'static, ToolOutcome>;
}

impl<T: Toolbox + ?Sized> Toolbox for Arc<T> {
    fn tool(&self, name: &str) -> Option<ToolFacts> {
        (**self).tool(name)
    }

    fn refresh<'a>(&'a self, name: &'a str) -> BoxFuture<'a, bool> {
        (**self).refresh(name)
    }

    fn permits<'a>(&'a self, call: &'a ApprovedCall) -> BoxFuture<'a, bool> {
        (**self).permits(call)
    }

    fn run(&self, call: ApprovedCall) -> BoxFuture<'static, ToolOutcome> {
        (**self).run(call)
    }
}

/// What approvals need to know of a tool.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ToolFacts {
    /// What it is.
    pub definition: DefinitionDigest,
    /// Whether it recognises a call that it gets twice, by
    /// [`idempotency_key`](ApprovedCall::idempotency_key), and may so be run again after a crash.
    pub idempotent: bool,
    /// How long an answer is waited for, if not as long as for other tools.
    pub time_to_answer: Option<Duration>,
}

impl ToolFacts {
    /// Of a tool with this definition. It runs at most once, and waits for an answer as others do.
    pub fn new(definition: DefinitionDigest) -> Self {
        ToolFacts { definition, idempotent: false, time_to_answer: None }
    }

    /// It may be run again after a crash.
    #[must_use]
    pub fn idempotent(mut self) -> Self {
        self.idempotent = true;
        self
    }

    /// How long an answer is waited for.
    #[must_use]
    pub fn with_time_to_answer(mut self, time: Duration) -> Self {
        self.time_to_answer = Some(time);
        self
    }
}

/// A call that somebody approved.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ApprovedCall {
    /// Whose chat it is.
    pub requester: Principal,
    /// Which chat.
    pub chat_id: ChatId,
    /// Names the call.
    pub tool_call_id: ToolCallId,
    /// Which tool.
    pub tool_name: Box<str>,
    /// The input that was asked about, byte for byte.
    pub input: Json,
    /// Who said yes, when and why.
    pub decision: Decision,
    /// The same on every attempt to run this call.
    pub idempotency_key: RecordId,
    /// What was claimed; `None` while it is asked whether the call may run.
    pub claim: Option<Claim>,
}

/// No tools at all: for an agent that asks nobody.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoTools;

impl Toolbox for NoTools {
    fn tool(&self, _: &str) -> Option<ToolFacts> {
        None
    }

    fn permits<'a>(&'a self, _: &'a ApprovedCall) -> BoxFuture<'a, bool> {
        Box::pin(ready(false))
    }

    fn run(&self, _: ApprovedCall) -> BoxFuture<'static, ToolOutcome> {
        Box::pin(ready(ToolOutcome::Failed(REFUSED.to_owned())))
    }
}
