//! Edits, answers, revocations, expiries, new messages, crashes and failures of the ledger in random orders, on two
//! servers: a tool runs only with an input that a permitted principal has seen and approved, and once.
//!
//! `APPROVAL_ORDERS` sets the number of orders (250), `APPROVAL_ORDERS_SEED` selects them, and
//! `APPROVAL_ORDERS_ONLY` runs only the order of this number.

mod model;
mod steps;
mod world;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use test_support::requests::request;
use test_support::rng::{Dice, Shown, setting};
use tokio::time::sleep;
use ui_message_stream::Json;
use ui_message_stream::approval::store::{InMemoryLedger, LedgerStore, RedeemError};
use ui_message_stream::approval::{
    ApprovalDecision, ApprovalRecord, ApprovalStatus, IssuedApproval, Principal, RunningCalls,
    Toolbox, UnixMillis,
};
use ui_message_stream::id::ApprovalId;

use model::{
    Answer, Editable, First, Forgery, INPUTS, Input, LEASE, Model, PRINCIPALS, Post, Request,
    TOOLS, TTL, canonical,
};
use steps::{Step, next_step};
use world::{DONE, DONE_AND_FAILS, FAILS, Fate, Host, START, Server, number_of, principal};

#[derive(Default)]
struct World {
    ledger: Arc<InMemoryLedger>,
    host: Arc<Mutex<Host>>,
    servers: Vec<Server>,
    issued: Vec<IssuedApproval>,
    model: Model,
    posts: Vec<Post>,
    responses: Vec<RunningCalls>,
    /// How many started calls were checked.
    checked: usize,
    /// Whether an approved call may be lost: a server crashed, a claim was dropped, or the ledger failed.
    is_disturbed: bool,
    counts: BTreeMap<String, usize>,
    steps: Steps,
}

/// The steps, each with its server and with what happens to the next operations of the ledger there.
#[derive(Default)]
struct Steps(Vec<(Step, usize, Vec<Fate>)>);

impl Drop for Steps {
    fn drop(&mut self) {
        for (step, server, fates) in self.0.iter().filter(|_| std::thread::panicking()) {
            eprintln!("server {server} {fates:?}: {step:?}");
        }
    }
}

impl World {
    fn new() -> Self {
        let ledger = Arc::new(InMemoryLedger::with_test_clock(START));
        let host = Arc::new(Mutex::new(Host { now: START.0, ..Host::default() }));
        let servers = (0..2).map(|number| Server::new(number, &ledger, &host)).collect();
        let model = Model { now: START.0, ..Model::default() };
        World { ledger, host, servers, model, ..World::default() }
    }

    fn count(&mut self, event: impl Into<String>) {
        *self.counts.entry(event.into()).or_default() += 1;
    }

    /// Takes a step, and compares its effects with those by the model.
    async fn take(&mut self, step: &Step, server: usize, fates: &[Fate]) {
        self.steps.0.push((step.clone(), server, fates.to_vec()));
        let before = self.records().await;
        let mut expected = vec![None; self.issued.len()];
        self.servers[server].connection.set(fates, DONE);
        match step {
            Step::Ask { owner, tool } => self.ask(*owner, *tool, server).await,
            Step::Answer(post) | Step::Repeat(post) => {
                expected = self.model.outcomes_of(post);
                self.count_answers(post);
                self.answer(post, server).await;
            }
            Step::Revoke(number) => {
                if self.model.requests[*number].first.is_none() {
                    expected[*number] = Some((ApprovalStatus::Revoked, None));
                }
                let _ = self.servers[server].approvals.revoke(self.issued[*number].record).await;
            }
            Step::EndTool(number) => self.end_tool(*number),
            Step::Wait { units, is_stalled, expires } => {
                self.wait(*units, *is_stalled).await;
                if *expires {
                    let _ = self.servers[server].approvals.expire_due().await;
                }
            }
            Step::Crash => self.crash(server),
            Step::Leave => self.responses.clear(),
        }
        // All tasks have run when the time passes.
        sleep(Duration::from_millis(1)).await;
        let failed = self.servers[server].connection.failures();
        self.servers[server].connection.set(&[], DONE);
        if failed > 0 {
            self.is_disturbed = true;
            self.count("the ledger failed");
        }
        self.check_outcomes(&before, &expected, failed > 0).await;
        self.check_started();
    }

