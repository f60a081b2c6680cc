//! What events mean for tool calls.

use serde_json::{Value, json};
use ui_message_stream::event::Executor;

use super::call::{Announced, Call, REMOVED, State, With};
use super::{Answers, Part, Reading, ok};
use crate::translator_properties::wildcard;

impl Reading {
    /// The call that this id currently names.
    fn named_call(&self, id: &str) -> Option<usize> {
        self.by_id.get(id).copied()
    }

    pub(super) fn announced(&mut self, announced: Announced) -> Answers {
        let open = self.named_call(&announced.id).filter(|call| self.calls[*call].is_open());
        let Some(number) = open else {
            self.new_call(announced.into_call());
            return ok();
        };
        let call = &mut self.calls[number];
        let streams = matches!(call.state, State::Streaming(..));
        if streams && !matches!(announced.with, With::Start(_)) {
            call.is_announced_again(&announced);
        }
        match announced.with {
            With::Invalid(input, error) if streams => {
                call.becomes(State::Invalid(input, error.into()));
                ok()
            }
            With::Invalid(_, error) => self.failed(&announced.id, &error),
            With::Input(ref input) if streams => {
                call.has_input(input.clone());
                ok()
            }
            // The client already has the complete call.
            _ if call.is_held() => {
                call.owed = true;
                if ![call.executed_by, announced.executor()].contains(&Executor::Provider) {
                    call.executed_by = announced.executor();
                }
                ok()
            }
            _ => vec!["CallOpen"],
        }
    }

    pub(super) fn input_grows(&mut self, id: &str, delta: &str) -> Answers {
        let is_held = self.named_call(id).is_some_and(|number| self.calls[number].is_held());
        let answer = match self.named_call(id) {
            None => vec!["UnknownCall"],
            Some(number) => match &mut self.calls[number].state {
                State::Streaming(text, _) => {
                    text.push_str(delta);
                    ok()
                }
                State::Abandoned => vec!["UnknownCall"],
                // The client already holds the complete input.
                _ if is_held => ok(),
                _ => vec!["InputComplete"],
            },
        };
        // An empty delta after the end may be accepted or rejected.
        if delta.is_empty() { [answer, ok()].concat() } else { answer }
    }

    /// The description of an approval request for the user, once for each call.
    pub(super) fn describes_approval(&mut self, id: &str, descriptor: Value) {
        let Some(number) = self.named_call(id).filter(|_| self.approvals) else { return };
        match self.description_of(number) {
            Some(part) => part["data"] = descriptor,
            None => {
                self.descriptions.insert(number, self.parts.len());
                let id = wildcard::id_of_call_asked(self.calls[number].approval_id());
                let part = json!({"type": "data-approval", "id": id, "data": descriptor});
                self.parts.push(Part::Plain(part));
            }
        }
    }

    fn description_of(&mut self, call: usize) -> Option<&mut Value> {
        match self.parts.get_mut(*self.descriptions.get(&call)?)? {
            Part::Plain(part) => Some(part),
            Part::Call(_) => None,
        }
    }

    pub(super) fn requests_approval(
        &mut self,
        id: &str,
        approval_id: &str,
        reason: Option<&str>,
        is_automatic: Option<bool>,
    ) -> Answers {
        let Some(number) = self.named_call(id) else {
            return vec!["UnknownCall"];
        };
        let call = &mut self.calls[number];
        let mut wrong = Vec::new();
        match &call.state {
            State::Streaming(..) if call.whole_input().is_none() => wrong.push("InputOpen"),
            State::Waiting => wrong.push("ApprovalOpen"),
            State::Preliminary(_) => wrong.push("AlreadyRunning"),
            State::Abandoned => wrong.push("InputOpen"),
            _ if call.has_result() => wrong.push("CallSettled"),
            _ => {}
        }
        if self.approvals && self.approval_ids.contains(approval_id) {
            wrong.push("ApprovalIdUsed");
        }
        if !wrong.is_empty() {
            return wrong;
        }
        if let Some(input) = call.whole_input() {
            if !self.approvals && call.executed_by == Executor::Client {
                // With its whole input the client would execute it.
                call.input_breaks_off(wildcard::some_text());
                return ok();
            }
            call.has_input(input);
            call.may_keep_text_of_input();
        }
        if self.approvals {
            self.approval_ids.insert(approval_id.to_owned());
            let mut approval = json!({ "id": approval_id });
            if let Some(reason) = reason.filter(|_| self.known.request_reason) {
                approval["requestReason"] = reason.into();
            }
            if is_automatic == Some(true) && self.known.base {
                approval["isAutomatic"] = true.into();
            }
            call.waits_for(approval);
            if let Some(part) = self.description_of(number) {
                part["id"] = wildcard::id_of_call_asked(approval_id);
            }
        } else {
            self.fails_with(number, wildcard::some_text());
        }
        ok()
    }

    /// The answer to an approval request arrives that was given elsewhere.
    pub(super) fn approval_answered(
        &mut self,
        approval_id: &str,
        approved: bool,
        reason: Option<&str>,
    ) -> Answers {
        let is_asked = |call: &&Call| call.step != REMOVED && call.has_approval(approval_id);
        let asked: Vec<usize> =
            (0..self.calls.len()).filter(|number| is_asked(&&self.calls[*number])).collect();
        // Of several calls with one approval id none can be found.
        let [number] = asked[..] else { return vec!["UnknownApproval"] };
        let call = &self.calls[number];
        if call.is_held() && self.named_call(&call.id) != Some(number) {
            // A call with a result needs no answer.
            let is_settled = call.has_result().then_some("Ok");
            return is_settled.into_iter().chain(["UnknownApproval"]).collect();
        }
        let is_shown = self.known.base;
        self.calls[number].is_answered(approved, reason, is_shown);
        ok()
    }

