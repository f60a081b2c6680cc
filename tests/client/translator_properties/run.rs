//! A run as an agent should emit it: results for decided calls, steps, and an end.

use std::collections::VecDeque;

use test_support::rng::Dice;
use ui_message_stream::AgentEvent;
use ui_message_stream::chunk::FinishReason;
use ui_message_stream::event::{ApprovalRequestDetails, Data, File, Source, Text, ToolCall};

use super::generator::HeldCalls;
use super::pools::{DATA_IDS, DATA_NAMES, FILE_URLS, SOURCE_URLS, TOOL_NAMES};
use super::values::RandomValues;

/// Events that stay in this order, with other events between them.
type Thread = VecDeque<AgentEvent>;

/// A run from its first event to its last.
pub(crate) fn well_behaved(dice: &mut Dice, held: &HeldCalls) -> Vec<AgentEvent> {
    let mut run = Run { dice, number: 0, used: held.ids.clone() };
    let mut threads: Vec<Thread> = Vec::new();
    for (id, approved) in &held.answered {
        if run.dice.chance(75) {
            threads.push(run.redeemed(id, *approved));
        }
    }
    let mut events = interleaved(run.dice, threads);
    for _ in 0..run.dice.weighted(&[(1, 0), (4, 1), (4, 2), (2, 3)]) {
        run.step(&mut events);
    }
    end(run.dice, &mut events);
    events
}

struct Run<'a> {
    dice: &'a mut Dice,
    /// Counts generated names.
    number: usize,
    used: Vec<String>,
}