    async fn ask(&mut self, owner: usize, tool: usize, server: usize) {
        let (number, tool, turn) = (self.issued.len(), &TOOLS[tool], self.model.turns[owner]);
        let amount = 900 + number;
        // Requests that expire at the same time have a random order.
        self.set_time(self.model.now + 1);
        let approvals = self.servers[server].approvals.for_chat(&principal(owner), &"chat".into());
        let (message, call) = (format!("a{turn}").into(), format!("call_{number}").into());
        let input = Json::parse(&requested(amount).to_string()).unwrap();
        let issued = approvals.request_approval(&message, &call, tool.name, &input, None).await;
        self.issued.push(issued.unwrap());
        let (expires_at, first, started_at) = (self.model.now + TTL, None, None);
        let request = Request { owner, tool, amount, turn, expires_at, first, started_at };
        self.model.requests.push(request);
    }

    async fn answer(&mut self, post: &Post, server: usize) {
        let is_refused = self.model.is_refused(post);
        let answered = match post.is_history {
            true => self.post_history(post, server).await,
            false => self.decide(post, server).await,
        };
        match answered {
            Ok(responses) => {
                assert!(!is_refused, "an input that is not accepted is refused");
                self.responses.extend(responses);
            }
            Err(RedeemError::Input(error)) => assert!(is_refused, "{error}"),
            Err(error) => assert!(self.servers[server].connection.failures() > 0, "{error}"),
        }
        if post.has_new_message && post.by == post.owner {
            self.model.turns[post.owner] += 1;
        }
        self.posts.push(post.clone());
    }

    async fn post_history(
        &mut self,
        post: &Post,
        server: usize,
    ) -> Result<Vec<RunningCalls>, RedeemError> {
        let chat = request(&self.history(post));
        let (Server { approvals, tools, .. }, user) = (&self.servers[server], principal(post.by));
        if post.gives_up {
            drop(approvals.redeem(&user, &chat).await?);
            self.is_disturbed = true;
            self.count("claims were dropped");
            return Ok(Vec::new());
        }
        let tools = tools.clone();
        let running = approvals.run(&user, &chat, move |call, progress| tools.run(call, progress));
        Ok(vec![running.await?])
    }

    /// The decisions of a user, as `ChatServer::decide` applies them.
    async fn decide(&self, post: &Post, server: usize) -> Result<Vec<RunningCalls>, RedeemError> {
        let (user, approvals) = (principal(post.by), &self.servers[server].approvals);
        let decisions = post.answers.iter().map(|answer| {
            let mut decision = ApprovalDecision::new(self.id_of(answer), answer.approves);
            decision.input = answer.input.map(|input| self.input_of(answer.request, input));
            decision
        });
        let groups = approvals.group_by_message(&user, decisions.collect()).await?;
        let mut running = Vec::new();
        let chat_of =
            |owner: &Principal| approvals.for_chat(&user, &"chat".into()).on_behalf_of(owner);
        for group in &groups {
            chat_of(&group.requester).check_changed_inputs(&group.plan()).await?;
        }
        for group in groups {
            let last = self.model.turns[number_of(&group.requester)];
            let is_followed = move |id: &str| id[1..].parse::<usize>().unwrap() < last;
            let plan = group.plan().with_followed_messages(move |id| is_followed(id));
            running.push(chat_of(&group.requester).resolve(plan, &[]).await?);
        }
        Ok(running)
    }

