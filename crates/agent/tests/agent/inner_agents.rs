//! Agents inside agents: a tool that is an agent asks the user of the chat for the calls of its own tools, and
//! goes on with the answers, also on another server.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use chat_test_support::answers::{decide, stored};
use chat_test_support::calling_model::page_of;
use chat_test_support::model_double::{says, tool_call};
use futures::{StreamExt, stream};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use test_support::eventually;
use test_support::requests::{ada, request, user_message};
use tokio::sync::Semaphore;
use ui_message_stream::approval::store::InMemoryLedger;
use ui_message_stream::approval::{ApprovalDecision, Approvals, KeyRing, OnNewMessage};
use ui_message_stream::chunk::FinishReason;
use ui_message_stream::id::{ApprovalId, ChatId, ToolCallId};
use ui_message_stream::message::{AnswerEnd, Part, Role, ToolPart, UiMessage};
use ui_message_stream::model::{Model, ModelEvent, ModelMessage, ModelRequest, ModelStream};
use ui_message_stream::testing::Conversation;
use ui_message_stream::{BoxError, Json};
use ui_message_stream_agent::{Agent, Tool, ToolContext};
use ui_message_stream_chat::store::{InMemoryLogStore, ListChats};
use ui_message_stream_chat::{Chat, ChatAgent, ChatServer, Turn};

