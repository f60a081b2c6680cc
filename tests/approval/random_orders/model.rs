//! The oracle: who may decide what, which input was seen, and the first outcome of each request. It uses no rule of
//! the crate.

use serde_json::{Value, json};
use ui_message_stream::approval::ApprovalStatus;

use Editable::{Amount, Everything, Nothing};

/// How long a request may be answered, and how long a claim lasts, in milliseconds.
pub(super) const TTL: u64 = 60_000;
pub(super) const LEASE: u64 = 30_000;

/// The principals, each with its tenant. The first two own a chat.
pub(super) const PRINCIPALS: [(&str, &str); 7] = [
    ("acme", "ada"),
    ("acme", "bob"),
    ("acme", "boss"),
    ("acme", "deputy"),
    ("acme", "eve"),
    ("other", "boss"),
    ("other", "ada"),
];
pub(super) const OWNERS: usize = 2;
pub(super) const APPROVERS: [usize; 2] = [2, 3];

/// What approvers may change of an input.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Editable {
    Nothing,
    Amount,
    Everything,
}

#[derive(Debug)]
pub(super) struct Tool {
    pub(super) name: &'static str,
    pub(super) editable: Editable,
    pub(super) is_idempotent: bool,
    pub(super) decided_by_others: bool,
    pub(super) runs_after_new_message: bool,
}

const fn tool(name: &'static str, editable: Editable, flags: [bool; 3]) -> Tool {
    let [is_idempotent, decided_by_others, runs_after_new_message] = flags;
    Tool { name, editable, is_idempotent, decided_by_others, runs_after_new_message }
}

pub(super) const TOOLS: [Tool; 7] = [
    tool("send", Everything, [false, false, false]),
    tool("pay", Amount, [false, true, false]),
    tool("note", Amount, [true, false, true]),
    tool("delete", Nothing, [false, false, false]),
    tool("set", Everything, [true, true, true]),
    tool("wipe", Nothing, [true, false, false]),
    tool("book", Amount, [false, false, true]),
];

/// An input that is sent in place of the requested one: its text, and the tools that accept it. `AMOUNT` stands for
/// the requested amount.
#[derive(Debug, PartialEq)]
pub(super) struct Input(&'static str, &'static [Editable]);