impl Run<'_> {
    /// The result of a call that the user decided in an earlier request.
    fn redeemed(&mut self, id: &str, approved: bool) -> Thread {
        if !approved {
            // An agent may report the user's denial as a failure. It is a denial nevertheless.
            return match self.dice.chance(85) {
                true => [AgentEvent::tool_denied(id)].into(),
                false => [AgentEvent::tool_failed(id, self.dice.error_text())].into(),
            };
        }
        let mut thread = Thread::new();
        if self.dice.chance(15) {
            // Some agents announce a call again before they run it.
            let call = ToolCall::new(id, "read_file");
            thread.push_back(AgentEvent::tool_input(call, self.dice.json_object()));
        }
        thread.extend(self.results(id));
        thread
    }

    fn step(&mut self, events: &mut Vec<AgentEvent>) {
        if self.dice.chance(60) {
            events.push(AgentEvent::StepStart);
        }
        let threads: Vec<_> = (0..self.dice.between(1, 4)).map(|_| self.thread()).collect();
        let mut thread_events = match self.dice.chance(60) {
            true => interleaved(self.dice, threads),
            false => threads.into_iter().flatten().collect(),
        };
        events.append(&mut thread_events);
        if self.dice.chance(50) {
            events.push(AgentEvent::StepFinish);
        }
    }

    fn thread(&mut self) -> Thread {
        match self.dice.below(20) {
            0..=3 => self.unnamed(AgentEvent::text),
            4 => self.named_text(),
            5 | 6 => self.unnamed_reasoning(),
            7 => self.named_reasoning(),
            8 => [source(self.dice)].into(),
            9 => [file(self.dice)].into(),
            10 | 11 => [data(self.dice)].into(),
            12 => [AgentEvent::Metadata(self.dice.json_object())].into(),
            _ => self.tool_call(),
        }
    }

    fn unnamed(&mut self, delta: impl Fn(String) -> AgentEvent) -> Thread {
        (0..self.dice.between(1, 4))
            .map(|_| delta(if self.dice.chance(8) { String::new() } else { self.dice.text() }))
            .collect()
    }

    fn unnamed_reasoning(&mut self) -> Thread {
        let mut thread = self.unnamed(AgentEvent::reasoning);
        // Without reasoning there is nothing to end.
        let thought = |event: &AgentEvent| match event {
            AgentEvent::ReasoningDelta { delta, .. } => !delta.is_empty(),
            _ => false,
        };
        if self.dice.chance(40) && thread.iter().all(thought) {
            // One delta, so that no other thread comes between it and its end.
            thread.truncate(1);
            let signature = self.dice.provider_metadata().filter(|_| self.dice.chance(60));
            thread.push_back(AgentEvent::ReasoningEnd { id: None, provider_metadata: signature });
        }
        thread
    }

    fn named_text(&mut self) -> Thread {
        self.number += 1;
        let id = format!("text_{}", self.number);
        let mut thread = Thread::new();
        if self.dice.chance(70) {
            thread.push_back(AgentEvent::TextStart { id: id.as_str().into() });
        }
        for _ in 0..self.dice.between(1, 3) {
            thread.push_back(AgentEvent::TextDelta {
                id: Some(id.as_str().into()),
                delta: self.dice.text().into(),
            });
        }
        if self.dice.chance(60) {
            thread.push_back(AgentEvent::TextEnd { id: id.as_str().into() });
        }
        thread
    }

    fn named_reasoning(&mut self) -> Thread {
        self.number += 1;
        let id = format!("reasoning_{}", self.number);
        let mut thread = Thread::new();
        if self.dice.chance(70) {
            thread.push_back(AgentEvent::ReasoningStart { id: id.as_str().into() });
        }
        for _ in 0..self.dice.between(1, 3) {
            thread.push_back(AgentEvent::ReasoningDelta {
                id: Some(id.as_str().into()),
                delta: self.dice.text().into(),
            });
        }
        if self.dice.chance(60) {
            thread.push_back(AgentEvent::ReasoningEnd {
                id: Some(id.as_str().into()),
                provider_metadata: self.dice.provider_metadata().filter(|_| self.dice.chance(50)),
            });
        }
        thread
    }

    /// A call, from its announcement to its last event.
    fn tool_call(&mut self) -> Thread {
        let mut id = format!("call_{}", self.number);
        while self.used.contains(&id) {
            self.number += 1;
            id = format!("call_{}", self.number);
        }
        self.used.push(id.clone());
        let call = call(self.dice, &id);
        let mut thread = Thread::new();
        let input = self.dice.json_object();
        if self.dice.chance(50) {
            thread.push_back(AgentEvent::tool_input_start(call.clone()));
            thread.extend(
                pieces(self.dice, input.as_str())
                    .into_iter()
                    .map(|piece| AgentEvent::tool_input_delta(id.as_str(), piece)),
            );
            match self.dice.below(10) {
                0 => {
                    let error = self.dice.error_text();
                    let raw = ui_message_stream::Json::string(input.as_str());
                    thread.push_back(AgentEvent::tool_input_invalid(call, raw, error.clone()));
                    if self.dice.chance(50) {
                        // The AI SDK's own server sends it twice.
                        thread.push_back(AgentEvent::tool_failed(id.as_str(), error));
                    }
                    return thread;
                }
                // Some agents continue with the result. The streamed text is the input.
                1 => {}
                2 => return thread,
                _ => thread.push_back(AgentEvent::tool_input(call, input)),
            }
        } else if self.dice.chance(12) {
            let error = self.dice.error_text();
            thread.push_back(AgentEvent::tool_input_invalid(call, self.dice.json(), error));
            return thread;
        } else {
            thread.push_back(AgentEvent::tool_input(call, input));
        }
        match self.dice.below(10) {
            0 => {}
            1 | 2 => {
                let approval_id = format!("ap_for_{id}");
                let mut approval_request = AgentEvent::approval_requested(id.as_str(), approval_id);
                if let AgentEvent::ApprovalRequested { details, .. } = &mut approval_request {
                    let descriptor = self.dice.chance(50).then(|| self.dice.json());
                    let reason = self.dice.chance(30).then(|| self.dice.text().into());
                    let asked = ApprovalRequestDetails { descriptor, reason, signature: None };
                    *details = Some(Box::new(asked));
                }
                thread.push_back(approval_request);
                // A decision that arrived during the run.
                if self.dice.chance(20) {
                    thread.push_back(AgentEvent::tool_denied(id.as_str()));
                } else if self.dice.chance(20) {
                    thread.extend(self.results(&id));
                }
            }
            _ => thread.extend(self.results(&id)),
        }
        thread
    }

    fn results(&mut self, id: &str) -> Thread {
        let mut thread = Thread::new();
        if self.dice.chance(25) {
            for _ in 0..self.dice.between(1, 3) {
                thread.push_back(AgentEvent::preliminary_output(id, self.dice.json()));
            }
        }
        match self.dice.below(10) {
            0 => thread.push_back(AgentEvent::tool_failed(id, self.dice.error_text())),
            1 => thread.push_back(AgentEvent::tool_refused(id, self.dice.error_text())),
            2 if self.dice.chance(30) => {}
            _ => thread.push_back(AgentEvent::tool_output(id, self.dice.json())),
        }
        thread
    }
}

