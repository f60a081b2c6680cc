//! Agents built with rig whose tools record their executions, and a browser that uses such an
//! agent.

use std::sync::{Arc, Mutex};

use axum::Router;
use chat_test_support::browser::{over, say};
use rig_agent::tool::{DynamicTool, ToolContext, ToolExecutionError, ToolOutput};
use rig_agent::{Agent, AgentBuilder};
use rig_core::message::{ImageMediaType, ToolName, ToolResultContent};
use rig_core::tool::ContextValue;
use serde_json::{Value, json};
use test_support::message_contents::MessageContents;
use ui_message_stream::axum::without_authentication;
use ui_message_stream::testing::Conversation;
use ui_message_stream_chat::axum::chat_routes;
use ui_message_stream_rig::RigAgent;

use super::provider::{Provider, fixture, stream_with_calls};

/// The executions of the tools, in order.
pub(crate) type Executed = Arc<Mutex<Vec<String>>>;

/// The requester that the tools read from their context.
#[derive(Clone, serde::Serialize, serde::Deserialize)]
pub(crate) struct Requester(pub(crate) String);

impl ContextValue for Requester {
    const KEY: &'static str = "asker";
}

/// Creates a tool that behaves according to its name, see [`outcome`].
fn recording_tool(name: &'static str, executed: &Executed) -> DynamicTool {
    let executed = Arc::clone(executed);
    let schema = json!({"type": "object", "properties": {"what": {"type": "string"}}});
    let tool_name = ToolName::new(name).unwrap();
    DynamicTool::new_with_context(
        tool_name,
        "Does it.",
        schema,
        move |context: &mut ToolContext, input: Value| {
            let (requester, executed) =
                (context.get::<Requester>().unwrap(), Arc::clone(&executed));
            Box::pin(async move { outcome(name, &input, requester, &executed) })
        },
    )
}

/// Fails, panics, returns an image, or records the execution and returns its input.
fn outcome(
    name: &str,
    input: &Value,
    requester: Option<Requester>,
    executed: &Executed,
) -> Result<ToolOutput, ToolExecutionError> {
    let what = input["what"].as_str().unwrap_or_default();
    match name {
        "fails" => Err(ToolExecutionError::from_error(std::io::Error::other(
            "postgres://user:secret@host",
        ))),
        "panics" => panic!("a secret of the tool"),
        "draws" => ToolOutput::content(vec![
            ToolResultContent::text("a picture"),
            ToolResultContent::image_base64("iVBORw0KGgo=", Some(ImageMediaType::PNG), None),
        ]),
        _ => {
            let requester =
                requester.map(|Requester(name)| format!(" for {name}")).unwrap_or_default();
            executed.lock().unwrap().push(format!("{name} {what}{requester}"));
            Ok(ToolOutput::json(json!({"done": what})))
        }
    }
}

/// Creates the builder of an agent, and the record of what its tools execute.
pub(crate) fn agent_builder(provider: &Provider) -> (AgentBuilder, Executed) {
    let builder = AgentBuilder::new(provider.anthropic("claude-sonnet-4-5"));
    (builder.preamble("Be brief.").max_tokens(999).default_max_turns(5), Executed::default())
}

/// Builds the agent with the tools of this file.
pub(crate) fn build(builder: AgentBuilder, executed: &Executed) -> Agent {
    build_with(builder, executed, [])
}

/// Builds the agent with the tools of this file and more tools.
pub(crate) fn build_with<const N: usize>(
    builder: AgentBuilder,
    executed: &Executed,
    more_tools: [DynamicTool; N],
) -> Agent {
    let tools = ["look", "delete", "send", "fails", "panics", "draws"]
        .map(|name| recording_tool(name, executed));
    builder.dynamic_tools(tools.into_iter().chain(more_tools).collect()).build()
}

/// Creates a tool that awaits a future.
pub(crate) fn awaiting_tool<F>(
    name: &str,
    future: impl Fn() -> F + Send + Sync + 'static,
) -> DynamicTool
where
    F: Future<Output = ()> + Send + 'static,
{
    let name = ToolName::new(name).unwrap();
    DynamicTool::new(name, "Does it.", json!({"type": "object"}), move |_| {
        let future = future();
        Box::pin(async move {
            future.await;
            Ok(ToolOutput::text("it ended"))
        })
    })
}

/// Returns a provider that makes these calls, and says its text when it is called again. Returns also
/// the builder of an agent, and what its tools have done.
pub(crate) fn answering(calls: &[(&str, &str, &str)]) -> (Provider, AgentBuilder, Executed) {
    let provider = Provider::with_streams([stream_with_calls(calls), fixture("anthropic/text")]);
    let (builder, executed) = agent_builder(&provider);
    (provider, builder, executed)
}

/// Returns the conversation of an agent that has received "Go" and has not failed.
pub(crate) async fn started(agent: RigAgent) -> Conversation<'static> {
    let mut browser = browser(agent);
    say(&mut browser, "Go").await;
    browser
}

/// Creates a browser that uses the agent.
pub(crate) fn browser(agent: RigAgent) -> Conversation<'static> {
    let routes = Router::new().nest("/api/chat", chat_routes(agent.into_chat_server()));
    over(routes.layer(without_authentication()))
}

/// Returns the contents of the last message.
pub(crate) fn contents(browser: &Conversation<'_>) -> MessageContents {
    MessageContents::of(browser.messages().last().unwrap())
}

/// Returns the calls of the last message: tool, input, state and output.
pub(crate) fn calls(browser: &Conversation<'_>) -> Vec<(String, Value, String, Value)> {
    contents(browser).calls
}

/// Returns a call of a tool of this file, as [`calls`] returns it.
pub(crate) fn expected_call(
    tool: &str,
    what: &str,
    state: &str,
    output: Value,
) -> (String, Value, String, Value) {
    (tool.to_owned(), json!({"what": what}), state.to_owned(), output)
}

/// Returns the tool results in a request: the id that the model gave the call, and the content.
pub(crate) fn tool_results(provider: &Provider, request: usize) -> Vec<(String, String)> {
    let requests = provider.requests();
    let messages = requests[request]["messages"].as_array().unwrap();
    let content = messages.iter().filter_map(|message| message["content"].as_array()).flatten();
    let results = content.filter(|content| content["type"] == "tool_result");
    let pairs = results.map(|result| {
        let id = result["tool_use_id"].as_str().unwrap().to_owned();
        (id, result["content"].to_string())
    });
    pairs.collect()
}