pub(super) const INPUTS: [Input; 9] = [
    // The requested input, written in another way.
    Input(r#"{ "amount": AMOUNT.0, "to": "ada" }"#, &[Nothing, Amount, Everything]),
    Input(r#"{"to":"ada","amount":100}"#, &[Amount, Everything]),
    Input(r#"{"to":"ada","amount":5}"#, &[Amount, Everything]),
    Input(r#"{"to":"eve","amount":AMOUNT}"#, &[Everything]),
    Input(r#"{"to":"ada","amount":AMOUNT,"cc":"eve"}"#, &[]),
    Input(r#"{"to":7,"amount":AMOUNT}"#, &[]),
    Input("null", &[]),
    // A browser shows another number.
    Input(r#"{"to":"ada","amount":9007199254740993}"#, &[]),
    // The policy of the host.
    Input(r#"{"to":"ada","amount":1000000}"#, &[]),
];

impl Input {
    pub(super) fn text(&self, amount: usize) -> String {
        self.0.replace("AMOUNT", &amount.to_string())
    }
}

/// The value of an input. Numbers are doubles, as in a browser.
pub(super) fn canonical(text: &str) -> Value {
    let mut value: Value = serde_json::from_str(text).unwrap();
    if let Some(amount) = value.get_mut("amount") {
        *amount = json!(amount.as_f64());
    }
    value
}

/// The first outcome of a request. An approval has its approver and the input that was approved.
pub(super) type First = (ApprovalStatus, Option<(usize, Value)>);

#[derive(Debug)]
pub(super) struct Request {
    pub(super) owner: usize,
    pub(super) tool: &'static Tool,
    pub(super) amount: usize,
    /// The number of messages of the owner before the request.
    pub(super) turn: usize,
    pub(super) expires_at: u64,
    pub(super) first: Option<First>,
    /// When the tool was started last.
    pub(super) started_at: Option<u64>,
}

impl Request {
    pub(super) fn may_decide(&self, who: usize, approves: bool) -> bool {
        let is_own = who == self.owner && !(approves && self.tool.decided_by_others);
        is_own || APPROVERS.contains(&who)
    }
}

/// How the answer of a history is forged: its approval id, or what it shows of the call.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Forgery {
    Id,
    Input,
    Tool,
    Call,
}

#[derive(Debug, Clone)]
pub(super) struct Answer {
    pub(super) request: usize,
    pub(super) approves: bool,
    pub(super) input: Option<&'static Input>,
    pub(super) forgery: Option<Forgery>,
}

/// Answers that are sent together.
#[derive(Debug, Clone)]
pub(super) struct Post {
    pub(super) by: usize,
    /// Whether the history of the owner is posted. Otherwise only the decisions are.
    pub(super) is_history: bool,
    /// The owner of the requests that are answered.
    pub(super) owner: usize,
    /// The last turn that the page shows.
    pub(super) shown: usize,
    pub(super) has_new_message: bool,
    /// Whether the claims are dropped.
    pub(super) gives_up: bool,
    pub(super) answers: Vec<Answer>,
    /// A request that is not approved, and for which the history has an input nevertheless.
    pub(super) stray: Option<usize>,
}

#[derive(Debug, Default)]
pub(super) struct Model {
    pub(super) now: u64,
    pub(super) requests: Vec<Request>,
    /// The number of messages that each owner has sent.
    pub(super) turns: [usize; OWNERS],
}

impl Model {
    /// Whether a newer message closes this request, by the history or by what the server knows.
    fn lapses(&self, post: &Post, number: usize) -> bool {
        let request = &self.requests[number];
        let is_hidden = post
            .answers
            .iter()
            .any(|answer| answer.request == number && answer.forgery == Some(Forgery::Id));
        let is_shown = request.owner == post.owner && request.turn <= post.shown && !is_hidden;
        let is_followed = match post.is_history {
            true => post.has_new_message || is_shown && request.turn < post.shown,
            false => request.turn < self.turns[request.owner],
        };
        is_followed && !request.tool.runs_after_new_message && !request.tool.decided_by_others
    }

    /// A history counts in the chat of the principal that posts it.
    fn is_in_chat(post: &Post, request: &Request) -> bool {
        request.owner == if post.is_history { post.by } else { post.owner }
    }

    /// Whether an answer brings an input that must not run, so that the whole post is refused.
    pub(super) fn is_refused(&self, post: &Post) -> bool {
        post.answers.iter().any(|answer| {
            let request = &self.requests[answer.request];
            let is_wrong = |input: &Input| !input.1.contains(&request.tool.editable);
            answer.approves
                && answer.forgery != Some(Forgery::Id)
                && answer.input.is_some_and(is_wrong)
                && request.first.is_none()
                && request.may_decide(post.by, true)
                && Self::is_in_chat(post, request)
                // Decisions are checked without the messages that the server knows.
                && !(post.is_history && self.lapses(post, answer.request))
        })
    }

    /// The first outcome that this post gives to each request.
    pub(super) fn outcomes_of(&self, post: &Post) -> Vec<Option<First>> {
        let counts = |answer: &&Answer| {
            let request = &self.requests[answer.request];
            let is_permitted = request.may_decide(post.by, answer.approves);
            answer.forgery.is_none() && is_permitted && Self::is_in_chat(post, request)
        };
        // Decisions reach a chat only if one of them may be made.
        let is_received = post.is_history || post.answers.iter().any(|answer| counts(&answer));
        let is_received = is_received && !self.is_refused(post);
        let outcome = |(number, request): (usize, &Request)| {
            if !is_received || request.first.is_some() || !Self::is_in_chat(post, request) {
                return None;
            }
            let mut answers = post.answers.iter().filter(|answer| answer.request == number);
            match answers.find(counts) {
                Some(answer) if !answer.approves => Some((ApprovalStatus::Denied, None)),
                Some(_) if self.lapses(post, number) => Some((ApprovalStatus::Lapsed, None)),
                Some(answer) => {
                    let input = answer.input.unwrap_or(&INPUTS[0]).text(request.amount);
                    Some((ApprovalStatus::Approved, Some((post.by, canonical(&input)))))
                }
                None => self.lapses(post, number).then_some((ApprovalStatus::Superseded, None)),
            }
        };
        self.requests.iter().enumerate().map(outcome).collect()
    }
}
