//! All decisions on up to four calls of one step, in every order, in one request and one by one: an
//! approved call runs once, a denied call never runs, and every call has exactly one result.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use test_support::approvals::unanswered;
use test_support::requests::{ada, respond};
use ui_message_stream::approval::{
    DeferredOutcome, DeferredToolResults, IssuedApproval, ToolOutcome,
};

use super::one_tool::{Bench, body, body_with_new_message};

/// One sequence of decisions.
#[derive(Debug, Clone)]
struct Sequence {
    /// Whether each call is approved.
    answers: Vec<bool>,
    /// The order in which the calls are decided.
    order: Vec<usize>,
    /// The number of decisions in one request.
    at_once: usize,
    /// The number of calls that are decided before the user sends a new message.
    answered: usize,
}

fn sequences() -> Vec<Sequence> {
    let mut sequences = Vec::new();
    for calls in 1..=4_usize {
        for bits in 0..1_u32 << calls {
            let answers: Vec<bool> = (0..calls).map(|call| bits & 1 << call != 0).collect();
            for order in orders(calls) {
                for answered in 0..=calls {
                    for at_once in [1, calls] {
                        let (answers, order) = (answers.clone(), order.clone());
                        sequences.push(Sequence { answers, order, at_once, answered });
                    }
                }
            }
        }
    }
    sequences
}

/// All permutations of this number of items.
fn orders(items: usize) -> Vec<Vec<usize>> {
    if items == 0 {
        return vec![Vec::new()];
    }
    let shorter = orders(items - 1).into_iter();
    let longer = shorter.flat_map(|order| {
        (0..items).map(move |at| {
            let mut order = order.clone();
            order.insert(at, items - 1);
            order
        })
    });
    longer.collect()
}

/// A client that applies the outcomes it receives, and all results of each call.
struct Chat {
    bench: Bench,
    issued: Vec<IssuedApproval>,
    parts: Vec<Value>,
    results: BTreeMap<usize, Vec<DeferredOutcome>>,
}

impl Chat {
    async fn new(calls: usize) -> Self {
        let bench = Bench::new();
        let (mut issued, mut parts) = (Vec::new(), Vec::new());
        for call in 0..calls {
            let issued_approval = bench.ask(&id(call), input(call)).await;
            let approval = &issued_approval.approval_id;
            parts.push(unanswered("delete_file", &id(call), input(call), approval));
            issued.push(issued_approval);
        }
        Chat { bench, issued, parts, results: BTreeMap::new() }
    }

    fn answer(&mut self, call: usize, approved: bool) {
        respond(&mut self.parts[call], approved);
    }

    /// Sends the history, and applies the outcomes to the parts. The parts are in the order of the
    /// decisions, as those of concurrent calls may be.
    async fn send(&mut self, sequence: &Sequence, has_new_message: bool) -> DeferredToolResults {
        let parts: Vec<Value> =
            sequence.order.iter().map(|&call| self.parts[call].clone()).collect();
        let body = match has_new_message {
            true => body_with_new_message(&parts),
            false => body(&parts),
        };
        let (results, ended) = self.bench.settled(&ada(), &body).await;
        assert_eq!(results.results().len(), ended.len(), "{sequence:?}");
        for result in results.results() {
            assert!(result.is_final, "{sequence:?}");
            let call = call_number(&result.tool_call_id);
            let part = &mut self.parts[call];
            match &result.outcome {
                DeferredOutcome::Denied { .. } => part["state"] = "output-denied".into(),
                DeferredOutcome::Approved { input: ran, .. } => {
                    assert_eq!(ran.as_str(), input(call).to_string(), "{sequence:?}");
                    part["state"] = "output-available".into();
                    part["output"] = input(call);
                }
                other => panic!("{other:?} {sequence:?}"),
            }
            self.results.entry(call).or_default().push(result.outcome.clone());
        }
        for outcome in ended {
            let is_end = match &outcome {
                DeferredOutcome::Denied { .. } => true,
                DeferredOutcome::Executed { outcome } => matches!(outcome, ToolOutcome::Output(_)),
                _ => false,
            };
            assert!(is_end, "{outcome:?} {sequence:?}");
        }
        for call in results.superseded() {
            let outcome = DeferredOutcome::Superseded;
            self.results.entry(call_number(&call.tool_call_id)).or_default().push(outcome);
        }
        results
    }
}

async fn check_sequence(sequence: &Sequence) {
    let mut chat = Chat::new(sequence.answers.len()).await;
    let (answered, unanswered) = sequence.order.split_at(sequence.answered);
    for (at, some) in answered.chunks(sequence.at_once).enumerate() {
        for &call in some {
            chat.answer(call, sequence.answers[call]);
        }
        let results = chat.send(sequence, false).await;
        assert_eq!(results.results().len(), some.len(), "{sequence:?}");
        let done = (at * sequence.at_once) + some.len();
        let mut open: Vec<usize> = sequence.order[done..].to_vec();
        open.sort_unstable();
        let mut pending: Vec<usize> =
            results.pending().iter().map(|call| call_number(&call.tool_call_id)).collect();
        pending.sort_unstable();
        assert_eq!(pending, open, "an undecided call stays pending: {sequence:?}");
    }
    if !unanswered.is_empty() {
        let results = chat.send(sequence, true).await;
        assert!(results.pending().is_empty(), "{sequence:?}");
        assert_eq!(results.superseded().len(), unanswered.len(), "{sequence:?}");
        for &call in unanswered {
            assert!(!chat.bench.is_pending(&chat.issued[call]).await, "{sequence:?}");
        }
        // A superseded request cannot be answered any more.
        let late_approvals: Vec<Value> = unanswered
            .iter()
            .map(|&call| {
                let mut part = chat.parts[call].clone();
                respond(&mut part, true);
                part
            })
            .collect();
        for outcome in chat.bench.outcomes(&body(&late_approvals)).await {
            assert_eq!(outcome, DeferredOutcome::Superseded, "{sequence:?}");
        }
    }
    let calls = 0..sequence.answers.len();
    for call in calls.clone() {
        let results = chat.results.get(&call).map_or(&[][..], |results| results);
        let [result] = results else { panic!("{call} has {results:?}: {sequence:?}") };
        let is_approved = sequence.answers[call] && answered.contains(&call);
        assert_eq!(matches!(result, DeferredOutcome::Approved { .. }), is_approved, "{sequence:?}");
    }
    let mut effects = chat.bench.effects();
    effects.sort_unstable();
    let approved = calls.filter(|call| sequence.answers[*call] && answered.contains(call));
    let approved: Vec<String> = approved.map(|call| input(call).to_string()).collect();
    assert_eq!(effects, approved, "approved calls ran once, and no others: {sequence:?}");
}

fn id(call: usize) -> String {
    format!("call_{call}")
}

fn call_number(tool_call_id: &str) -> usize {
    tool_call_id.strip_prefix("call_").unwrap().parse().unwrap()
}

fn input(call: usize) -> Value {
    json!({"path": format!("{call}.txt")})
}

#[tokio::test]
async fn in_every_order_of_decisions_each_call_gets_the_outcome_that_the_user_decided() {
    let sequences = sequences();
    for sequence in &sequences {
        check_sequence(sequence).await;
    }
    println!("{} sequences of decisions on up to four calls", sequences.len());
    let counts = (1..=4).map(|calls| (1 << calls) * FACTORIAL[calls] * (calls + 1) * 2);
    assert_eq!(sequences.len(), counts.sum::<usize>());
}

const FACTORIAL: [usize; 5] = [1, 1, 2, 6, 24];
