//! Valid requests that are changed at random, sent by their user and by another user. The checks
//! read what the tools did: no call runs without the user's approval, no call runs twice, and
//! pending calls can still be approved.
//!
//! `MUTATED_REQUESTS=1000000 cargo test --release --test attacks mutated -- --nocapture` runs the
//! long version.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use axum::http::Method;
use chat_test_support::test_server::{Client, Effect, Host};
use serde_json::{Value, json};
use test_support::patience;
use test_support::rng::Dice;

use super::mutations::{Pool, mutated};
use crate::panics;

const SEED: u64 = 0x6174_7461_636b;
const REQUESTS_PER_WORLD: usize = 25;
/// The name of the threads that send mutants.
const WORKER: &str = "mutants";

/// A pending approval, and the effect that may happen if its user approves it.
struct PendingApproval {
    user: String,
    chat: String,
    call: String,
    token: String,
    effect: Effect,
    is_used: bool,
}

/// Two chats of one user and one of another, each with pending approvals.
struct World {
    host: Host,
    clients: Vec<Client>,
    approvals: Vec<PendingApproval>,
    bodies: Vec<Value>,
    pool: Pool,
    /// The sent requests with their senders, printed on a failure.
    sent: Vec<String>,
}

#[derive(Default)]
struct Tally {
    requests: usize,
    statuses: BTreeMap<u16, usize>,
    error_chunks: usize,
    /// Mutants that were still an approval of the user, and ran.
    ran: usize,
    /// Calls that were pending at the end, were approved, and ran.
    approved_at_end: usize,
}

impl World {
    async fn new() -> Self {
        let host = Host::new();
        let mut clients = Vec::new();
        for (user, chat, say) in [
            ("alice", "first", "delete notes.txt"),
            ("alice", "second", "mixed draft.md"),
            ("mallory", "hers", "delete old.log"),
        ] {
            let mut client = Client::new(user, chat);
            client.say(&host, say).await;
            clients.push(client);
        }
        // Approvals that were redeemed or denied earlier.
        let mut old = Client::new("alice", "old");
        let mut old_tokens = Vec::new();
        for approved in [true, false] {
            old.say(&host, "delete report.pdf").await;
            old_tokens.extend(old.approval_ids());
            old.answer(&host, approved).await;
        }
        let mut bodies: Vec<Value> = clients.iter().map(|client| client.answered(true)).collect();
        bodies.push(clients[1].answered(false));
        let messages: Vec<Value> =
            bodies.iter().chain([&old.body()]).flat_map(|body| items(&body["messages"])).collect();
        let mut world = World {
            host,
            clients,
            bodies,
            approvals: Vec::new(),
            pool: Pool::default(),
            sent: Vec::new(),
        };
        world.update_pending().await;
        let approvals = &world.approvals;
        let texts =
            approvals.iter().flat_map(|approval| [approval.call.clone(), approval.chat.clone()]);
        let texts = texts.chain(messages.iter().map(|message| text(&message["id"]).to_owned()));
        world.pool = Pool {
            texts: texts.collect(),
            tokens: approvals
                .iter()
                .map(|approval| approval.token.clone())
                .chain(old_tokens)
                .collect(),
            parts: messages.iter().flat_map(|message| items(&message["parts"])).collect(),
            messages,
        };
        world
    }

