//! Agents built with rig, whose tools write down what they do, and a page in front of them.

use std::sync::{Arc, Mutex};

use axum::Router;
use rig_agent::tool::{DynamicTool, ToolContext, ToolExecutionError, ToolOutput};
use rig_agent::{Agent, AgentBuilder};
use rig_core::message::{ImageMediaType, ToolName, ToolResultContent};
use rig_core::tool::ContextValue;
use serde_json::{Value, json};
use test_support::browser::{Held, over};
use ui_message_stream::axum::chat_routes;
use ui_message_stream::testing::Conversation;
use ui_message_stream_rig::RigAgent;

use super::provider::Provider;

/// What the tools did.
pub(crate) type Done = Arc<Mutex<Vec<String>>>;

/// Who asks, as the tools are told.
#[derive(Clone, serde::Serialize, serde::Deserialize)]
pub(crate) struct Asker(pub(crate) String);

impl ContextValue for Asker {
    const KEY: &'static str = "asker";
}

/// Returns what it was asked to do, and for whom.
fn tool(name: &'static str, done: &Done) -> DynamicTool {
    let done = Arc::clone(done);
    let schema = json!({"type": "object", "properties": {"what": {"type": "string"}}});
    let name_of_it = ToolName::new(name).unwrap();
    DynamicTool::new_with_context(
        name_of_it,
        "Does it.",
        schema,
        move |context: &mut ToolContext, input: Value| {
            let (asker, done) = (context.get::<Asker>().unwrap(), Arc::clone(&done));
            Box::pin(async move { outcome(name, &input, asker, &done) })
        },
    )
}

fn outcome(
    name: &str,
    input: &Value,
    asker: Option<Asker>,
    done: &Done,
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
            let asker = asker.map(|Asker(name)| format!(" for {name}")).unwrap_or_default();
            done.lock().unwrap().push(format!("{name} {what}{asker}"));
            Ok(ToolOutput::json(json!({"done": what})))
        }
    }
}

/// An agent of these tools, each of which writes down what it does.
pub(crate) fn agent(provider: &Provider) -> (AgentBuilder, Done) {
    let builder = AgentBuilder::new(provider.anthropic("claude-sonnet-4-5"));
    (builder.preamble("Be brief.").max_tokens(999).default_max_turns(5), Done::default())
}

pub(crate) fn built(builder: AgentBuilder, done: &Done) -> Agent {
    built_with(builder, done, [])
}

/// With further tools.
pub(crate) fn built_with<const N: usize>(
    builder: AgentBuilder,
    done: &Done,
    more: [DynamicTool; N],
) -> Agent {
    let tools = ["look", "delete", "send", "fails", "panics", "draws"].map(|name| tool(name, done));
    builder.dynamic_tools(tools.into_iter().chain(more).collect()).build()
}

/// A tool that ends as this says.
pub(crate) fn ending<F>(name: &str, end: impl Fn() -> F + Send + Sync + 'static) -> DynamicTool
where
    F: Future<Output = ()> + Send + 'static,
{
    let name = ToolName::new(name).unwrap();
    DynamicTool::new(name, "Does it.", json!({"type": "object"}), move |_| {
        let end = end();
        Box::pin(async move {
            end.await;
            Ok(ToolOutput::text("it ended"))
        })
    })
}

pub(crate) fn page(agent: RigAgent) -> Conversation<'static> {
    over(Router::new().nest("/api/chat", chat_routes(agent.into_chat_server())))
}

pub(crate) fn held(page: &Conversation<'_>) -> Held {
    Held::of(page.messages().last().unwrap())
}

/// What became of the calls: tool, input, state and output.
pub(crate) fn calls(page: &Conversation<'_>) -> Vec<(String, Value, String, Value)> {
    held(page).calls
}

pub(crate) fn became(
    tool: &str,
    what: &str,
    state: &str,
    output: Value,
) -> (String, Value, String, Value) {
    (tool.to_owned(), json!({"what": what}), state.to_owned(), output)
}

/// What the model was told of its calls, by its own ids for them.
pub(crate) fn told(provider: &Provider, request: usize) -> Vec<(String, String)> {
    let asked = provider.asked();
    let messages = asked[request]["messages"].as_array().unwrap();
    let content = messages.iter().filter_map(|message| message["content"].as_array()).flatten();
    let results = content.filter(|content| content["type"] == "tool_result");
    let told = results.map(|result| {
        let id = result["tool_use_id"].as_str().unwrap().to_owned();
        (id, result["content"].to_string())
    });
    told.collect()
}
