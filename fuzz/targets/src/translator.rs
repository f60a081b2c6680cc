//! Any events in any order become chunks that a strict reading of the protocol accepts.
//!
//! Each pair of bytes is an event: its kind, and which of a few parts, calls or approval requests
//! it is about.

use std::collections::{HashMap, HashSet};

use ui_message_stream::chunk::{FinishReason, Version};
use ui_message_stream::event::{AgentEvent, ToolCall};
use ui_message_stream::{Chunk, Json, Translator, UiMessage};

/// Runs the target on one input.
///
/// # Panics
/// If the input shows a fault.
pub fn run(data: &[u8]) {
    let Some((&options, events)) = data.split_first() else {
        return;
    };
    let mut client = Client::default();
    let mut translator = match options & 1 {
        0 => Translator::new("m"),
        _ => {
            let message = UiMessage::parse(CONTINUED).expect("the message is one");
            client.calls.extend((0..4).map(|n| (format!("c{n}"), 0)));
            Translator::continuing(&message)
        }
    };
    let version = match options >> 4 {
        0 => Version::V5,
        1 => Version::V6Patch(326),
        _ => Version::V6,
    };
    translator = translator.with_version(version);
    client.is_v5 = version == Version::V5;
    if options & 4 != 0 {
        translator = translator.without_approvals();
    }
    for pair in events.chunks_exact(2) {
        let mut event = event(pair[0], pair[1]);
        if options & 8 != 0 {
            event = as_chunk(event);
        }
        let _ = translator.handle_event(&event, &mut |chunk| client.read(&chunk));
    }
    translator.finish(&mut |chunk| client.read(&chunk));
    client.end();
}

const CONTINUED: &str = r#"{"id":"m","role":"assistant","parts":[{"type":"step-start"},
{"type":"tool-t","toolCallId":"c0","state":"approval-responded","input":{},"approval":{"id":"a0","approved":true}},
{"type":"tool-t","toolCallId":"c1","state":"approval-responded","input":{},"approval":{"id":"a1","approved":false}},
{"type":"tool-t","toolCallId":"c2","state":"approval-requested","input":{},"approval":{"id":"a2"}},
{"type":"dynamic-tool","toolName":"t","toolCallId":"c3","state":"output-available","input":{},"output":1}]}"#;

fn event(what: u8, which: u8) -> AgentEvent {
    let part = || format!("p{}", which % 3).into();
    let call_id = || format!("c{}", which % 6);
    let call = || {
        let call = ToolCall::new(call_id(), "t");
        match which / 64 {
            0 => call,
            1 => call.client_executed(),
            2 => call.provider_executed(),
            _ => call.dynamic(),
        }
    };
    match what % 24 {
        0 => AgentEvent::StepStart,
        1 => AgentEvent::TextStart { id: part() },
        2 => AgentEvent::text("a"),
        3 => AgentEvent::TextDelta { id: Some(part()), delta: "b".into() },
        4 => AgentEvent::TextEnd { id: part() },
        5 => AgentEvent::ReasoningStart { id: part() },
        6 => AgentEvent::reasoning("c"),
        7 => AgentEvent::ReasoningEnd { id: None, provider_metadata: None },
        8 => AgentEvent::tool_input_start(call()),
        9 => AgentEvent::tool_input_delta(call_id(), ["{", "}", "1", ""][usize::from(which % 4)]),
        10 | 11 => AgentEvent::tool_input(call(), Json::null()),
        12 => AgentEvent::tool_input_invalid(call(), Json::string("x"), "bad"),
        13 => AgentEvent::approval_requested(call_id(), format!("a{}", which % 5)),
        14 => AgentEvent::tool_denied(call_id()),
        15 | 16 => AgentEvent::tool_output(call_id(), Json::null()),
        17 => AgentEvent::preliminary_output(call_id(), Json::null()),
        18 => AgentEvent::tool_failed(call_id(), "failed"),
        19 => AgentEvent::data("d", Json::null()),
        20 | 21 => AgentEvent::StepFinish,
        22 => AgentEvent::Metadata(Json::null()),
        _ => match which {
            0 => AgentEvent::error("e"),
            1 => AgentEvent::Abort { reason: None },
            2 => AgentEvent::finish(FinishReason::Stop),
            _ => AgentEvent::text(""),
        },
    }
}

/// The corresponding chunk, if there is one.
fn as_chunk(event: AgentEvent) -> AgentEvent {
    let chunk = match &event {
        AgentEvent::StepStart => Chunk::StartStep {},
        AgentEvent::TextStart { id } => {
            Chunk::TextStart { id: id.to_string().into(), provider_metadata: None }
        }
        AgentEvent::TextDelta { id: Some(id), delta } => Chunk::TextDelta {
            id: id.to_string().into(),
            delta: delta.to_string().into(),
            provider_metadata: None,
        },
        AgentEvent::TextEnd { id } => {
            Chunk::TextEnd { id: id.to_string().into(), citations: None, provider_metadata: None }
        }
        AgentEvent::ToolInputStart { call } => Chunk::ToolInputStart {
            tool_call_id: call.id.to_string().into(),
            tool_name: call.tool_name.to_string().into(),
            input_encoding: None,
            provider_executed: None,
            provider_metadata: None,
            tool_metadata: None,
            dynamic: call.dynamic.then_some(true),
            title: None,
        },
        AgentEvent::ToolOutput { tool_call_id, .. } => Chunk::ToolOutputAvailable {
            tool_call_id: tool_call_id.to_string().into(),
            output: None,
            provider_executed: None,
            provider_metadata: None,
            tool_metadata: None,
            dynamic: None,
            preliminary: None,
        },
        AgentEvent::ToolDenied { tool_call_id } => {
            Chunk::ToolOutputDenied { tool_call_id: tool_call_id.to_string().into() }
        }
        AgentEvent::StepFinish => Chunk::FinishStep {},
        AgentEvent::Finish { .. } => Chunk::Finish { finish_reason: None, message_metadata: None },
        _ => return event,
    };
    AgentEvent::Chunk(Box::new(chunk))
}