    fn id_of(&self, answer: &Answer) -> ApprovalId {
        let id = &self.issued[answer.request].approval_id;
        match answer.forgery {
            // Another seal.
            Some(Forgery::Id) => {
                let (text, last) = id.split_at(id.len() - 1);
                format!("{text}{}", if last == "A" { "E" } else { "A" }).into()
            }
            _ => id.clone(),
        }
    }

    fn input_of(&self, request: usize, input: &Input) -> Json {
        Json::parse(&input.text(self.model.requests[request].amount)).unwrap()
    }

    /// The body of a request that posts the history of an owner.
    fn history(&self, post: &Post) -> Value {
        let (mut messages, mut inputs) = (Vec::new(), HashMap::new());
        let text = json!([{"type": "text", "text": "Well?"}]);
        for turn in 0..=post.shown {
            messages.push(json!({"id": format!("u{turn}"), "role": "user", "parts": text}));
            let mut parts = text.as_array().unwrap().clone();
            for (number, request) in self.model.requests.iter().enumerate() {
                if (request.owner, request.turn) != (post.owner, turn) {
                    continue;
                }
                let answer = post.answers.iter().find(|answer| answer.request == number);
                let mut part = json!({
                    "type": format!("tool-{}", request.tool.name), "toolCallId": format!("call_{number}"),
                    "state": "approval-requested", "input": requested(request.amount),
                    "approval": {"id": self.issued[number].approval_id},
                });
                if let Some(answer) = answer {
                    let id = self.id_of(answer);
                    part["state"] = json!("approval-responded");
                    part["approval"] = json!({"id": id, "approved": answer.approves});
                    match answer.forgery {
                        Some(Forgery::Input) => part["input"]["to"] = json!("eve"),
                        Some(Forgery::Tool) => part["type"] = json!("tool-other"),
                        Some(Forgery::Call) => {
                            part["toolCallId"] = json!(format!("other_{number}"))
                        }
                        _ => {}
                    }
                    let input = answer.input.map(|input| self.input_of(answer.request, input));
                    inputs.extend(input.map(|input| (id, input)));
                }
                parts.push(part);
            }
            messages.push(json!({"id": format!("a{turn}"), "role": "assistant", "parts": parts}));
        }
        let mut continued = json!(format!("a{}", post.shown));
        if post.has_new_message {
            messages.push(json!({"id": "new", "role": "user", "parts": text}));
            continued = Value::Null;
        }
        let id = |stray: usize| self.issued[stray].approval_id.clone();
        inputs.extend(post.stray.map(|stray| (id(stray), self.input_of(stray, &INPUTS[1]))));
        json!({
            "id": "chat", "messageId": continued, "trigger": "submit-message", "messages": messages,
            "approvalInputs": inputs,
        })
    }

    /// A running tool has its effect, and returns.
    fn end_tool(&mut self, number: usize) {
        let mut host = self.host.lock().unwrap();
        let running = host.started.iter_mut().filter(|started| started.end.is_some());
        if let Some(end) = running.skip(number).find_map(|started| started.end.take()) {
            let _ = end.send(());
        }
    }

    async fn wait(&mut self, units: u64, is_stalled: bool) {
        let unit = Duration::from_secs(10);
        for _ in 0..units {
            self.set_time(self.model.now + unit.as_millis() as u64);
            if !is_stalled {
                sleep(unit).await;
            }
        }
    }

    fn set_time(&mut self, now: u64) {
        self.model.now = now;
        self.host.lock().unwrap().now = now;
        self.ledger.set_test_time(UnixMillis(now));
        let open = self.model.requests.iter_mut().filter(|request| request.first.is_none());
        for request in open.filter(|request| request.expires_at <= now) {
            request.first = Some((ApprovalStatus::Expired, None));
            *self.counts.entry("Expired".into()).or_default() += 1;
        }
    }

    fn crash(&mut self, server: usize) {
        let crashed = &self.servers[server];
        crashed.connection.set(&[], FAILS);
        let number = crashed.tools.server;
        self.servers[server] = Server::new(number + 2, &self.ledger, &self.host);
        self.is_disturbed = true;
        let mut host = self.host.lock().unwrap();
        let lost = host.started.iter_mut().filter(|started| started.server == number);
        let lost = lost.filter_map(|started| started.end.take()).count();
        drop(host);
        for _ in 0..lost {
            self.count("a crash while a tool ran");
        }
    }

