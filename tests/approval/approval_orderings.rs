//! All answers to up to four calls of one step, in every order, together and one by one: what was
//! approved runs once, what was denied never, and every call ends with just one result.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use ui_message_stream::approval::{
    DeferredOutcome, DeferredToolResults, IssuedApproval, ToolOutcome,
};

use super::one_tool::{Bench, ada, body, body_written_on};

/// One way to answer.
#[derive(Debug, Clone)]
struct Way {
    /// Yes or no, by call.
    answers: Vec<bool>,
    /// In which order the calls are answered.
    order: Vec<usize>,
    /// So many of them go into one request.
    at_once: usize,
    /// So many are answered; then the person writes on.
    answered: usize,
}

fn ways() -> Vec<Way> {
    let mut ways = Vec::new();
    for calls in 1..=4_usize {
        for bits in 0..1_u32 << calls {
            let answers: Vec<bool> = (0..calls).map(|call| bits & 1 << call != 0).collect();
            for order in orders(calls) {
                for answered in 0..=calls {
                    for at_once in [1, calls] {
                        let (answers, order) = (answers.clone(), order.clone());
                        ways.push(Way { answers, order, at_once, answered });
                    }
                }
            }
        }
    }
    ways
}

/// All orders of so many things.
fn orders(things: usize) -> Vec<Vec<usize>> {
    if things == 0 {
        return vec![Vec::new()];
    }
    let shorter = orders(things - 1).into_iter();
    let longer = shorter.flat_map(|order| {
        (0..things).map(move |at| {
            let mut order = order.clone();
            order.insert(at, things - 1);
            order
        })
    });
    longer.collect()
}

/// A client that shows what it is told, and the results that the host's history was given.
struct Chat {
    bench: Bench,
    asked: Vec<IssuedApproval>,
    parts: Vec<Value>,
    results: BTreeMap<usize, Vec<DeferredOutcome>>,
}

impl Chat {
    async fn new(calls: usize) -> Self {
        let bench = Bench::new();
        let (mut asked, mut parts) = (Vec::new(), Vec::new());
        for call in 0..calls {
            let question = bench.ask(&id(call), input(call)).await;
            parts.push(json!({
                "type": "tool-delete_file", "toolCallId": id(call), "input": input(call),
                "state": "approval-requested", "approval": {"id": question.approval_id},
            }));
            asked.push(question);
        }
        Chat { bench, asked, parts, results: BTreeMap::new() }
    }

    fn answer(&mut self, call: usize, approved: bool) {
        self.parts[call]["state"] = "approval-responded".into();
        self.parts[call]["approval"]["approved"] = approved.into();
    }

    /// Sends the history, and takes in what comes of it. The parts stand in the order of the
    /// answers, as calls that ran side by side may.
    async fn send(&mut self, way: &Way, wrote_on: bool) -> DeferredToolResults {
        let parts: Vec<Value> = way.order.iter().map(|&call| self.parts[call].clone()).collect();
        let body = match wrote_on {
            true => body_written_on(&parts),
            false => body(&parts),
        };
        let (results, ended) = self.bench.settled(&ada(), &body).await;
        assert_eq!(results.results().len(), ended.len(), "{way:?}");
        for result in results.results() {
            assert!(result.is_final, "{way:?}");
            let call = call_of(&result.tool_call_id);
            let part = &mut self.parts[call];
            match &result.outcome {
                DeferredOutcome::Denied { .. } => part["state"] = "output-denied".into(),
                DeferredOutcome::Approved { input: ran, .. } => {
                    assert_eq!(ran.as_str(), input(call).to_string(), "{way:?}");
                    part["state"] = "output-available".into();
                    part["output"] = input(call);
                }
                other => panic!("{other:?} {way:?}"),
            }
            self.results.entry(call).or_default().push(result.outcome.clone());
        }
        for outcome in ended {
            let is_end = match &outcome {
                DeferredOutcome::Denied { .. } => true,
                DeferredOutcome::Executed { outcome } => matches!(outcome, ToolOutcome::Output(_)),
                _ => false,
            };
            assert!(is_end, "{outcome:?} {way:?}");
        }
        for call in results.superseded() {
            let outcome = DeferredOutcome::Denied { reason: None };
            self.results.entry(call_of(&call.tool_call_id)).or_default().push(outcome);
        }
        results
    }
}

async fn go(way: &Way) {
    let mut chat = Chat::new(way.answers.len()).await;
    let (answered, unanswered) = way.order.split_at(way.answered);
    for (at, some) in answered.chunks(way.at_once).enumerate() {
        for &call in some {
            chat.answer(call, way.answers[call]);
        }
        let results = chat.send(way, false).await;
        assert_eq!(results.results().len(), some.len(), "{way:?}");
        let done = (at * way.at_once) + some.len();
        let mut open: Vec<usize> = way.order[done..].to_vec();
        open.sort_unstable();
        let mut pending: Vec<usize> =
            results.pending().iter().map(|call| call_of(&call.tool_call_id)).collect();
        pending.sort_unstable();
        assert_eq!(pending, open, "what has no answer still waits: {way:?}");
    }
    if !unanswered.is_empty() {
        let results = chat.send(way, true).await;
        assert!(results.pending().is_empty(), "{way:?}");
        assert_eq!(results.superseded().len(), unanswered.len(), "{way:?}");
        for &call in unanswered {
            assert!(!chat.bench.is_pending(&chat.asked[call]).await, "{way:?}");
        }
        // What the person wrote past cannot be answered any more.
        let late: Vec<Value> = unanswered
            .iter()
            .map(|&call| {
                let mut part = chat.parts[call].clone();
                part["state"] = "approval-responded".into();
                part["approval"]["approved"] = true.into();
                part
            })
            .collect();
        for outcome in chat.bench.outcomes(&body(&late)).await {
            assert_eq!(outcome, DeferredOutcome::Rejected, "{way:?}");
        }
    }
    let calls = 0..way.answers.len();
    for call in calls.clone() {
        let results = chat.results.get(&call).map_or(&[][..], |results| results);
        let [result] = results else { panic!("{call} has {results:?}: {way:?}") };
        let is_yes = way.answers[call] && answered.contains(&call);
        assert_eq!(matches!(result, DeferredOutcome::Approved { .. }), is_yes, "{way:?}");
    }
    let mut effects = chat.bench.effects();
    effects.sort_unstable();
    let approved = calls.filter(|call| way.answers[*call] && answered.contains(call));
    let approved: Vec<String> = approved.map(|call| input(call).to_string()).collect();
    assert_eq!(effects, approved, "what was approved ran once, and nothing else: {way:?}");
}

fn id(call: usize) -> String {
    format!("call_{call}")
}

fn call_of(tool_call_id: &str) -> usize {
    tool_call_id.strip_prefix("call_").unwrap().parse().unwrap()
}

fn input(call: usize) -> Value {
    json!({"path": format!("{call}.txt")})
}

#[tokio::test]
async fn every_call_is_answered_as_the_person_answered_it_in_whatever_order() {
    let ways = ways();
    for way in &ways {
        go(way).await;
    }
    println!("{} ways to answer up to four calls", ways.len());
    let counts = (1..=4).map(|calls| (1 << calls) * FACTORIAL[calls] * (calls + 1) * 2);
    assert_eq!(ways.len(), counts.sum::<usize>());
}

const FACTORIAL: [usize; 5] = [1, 1, 2, 6, 24];