/// The client's rules about sequences, read strictly.
#[derive(Default)]
struct Client {
    started: bool,
    ended: bool,
    in_step: bool,
    step: u32,
    texts: HashSet<String>,
    reasoning: HashSet<String>,
    is_v5: bool,
    /// The step of each call.
    calls: HashMap<String, u32>,
    streaming: HashSet<String>,
    settled: HashSet<String>,
}

impl Client {
    fn read(&mut self, chunk: &Chunk<'_>) {
        assert!(!self.ended, "nothing follows the end");
        assert_eq!(self.started, !matches!(chunk, Chunk::Start { .. }), "one start, first");
        match chunk {
            Chunk::Start { .. } => self.started = true,
            Chunk::StartStep {} => {
                assert!(!std::mem::replace(&mut self.in_step, true), "no step in a step");
                self.step += 1;
            }
            Chunk::FinishStep {} => {
                assert!(std::mem::take(&mut self.in_step), "a step ends once");
                assert!(self.nothing_is_open(), "a step closes its parts and inputs");
            }
            Chunk::TextStart { id, .. } => self.opens(|client| client.texts.insert(id.to_string())),
            Chunk::TextDelta { id, .. } => assert!(self.texts.contains(&**id)),
            Chunk::TextEnd { id, .. } => assert!(self.texts.remove(&**id)),
            Chunk::ReasoningStart { id, .. } => {
                self.opens(|client| client.reasoning.insert(id.to_string()));
            }
            Chunk::ReasoningDelta { id, .. } => assert!(self.reasoning.contains(&**id)),
            Chunk::ReasoningEnd { id, .. } => assert!(self.reasoning.remove(&**id)),
            Chunk::ToolInputStart { tool_call_id, .. } => {
                let step = self.step + 1;
                self.opens(|client| client.calls.insert(tool_call_id.to_string(), step).is_none());
                self.streaming.insert(tool_call_id.to_string());
            }
            Chunk::ToolInputDelta { tool_call_id, .. } => {
                assert!(self.streaming.contains(&**tool_call_id));
            }
            Chunk::ToolInputAvailable { tool_call_id, .. } => self.completes(tool_call_id),
            Chunk::ToolInputError { tool_call_id, .. } => {
                assert!(!self.is_v5, "ai@5 has no such chunk");
                self.completes(tool_call_id);
                assert!(self.settled.insert(tool_call_id.to_string()));
            }
            Chunk::ToolApprovalRequest { tool_call_id, .. } => {
                assert!(!self.is_v5, "ai@5 has no such chunk");
                self.refers(tool_call_id);
            }
            Chunk::ToolOutputAvailable { tool_call_id, preliminary, .. } => {
                self.refers(tool_call_id);
                if *preliminary != Some(true) {
                    assert!(self.settled.insert(tool_call_id.to_string()), "one final output");
                }
            }
            Chunk::ToolOutputError { tool_call_id, .. }
            | Chunk::ToolOutputDenied { tool_call_id } => {
                // ai@5 has no other chunk for an input that was never completed.
                if self.is_v5 {
                    self.streaming.remove(&**tool_call_id);
                }
                self.refers(tool_call_id);
                assert!(self.settled.insert(tool_call_id.to_string()), "one final result");
            }
            Chunk::Error { .. } => assert!(self.nothing_is_open()),
            Chunk::Abort { .. } | Chunk::Finish { .. } => {
                assert!(!self.in_step && self.nothing_is_open());
                self.ended = true;
            }
            _ => {}
        }
    }

    fn opens(&mut self, open: impl FnOnce(&mut Self) -> bool) {
        assert!(self.in_step, "content is in a step");
        assert!(open(self), "an id is opened once");
    }

    fn completes(&mut self, id: &str) {
        if !self.streaming.remove(id) {
            assert!(self.in_step, "a call is in a step");
            assert!(self.calls.insert(id.to_owned(), self.step).is_none(), "a call is new");
        }
    }

    fn refers(&self, id: &str) {
        assert!(self.calls.contains_key(id), "a result has its call");
        assert!(!self.streaming.contains(id), "a result has its whole input");
        assert!(!self.settled.contains(id), "nothing follows a final result");
    }

    fn nothing_is_open(&self) -> bool {
        self.texts.is_empty() && self.reasoning.is_empty() && self.streaming.is_empty()
    }

    fn end(&self) {
        assert!(self.started && self.ended, "every message ends");
    }
}