/// A call with this id, of any tool, with any executor.
pub(crate) fn call(dice: &mut Dice, id: &str) -> ToolCall {
    let mut call = ToolCall::new(id, dice.pick(TOOL_NAMES).to_owned());
    match dice.below(10) {
        0 | 1 => call = call.client_executed(),
        2 | 3 => call = call.provider_executed(),
        _ => {}
    }
    if dice.chance(25) {
        call = call.dynamic();
    }
    if dice.chance(20) {
        call = call.with_title(dice.text());
    }
    if dice.chance(10) {
        call.tool_metadata = dice.tool_metadata();
    }
    if dice.chance(15) {
        call.provider_metadata = dice.provider_metadata();
    }
    call
}

/// A text in up to six pieces, cut anywhere.
pub(crate) fn pieces(dice: &mut Dice, text: &str) -> Vec<String> {
    let mut pieces = vec![String::new()];
    for letter in text.chars() {
        if pieces.len() < 6 && dice.chance(20) {
            pieces.push(String::new());
        }
        if let Some(last) = pieces.last_mut() {
            last.push(letter);
        }
    }
    pieces
}

pub(crate) fn source(dice: &mut Dice) -> AgentEvent {
    let title = dice.text();
    AgentEvent::Source(Box::new(if dice.chance(50) {
        Source::Url {
            source_id: "s1".into(),
            url: dice.pick(SOURCE_URLS).to_owned().into(),
            title: dice.chance(50).then(|| title.into()),
        }
    } else {
        Source::Document {
            source_id: "s2".into(),
            media_type: "application/pdf".into(),
            title: title.into(),
            filename: dice.chance(50).then(|| "a.pdf".into()),
        }
    }))
}

pub(crate) fn file(dice: &mut Dice) -> AgentEvent {
    AgentEvent::File(Box::new(File {
        url: dice.pick(FILE_URLS).to_owned().into(),
        media_type: "image/png".into(),
    }))
}

pub(crate) fn data(dice: &mut Dice) -> AgentEvent {
    AgentEvent::Data(Box::new(Data {
        name: dice.pick(DATA_NAMES).to_owned().into(),
        id: dice.chance(60).then(|| dice.pick(DATA_IDS).to_owned().into()),
        data: dice.json(),
        transient: dice.chance(20),
    }))
}

/// Interleaves threads as if they ran concurrently.
fn interleaved(dice: &mut Dice, mut threads: Vec<Thread>) -> Vec<AgentEvent> {
    let mut events = Vec::new();
    loop {
        threads.retain(|thread| !thread.is_empty());
        if threads.is_empty() {
            return events;
        }
        let next = dice.below(threads.len());
        // Unnamed reasoning stays together, because any other event may end it.
        let mut together = true;
        while together {
            let event = threads[next].pop_front();
            together = matches!(event, Some(AgentEvent::ReasoningDelta { id: None, .. }));
            events.extend(event);
        }
    }
}

/// One of the ends, or none.
pub(crate) fn end(dice: &mut Dice, events: &mut Vec<AgentEvent>) {
    events.extend(match dice.below(10) {
        0..=4 => Some(finish(dice)),
        5 => Some(AgentEvent::error(dice.error_text())),
        6 => Some(AgentEvent::Abort { reason: dice.chance(50).then(|| Text::from("stopped")) }),
        _ => None,
    });
}

pub(crate) fn finish(dice: &mut Dice) -> AgentEvent {
    let reason = dice.weighted(&[
        (4, FinishReason::Stop),
        (2, FinishReason::ToolCalls),
        (1, FinishReason::Length),
        (1, FinishReason::ContentFilter),
        (1, FinishReason::Error),
        (1, FinishReason::Interrupted),
        (1, FinishReason::Other),
    ]);
    AgentEvent::Finish { reason, metadata: dice.chance(30).then(|| dice.json_object()) }
}
