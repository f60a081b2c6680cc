//! Calls that the provider runs once a person approved them: the yes is handed over once, whichever
//! way it comes and whatever else is open, and what is not heard of afterwards is never said not to
//! have run.

#![cfg(feature = "agent")]

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::{StreamExt, stream};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use ui_message_stream::agent::{Agent, Model, ModelRequest, ModelStream, Told, Tool};
use ui_message_stream::approval::{
    DeferredToolResult, KeyRing, PersonsDecision, Principal, UnixMillis,
};
use ui_message_stream::approvals::Approvals;
use ui_message_stream::chat::Chats;
use ui_message_stream::chat_store::MemoryChats;
use ui_message_stream::chunk::FinishReason;
use ui_message_stream::event::{AgentEvent, ToolCall};
use ui_message_stream::ledger_store::MemoryLedger;
use ui_message_stream::request::Limits;
use ui_message_stream::run::ModelEvent;
use ui_message_stream::{ChatRequest, Json, UiMessage};

/// A provider that says these things, one for each time that it is called, and then `Done`.
#[derive(Debug, Clone)]
struct Provider {
    script: Arc<Mutex<VecDeque<Says>>>,
    heard: Arc<Mutex<Vec<Value>>>,
}

#[derive(Debug, Clone, Copy)]
enum Says {
    /// It asks whether it may shorten a link.
    Asks,
    /// It asks, and calls a tool of the server that needs approval as well.
    AsksAndCalls,
    /// It asks, and calls a tool of the server that needs approval and takes a while.
    AsksAndCallsSlowly,
    /// It calls a tool of the server that takes a while and needs nobody.
    CallsSlow,
    /// It asks, and calls the slow one.
    AsksAndCallsSlow,
    /// What came of the link.
    Shortened,
    /// What came of the link, and it calls the slow one.
    ShortenedAndCallsSlow,
    /// Nothing, and it never ends.
    Hangs,
}

impl Model for Provider {
    fn call(&self, request: ModelRequest) -> ModelStream {
        self.heard.lock().unwrap().push(serde_json::to_value(&request.messages).unwrap());
        let says = self.script.lock().unwrap().pop_front();
        let asks = || {
            let call = ToolCall::new("link", "mcp.shorten").provider_executed().dynamic();
            ModelEvent::ProviderAsks(Box::new(call), r#"{"url":"https://long.example"}"#.to_owned())
        };
        let calls = |id: &str, tool: &'static str| {
            let call = ToolCall::new(id, tool);
            ModelEvent::Call(Box::new(call), r#"{"n":1}"#.to_owned())
        };
        let events = match says {
            Some(Says::Hangs) => return Box::pin(stream::pending()),
            Some(Says::Asks) => vec![asks()],
            Some(Says::AsksAndCallsSlowly) => vec![asks(), calls("own", "slow_delete")],
            Some(Says::AsksAndCalls) => vec![asks(), calls("own", "delete")],
            Some(Says::CallsSlow) => vec![calls("slow", "slow")],
            Some(Says::AsksAndCallsSlow) => vec![asks(), calls("slow", "slow")],
            Some(Says::ShortenedAndCallsSlow) => vec![
                ModelEvent::Said(AgentEvent::tool_output(
                    "link",
                    Json::string("https://s.example"),
                )),
                calls("slow", "slow"),
            ],
            Some(Says::Shortened) => vec![
                ModelEvent::Said(AgentEvent::tool_output(
                    "link",
                    Json::string("https://s.example"),
                )),
                ModelEvent::Said(AgentEvent::text("Shortened")),
            ],
            None => vec![ModelEvent::Said(AgentEvent::text("Done"))],
        };
        let finished = ModelEvent::Finished(FinishReason::Stop);
        Box::pin(stream::iter(events.into_iter().chain([finished]).map(Ok)))
    }
}

#[derive(Deserialize, JsonSchema)]
struct Input {
    n: u64,
}

struct Host {
    chats: Chats,
    /// Another server over the same ledger and the same conversations.
    other: Chats,
    provider: Provider,
    deleted: Arc<AtomicUsize>,
    ledger: Arc<MemoryLedger>,
}

const NOW: UnixMillis = UnixMillis(1_000_000_000_000);

fn ada() -> Principal {
    Principal::new("ada")
}

impl Host {
    fn that(script: &[Says]) -> Self {
        let provider = Provider {
            script: Arc::new(Mutex::new(script.iter().copied().collect())),
            heard: Arc::default(),
        };
        let deleted = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&deleted);
        let delete = Tool::new("delete", move |input: Input| {
            counter.fetch_add(1, Ordering::SeqCst);
            async move { Ok::<_, Told>(input.n) }
        });
        let slow = Tool::new("slow", async |input: Input| {
            tokio::time::sleep(Duration::from_secs(20)).await;
            Ok::<_, Told>(format!("found {}", input.n))
        });
        let slow_delete = Tool::new("slow_delete", async |input: Input| {
            tokio::time::sleep(Duration::from_secs(20)).await;
            Ok::<_, Told>(input.n)
        });
        let agent = Agent::new(provider.clone())
            .tool(delete.needs_approval())
            .tool(slow_delete.needs_approval())
            .tool(slow);
        let ledger = Arc::new(MemoryLedger::at(NOW));
        let keys = || KeyRing::new(1, &[7; 32]).unwrap();
        let store = Arc::new(MemoryChats::new());
        let server = || {
            let approvals = Approvals::new(agent.clone()).with_ledger(ledger.clone());
            Chats::new(agent.clone(), approvals.with_keys(keys())).with_store(store.clone())
        };
        let (chats, other) = (server(), server());
        Host { chats, other, provider, deleted, ledger }
    }