    pub(super) fn denied(&mut self, id: &str) -> Answers {
        if let Some(call) = self.broken_off(id) {
            call.input_breaks_off(wildcard::some_text());
            return ok();
        }
        let number = match self.ready_for_a_result(id) {
            Ok(number) => number,
            Err(wrong) => return wrong,
        };
        let call = &mut self.calls[number];
        if self.approvals && (call.state == State::Waiting || call.is_refused()) {
            call.becomes(State::Denied);
        } else {
            // The user did not deny it, so the server rejects it.
            self.fails_with(number, wildcard::some_text());
        }
        ok()
    }

    /// The first result in a chunk may say that the provider executed the call.
    pub(super) fn result(
        &mut self,
        id: &str,
        provider_executed: Option<bool>,
        give: impl FnOnce(&mut Self) -> Answers,
    ) -> Answers {
        let open = self.named_call(id).filter(|call| !self.calls[*call].has_result());
        let answers = give(self);
        if let Some(number) = open.filter(|_| provider_executed == Some(true) && answers == ok()) {
            let call = &mut self.calls[number];
            // No chunk of a denial says it.
            if call.state != State::Denied {
                call.is_executed_by_provider();
            }
        }
        answers
    }

    pub(super) fn output(&mut self, id: &str, output: Value, preliminary: bool) -> Answers {
        if self.named_call(id).is_some_and(|number| self.calls[number].is_refused()) {
            return vec!["Denied"];
        }
        let number = match self.ready_for_a_result(id) {
            Ok(number) => number,
            Err(wrong) => return wrong,
        };
        if preliminary {
            self.calls[number].becomes(State::Preliminary(output));
            self.calls[number].owed = true;
        } else {
            self.calls[number].becomes(State::Output(output));
        }
        ok()
    }

    pub(super) fn failed(&mut self, id: &str, error: &str) -> Answers {
        if let Some(number) = self.named_call(id) {
            let call = &mut self.calls[number];
            match call.state {
                // The invalid input was the failure, which is already known.
                State::Invalid(..) => return ok(),
                State::Streaming(..) => {
                    call.input_breaks_off(error.into());
                    return ok();
                }
                _ => {}
            }
        }
        match self.ready_for_a_result(id) {
            Ok(number) => {
                self.fails_with(number, error.into());
                ok()
            }
            Err(wrong) => wrong,
        }
    }

    /// A policy refuses the call. A client that cannot show this shows a failure, and so does one that has to execute
    /// another call of the step.
    pub(super) fn refused(&mut self, id: &str, reason: &str) -> Answers {
        if let Some(number) = self.named_call(id) {
            let is_shown =
                self.approvals && self.known.base && !self.client_executes_beside(number);
            let call = &mut self.calls[number];
            if let Some(input) = call.whole_input() {
                call.has_input(input);
                call.may_keep_text_of_input();
            }
            if is_shown && call.state == State::Ready && call.executed_by != Executor::Client {
                call.waits_for(json!({ "id": wildcard::some_text(), "isAutomatic": true }));
                call.is_answered(false, Some(reason), true);
                call.becomes(State::Denied);
                return ok();
            }
        }
        self.failed(id, reason)
    }

    /// Whether the client has to execute another call in the step of this one.
    fn client_executes_beside(&self, number: usize) -> bool {
        let step = self.step_of(number);
        (0..self.calls.len()).any(|other| {
            let call = &self.calls[other];
            let is_open = call.executed_by == Executor::Client && !call.has_result();
            other != number && is_open && call.step != REMOVED && self.step_of(other) == step
        }) && step >= self.held_steps
    }

    /// How many steps begin before the part of this call.
    fn step_of(&self, number: usize) -> usize {
        let is_it = |part: &Part| matches!(part, Part::Call(call) if *call == number);
        let before = self.parts.iter().take_while(|part| !is_it(part));
        before
            .filter(|part| matches!(part, Part::Plain(part) if part["type"] == "step-start"))
            .count()
    }

    /// The call, if its streamed input is not complete.
    fn broken_off(&mut self, id: &str) -> Option<&mut Call> {
        let number = self.named_call(id)?;
        let call = &mut self.calls[number];
        (matches!(call.state, State::Streaming(..)) && call.whole_input().is_none()).then_some(call)
    }

    pub(super) fn fails_with(&mut self, number: usize, error: Value) {
        let call = &mut self.calls[number];
        // The call did not run because the user denied it, even if the agent gives another reason.
        let refused = call.is_refused() && self.approvals;
        call.becomes(if refused { State::Denied } else { State::Failed(error) });
    }

    /// The call with a complete input, or the error if it cannot get a result.
    fn ready_for_a_result(&mut self, id: &str) -> Result<usize, Answers> {
        let Some(number) = self.named_call(id) else {
            return Err(vec!["UnknownCall"]);
        };
        let call = &mut self.calls[number];
        if call.has_result() {
            return Err(vec!["CallSettled"]);
        }
        if matches!(call.state, State::Streaming(..)) {
            let Some(input) = call.whole_input() else {
                return Err(vec!["InputOpen"]);
            };
            call.has_input(input);
        }
        Ok(number)
    }
}