    async fn records(&self) -> Vec<ApprovalRecord> {
        let ids: Vec<_> = self.issued.iter().map(|issued| issued.record).collect();
        let loaded = self.ledger.load(&ids).await.unwrap().records;
        loaded.into_iter().map(|versioned| versioned.record).collect()
    }
}

/// The input of a request.
fn requested(amount: usize) -> Value {
    json!({"to": "ada", "amount": amount})
}

fn canonical_request(number: usize) -> Value {
    canonical(&requested(900 + number).to_string())
}

/// The outcome of a request by its record.
fn outcome_of(record: &ApprovalRecord, now: u64) -> Option<First> {
    let status =
        Some(record.status(UnixMillis(now))).filter(|it| *it != ApprovalStatus::Pending)?;
    let decision = record.decision().filter(|_| status == ApprovalStatus::Approved);
    let input = canonical(record.approved_input().as_str());
    Some((status, decision.map(|decision| (number_of(&decision.decided_by), input))))
}

impl World {
    /// Compares the ledger with the outcomes that the model expects of the step.
    async fn check_outcomes(
        &mut self,
        before: &[ApprovalRecord],
        expected: &[Option<First>],
        has_failed: bool,
    ) {
        for (number, (record, before)) in self.records().await.iter().zip(before).enumerate() {
            let (observed, expected) = (outcome_of(record, self.model.now), &expected[number]);
            let request = &mut self.model.requests[number];
            if request.first.is_some() {
                assert_eq!(observed, request.first, "the first outcome of {number} stands");
                let is_kept = record == before || record.status(START) == ApprovalStatus::Expired;
                assert!(is_kept || record.decision() == before.decision(), "{number} is kept");
                continue;
            }
            if observed.is_none() && (expected.is_none() || has_failed) {
                assert_eq!(record, before, "nothing of {number} changes");
                continue;
            }
            assert_eq!(&observed, expected, "the outcome of {number}");
            request.first = observed;
            let (status, approval) = request.first.as_ref().unwrap();
            let is_changed =
                approval.as_ref().is_some_and(|(_, it)| *it != canonical_request(number));
            let event =
                format!("{status:?}{}", if is_changed { " with a changed input" } else { "" });
            self.count(event);
        }
    }

    /// Checks the calls that were given to a tool since the last step.
    fn check_started(&mut self) {
        let host = self.host.clone();
        let host = host.lock().unwrap();
        for started in &host.started[self.checked..] {
            self.checked += 1;
            let call = &started.call;
            let is_its_key = |issued: &IssuedApproval| issued.record == call.idempotency_key;
            let number = self.issued.iter().position(is_its_key).unwrap();
            let request = &mut self.model.requests[number];
            let input: Value = canonical(call.input.as_str());
            let Some((ApprovalStatus::Approved, Some((by, approved)))) = &request.first else {
                panic!("{number} ran, and was not approved: {:?}", request.first);
            };
            assert_eq!(input, *approved, "{number} ran with the input that was approved");
            assert!(request.may_decide(*by, true), "{number} was approved by {by}");
            assert_eq!(call.decision.decided_by, principal(*by));
            assert_eq!(
                (&*call.tool_name, &call.requester),
                (request.tool.name, &principal(request.owner))
            );
            let asked = canonical_request(number);
            let may_change = |field: &str| match request.tool.editable {
                Editable::Nothing => false,
                Editable::Amount => field == "amount",
                Editable::Everything => true,
            };
            let fields = asked.as_object().unwrap().keys().chain(input.as_object().unwrap().keys());
            for field in fields.filter(|field| !may_change(field)) {
                assert_eq!(input[field], asked[field], "`{field}` of {number} is not editable");
            }
            let mut event = if input == asked { "ran" } else { "ran with a changed input" };
            if let Some(before) = request.started_at {
                let is_lost = started.at >= before + LEASE;
                assert!(request.tool.is_idempotent && is_lost, "{number} ran twice");
                event = "ran again after its lease";
            }
            request.started_at = Some(started.at);
            *self.counts.entry(event.into()).or_default() += 1;
        }
    }