/// A model that makes the calls of one step after the other, then repeats the last results that it has read.
/// It reads from its messages which step is next, so it knows no more than the messages do.
#[derive(Debug, Clone)]
struct Steps {
    steps: Arc<[Vec<(&'static str, Value)>]>,
    read: Arc<Mutex<Vec<String>>>,
    /// The begin of the ids of its calls.
    prefix: &'static str,
}

impl Steps {
    fn of(steps: impl Into<Arc<[Vec<(&'static str, Value)>]>>) -> Self {
        Steps { steps: steps.into(), read: Arc::default(), prefix: "" }
    }
}

impl Model for Steps {
    fn call(&self, request: ModelRequest) -> ModelStream {
        self.read.lock().unwrap().push(serde_json::to_string(&request.messages).unwrap());
        let results = request.messages.iter().filter_map(|message| match message {
            ModelMessage::Tool { content } => Some(serde_json::to_string(content).unwrap()),
            _ => None,
        });
        let results: Vec<String> = results.collect();
        let Some(calls) = self.steps.get(results.len()) else {
            let last = results.last().cloned().unwrap_or_default();
            return Box::pin(stream::iter(says(format!("Read {last}"))).map(Ok));
        };
        let (step, prefix) = (results.len(), self.prefix);
        let calls = calls.iter().enumerate().map(|(at, (tool, input))| {
            tool_call(&format!("{prefix}{tool}_{step}{at}"), tool, &input.to_string())
        });
        let finished = ModelEvent::Finished(FinishReason::ToolCalls);
        Box::pin(stream::iter(calls.chain([finished]).collect::<Vec<_>>()).map(Ok))
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
struct Path {
    path: String,
}

/// What has happened outside of the chat.
#[derive(Debug, Clone, Default)]
struct World(Arc<Mutex<Vec<String>>>);

impl World {
    fn tool(&self, name: &'static str) -> Tool<Path> {
        let world = self.clone();
        Tool::new(name, move |input: Path| {
            world.0.lock().unwrap().push(format!("{name} {}", input.path));
            async move { Ok::<_, BoxError>(format!("{name} {} is done", input.path)) }
        })
    }

    fn effects(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

fn path(path: &str) -> Value {
    json!({ "path": path })
}

fn task(task: &str) -> Value {
    json!({ "task": task })
}

/// The stores that all servers share.
#[derive(Clone, Default)]
struct Stores {
    ledger: Arc<InMemoryLedger>,
    logs: Arc<InMemoryLogStore>,
}

impl Stores {
    fn approvals(&self, agent: &Agent) -> Approvals {
        let keys = KeyRing::new(1, &test_support::secret(7)).unwrap();
        Approvals::new(agent.clone()).with_keys(keys).with_ledger(self.ledger.clone())
    }

    /// A server with this agent.
    fn server(&self, agent: Agent) -> ChatServer {
        let approvals = self.approvals(&agent);
        ChatServer::new(agent, approvals).with_store(self.logs.clone())
    }
}

fn page(chats: &ChatServer) -> Conversation<'static> {
    page_of(chats).with_id("chat")
}

/// An agent whose tool `janitor` looks, and then deletes two files, which needs an approval.
struct Janitors {
    world: World,
    outer: Steps,
    inner: Steps,
}

impl Janitors {
    fn new() -> Self {
        let deletes = vec![("delete", path("a")), ("delete", path("b"))];
        Janitors {
            world: World::default(),
            outer: Steps::of([vec![("janitor", task("Tidy up"))]]),
            inner: Steps::of([vec![("look", path("folder"))], deletes]),
        }
    }

    fn agent_with(&self, delete: Tool<Path>) -> Agent {
        let inner = Agent::new(self.inner.clone()).tool(self.world.tool("look")).tool(delete);
        Agent::new(self.outer.clone()).tool(inner.as_tool("janitor", "Tidies up."))
    }

    fn agent(&self) -> Agent {
        self.agent_with(self.world.tool("delete").with_title("Delete a file").needs_approval())
    }

    /// A server with the agent, and its page after the agent has asked.
    async fn asked(&self) -> (ChatServer, Conversation<'static>) {
        asked(&Stores::default().server(self.agent())).await
    }
}

/// The page after the agent of this server has asked.
async fn asked(chats: &ChatServer) -> (ChatServer, Conversation<'static>) {
    let mut page = page(chats);
    page.send("Tidy up").await;
    (chats.clone(), page)
}

/// The ids of the approvals that the last message asks for.
fn questions(page: &Conversation<'_>) -> Vec<ApprovalId> {
    let calls = page.messages().last().unwrap().tool_parts();
    calls.filter_map(|part| part.approval_id().cloned()).collect()
}

fn tool_part<'m>(message: &'m UiMessage, id: &str) -> &'m ToolPart {
    let mut parts = message.tool_parts();
    parts.find(|part| part.tool_call_id.as_str() == id).unwrap_or_else(|| panic!("{message:?}"))
}

const OUTER: &str = "janitor_00";
const FIRST: &str = "janitor_00__delete_10";
const SECOND: &str = "janitor_00__delete_11";

#[tokio::test]
async fn an_agent_inside_a_call_asks_in_a_step_of_its_own_and_goes_on_with_both_answers() {
    let janitors = Janitors::new();
    let (_, mut page) = janitors.asked().await;
    let message = page.messages().last().unwrap().clone();
    assert_eq!(janitors.world.effects(), ["look folder"]);
    let steps = serde_json::to_value(&message.parts).unwrap();
    let kinds: Vec<&str> =
        steps.as_array().unwrap().iter().map(|part| part["type"].as_str().unwrap()).collect();
    let expected = [
        "step-start",
        "tool-janitor",
        "step-start",
        "dynamic-tool",
        "dynamic-tool",
        "data-approval",
        "data-approval",
    ];
    assert_eq!(kinds, expected);
    assert_eq!(steps[1]["state"], "input-available");
    assert_eq!(steps[3]["toolName"], "janitor__delete");
    assert_eq!(steps[3]["title"], "Delete a file");
    assert_eq!(steps[3]["input"], path("a"));
    assert_eq!(steps[5]["data"]["agents"], json!(["janitor"]));
    assert_eq!(tool_part(&message, FIRST).outer_call(), Some(OUTER.into()));

    page.approve(FIRST).await;
    assert_eq!(janitors.world.effects(), ["look folder"], "the page sends both answers at once");
    page.deny(SECOND, "keep b").await;
    assert_eq!(janitors.world.effects(), ["look folder", "delete a"]);
    let message = page.messages().last().unwrap();
    assert!(message.tool_parts().all(ToolPart::is_settled), "{message:?}");
    // The agent inside has read both results, and its conversation was not repeated.
    let inner = janitors.inner.read.lock().unwrap().clone();
    assert_eq!(inner.len(), 3);
    assert!(inner[2].contains("delete a is done") && inner[2].contains("keep b"), "{}", inner[2]);
    // The model of the chat has read the answer of the agent, and none of its calls.
    let outer = janitors.outer.read.lock().unwrap().clone();
    assert_eq!(outer.len(), 2);
    assert!(!outer[1].contains("janitor__delete"), "{}", outer[1]);
    assert!(outer[1].contains("Read") && outer[1].contains("keep b"), "{}", outer[1]);
}

#[tokio::test]
async fn another_server_resumes_the_agent_where_it_stopped() {
    let (stores, janitors) = (Stores::default(), Janitors::new());
    let (_, asked) = asked(&stores.server(janitors.agent())).await;
    // The same program in another process: it shares the stores, and nothing else.
    let mut answered = page(&stores.server(janitors.agent())).with_messages(asked.messages());
    answered.approve(FIRST).await;
    answered.approve(SECOND).await;
    assert_eq!(janitors.world.effects(), ["look folder", "delete a", "delete b"]);
    assert!(answered.last_text().contains("delete b is done"), "{}", answered.last_text());
}

#[tokio::test]
async fn agents_two_levels_down_ask_with_their_path_and_both_go_on() {
    let world = World::default();
    let inner = Steps::of([vec![("delete", path("x"))]]);
    let middle = Steps::of([vec![("janitor", task("Delete x"))]]);
    let outer = Steps::of([vec![("house", task("Tidy up"))]]);
    let delete = world.tool("delete").with_title("Delete a file");
    let janitor = Agent::new(inner.clone()).tool(delete.needs_approval());
    let house = Agent::new(middle.clone()).tool(janitor.as_tool("janitor", "Deletes."));
    let agent = Agent::new(outer.clone()).tool(house.as_tool("house", "Keeps the house."));
    let chats = Stores::default().server(agent);
    let mut page = page(&chats);
    page.send("Go").await;
    let message = page.messages().last().unwrap().clone();
    let parts = serde_json::to_value(&message.parts).unwrap();
    let question = &parts[3];
    assert_eq!(question["toolName"], "house__janitor__delete", "{parts}");
    assert_eq!(question["title"], "Delete a file", "{parts}");
    assert_eq!(parts[4]["data"]["agents"], json!(["house", "janitor"]));
    let id = question["toolCallId"].as_str().unwrap().to_owned();
    page.approve(&id).await;
    assert_eq!(world.effects(), ["delete x"]);
    for (model, calls) in [(&inner, 2), (&middle, 2), (&outer, 2)] {
        assert_eq!(model.read.lock().unwrap().len(), calls);
    }
    assert!(page.last_text().contains("delete x is done"), "{}", page.last_text());
}

#[tokio::test]
async fn an_agent_asks_for_tools_whose_names_are_as_long_as_a_provider_accepts() {
    const DELETE: &str = "delete_something_else_in_a_folder_with_a_name_of_64_characters_x";
    assert_eq!(DELETE.len(), 64);
    let world = World::default();
    let inner = Steps::of([vec![(DELETE, path("x"))]]);
    let outer = Steps::of([vec![("janitor", task("Delete x"))]]);
    let janitor = Agent::new(inner).tool(world.tool(DELETE).needs_approval());
    let agent = Agent::new(outer.clone()).tool(janitor.as_tool("janitor", "Deletes."));
    let mut page = page(&Stores::default().server(agent));
    page.send("Go").await;
    let asked = page.messages().last().unwrap().tool_parts().last().unwrap().clone();
    assert_eq!(*asked.tool_name, format!("janitor__{DELETE}"));
    page.approve(&asked.tool_call_id).await;
    assert_eq!(world.effects(), [format!("{DELETE} x")]);
    // No provider has to accept the name.
    let read = outer.read.lock().unwrap().join("\n");
    assert!(!read.contains(&*asked.tool_name), "{read}");
}

#[tokio::test]
async fn an_agent_may_ask_again_after_an_answer() {
    let world = World::default();
    let inner = Steps::of([vec![("delete", path("a"))], vec![("delete", path("b"))]]);
    let outer = Steps::of([vec![("janitor", task("Tidy up"))]]);
    let janitor = Agent::new(inner.clone()).tool(world.tool("delete").needs_approval());
    let agent = Agent::new(outer.clone()).tool(janitor.as_tool("janitor", "Deletes."));
    let chats = Stores::default().server(agent);
    let mut page = page(&chats);
    page.send("Go").await;
    page.approve("janitor_00__delete_00").await;
    assert_eq!(world.effects(), ["delete a"]);
    page.approve("janitor_00__delete_10").await;
    assert_eq!(world.effects(), ["delete a", "delete b"]);
    assert_eq!(inner.read.lock().unwrap().len(), 3);
    assert_eq!(outer.read.lock().unwrap().len(), 2);
}

#[tokio::test]
async fn a_newer_message_closes_the_questions_and_ends_the_call_of_the_agent() {
    let janitors = Janitors::new();
    // Its tool would stay open outside of an agent.
    let delete = janitors.world.tool("delete").needs_approval().on_new_message(OnNewMessage::Run);
    let (chats, mut page) = asked(&Stores::default().server(janitors.agent_with(delete))).await;
    let mut late = self::page(&chats).with_messages(page.messages());
    page.send("No, stop").await;
    late.approve(FIRST).await;
    late.approve(SECOND).await;
    assert_eq!(janitors.world.effects(), ["look folder"]);
    let message = &stored(&chats).await.messages[1];
    assert!(message.tool_parts().all(ToolPart::is_settled), "{message:?}");
    let read = janitors.outer.read.lock().unwrap().last().unwrap().clone();
    assert!(read.contains("was closed without an answer"), "{read}");
    assert!(!read.contains("janitor__delete"), "{read}");
}

#[tokio::test]
async fn the_call_of_an_agent_ends_when_its_last_question_is_closed_without_an_answer() {
    let (janitors, ada, id) = (Janitors::new(), ada(), ChatId::from("chat"));
    let (chats, mut page) = janitors.asked().await;
    let questions = chats.approvals().for_chat(&ada, &id).pending().await.unwrap();
    let [first, second] = &*questions else { panic!("{questions:?}") };
    chats.approvals().revoke(first.record.id).await.unwrap();
    let chat = stored(&chats).await;
    assert!(!tool_part(&chat.messages[1], OUTER).is_settled(), "{chat:?}");
    chats.approvals().revoke(second.record.id).await.unwrap();
    let chat = stored(&chats).await;
    assert!(tool_part(&chat.messages[1], OUTER).is_settled(), "{chat:?}");
    // The turn that stores it calls no model.
    let list = ListChats { limit: 9, after: None, search: None };
    let has_questions = async || chats.list(&ada, list).await.unwrap().chats[0].has_questions;
    eventually(async || !has_questions().await).await;
    assert_eq!(janitors.outer.read.lock().unwrap().len(), 1);
    page.send("Go on").await;
    let read = janitors.outer.read.lock().unwrap().last().unwrap().clone();
    assert!(read.contains("was closed without an answer"), "{read}");
    assert_eq!(janitors.world.effects(), ["look folder"]);
}

#[tokio::test]
async fn a_model_cannot_call_a_tool_of_an_agent_that_is_a_tool() {
    let mut janitors = Janitors::new();
    janitors.outer = Steps::of([vec![("janitor__delete", path("a"))]]);
    let (_, page) = janitors.asked().await;
    assert!(page.last_text().contains("there is no tool named"), "{}", page.last_text());
    assert_eq!(janitors.world.effects(), [""; 0]);
}

#[tokio::test]
async fn a_page_cannot_answer_for_the_agent() {
    let janitors = Janitors::new();
    let (chats, page) = janitors.asked().await;
    let mut forged = page.messages().to_vec();
    let message = forged.last_mut().unwrap();
    for part in message.tool_parts_mut().filter(|part| part.tool_call_id.as_str() == OUTER) {
        part.set_output(Ok(Json::string("all is done"))).unwrap();
    }
    let mut page = self::page(&chats).with_messages(forged);
    page.submit().await;
    assert!(!tool_part(&stored(&chats).await.messages[1], OUTER).is_settled());
    assert_eq!(janitors.outer.read.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn a_call_of_an_agent_that_the_user_has_approved_itself_cannot_ask() {
    let janitors = Janitors::new();
    let delete = janitors.world.tool("delete").needs_approval();
    let inner = Agent::new(janitors.inner.clone()).tool(janitors.world.tool("look")).tool(delete);
    let janitor = inner.as_tool("janitor", "Tidies up.").needs_approval();
    let agent = Agent::new(janitors.outer.clone()).tool(janitor);
    let (_, mut page) = asked(&Stores::default().server(agent)).await;
    page.approve(OUTER).await;
    assert_eq!(janitors.world.effects(), ["look folder"]);
    assert!(page.last_text().contains("the user cannot be asked"), "{}", page.last_text());
}

/// Tidies up a folder.
#[derive(Deserialize, JsonSchema)]
struct TidyUp {}

#[tokio::test]
async fn a_handler_asks_for_inner_tools_and_is_called_again_with_its_state_and_the_results() {
    let world = World::default();
    let begun = Arc::new(Mutex::new(0));
    let count = begun.clone();
    let tidy_up = Tool::new("tidy_up", move |_: TidyUp, context: ToolContext| {
        let count = count.clone();
        async move {
            let Some(resumed) = context.resumed() else {
                *count.lock().unwrap() += 1;
                let first = context.request_approval("delete", &Path { path: "a".into() })?;
                let second = context.request_approval("delete", &json!({"file": "b"}))?;
                let third = context.request_approval("burn", &Path { path: "c".into() })?;
                return Err(context.suspend(&[first, second, third]));
            };
            let calls: Vec<ToolCallId> = resumed.state()?;
            let texts = calls.iter().map(|call| resumed.result(call).unwrap().text().into_owned());
            Ok::<_, BoxError>(texts.collect::<Vec<_>>())
        }
    });
    let tidy_up = tidy_up.with_inner_tools([world.tool("delete")]);
    let model = Steps::of([vec![("tidy_up", json!({}))]]);
    let chats = Stores::default().server(Agent::new(model).tool(tidy_up));
    let mut page = page(&chats);
    page.send("Go").await;
    page.approve("tidy_up_00__0").await;
    assert_eq!(*begun.lock().unwrap(), 1);
    assert_eq!(world.effects(), ["delete a"]);
    let text = page.last_text();
    // A call that no inner tool accepts fails, and the user is not asked for it.
    for wanted in ["delete a is done", "does not fit the schema", "there is no tool named"] {
        assert!(text.contains(wanted), "{text}");
    }
}

/// An agent whose model makes these calls in its first step, and whose tool `delete` needs an approval.
fn agent_of(
    janitors: &Janitors,
    outer: Vec<(&'static str, Value)>,
    delete: Tool<Path>,
) -> (Agent, Steps) {
    let inner = Agent::new(janitors.inner.clone()).tool(janitors.world.tool("look")).tool(delete);
    let model = Steps::of([outer]);
    (Agent::new(model.clone()).tool(inner.as_tool("janitor", "Tidies up.")), model)
}

#[tokio::test]
async fn a_call_that_may_ask_does_not_run_beside_calls_that_wait() {
    let janitors = Janitors::new();
    let calls = vec![("burn", path("c")), ("janitor", task("Tidy up"))];
    let delete = janitors.world.tool("delete").needs_approval();
    let (agent, model) = agent_of(&janitors, calls, delete);
    let agent = agent.tool(janitors.world.tool("burn").needs_approval());
    let (_, mut page) = asked(&Stores::default().server(agent)).await;
    assert_eq!(janitors.world.effects(), [""; 0]);
    page.approve("burn_00").await;
    assert_eq!(janitors.world.effects(), ["burn c"]);
    let read = model.read.lock().unwrap().last().unwrap().clone();
    assert!(read.contains("other calls of the same step wait for the user"), "{read}");
}

#[tokio::test]
async fn a_predicate_of_an_inner_tool_does_not_take_the_task_for_the_whole_chat() {
    let janitors = Janitors::new();
    let delete = janitors.world.tool("delete").needs_approval_when(|_, context| {
        let mut calls = context.chat().messages.iter().flat_map(UiMessage::tool_parts);
        calls.any(|call| &*call.tool_name == "fetch")
    });
    let (agent, _) = agent_of(&janitors, vec![("janitor", task("Tidy up"))], delete);
    let (_, mut page) = asked(&Stores::default().server(agent)).await;
    assert_eq!(janitors.world.effects(), ["look folder"]);
    page.approve(FIRST).await;
    page.approve(SECOND).await;
    assert_eq!(janitors.world.effects(), ["look folder", "delete a", "delete b"]);
}

#[tokio::test]
async fn a_client_tool_cannot_have_the_name_of_an_inner_tool() {
    let agent = Janitors::new().agent().with_client_tools();
    let request = request(&json!({
        "id": "chat", "messages": [user_message("m1", "Go")],
        "clientTools": [{"name": "janitor__delete"}],
    }));
    let error = agent.validate_request(&request).unwrap_err();
    assert!(error.to_string().contains("is a tool of the server"), "{error}");
}

/// The turn of a host that has no chat server, and that takes the messages as they come.
fn turn_of(agent: &Agent, stores: &Stores, messages: &[UiMessage]) -> Turn {
    let approvals = stores.approvals(agent);
    let mut chat = Chat::new("chat", ada());
    messages.iter().for_each(|message| chat.messages.push(message.clone()));
    Turn::new(chat, messages.last().unwrap().id.clone(), &approvals)
}

async fn run(agent: &Agent, turn: Turn) {
    let mut events = agent.respond(turn);
    while events.next().await.is_some() {}
}

#[tokio::test]
async fn without_a_chat_server_a_page_can_neither_forge_what_goes_on_nor_repeat_it() {
    let (janitors, stores) = (Janitors::new(), Stores::default());
    let agent = janitors.agent().tool(janitors.world.tool("wipe").needs_approval());
    let (_chats, page) = asked(&stores.server(agent.clone())).await;
    let with_outer = |name: &str, input: &Value| {
        let mut json = serde_json::to_value(page.messages()).unwrap();
        for part in json[1]["parts"].as_array_mut().unwrap() {
            if part["toolCallId"] == OUTER {
                part["type"] = format!("tool-{name}").into();
                part["input"] = input.clone();
            } else if part.get("toolCallId").is_some() {
                part["state"] = "output-available".into();
                part["output"] = "forged".into();
                part["approval"]["approved"] = true.into();
            }
        }
        let messages = json.as_array().unwrap().iter();
        messages.map(|it| UiMessage::parse(&it.to_string()).unwrap()).collect::<Vec<_>>()
    };
    // Another tool, another input, and the call itself while its questions are open.
    for (name, input) in
        [("wipe", path("all")), ("janitor", task("Burn")), ("janitor", task("Tidy up"))]
    {
        run(&agent, turn_of(&agent, &stores, &with_outer(name, &input))).await;
        assert_eq!(janitors.world.effects(), ["look folder"], "{name} {input}");
        assert_eq!(janitors.inner.read.lock().unwrap().len(), 2);
    }
    // Both questions are answered, and the host runs the same turn twice.
    let forged = with_outer("janitor", &task("Tidy up"));
    let ids: Vec<_> = forged[1].tool_parts().filter_map(|it| it.approval_id().cloned()).collect();
    let approvals = stores.approvals(&agent);
    let decisions = ids.into_iter().map(|id| ApprovalDecision::new(id, false)).collect();
    for group in approvals.group_by_message(&ada(), decisions).await.unwrap() {
        let chat = approvals.for_chat(&ada(), &group.chat_id);
        let mut resolved = chat.resolve(group.plan(), &[]).await.unwrap();
        while resolved.next().await.is_some() {}
    }
    run(&agent, turn_of(&agent, &stores, &with_outer("janitor", &task("Burn")))).await;
    assert_eq!(janitors.inner.read.lock().unwrap().len(), 2, "it was asked for another task");
    for _ in 0..2 {
        run(&agent, turn_of(&agent, &stores, &forged)).await;
        let read = janitors.inner.read.lock().unwrap().clone();
        assert_eq!(read.len(), 3, "the agent goes on once");
        assert!(!read[2].contains("forged") && read[2].contains("denied"), "{}", read[2]);
    }
    assert_eq!(janitors.world.effects(), ["look folder"]);
}

#[tokio::test]
async fn an_agent_that_cannot_ask_does_not_ask_for_ever() {
    let (janitors, stores) = (Janitors::new(), Stores::default());
    let deletes = || vec![("delete", path("a"))];
    let steps: Vec<_> = (0..50).map(|_| deletes()).collect();
    let inner = Steps::of(steps);
    let janitor = Agent::new(inner.clone()).tool(janitors.world.tool("delete").needs_approval());
    let agent = Agent::new(janitors.outer.clone()).tool(janitor.as_tool("janitor", "Deletes."));
    let user = UiMessage::new("u1", Role::User, vec![Part::text("Go")]);
    let mut turn = turn_of(&agent, &stores, &[user]);
    turn.message_id = "m2".into();
    turn.approvals = turn.approvals.without_requests();
    run(&agent, turn).await;
    assert_eq!(inner.read.lock().unwrap().len(), 2);
    let read = janitors.outer.read.lock().unwrap().last().unwrap().clone();
    assert!(read.contains("the user cannot be asked for what it needs"), "{read}");
    assert_eq!(janitors.world.effects(), [""; 0]);
}

/// The tool `delete` waits at the gate.
fn gated(janitors: &Janitors, gate: &Arc<Semaphore>) -> Agent {
    let (world, gate) = (janitors.world.clone(), gate.clone());
    let delete = Tool::new("delete", move |input: Path| {
        let (world, gate) = (world.clone(), gate.clone());
        async move {
            world.0.lock().unwrap().push(format!("delete {}", input.path));
            gate.acquire().await.unwrap().forget();
            Ok::<_, BoxError>(format!("delete {} is done", input.path))
        }
    });
    janitors.agent_with(delete.needs_approval())
}

#[tokio::test]
async fn a_server_that_shuts_down_while_inner_calls_run_hands_the_agent_over() {
    let (janitors, stores) = (Janitors::new(), Stores::default());
    let gate = Arc::new(Semaphore::new(0));
    let (first, page) = asked(&stores.server(gated(&janitors, &gate))).await;
    let decisions = questions(&page).into_iter().map(|id| ApprovalDecision::new(id, true));
    let (deciding, decisions) = (first.clone(), decisions.collect());
    let deciding = tokio::spawn(async move { deciding.decide(&ada(), decisions).await.map(drop) });
    eventually(async || janitors.world.effects().len() == 3).await;
    first.shut_down(Duration::from_millis(50)).await;
    gate.add_permits(9);
    let _ = deciding.await;
    let second = stores.server(gated(&janitors, &gate));
    eventually(async || {
        let chat = stored(&second).await;
        chat.answer_end() == Some(AnswerEnd::Finished)
            && chat.messages[1].tool_parts().all(ToolPart::is_settled)
    })
    .await;
    assert_eq!(janitors.inner.read.lock().unwrap().len(), 3);
    let effects = janitors.world.effects();
    assert_eq!(effects.len(), 3, "{effects:?}");
    let chat = stored(&second).await;
    assert!(chat.messages[1].last_text().contains("delete b is done"), "{:?}", chat.messages[1]);
}

#[tokio::test]
async fn a_stop_leaves_the_open_question_and_the_agent_that_waits_for_it() {
    let janitors = Janitors::new();
    let gate = Arc::new(Semaphore::new(0));
    let (chats, mut page) = asked(&Stores::default().server(gated(&janitors, &gate))).await;
    let ids = questions(&page);
    let (deciding, first) = (chats.clone(), ids[0].clone());
    let deciding = tokio::spawn(async move { decide(&deciding, &first, true).await });
    eventually(async || janitors.world.effects().len() == 2).await;
    chats.stop(&ada(), &"chat".into()).await.unwrap();
    gate.add_permits(9);
    deciding.await.unwrap();
    let chat = stored(&chats).await;
    assert!(!tool_part(&chat.messages[1], OUTER).is_settled());
    assert!(tool_part(&chat.messages[1], SECOND).awaits_approval());
    page.send("Go on with something else").await;
    assert!(stored(&chats).await.messages[1].tool_parts().all(ToolPart::is_settled));
    decide(&chats, &ids[1], true).await;
    assert_eq!(janitors.world.effects(), ["look folder", "delete a"]);
}

#[tokio::test]
async fn the_agent_inside_reads_what_the_approver_has_changed() {
    let janitors = Janitors::new();
    let delete = janitors.world.tool("delete").needs_approval().editable();
    let (agent, _) = agent_of(&janitors, vec![("janitor", task("Tidy up"))], delete);
    let (chats, page) = asked(&Stores::default().server(agent)).await;
    let (questions, ada) = (questions(&page), ada());
    let mut decisions: Vec<_> =
        questions.into_iter().map(|id| ApprovalDecision::new(id, true)).collect();
    decisions[0].input = Some(Json::from_serialize(&path("z")).unwrap());
    chats.decide(&ada, decisions).await.unwrap();
    eventually(async || janitors.inner.read.lock().unwrap().len() == 3).await;
    let mut effects = janitors.world.effects();
    effects.sort();
    assert_eq!(effects, ["delete b", "delete z", "look folder"]);
    let read = janitors.inner.read.lock().unwrap()[2].clone();
    assert!(read.contains("The person changed the input"), "{read}");
    assert!(read.contains(r#"\"path\":\"z\""#) || read.contains(r#""path":"z""#), "{read}");
    let list = chats.approvals().for_chat(&ada, &"chat".into()).pending().await.unwrap();
    assert!(list.is_empty());
}

#[tokio::test]
async fn calls_with_long_ids_wait_and_go_on_like_others() {
    let mut janitors = Janitors::new();
    janitors.outer.prefix = Box::leak("o".repeat(300).into_boxed_str());
    janitors.inner.prefix = Box::leak("i".repeat(300).into_boxed_str());
    let (_, mut page) = janitors.asked().await;
    let ids = questions(&page);
    assert_eq!(ids.len(), 2);
    for id in ids {
        page.approve(&id).await;
    }
    assert_eq!(janitors.world.effects(), ["look folder", "delete a", "delete b"]);
    assert_eq!(janitors.inner.read.lock().unwrap().len(), 3);
    assert!(page.last_text().contains("delete b is done"), "{}", page.last_text());
}