    async fn post(&self, body: Value) -> Vec<Value> {
        self.post_to(&self.chats, body).await
    }

    async fn post_to(&self, chats: &Chats, body: Value) -> Vec<Value> {
        let request = ChatRequest::parse(body.to_string().as_bytes(), &Limits::default()).unwrap();
        let response = chats.answer(&ada(), request).await.unwrap();
        let bytes: Vec<u8> =
            response.map(|bytes| bytes.unwrap().to_vec()).collect::<Vec<_>>().await.concat();
        let text = String::from_utf8(bytes).unwrap();
        let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
        let chunks = data.filter(|data| *data != "[DONE]");
        chunks.map(|data| serde_json::from_str(data).unwrap()).collect()
    }

    /// Says something, and does not wait for the end of the answer.
    async fn say_and_leave(&self, id: &str) {
        self.say_and_leave_at(&self.chats, id).await;
    }

    async fn say_and_leave_at(&self, chats: &Chats, id: &str) {
        let body = json!({"id": "chat", "messages": [said(id)]}).to_string();
        let request = ChatRequest::parse(body.as_bytes(), &Limits::default()).unwrap();
        drop(chats.answer(&ada(), request).await.unwrap());
    }

    async fn say(&self, id: &str) -> Vec<Value> {
        self.post(json!({"id": "chat", "messages": [said(id)]})).await
    }

    /// The messages that the server keeps.
    async fn kept(&self) -> Vec<Value> {
        let chat = self.chats.chat(&ada(), &"chat".into()).await.unwrap();
        chat.messages.iter().map(|message| serde_json::to_value(message).unwrap()).collect()
    }

    /// The last message, as a page sends it back that has answered these calls.
    async fn answering(&self, answers: &[(&str, bool)]) -> Value {
        let mut message = self.kept().await.pop().unwrap();
        for part in message["parts"].as_array_mut().unwrap() {
            let answer = answers.iter().find(|(id, _)| part["toolCallId"] == *id);
            if let Some((_, approved)) = answer {
                part["state"] = json!("approval-responded");
                part["approval"]["approved"] = json!(approved);
            }
        }
        json!({"id": "chat", "messages": [message]})
    }