    /// Counts the answers that change nothing.
    fn count_answers(&mut self, post: &Post) {
        let is_refused = self.model.is_refused(post);
        for answer in &post.answers {
            let Request { owner, first, amount, .. } = &self.model.requests[answer.request];
            let may_decide =
                self.model.requests[answer.request].may_decide(post.by, answer.approves);
            let sent = canonical(&answer.input.unwrap_or(&INPUTS[0]).text(*amount));
            let event = match first {
                None if answer.forgery.is_some() => "a forged answer",
                None if post.by == *owner && !may_decide => "an approval of one's own call",
                None if PRINCIPALS[post.by].0 != PRINCIPALS[*owner].0 => {
                    "an answer of another tenant"
                }
                None if !may_decide => "an answer of a stranger",
                None if post.is_history && post.by != *owner => "a history of another chat",
                None if is_refused => "an input that is not accepted",
                Some((_, Some((_, input)))) if answer.approves && *input != sent => {
                    "another version after the approval"
                }
                Some((_, Some(_))) if !answer.approves => "a denial after the approval",
                Some((status, None)) if answer.approves => {
                    self.count(format!("an approval after {status:?}"));
                    continue;
                }
                _ => continue,
            };
            self.count(event);
        }
    }

    /// Lets all tools end. Each approved call has run, unless it was lost.
    async fn end(&mut self) {
        while self.host.lock().unwrap().started.iter().any(|started| started.end.is_some()) {
            self.end_tool(0);
        }
        sleep(Duration::from_secs(1)).await;
        self.check_started();
        for (number, request) in self.model.requests.iter().enumerate() {
            let is_approved = matches!(request.first, Some((ApprovalStatus::Approved, _)));
            assert!(
                self.is_disturbed || is_approved == request.started_at.is_some(),
                "{number} ran"
            );
        }
    }
}

#[test]
fn in_every_order_a_tool_runs_once_and_only_with_an_input_that_a_permitted_principal_approved() {
    let seed = setting("APPROVAL_ORDERS_SEED").unwrap_or(20_261_126);
    let cases = setting("APPROVAL_ORDERS").unwrap_or(250);
    let only = setting("APPROVAL_ORDERS_ONLY");
    let mut counts = BTreeMap::<String, usize>::new();
    for case in only.map_or(0..cases, |only| only..only + 1) {
        let _shown = Shown { seed, case };
        let mut dice = Dice::new(seed, case);
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_time().start_paused(true).build().unwrap();
        let mut world = World::new();
        runtime.block_on(async {
            for _ in 0..4 + dice.below(40) {
                let (step, server) =
                    (next_step(&world.model, &world.posts, &mut dice), dice.below(2));
                let is_failing = !matches!(step, Step::Ask { .. }) && dice.chance(12);
                let fates = (0..if is_failing { 1 + dice.below(8) } else { 0 })
                    .map(|_| [DONE, FAILS, DONE_AND_FAILS][dice.below(3)]);
                world.take(&step, server, &fates.collect::<Vec<_>>()).await;
            }
            world.end().await;
        });
        for (event, count) in &world.counts {
            *counts.entry(event.clone()).or_default() += count;
        }
    }
    println!("{cases} orders (APPROVAL_ORDERS_SEED={seed}): {counts:#?}");
    // A test that does nothing would pass as well.
    if cases >= 250 && only.is_none() {
        let least = counts.values().min().copied().unwrap_or_default();
        assert!(counts.len() == EVENTS && least as u64 >= cases / 25, "{counts:?}");
    }
}

/// How many kinds of events there are.
const EVENTS: usize = 26;
