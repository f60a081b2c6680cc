//! Requests that were honest before they were changed at random, sent by the person and by somebody
//! else. The judge is what the tools did: nothing that a person did not say yes to, nothing twice,
//! and what still waits can be approved.
//!
//! `MUTATED_REQUESTS=1000000 cargo test --release --test attacks mutated -- --nocapture` is the long
//! form.

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use axum::http::Method;
use serde_json::{Value, json};
use test_support::rng::Dice;
use test_support::test_server::{Client, Effect, Host};

use super::mutations::{Pool, mutated};
use crate::panics;

const SEED: u64 = 0x6174_7461_636b;
const REQUESTS_PER_WORLD: usize = 25;
/// The name of the threads that send mutants.
const WORKER: &str = "mutants";

/// A question that waits, and what may run if its person says yes.
struct Asked {
    person: String,
    chat: String,
    call: String,
    token: String,
    effect: Effect,
    is_used: bool,
}

/// Two chats of one person and one of another, in all of which something was asked.
struct World {
    host: Host,
    clients: Vec<Client>,
    asked: Vec<Asked>,
    bodies: Vec<Value>,
    pool: Pool,
    /// What was sent, by whom, for whoever looks for what went wrong.
    sent: Vec<String>,
}

#[derive(Default)]
struct Tally {
    requests: usize,
    statuses: BTreeMap<u16, usize>,
    error_chunks: usize,
    /// Mutants that were still a person's yes, and ran.
    ran: usize,
    /// Approvals that waited in the end, were given, and ran.
    honest: usize,
}

impl World {
    async fn new() -> Self {
        let host = Host::new();
        let mut clients = Vec::new();
        for (person, chat, say) in [
            ("alice", "first", "delete notes.txt"),
            ("alice", "second", "mixed draft.md"),
            ("mallory", "hers", "delete old.log"),
        ] {
            let mut client = Client::new(person, chat);
            client.say(&host, say).await;
            clients.push(client);
        }
        // What was used and denied long ago.
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
            asked: Vec::new(),
            pool: Pool::default(),
            sent: Vec::new(),
        };
        world.see_what_waits().await;
        let asked = &world.asked;
        let texts = asked.iter().flat_map(|one| [one.call.clone(), one.chat.clone()]);
        let texts = texts.chain(messages.iter().map(|message| text(&message["id"]).to_owned()));
        world.pool = Pool {
            texts: texts.collect(),
            tokens: asked.iter().map(|one| one.token.clone()).chain(old_tokens).collect(),
            parts: messages.iter().flat_map(|message| items(&message["parts"])).collect(),
            messages,
        };
        world
    }

    /// Sends a mutant, and judges what came of it.
    async fn attack(&mut self, dice: &mut Dice, tally: &mut Tally) {
        let sender = if dice.chance(60) { "alice" } else { "mallory" };
        let elsewhere = dice.chance(10);
        let (path, body) = if elsewhere {
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
                // A chat of somebody else is refused as a whole.
                body["id"] = "hers".into();
            }
            ("/api/chat", body)
        };
        let bytes = mutated(dice, &body, &self.pool);
        let shown = String::from_utf8_lossy(&bytes).into_owned();
        self.sent.push(format!("{sender} to {path}: {shown}"));
        let before = self.host.tools.effects().len();
        let pending = self.see_what_waits().await;
        let answer = self.host.send(sender, Method::POST, path, bytes).await;
        if elsewhere && answer.status == 200 {
            // What counts there runs behind the response.
            let decided = items(&answer.json()["decisions"]);
            let counts = |one: &&Asked| {
                let is_yes = |said: &Value| said["approved"] == true && said["counts"] == true;
                !one.is_used
                    && decided.iter().any(|said| is_yes(said) && said["approvalId"] == one.token)
            };
            let counting = self.asked.iter().filter(counts).count();
            for attempt in 0.. {
                if self.host.tools.effects().len() >= before + counting {
                    break;
                }
                assert!(attempt < 10_000, "{} did not run: {}", answer.text, self.sent.join("\n"));
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        tally.requests += 1;
        *tally.statuses.entry(answer.status.as_u16()).or_default() += 1;
        assert!(answer.status.as_u16() < 500, "{}: {sender}: {shown}", answer.status);
        if answer.status == 200 && !elsewhere {
            assert!(answer.text.ends_with("data: [DONE]\n\n"), "{}: {shown}", answer.text);
            tally.error_chunks += answer.of_type("error").len();
        }
        for effect in self.host.tools.effects().split_off(before) {
            let said = |one: &&mut Asked| {
                one.effect == effect && !one.is_used && one.says(sender, &shown, true)
            };
            let one = self.asked.iter_mut().find(said);
            let Some(one) = one else {
                let same = self.asked.iter().filter(|one| one.effect == effect);
                let same: Vec<_> = same.map(|one| (&one.chat, &one.token, one.is_used)).collect();
                panic!("{effect:?} ran, of {same:?}, after\n{}", self.sent.join("\n"));
            };
            one.is_used = true;
            tally.ran += 1;
        }
        let still = self.see_what_waits().await;
        for (one, (was, is)) in self.asked.iter().zip(pending.into_iter().zip(still)) {
            let may_close = one.says(sender, &shown, true)
                || one.says(sender, &shown, false)
                || one.is_written_past(sender, &shown);
            assert!(was == is || may_close, "{} was closed by {sender}: {shown}", one.call);
        }
    }

    /// Which of the questions wait, in their order. A model that was made to ask anew adds some.
    async fn see_what_waits(&mut self) -> Vec<bool> {
        let mut waiting = Vec::new();
        for person in ["alice", "mallory"] {
            for one in self.host.pending(person).await {
                let token = text(&one["approvalId"]).to_owned();
                waiting.push(token.clone());
                if self.asked.iter().all(|known| known.token != token) {
                    self.asked.push(Asked {
                        person: person.to_owned(),
                        chat: text(&one["chatId"]).to_owned(),
                        call: text(&one["toolCallId"]).to_owned(),
                        token,
                        effect: Effect {
                            tool: text(&one["toolName"]).to_owned(),
                            input: one["input"].clone(),
                        },
                        is_used: false,
                    });
                }
            }
        }
        self.asked.iter().map(|one| waiting.contains(&one.token)).collect()
    }

    /// Approves, honestly, of what the clients hold and still waits.
    async fn approve(mut self, tally: &mut Tally) {
        let pending = self.see_what_waits().await;
        for client in &mut self.clients {
            let held = client.approval_ids();
            let before = self.host.tools.effects().len();
            let answer = client.answer(&self.host, true).await;
            let mut ran = self.host.tools.effects().split_off(before);
            for (one, _) in self.asked.iter().zip(&pending).filter(|(_, waits)| **waits) {
                if !held.contains(&one.token) {
                    continue;
                }
                let at = ran.iter().position(|effect| *effect == one.effect);
                let at = at.unwrap_or_else(|| panic!("{} did not run: {}", one.call, answer.text));
                ran.remove(at);
                tally.honest += 1;
            }
            assert!(ran.is_empty(), "{ran:?}: {}", answer.text);
        }
    }
}

