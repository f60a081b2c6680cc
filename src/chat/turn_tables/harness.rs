//! What the tables are made of: conversations, logs and inputs, and the actions as text.

use std::sync::Arc;

use crate::approval::{DeferredOutcome, PendingToolCall, Principal, ToolOutcome};
use crate::chat::conversation::{
    Chat, HistoryImport, LiveRun, LostRun, PostedHistory, ReceivedResult,
};
use crate::chat::log::{
    AppendRefusal, AppendResult, BeginResult, Fence, HolderStatus, LogEntry, TakeRefusal,
    TakeResult,
};
use crate::chat::run_log::LogClient;
use crate::chat::turn::machine::{Action, ChatTurn, Effect, Input, Request, TurnSettings};
use crate::chunk::{FinishReason, Version};
use crate::event::{AgentEvent, ToolCall};
use crate::json::Json;
use crate::limits::ChatLimits;
use crate::request::{ChatRequest, Limits};

/// Checks the actions before each input, and those after the last one.
pub(super) fn check(mut turn: ChatTurn, table: Vec<(&str, Input)>, last: &str) -> ChatTurn {
    for (at, (expected, input)) in table.into_iter().enumerate() {
        assert_eq!(actions(&mut turn), expected, "before input {at}: {input:?}");
        turn.handle(input);
        if expected.contains("close ") {
            // No answers came with the new message.
            turn.handle(Input::Redeemed);
        }
    }
    assert_eq!(actions(&mut turn), last, "after the last input");
    turn
}

/// Returns the actions up to the next wait as text.
pub(super) fn actions(turn: &mut ChatTurn) -> String {
    let mut texts = Vec::new();
    loop {
        match turn.poll() {
            Action::Wait => break,
            Action::End => {
                texts.push("end".to_owned());
                break;
            }
            Action::StopAgent => texts.push("stop agent".to_owned()),
            Action::Report(_) => texts.push("report".to_owned()),
            // The tests of what is logged and counted show them.
            Action::ReportLimit(..) | Action::LeaveRun => {}
            Action::Start(effect) | Action::Spawn(effect) => texts.push(effect_text(&effect)),
            Action::Respond(response) => texts.push(response_text(&response)),
        }
    }
    texts.join(" · ")
}

pub(super) fn response_text(response: &crate::chat::turn::machine::Response) -> String {
    use crate::chat::turn::machine::Response;
    match response {
        Response::Join { run, message_id: message, .. } => format!("join {run} {message}"),
        Response::Stored { message_id, .. } => format!("stored {message_id}"),
        Response::Nothing => "nothing".to_owned(),
        Response::AlreadyReceived => "already received".to_owned(),
        Response::Refused(conflict) => format!("refused {conflict:?}"),
        Response::TooManyRuns => "too many runs".to_owned(),
        Response::Limit(_) => "limit".to_owned(),
        Response::Failed => "failed".to_owned(),
    }
}

pub(super) fn effect_text(effect: &Effect) -> String {
    match effect {
        Effect::Load => "load".to_owned(),
        Effect::Save { chat, revision, .. } => {
            let ids: Vec<&str> = chat.messages.iter().map(|message| message.id.as_str()).collect();
            let live = chat.live_run().map_or_else(String::new, |live| {
                let kept = live.kept.map(|kept| format!(" keeps {}", kept.entries));
                let kept = kept.unwrap_or_default();
                let lost = live.resumes.as_ref().map(|lost| format!(" resumes {}", lost.run));
                let lost = lost.unwrap_or_default();
                format!(" live {}/{} {}{kept}{lost}", live.run, live.fence.0, live.message_id)
            });
            let new = match chat.new_results().len() {
                0 => String::new(),
                new => format!(" new {new}"),
            };
            // Most tables load revision 1.
            let revision = revision.filter(|revision| *revision != 1);
            let revision = revision.map(|revision| format!("@{revision}")).unwrap_or_default();
            format!("save [{}]{revision}{live}{new}", ids.join(" "))
        }
        Effect::RevokePending(Some(revision)) => format!("revoke all @{revision}"),
        Effect::RevokePending(None) => "revoke all of none".to_owned(),
        Effect::RevokeUnshown(_) => "revoke unshown".to_owned(),
        Effect::Delete(revision) => format!("delete @{revision}"),
        Effect::Redeem { plan, .. } => format!("redeem {}", plan.unverified_responses().count()),
        Effect::CloseOpenCalls { open, .. } => format!("close {}", open.len()),
        Effect::FindDecided(calls) => format!("find {}", calls.len()),
        Effect::Claim { approvals, .. } => format!("claim {}", approvals.len()),
        Effect::Begin(run) => format!("begin {run}"),
        Effect::Append { run, fence, position, entries, end } => {
            let mut text = format!("append {run}/{}@{position}", fence.0);
            for entry in entries.iter() {
                text += " ";
                text += &entry_text(entry);
            }
            text + if *end { " end" } else { "" }
        }
        Effect::Take { run, fence, condition, waits: _ } => {
            let condition = match condition {
                crate::chat::log::TakeCondition::Any => "any",
                crate::chat::log::TakeCondition::LeasePassed => "passed",
            };
            format!("take {run}/{} {condition}", fence.0)
        }
        Effect::Read(run) => format!("read {run}"),
        Effect::CallAgent(call) => match call.sent.len() {
            0 => "call agent".to_owned(),
            sent => format!("call agent sends {sent}"),
        },
    }
}