    /// Decides elsewhere.
    async fn decide(&self, call: &str, approved: bool) -> bool {
        let pending = self.chats.approvals().pending(&ada()).await.unwrap();
        let it = pending.iter().find(|pending| pending.record.tool_call_id.as_str() == call);
        let approval_id = it.expect("it waits").approval_id.clone();
        let decision = PersonsDecision { approval_id, approved, reason: None };
        self.chats.decide(&ada(), vec![decision]).await.unwrap()[0].counts
    }

    /// Until the runs under way have ended, or wait for more than a minute.
    async fn settles(&self) {
        tokio::time::sleep(Duration::from_secs(60)).await;
    }

    /// What the provider was told of its question, each time that it was called: the answer, or in
    /// what words the result was given.
    fn told(&self) -> Vec<String> {
        let heard = self.provider.heard.lock().unwrap();
        heard.iter().map(told).collect()
    }

    fn yeses(&self) -> usize {
        self.told().iter().filter(|told| *told == "yes").count()
    }
}

fn said(id: &str) -> Value {
    json!({"id": id, "role": "user", "parts": [{"type": "text", "text": "Go"}]})
}

fn told(messages: &Value) -> String {
    let mut told = String::from("nothing");
    let messages =
        messages.as_array().unwrap().iter().flat_map(|m| m.as_object().unwrap().values());
    for content in messages.flat_map(|message| message["content"].as_array().unwrap()) {
        let text = content.to_string();
        if !text.contains(r#""toolCallId":"link""#) {
            continue;
        }
        for (sign, means) in [
            (r#""approved":true"#, "yes"),
            (r#""approved":false"#, "no"),
            (r#""unknown""#, "unknown"),
            (r#""https://s.example""#, "the result"),
        ] {
            if text.contains(sign) {
                told = means.to_owned();
            }
        }
    }
    told
}

fn part<'a>(messages: &'a [Value], call: &str) -> &'a Value {
    let mut parts = messages.iter().flat_map(|message| message["parts"].as_array().unwrap());
    parts.find(|part| part["toolCallId"] == call).unwrap()
}

fn is_shortened(chunks: &[Value]) -> bool {
    chunks.iter().any(|chunk| chunk["output"] == "https://s.example")
}

#[tokio::test(start_paused = true)]
async fn a_yes_given_elsewhere_is_handed_over_once() {
    let host = Host::that(&[Says::Asks, Says::Shortened]);
    host.say("m1").await;
    let page = host.answering(&[("link", true)]).await;
    assert!(host.decide("link", true).await);
    host.settles().await;
    assert_eq!(host.told(), ["nothing", "yes"]);
    assert_eq!(part(&host.kept().await, "link")["output"], "https://s.example");
    // The page's own yes comes late: it gets what came of it.
    assert!(is_shortened(&host.post(page).await));
    host.say("m2").await;
    assert_eq!(host.told(), ["nothing", "yes", "the result"]);
}

#[tokio::test(start_paused = true)]
async fn a_yes_that_comes_twice_at_once_is_handed_over_once_and_both_hear_of_it() {
    let host = Host::that(&[Says::Asks, Says::Shortened]);
    host.say("m1").await;
    let page = host.answering(&[("link", true)]).await;
    let (first, second) = futures::join!(host.post(page.clone()), host.post(page));
    assert_eq!(host.yeses(), 1);
    assert!(is_shortened(&first), "{first:?}");
    assert!(is_shortened(&second), "{second:?}");
}

#[tokio::test(start_paused = true)]
async fn a_yes_waits_for_what_was_asked_beside_it() {
    for (elsewhere_first, elsewhere_then) in
        [(true, true), (true, false), (false, true), (false, false)]
    {
        for order in [["link", "own"], ["own", "link"]] {
            let host = Host::that(&[Says::AsksAndCalls, Says::Shortened]);
            host.say("m1").await;
            for (call, elsewhere) in order.into_iter().zip([elsewhere_first, elsewhere_then]) {
                if elsewhere {
                    assert!(host.decide(call, true).await);
                } else {
                    // The page holds what it was told, and says again what it said before.
                    let page = host.answering(&[(call, true)]).await;
                    let chunks = host.post(page).await;
                    let of_link = chunks.iter().find(|chunk| chunk["toolCallId"] == "link");
                    assert!(of_link.is_none_or(|chunk| chunk["errorText"].is_null()), "{chunks:?}");
                }
                host.settles().await;
            }
            let how = (order, elsewhere_first, elsewhere_then);
            assert_eq!(host.told(), ["nothing", "yes"], "{how:?}");
            assert_eq!(host.deleted.load(Ordering::SeqCst), 1, "{how:?}");
            let kept = host.kept().await;
            assert_eq!(part(&kept, "link")["output"], "https://s.example", "{how:?}");
            assert_eq!(part(&kept, "own")["output"], 1, "{how:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn both_are_answered_in_one_post_and_in_two_at_once() {
    let host = Host::that(&[Says::AsksAndCalls, Says::Shortened]);
    host.say("m1").await;
    let chunks = host.post(host.answering(&[("link", true), ("own", true)]).await).await;
    assert!(is_shortened(&chunks), "{chunks:?}");
    assert_eq!(host.told(), ["nothing", "yes"]);

    let host = Host::that(&[Says::AsksAndCalls, Says::Shortened]);
    host.say("m1").await;
    let link = host.answering(&[("link", true)]).await;
    let own = host.answering(&[("own", true)]).await;
    futures::join!(host.post(link), host.post(own));
    host.settles().await;
    assert_eq!(host.told(), ["nothing", "yes"]);
    assert_eq!(host.deleted.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn who_writes_on_has_approved_what_was_approved() {
    let host = Host::that(&[Says::AsksAndCalls, Says::Shortened]);
    host.say("m1").await;
    assert!(host.decide("link", true).await);
    host.settles().await;
    assert_eq!(host.told(), ["nothing"], "the other one waits");
    host.say("m2").await;
    assert_eq!(host.told(), ["nothing", "yes"]);
    assert_eq!(host.deleted.load(Ordering::SeqCst), 0);
    // What came of it came with the answer to what was written since.
    assert_eq!(part(&host.kept().await, "link")["output"], "https://s.example");
    host.say("m3").await;
    assert_eq!(host.told().last().unwrap(), "the result");
}

#[tokio::test(start_paused = true)]
async fn what_still_runs_elsewhere_in_the_chat_takes_nothing_away() {
    let host = Host::that(&[Says::CallsSlow, Says::Asks, Says::Shortened]);
    // The person stops reading while a tool runs, and writes on.
    host.say_and_leave("m1").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    host.say("m2").await;
    let chunks = host.post(host.answering(&[("link", true)]).await).await;
    assert_eq!(host.yeses(), 1, "{:?}", host.told());
    assert!(is_shortened(&chunks), "{chunks:?}");
}

#[tokio::test(start_paused = true)]
async fn a_decision_made_while_a_tool_of_the_step_runs_goes_on_when_it_has_ended() {
    let host = Host::that(&[Says::AsksAndCallsSlow, Says::Shortened]);
    host.say_and_leave("m1").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(host.decide("link", true).await);
    host.settles().await;
    assert_eq!(host.told(), ["nothing", "yes"]);
    let heard = host.provider.heard.lock().unwrap().last().unwrap().to_string();
    assert!(heard.contains("found 1"), "it reads what the other tool found: {heard}");
    assert_eq!(part(&host.kept().await, "link")["output"], "https://s.example");
}

#[tokio::test(start_paused = true)]
async fn a_yes_is_told_to_one_model_call_of_a_turn() {
    // The provider says nothing of its question, and calls a tool instead.
    let host = Host::that(&[Says::Asks, Says::CallsSlow]);
    host.say("m1").await;
    host.post(host.answering(&[("link", true)]).await).await;
    assert_eq!(host.told(), ["nothing", "yes", "unknown"]);
}

#[tokio::test(start_paused = true)]
async fn what_was_handed_over_and_not_heard_of_may_have_run() {
    let host = Host::that(&[Says::Asks, Says::Hangs]);
    host.say("m1").await;
    let page = host.answering(&[("link", true)]).await;
    let stop = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        host.chats.stop(&ada(), &"chat".into()).await.unwrap();
    };
    let (chunks, ()) = futures::join!(host.post(page.clone()), stop);
    assert_eq!(host.yeses(), 1);
    let told = chunks.iter().find(|chunk| chunk["toolCallId"] == "link").unwrap();
    let text = told["errorText"].as_str().unwrap();
    assert!(text.contains("not known"), "{text}");
    assert_eq!(part(&host.kept().await, "link")["errorText"], text);
    let again = host.post(page).await;
    assert!(again.iter().any(|chunk| chunk["errorText"] == text), "{again:?}");
    host.say("m2").await;
    assert_eq!(host.told().last().unwrap(), "unknown");
    assert_eq!(host.yeses(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_retry_that_finds_no_result_and_nobody_at_work_is_told_that_nothing_is_known() {
    let host = Host::that(&[Says::Asks, Says::Hangs]);
    host.say("m1").await;
    let page = host.answering(&[("link", true)]).await;
    let (provider, chats) = (host.provider.clone(), host.chats.clone());
    // The server that handed it over is gone: its runtime ends.
    let gone = std::thread::spawn({
        let page = page.clone();
        move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let body = page.to_string();
                let request = ChatRequest::parse(body.as_bytes(), &Limits::default()).unwrap();
                drop(chats.answer(&ada(), request).await.unwrap());
                while provider.heard.lock().unwrap().len() < 2 {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            });
        }
    });
    gone.join().unwrap();
    // For some minutes another server may be listening still.
    let later = async {
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(host.told(), ["nothing", "yes"]);
        host.ledger.set_time(NOW.after(Duration::from_secs(601)));
    };
    let (again, ()) = futures::join!(host.post(page), later);
    let told = again.iter().find(|chunk| chunk["toolCallId"] == "link").unwrap();
    assert!(told["errorText"].as_str().unwrap().contains("not known"), "{again:?}");
    assert_eq!(host.told(), ["nothing", "yes", "unknown"], "and the model goes on");
    assert_eq!(part(&host.kept().await, "link")["state"], "output-error");
}

#[tokio::test(start_paused = true)]
async fn a_retry_at_another_server_takes_nothing_from_the_one_that_listens() {
    let host = Host::that(&[Says::Asks, Says::Hangs]);
    host.say("m1").await;
    let page = host.answering(&[("link", true)]).await;
    let body = page.to_string();
    let request = ChatRequest::parse(body.as_bytes(), &Limits::default()).unwrap();
    drop(host.chats.answer(&ada(), request).await.unwrap());
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(host.yeses(), 1);
    let there = host.post_to(&host.other, page);
    let there = tokio::time::timeout(Duration::from_secs(60), there).await;
    assert!(there.is_err(), "it waits for what the other one hears: {there:?}");
    host.post_to(&host.other, json!({"id": "chat", "messages": [said("m2")]})).await;
    assert_eq!(host.told(), ["nothing", "yes", "unknown"], "the other one is still listening");
    assert_eq!(part(&host.kept().await, "link")["state"], "approval-responded");
}

#[tokio::test(start_paused = true)]
async fn a_yes_that_one_server_keeps_is_told_by_the_one_that_goes_on() {
    let host = Host::that(&[Says::Hangs, Says::Asks, Says::Shortened]);
    host.say_and_leave("m0").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    host.say("m1").await;
    let page = host.answering(&[("link", true)]).await;
    // This server has heard the yes, and waits for what runs there.
    assert!(host.decide("link", true).await);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(host.yeses(), 0);
    let there = host.post_to(&host.other, page).await;
    assert!(is_shortened(&there), "{there:?}");
    host.chats.stop(&ada(), &"chat".into()).await.unwrap();
    host.settles().await;
    assert_eq!(host.told(), ["nothing", "nothing", "yes"], "and nobody calls the model again");
}

#[tokio::test(start_paused = true)]
async fn a_yes_in_a_history_that_was_forgotten_is_answered() {
    let host = Host::that(&[Says::Asks]);
    host.say("m1").await;
    let page = host.answering(&[("link", true)]).await;
    let forgotten = host.chats.clone().with_store(Arc::new(MemoryChats::new()));
    let answer = host.post_to(&forgotten, page).await;
    assert!(answer.iter().any(|chunk| chunk["delta"] == "Done"), "{answer:?}");
}

#[tokio::test(start_paused = true)]
async fn a_retry_of_one_answer_does_not_go_on_while_the_other_runs_elsewhere() {
    let host = Host::that(&[Says::AsksAndCallsSlowly, Says::Shortened]);
    host.say("m1").await;
    let page = host.answering(&[("link", true)]).await;
    assert!(host.decide("link", true).await);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(host.decide("own", true).await);
    tokio::time::sleep(Duration::from_secs(1)).await;
    host.post_to(&host.other, page).await;
    assert_eq!(host.told(), ["nothing"], "the other one has not ended");
    host.settles().await;
    assert_eq!(host.told(), ["nothing", "yes"]);
}

#[tokio::test(start_paused = true)]
async fn a_result_that_comes_after_all_takes_the_place_of_that_it_is_not_known() {
    let host = Host::that(&[Says::Asks]);
    host.say("m1").await;
    let mut chat = host.chats.chat(&ada(), &"chat".into()).await.unwrap();
    let place = chat.messages.len() - 1;
    let begun = chat.messages[place].clone();
    let in_state = |state: &str, key: &str, value: &str| {
        let mut message = serde_json::to_value(&begun).unwrap();
        let parts = message["parts"].as_array_mut().unwrap();
        let part = parts.iter_mut().find(|part| part["toolCallId"] == "link").unwrap();
        (part["state"], part[key]) = (json!(state), json!(value));
        part["approval"]["approved"] = json!(true);
        UiMessage::parse(&message.to_string()).unwrap()
    };
    let unknown = ui_message_stream::approval::OUTCOME_UNKNOWN;
    chat.messages[place] = in_state("output-error", "errorText", unknown);
    let came = in_state("output-available", "output", "https://s.example");
    // What was begun before says nothing of it.
    assert!(chat.put(begun.clone(), Some(&begun)));
    assert!(chat.messages[place] != begun, "it is no open question again");
    assert!(chat.put(came.clone(), Some(&begun)));
    assert_eq!(chat.messages[place], came);
}

#[tokio::test]
async fn so_does_one_that_comes_with_another_message() {
    let host = Host::that(&[Says::Asks]);
    host.say("m1").await;
    let mut chat = host.chats.chat(&ada(), &"chat".into()).await.unwrap();
    let approval = part(&host.kept().await, "link")["approval"]["id"].clone();
    let became = |outcome: Value| -> DeferredToolResult {
        serde_json::from_value(json!({
            "messageId": null, "toolCallId": "link", "toolName": "mcp.shorten",
            "approvalId": approval, "outcome": outcome, "isFinal": true,
        }))
        .unwrap()
    };
    let ran = became(json!({"ran": {"outcome": {"output": "https://s.example"}}}));
    for outcome in [became(json!("outcome-unknown")), ran, became(json!("outcome-unknown"))] {
        chat.settle(&outcome, None);
    }
    let message = serde_json::to_value(chat.messages.last().unwrap()).unwrap();
    let link = part(std::slice::from_ref(&message), "link");
    assert_eq!(
        (&link["state"], &link["output"]),
        (&json!("output-available"), &json!("https://s.example"))
    );
    assert_eq!(link["approval"]["id"], approval);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_was_stopped_before_it_spoke_takes_no_yes_with_it() {
    let host = Host::that(&[Says::AsksAndCallsSlow, Says::Shortened]);
    host.say_and_leave("m1").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(host.decide("link", true).await);
    tokio::time::sleep(Duration::from_secs(1)).await;
    host.chats.stop(&ada(), &"chat".into()).await.unwrap();
    host.settles().await;
    assert_eq!(host.told(), ["nothing"]);
    assert_eq!(part(&host.kept().await, "link")["state"], "approval-responded");
    host.say("m2").await;
    assert_eq!(host.told(), ["nothing", "yes"]);
}

/// Between the yes and its telling more time went by than anybody listens.
#[tokio::test(start_paused = true)]
async fn who_tells_a_yes_that_was_kept_for_long_is_waited_for_as_any_other() {
    let host = Host::that(&[Says::AsksAndCalls, Says::Hangs]);
    host.say("m1").await;
    assert!(host.decide("link", true).await);
    host.settles().await;
    host.ledger.set_time(NOW.after(Duration::from_secs(601)));
    let page = host.answering(&[("own", true)]).await;
    let request = ChatRequest::parse(page.to_string().as_bytes(), &Limits::default()).unwrap();
    drop(host.chats.answer(&ada(), request).await.unwrap());
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(host.yeses(), 1);
    let there = tokio::time::timeout(Duration::from_secs(60), host.post_to(&host.other, page));
    assert!(there.await.is_err(), "it waits for what is said here");
    assert_eq!(host.told(), ["nothing", "yes"]);
}

#[tokio::test(start_paused = true)]
async fn a_retry_at_another_server_is_not_kept_by_what_runs_there_for_another_message() {
    let host = Host::that(&[Says::Hangs, Says::Hangs, Says::Asks, Says::Shortened]);
    host.say_and_leave_at(&host.other, "m00").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    host.say_and_leave("m0").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    host.say("m1").await;
    let page = host.answering(&[("link", true)]).await;
    assert!(host.decide("link", true).await);
    // Kept: here the run of another message is waited for.
    let there = tokio::time::timeout(Duration::from_secs(60), host.post_to(&host.other, page));
    assert!(is_shortened(&there.await.expect("it waits for nothing of its own")));
}

#[tokio::test(start_paused = true)]
async fn who_heard_a_yes_that_another_told_says_what_came_of_it() {
    let host = Host::that(&[Says::AsksAndCallsSlow, Says::Shortened]);
    host.say_and_leave("m1").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let page = host.answering(&[("link", true)]).await;
    let there = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        host.post_to(&host.other, page.clone()).await
    };
    let (first, there) = futures::join!(host.post(page.clone()), there);
    assert!(is_shortened(&there), "{there:?}");
    assert!(is_shortened(&first), "{first:?}");
}

#[tokio::test(start_paused = true)]
async fn what_came_of_a_call_of_an_earlier_message_the_next_step_reads() {
    let host = Host::that(&[Says::AsksAndCalls, Says::ShortenedAndCallsSlow]);
    host.say("m1").await;
    assert!(host.decide("link", true).await);
    host.settles().await;
    host.say("m2").await;
    assert_eq!(host.told(), ["nothing", "yes", "the result"]);
}

#[tokio::test(start_paused = true)]
async fn a_yes_elsewhere_after_a_no_calls_no_model() {
    let host = Host::that(&[Says::Asks]);
    host.say("m1").await;
    let pending = host.chats.approvals().pending(&ada()).await.unwrap();
    let approval_id = pending[0].approval_id.clone();
    assert!(host.decide("link", false).await);
    host.settles().await;
    assert_eq!(host.told(), ["nothing", "no"]);
    for _ in 0..2 {
        let (approved, reason) = (true, None);
        let yes = PersonsDecision { approval_id: approval_id.clone(), approved, reason };
        assert!(!host.chats.decide(&ada(), vec![yes]).await.unwrap()[0].counts);
        host.settles().await;
    }
    assert_eq!(host.told(), ["nothing", "no"]);
}

#[tokio::test(start_paused = true)]
async fn a_no_is_told_with_every_call_that_reads_the_question() {
    let host = Host::that(&[Says::Asks]);
    host.say("m1").await;
    assert!(host.decide("link", false).await);
    host.settles().await;
    host.say("m2").await;
    assert_eq!(host.told(), ["nothing", "no", "no"]);
}
