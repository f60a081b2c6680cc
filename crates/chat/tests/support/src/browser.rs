//! The browser's side of a chat: an agent with a model behind a route, and the message that a
//! client holds.

use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::http::Request;
use schemars::JsonSchema;
use serde::Deserialize;
use tower::ServiceExt;
use ui_message_stream::axum::without_authentication;
use ui_message_stream::model::{Model, ModelRequest, ModelStream};
use ui_message_stream::testing::Conversation;
use ui_message_stream_agent::{Agent, Tool, ToolError};
use ui_message_stream_chat::axum::chat_routes;

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

/// Creates a conversation with the agent of a model, in which the user has sent this message.
pub async fn asked(model: impl Model, text: &str) -> Conversation<'static> {
    let mut browser = conversation(agent(model));
    browser.send(text).await;
    browser
}

/// Sends a message of the user and reads the answer.
///
/// # Panics
/// If the answer is an error.
pub async fn say(browser: &mut Conversation<'_>, text: &str) {
    browser.send(text).await;
    assert_eq!(browser.error(), None);
}

/// Approves a call and reads the answer. See [`Conversation::approve`].
///
/// # Panics
/// If the answer is an error.
pub async fn approve(browser: &mut Conversation<'_>, question: &str) {
    browser.approve(question).await;
    assert_eq!(browser.error(), None);
}