/// Returns the type of a frame, or the name of a note.
pub(super) fn entry_text(entry: &LogEntry) -> String {
    let text = String::from_utf8(entry.bytes().to_vec()).unwrap();
    match entry {
        LogEntry::Note(_) => text.split('"').nth(1).unwrap_or_default().to_owned(),
        LogEntry::Frame(_) if text.contains("[DONE]") => "[DONE]".to_owned(),
        LogEntry::Frame(_) => text.split('"').nth(3).unwrap_or_default().to_owned(),
    }
}

/// The ledger has closed no calls.
pub(super) fn nothing_closed() -> Input {
    Input::CallsClosed(Vec::new())
}

/// The lease of a run has not passed.
pub(super) fn is_live() -> Input {
    Input::Taken(TakeResult::Refused(TakeRefusal::LeaseRenewed))
}

pub(super) fn settings() -> TurnSettings {
    TurnSettings {
        owner: Principal::new("ada"),
        posted_history: PostedHistory::Keep,
        limits: ChatLimits::default().with_max_log_bytes(1 << 20),
        client: LogClient { version: Version::default(), has_approvals: true },
        history_import: HistoryImport::Texts,
        chat_id: "c".into(),
        message_id: "a1".into(),
        run_id: "r1".into(),
    }
}

pub(super) fn turn(request: Request) -> ChatTurn {
    ChatTurn::new(request, settings())
}

/// Returns a turn that a reader starts.
pub(super) fn mend() -> ChatTurn {
    turn(Request::Mend { run: "r0".into(), fence: Fence(1) })
}

/// Returns a turn whose agent was called.
pub(super) fn running() -> ChatTurn {
    let table = vec![
        ("load", Input::Loaded(None)),
        ("close 0", nothing_closed()),
        ("begin r1", Input::Begun(BeginResult::Begun(Fence(1)))),
        ("save [u1] live r1/1 a1", Input::Saved(true)),
        ("join r1 a1 · append r1/1@0 start step", appended()),
    ];
    check(turn(post(NEW_MESSAGE)), table, "call agent")
}

pub(super) const NEW_MESSAGE: &str =
    r#"{"id":"c","messages":[{"id":"u1","role":"user","parts":[{"type":"text","text":"Hi"}]}]}"#;

pub(super) const SECOND_MESSAGE: &str =
    r#"{"id":"c","message":{"id":"u2","role":"user","parts":[{"type":"text","text":"No"}]}}"#;

pub(super) fn post(body: &str) -> Request {
    Request::Post(Arc::new(ChatRequest::parse(body.as_bytes(), &Limits::default()).unwrap()))
}

/// An answer to the question of the message `a0`.
pub(super) fn answer(call: &str, approval: &str, approved: bool) -> Request {
    post(&format!(
        r#"{{"id":"c","messages":[{{"id":"a0","role":"assistant","parts":[{{"type":"tool-act","toolCallId":"{call}","state":"approval-responded","input":{{}},"approval":{{"id":"{approval}","approved":{approved}}}}}]}}]}}"#
    ))
}

pub(super) fn live(run: &str, message: &str) -> LiveRun {
    LiveRun {
        run: run.into(),
        fence: Fence(1),
        message_id: message.into(),
        kept: None,
        resumes: None,
        only_for: None,
    }
}

/// A conversation with the message `u1` and a live run that answers it.
pub(super) fn live_chat(run: &str, message: &str) -> Chat {
    let mut chat = Chat::new("c", Principal::new("ada"));
    let request = ChatRequest::parse(NEW_MESSAGE.as_bytes(), &Limits::default()).unwrap();
    let _ = chat.apply_request(&request, PostedHistory::Keep);
    chat.set_live_run(live(run, message));
    chat
}

pub(super) fn with_run(mut chat: Chat, run: &str, message: &str) -> Chat {
    chat.set_live_run(live(run, message));
    chat
}

