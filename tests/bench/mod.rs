//! Approvals of one tool that notes down what it was run with, in one chat of one person.

#![allow(dead_code, reason = "not every test needs all of it")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use ui_message_stream::approval::{
    DeferredOutcome, DefinitionDigest, Principal, ResumePlan, ToolOutcome, UnixMillis,
};
use ui_message_stream::approvals::{Approvals, ApprovedCall, Asked, ToolFacts, Toolbox};
use ui_message_stream::ledger_store::{BoxFuture, MemoryLedger};
use ui_message_stream::request::Limits;
use ui_message_stream::{ChatRequest, Json};

/// A tool that notes down what it was run with.
#[derive(Debug, Clone, Default)]
pub(crate) struct Effects(pub(crate) Arc<Mutex<Vec<String>>>);

impl Toolbox for Effects {
    fn tool(&self, name: &str) -> Option<ToolFacts> {
        let definition = DefinitionDigest::of(name, "deletes a file", &Json::null());
        (name == "delete_file").then(|| ToolFacts::new(definition))
    }

    fn permits<'a>(&'a self, _: &'a ApprovedCall) -> BoxFuture<'a, bool> {
        Box::pin(std::future::ready(true))
    }

    fn run(&self, call: ApprovedCall) -> BoxFuture<'static, ToolOutcome> {
        self.0.lock().unwrap().push(call.input.to_string());
        Box::pin(std::future::ready(ToolOutcome::Output(call.input)))
    }
}

#[derive(Debug)]
pub(crate) struct Bench {
    pub(crate) approvals: Approvals,
    pub(crate) ledger: Arc<MemoryLedger>,
    effects: Effects,
    now: Mutex<UnixMillis>,
}

impl Bench {
    pub(crate) fn new() -> Self {
        let now = UnixMillis(1_000_000_000_000);
        let (effects, ledger) = (Effects::default(), Arc::new(MemoryLedger::at(now)));
        let approvals = Approvals::new(effects.clone()).with_ledger(ledger.clone());
        Bench { approvals, ledger, effects, now: Mutex::new(now) }
    }

    pub(crate) async fn ask(&self, tool_call_id: &str, input: Value) -> Asked {
        let chat = self.approvals.of_chat(&ada(), &"chat".into());
        let input = Json::of(&input).unwrap();
        let asked = chat.ask(&"m2".into(), &tool_call_id.into(), "delete_file", &input, None).await;
        asked.unwrap()
    }

    pub(crate) async fn outcomes(&self, body: &Value) -> Vec<DeferredOutcome> {
        self.outcomes_of(&ada(), body).await
    }

    pub(crate) async fn outcomes_of(
        &self,
        principal: &Principal,
        body: &Value,
    ) -> Vec<DeferredOutcome> {
        let body = body.to_string();
        let chat = ChatRequest::parse(body.as_bytes(), &Limits::default()).unwrap();
        let plan = ResumePlan::new(chat.messages(), chat.continued());
        let approvals = self.approvals.of_chat(principal, chat.id());
        let mut resolved = approvals.resolve(plan, &[]).await.unwrap();
        let mut outcomes = Vec::new();
        while let Some(result) = resolved.next().await {
            outcomes.push(result.outcome);
        }
        outcomes
    }

    pub(crate) fn effects(&self) -> Vec<String> {
        self.effects.0.lock().unwrap().clone()
    }

    /// Lets time pass.
    pub(crate) fn wait(&self, time: Duration) {
        let mut now = self.now.lock().unwrap();
        *now = now.after(time);
        self.ledger.set_time(*now);
    }
}

pub(crate) fn ada() -> Principal {
    Principal::new("ada")
}

/// A request whose last message holds these calls.
pub(crate) fn body(calls: &[Value]) -> Value {
    json!({"id": "chat", "messageId": "m2", "trigger": "submit-message", "messages": [
        {"id": "m1", "role": "user", "parts": [{"type": "text", "text": "Delete my notes"}]},
        {"id": "m2", "role": "assistant", "parts": calls},
    ]})
}

/// A call of `delete_file` with the person's answer.
pub(crate) fn call(tool_call_id: &str, asked: &Asked, approved: bool) -> Value {
    json!({"type": "tool-delete_file", "toolCallId": tool_call_id, "state": "approval-responded",
           "input": {"path": "notes.txt"},
           "approval": {"id": asked.approval_id, "approved": approved}})
}