    /// Sends a mutant, and checks its effects.
    async fn attack(&mut self, dice: &mut Dice, tally: &mut Tally) {
        let sender = if dice.chance(60) { "alice" } else { "mallory" };
        let out_of_band = dice.chance(10);
        let (path, body) = if out_of_band {
            let decision = |token: &String| json!({"approvalId": token, "approved": true});
            let tokens = &self.pool.tokens;
            let body = match dice.chance(70) {
                true => json!({"decisions": [
                    decision(&tokens[dice.below(tokens.len())]),
                    decision(&tokens[dice.below(tokens.len())]),
                ]}),
                false => {
                    json!({"chatId": dice.pick(&["first", "second", "hers"]), "approved": true})
                }
            };
            ("/api/approvals", body)
        } else {
            let mut body = self.bodies[dice.below(self.bodies.len())].clone();
            if sender == "mallory" && dice.chance(70) {
                // A request for another user's chat is rejected as a whole.
                body["id"] = "hers".into();
            }
            ("/api/chat", body)
        };
        let bytes = mutated(dice, &body, &self.pool);
        let shown = String::from_utf8_lossy(&bytes).into_owned();
        self.sent.push(format!("{sender} to {path}: {shown}"));
        let before = self.host.tools.effects().len();
        let pending = self.update_pending().await;
        let answer = self.host.send(sender, Method::POST, path, bytes).await;
        if out_of_band && answer.status == 200 {
            // Accepted decisions run after the response.
            let decided = items(&answer.json()["decisions"]);
            let counts = |approval: &&PendingApproval| {
                let is_accepted_approval =
                    |decision: &Value| decision["approved"] == true && decision["accepted"] == true;
                !approval.is_used
                    && decided.iter().any(|decision| {
                        is_accepted_approval(decision) && decision["approvalId"] == approval.token
                    })
            };
            let counting = self.approvals.iter().filter(counts).count();
            let until = Instant::now() + patience();
            while self.host.tools.effects().len() < before + counting {
                let is_late = Instant::now() >= until;
                assert!(!is_late, "{} did not run: {}", answer.text, self.sent.join("\n"));
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        tally.requests += 1;
        *tally.statuses.entry(answer.status.as_u16()).or_default() += 1;
        assert!(answer.status.as_u16() < 500, "{}: {sender}: {shown}", answer.status);
        if answer.status == 200 && !out_of_band {
            assert!(answer.text.ends_with("data: [DONE]\n\n"), "{}: {shown}", answer.text);
            tally.error_chunks += answer.of_type("error").len();
        }
        for effect in self.host.tools.effects().split_off(before) {
            let is_match = |approval: &&mut PendingApproval| {
                approval.effect == effect
                    && !approval.is_used
                    && approval.decides(sender, &shown, true)
            };
            let approval = self.approvals.iter_mut().find(is_match);
            let Some(approval) = approval else {
                let same = self.approvals.iter().filter(|approval| approval.effect == effect);
                let same: Vec<_> = same
                    .map(|approval| (&approval.chat, &approval.token, approval.is_used))
                    .collect();
                panic!("{effect:?} ran, of {same:?}, after\n{}", self.sent.join("\n"));
            };
            approval.is_used = true;
            tally.ran += 1;
        }
        let still_pending = self.update_pending().await;
        for (approval, (was, is)) in
            self.approvals.iter().zip(pending.into_iter().zip(still_pending))
        {
            let may_close = approval.decides(sender, &shown, true)
                || approval.decides(sender, &shown, false)
                || approval.is_superseded_by(sender, &shown);
            assert!(was == is || may_close, "{} was closed by {sender}: {shown}", approval.call);
        }
    }

    /// Returns for each known approval whether it is pending. Adds new approvals: a mutant may
    /// cause the model to request some.
    async fn update_pending(&mut self) -> Vec<bool> {
        let mut waiting = Vec::new();
        for user in ["alice", "mallory"] {
            for approval in self.host.pending(user).await {
                let token = text(&approval["approvalId"]).to_owned();
                waiting.push(token.clone());
                if self.approvals.iter().all(|known| known.token != token) {
                    self.approvals.push(PendingApproval {
                        user: user.to_owned(),
                        chat: text(&approval["chatId"]).to_owned(),
                        call: text(&approval["toolCallId"]).to_owned(),
                        token,
                        effect: Effect {
                            tool: text(&approval["toolName"]).to_owned(),
                            input: approval["input"].clone(),
                        },
                        is_used: false,
                    });
                }
            }
        }
        self.approvals.iter().map(|approval| waiting.contains(&approval.token)).collect()
    }

    /// Approves, with valid requests, all pending calls that the clients show.
    async fn approve(mut self, tally: &mut Tally) {
        let pending = self.update_pending().await;
        for client in &mut self.clients {
            let held = client.approval_ids();
            let before = self.host.tools.effects().len();
            let answer = client.answer(&self.host, true).await;
            let mut ran = self.host.tools.effects().split_off(before);
            for (approval, _) in self.approvals.iter().zip(&pending).filter(|(_, waits)| **waits) {
                if !held.contains(&approval.token) {
                    continue;
                }
                let at = ran.iter().position(|effect| *effect == approval.effect);
                let at =
                    at.unwrap_or_else(|| panic!("{} did not run: {}", approval.call, answer.text));
                ran.remove(at);
                tally.approved_at_end += 1;
            }
            assert!(ran.is_empty(), "{ran:?}: {}", answer.text);
        }
    }
}

impl PendingApproval {
    /// Whether this sender approves (or denies) this request with this body, read as tolerantly as
    /// possible: a decision that this function does not find does not exist.
    fn decides(&self, sender: &str, body: &str, approved: bool) -> bool {
        if sender != self.user.as_str() {
            return false;
        }
        let Some(body) = read(body) else { return false };
        let decisions = items(&body["decisions"]);
        let mut decisions = decisions.iter();
        let is_one = decisions.any(|approval| {
            text(&approval["approvalId"]) == self.token && approval["approved"] == approved
        });
        // A chat can be denied as a whole, but not approved.
        let is_all = !approved && text(&body["chatId"]) == self.chat && body["approved"] == false;
        let messages = items(&body["messages"]).into_iter().chain([body["message"].clone()]);
        let mut parts = messages
            .filter(|message| message["role"] == "assistant")
            .flat_map(|message| items(&message["parts"]));
        let is_answered =
            text(&body["id"]) == self.chat && parts.any(|part| self.is_decided_in(&part, approved));
        is_one || is_all || is_answered
    }

    fn is_decided_in(&self, part: &Value, approved: bool) -> bool {
        let tool = match text(&part["type"]) {
            "dynamic-tool" => text(&part["toolName"]),
            kind => kind.strip_prefix("tool-").unwrap_or_default(),
        };
        let number = text(&part["toolCallId"]).strip_prefix(&self.call);
        let is_call = number.is_some_and(|rest| {
            rest.is_empty()
                || rest.starts_with('-') && rest[1..].bytes().all(|b| b.is_ascii_digit())
        });
        let input = part.get("input");
        part["state"] == "approval-responded"
            && text(&part["approval"]["id"]) == self.token
            && part["approval"]["approved"] == approved
            && tool == self.effect.tool
            && is_call
            && input.is_none_or(|input| same(input, &self.effect.input))
    }

    /// Whether this body supersedes the request with a new user message.
    fn is_superseded_by(&self, sender: &str, body: &str) -> bool {
        let body = read(body).filter(|body| text(&body["id"]) == self.chat);
        let Some(body) = body.filter(|_| sender == self.user.as_str()) else { return false };
        let mut messages = items(&body["messages"]);
        messages.extend(body.get("message").cloned());
        let question = messages.iter().position(|message| {
            message["role"] == "assistant" && message.to_string().contains(&self.token)
        });
        let last_word = messages.iter().rposition(|message| message["role"] == "user");
        match question {
            Some(question) => last_word > Some(question),
            None => last_word.is_some(),
        }
    }
}

/// Parses a body as tolerantly as possible.
fn read(body: &str) -> Option<Value> {
    let body = body.replace("\\ud800", "?").replace(":1e400", ":1e300");
    serde_json::from_str(&body.replace(|c: char| c.is_ascii_control(), " ")).ok()
}

fn items(value: &Value) -> Vec<Value> {
    value.as_array().cloned().unwrap_or_default()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Whether two values are equal to a reader whose numbers are doubles.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(key, a)| b.get(key).is_some_and(|b| same(a, b)))
        }
        _ => a == b,
    }
}