pub(super) fn fenced(mut chat: Chat, fence: u64) -> Chat {
    chat.set_live_fence(Fence(fence));
    chat
}

/// A conversation in which `a0` answers `u1`.
pub(super) fn answered_chat() -> Chat {
    chat_with(log_of_half_a_text())
}

/// A conversation in which `a0` asks a question.
pub(super) fn asked_chat(is_provider_executed: bool) -> Chat {
    chat_with(log_of_a_question(is_provider_executed))
}

/// A conversation whose question was edited, without an answer.
pub(super) fn edited_chat() -> Chat {
    let edit = r#"{"id":"c","messageId":"u1","messages":[
        {"id":"u1","role":"user","parts":[{"type":"text","text":"changed"}]}]}"#;
    let request = ChatRequest::parse(edit.as_bytes(), &Limits::default()).unwrap();
    let mut chat = asked_chat(false);
    let _ = chat.apply_request(&request, PostedHistory::Keep);
    chat
}

pub(super) fn chat_with(log: Vec<LogEntry>) -> Chat {
    let chat = live_chat("r0", "a0");
    let mut chat = crate::chat::run_log::keep_log(&chat, &live("r0", "a0"), &log);
    chat.end_live_run();
    chat
}

pub(super) fn frame(json: &str) -> LogEntry {
    LogEntry::Frame(format!("id: x\ndata: {json}\n\n").into())
}

pub(super) fn log_of_half_a_text() -> Vec<LogEntry> {
    vec![
        frame(r#"{"type":"start","messageId":"a0"}"#),
        LogEntry::Note(r#""step""#.into()),
        frame(r#"{"type":"start-step"}"#),
        frame(r#"{"type":"text-start","id":"1"}"#),
        frame(r#"{"type":"text-delta","id":"1","delta":"Half"}"#),
    ]
}

pub(super) fn log_of_a_question(is_provider_executed: bool) -> Vec<LogEntry> {
    let id = if is_provider_executed { "p1" } else { "s1" };
    let input = format!(
        r#"{{"type":"tool-input-available","toolCallId":"{id}","toolName":"act","input":{{}},"providerExecuted":{is_provider_executed}}}"#
    );
    let request =
        format!(r#"{{"type":"tool-approval-request","approvalId":"ap1","toolCallId":"{id}"}}"#);
    vec![
        frame(r#"{"type":"start","messageId":"a0"}"#),
        LogEntry::Note(r#""step""#.into()),
        frame(r#"{"type":"start-step"}"#),
        frame(&input),
        frame(&request),
    ]
}

pub(super) fn question(is_provider_executed: bool) -> (AgentEvent, AgentEvent) {
    let mut call = ToolCall::new("s1", "act");
    if is_provider_executed {
        call = call.provider_executed();
    }
    let input = AgentEvent::tool_input(call, Json::parse("{}").unwrap());
    (input, AgentEvent::approval_requested("s1", "ap1"))
}

pub(super) fn received(call: &str, approval: &str, outcome: DeferredOutcome) -> ReceivedResult {
    let call = PendingToolCall::awaiting_approval(approval, call, "act", Json::null());
    ReceivedResult::new(call.with_outcome(outcome), None)
}

pub(super) fn executed(call: &str, approval: &str) -> ReceivedResult {
    let outcome = ToolOutcome::Output(Json::string("ran"));
    received(call, approval, DeferredOutcome::Executed { outcome })
}

pub(super) fn loaded(chat: Chat) -> Input {
    Input::Loaded(Some((Box::new(chat), 1)))
}

pub(super) fn text(text: &str) -> Input {
    Input::Agent(AgentEvent::text(text.to_owned()))
}

pub(super) fn finish() -> Input {
    Input::Agent(AgentEvent::finish(FinishReason::Stop))
}

pub(super) fn appended() -> Input {
    Input::Appended(AppendResult::Appended(HolderStatus::default()))
}

pub(super) fn refused(refusal: AppendRefusal) -> Input {
    Input::Appended(AppendResult::Refused(refusal))
}

pub(super) fn taken(fence: u64) -> Input {
    Input::Taken(TakeResult::Taken(Fence(fence)))
}

/// A grant to the provider of the call that `a0` asks about.
pub(super) fn granted() -> ReceivedResult {
    let outcome = DeferredOutcome::ForwardToProvider { approved: true, reason: None, claim: None };
    received("p1", "ap1", outcome)
}

/// A run that was lost, and whose log has 6 entries.
pub(super) fn lost(run: &str) -> LostRun {
    LostRun { run: run.into(), fence: Fence(2), entries: 6, losses: 1 }
}