impl Asked {
    /// Whether somebody says yes, or no, to this question with these bytes, read as widely as anybody
    /// could: what this does not find, nobody said.
    fn says(&self, sender: &str, body: &str, approved: bool) -> bool {
        if sender != self.person.as_str() {
            return false;
        }
        let Some(body) = read(body) else { return false };
        let decisions = items(&body["decisions"]);
        let mut decisions = decisions.iter();
        let is_one = decisions
            .any(|one| text(&one["approvalId"]) == self.token && one["approved"] == approved);
        let is_all = text(&body["chatId"]) == self.chat && body["approved"] == approved;
        let messages = items(&body["messages"]).into_iter().chain([body["message"].clone()]);
        let mut parts = messages
            .filter(|message| message["role"] == "assistant")
            .flat_map(|message| items(&message["parts"]));
        let is_answered =
            text(&body["id"]) == self.chat && parts.any(|part| self.is_in(&part, approved));
        is_one || is_all || is_answered
    }

    fn is_in(&self, part: &Value, approved: bool) -> bool {
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

    /// Whether the person writes on instead of answering, in this chat, with these bytes.
    fn is_written_past(&self, sender: &str, body: &str) -> bool {
        let body = read(body).filter(|body| text(&body["id"]) == self.chat);
        let Some(body) = body.filter(|_| sender == self.person.as_str()) else { return false };
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

/// Reads a body as widely as anybody might.
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

/// Whether two values are the same to a reader whose numbers are doubles.
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
fn no_mutant_of_an_honest_request_runs_what_nobody_approved() {
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
        let tally = worker.join().expect("a worker found what may not be");
        all.requests += tally.requests;
        all.error_chunks += tally.error_chunks;
        all.ran += tally.ran;
        all.honest += tally.honest;
        for (status, times) in tally.statuses {
            *all.statuses.entry(status).or_default() += times;
        }
    }
    let Tally { requests, statuses, error_chunks, ran, honest } = all;
    println!(
        "{requests} mutants: statuses {statuses:?}, {error_chunks} `error` chunks; {ran} were still a \
         person's yes and ran; {honest} approvals that waited were given in the end and ran"
    );
    let panics = panics::on_threads_named(WORKER);
    assert!(panics.is_empty(), "{panics:?}");
    // Else the mutants would have been too tame, or too wild, to show anything.
    assert!(ran > worlds / 4 && honest > worlds / 3, "{ran} and {honest} of {worlds} worlds");
}