#[test]
fn no_mutated_request_runs_a_call_that_its_user_did_not_approve() {
    let requests: usize = match std::env::var("MUTATED_REQUESTS") {
        Ok(number) => number.parse().expect("MUTATED_REQUESTS is a number"),
        Err(_) => 5_000,
    };
    panics::record();
    let worlds = requests.div_ceil(REQUESTS_PER_WORLD);
    let threads = 2;
    let workers: Vec<_> = (0..threads)
        .map(|worker| {
            let thread = thread::Builder::new().name(WORKER.to_owned());
            thread
                .spawn(move || {
                    let runtime =
                        tokio::runtime::Builder::new_current_thread().enable_all().build();
                    let runtime = runtime.unwrap();
                    let mut tally = Tally::default();
                    for case in (worker..worlds).step_by(threads) {
                        runtime.block_on(async {
                            let mut dice = Dice::new(SEED, case as u64);
                            let mut world = World::new().await;
                            for _ in 0..REQUESTS_PER_WORLD {
                                world.attack(&mut dice, &mut tally).await;
                            }
                            world.approve(&mut tally).await;
                        });
                    }
                    tally
                })
                .unwrap()
        })
        .collect();
    let mut all = Tally::default();
    for worker in workers {
        let tally = worker.join().expect("a worker found a violation");
        all.requests += tally.requests;
        all.error_chunks += tally.error_chunks;
        all.ran += tally.ran;
        all.approved_at_end += tally.approved_at_end;
        for (status, times) in tally.statuses {
            *all.statuses.entry(status).or_default() += times;
        }
    }
    let Tally { requests, statuses, error_chunks, ran, approved_at_end } = all;
    println!(
        "{requests} mutants: statuses {statuses:?}, {error_chunks} `error` chunks; {ran} were still \
         an approval by the user and ran; {approved_at_end} pending calls were approved at the end \
         and ran"
    );
    let panics = panics::on_threads_named(WORKER);
    assert!(panics.is_empty(), "{panics:?}");
    // Otherwise the mutants would be too similar to the originals, or too different, to test
    // anything.
    assert!(
        ran > worlds / 4 && approved_at_end > worlds / 3,
        "{ran} and {approved_at_end} of {worlds} worlds"
    );
}
