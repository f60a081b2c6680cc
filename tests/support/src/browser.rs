//! The browser's side of a chat: an agent with a model behind a route, and the message that a
//! client holds.

use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::http::Request;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use tower::ServiceExt;
use ui_message_stream::UiMessage;
use ui_message_stream::agent::{Agent, Tool, ToolError};
use ui_message_stream::axum::{chat_routes, without_authentication};
use ui_message_stream::message::{Part, ToolPart};
use ui_message_stream::model::{Model, ModelRequest, ModelStream};
use ui_message_stream::testing::Conversation;

#[derive(Deserialize, JsonSchema)]
struct City {
    city: String,
}

/// Creates an agent that knows the weather and the tides.
pub fn agent(model: impl Model) -> Agent {
    let weather = Tool::new("weather", async |place: City| {
        Ok::<_, ToolError>(format!("{}: sun", place.city))
    });
    #[derive(Deserialize, JsonSchema)]
    struct Nothing {}
    let tides = Tool::new("tides", async |_: Nothing| Ok::<_, ToolError>("low"));
    Agent::new(model).with_instructions("Be brief.").tool(weather).tool(tides)
}

/// An answer in a structure.
#[derive(Debug, PartialEq, Deserialize, JsonSchema)]
pub struct Forecast {
    city: String,
    degrees: Option<i8>,
}

/// A model that sends its first call to one model, and all later calls to another.
#[derive(Debug)]
pub struct Turns<A, B>(A, B, AtomicBool);

impl<A, B> Turns<A, B> {
    /// Creates the model. The first call goes to `first`, all others to `then`.
    pub fn new(first: A, then: B) -> Self {
        Turns(first, then, AtomicBool::new(false))
    }
}

impl<A: Model, B: Model> Model for Turns<A, B> {
    fn call(&self, request: ModelRequest) -> ModelStream {
        match self.2.swap(true, Ordering::SeqCst) {
            false => self.0.call(request),
            true => self.1.call(request),
        }
    }
}

/// Creates a conversation with an agent, through its route.
pub fn conversation(agent: Agent) -> Conversation<'static> {
    over(app(agent))
}

/// Creates the route of an agent, for one anonymous user.
pub fn app(agent: Agent) -> Router {
    Router::new()
        .nest("/api/chat", chat_routes(agent.into_chat_server()))
        .layer(without_authentication())
}

/// Creates a conversation through a route.
pub fn over(app: Router) -> Conversation<'static> {
    Conversation::with_service("http://localhost/api/chat", move |mut request: Request<String>| {
        request.headers_mut().insert("host", "localhost".parse().unwrap());
        app.clone().oneshot(request.map(axum::body::Body::from))
    })
}

/// The contents of a message, grouped by kind.
#[derive(Debug, Default, PartialEq)]
pub struct MessageContents {
    /// All text.
    pub text: String,
    /// All reasoning.
    pub reasoning: String,
    /// For each call: tool, input, state, output.
    pub calls: Vec<(String, Value, String, Value)>,
    /// The URL of each source.
    pub sources: Vec<String>,
}

impl MessageContents {
    /// Reads a message.
    pub fn of(message: &UiMessage) -> Self {
        let mut held = MessageContents::default();
        for part in &message.parts {
            match part {
                Part::Text(part) => held.text.push_str(&part.text),
                Part::Reasoning(part) => held.reasoning.push_str(&part.text),
                Part::Tool(part) => held.calls.push(call(part)),
                Part::SourceUrl(part) => held.sources.push(part.url.to_string()),
                _ => {}
            }
        }
        held
    }
}

fn call(part: &ToolPart) -> (String, Value, String, Value) {
    let json: Value = serde_json::to_value(Part::Tool(Box::new(part.clone()))).unwrap();
    let output = if json["output"].is_null() { &json["errorText"] } else { &json["output"] };
    let state = part.state.as_str().to_owned();
    (part.tool_name.to_string(), json["input"].clone(), state, output.clone())
}
