//! A server whose model emits random texts and calls, and which counts the runs of its tools.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Method, Request, header};
use futures::stream;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use test_support::prompt_rules::{check_as_anthropic, check_as_openai, check_promises};
use test_support::rng::Dice;
use tower::ServiceExt;
use ui_message_stream::Json;
use ui_message_stream::axum::without_authentication;
use ui_message_stream::chunk::FinishReason;
use ui_message_stream::event::{AgentEvent, ToolCall};
use ui_message_stream::model::{Model, ModelEvent, ModelMessage, ModelRequest, ModelStream};
use ui_message_stream_agent::{Agent, Tool, ToolError};
use ui_message_stream_chat::axum::chat_routes;

pub(crate) struct Server {
    app: Router,
    recorded: Arc<Recorded>,
}

/// The recorded prompts, calls and tool runs.
#[derive(Debug, Default)]
struct Recorded {
    transcripts: Mutex<Vec<Vec<ModelMessage>>>,
    /// How often the model called the tool without approval, and how often the tool ran.
    called: AtomicUsize,
    ran: AtomicUsize,
    /// How often the tool ran that needs an approval. No test approves it.
    ran_unapproved: AtomicUsize,
}

struct RandomModel {
    dice: Mutex<Dice>,
    recorded: Arc<Recorded>,
}

impl std::fmt::Debug for RandomModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RandomModel")
    }
}

impl Model for RandomModel {
    fn call(&self, request: ModelRequest) -> ModelStream {
        self.recorded.transcripts.lock().unwrap().push(request.messages);
        let dice = &mut *self.dice.lock().unwrap();
        let mut events = Vec::new();
        if dice.chance(60) {
            events.push(ModelEvent::Event(AgentEvent::text("Well.")));
        }
        let calls = [0, 1, 1, 2, 3][dice.below(5)];
        for _ in 0..calls {
            let (name, input) = match dice.below(8) {
                0..3 => ("ls", r#"{"n":1}"#),
                3..5 => ("rm-rf", r#"{"n":1}"#),
                5 => ("x", "{}"),
                6 => ("ls", r#"{"n":"#),
                _ => ("gone", "{}"),
            };
            let is_valid_call = name == "ls" && input == r#"{"n":1}"#;
            self.recorded.called.fetch_add(usize::from(is_valid_call), Ordering::SeqCst);
            let call = ToolCall::new(dice.pick(&["c0", "c1", "call"]), name);
            events.push(ModelEvent::ToolCall(Box::new(call), input.to_owned()));
        }
        events.push(ModelEvent::Finished(match calls {
            0 => FinishReason::Stop,
            _ => FinishReason::ToolCalls,
        }));
        Box::pin(stream::iter(events.into_iter().map(Ok)))
    }
}

#[derive(Deserialize, JsonSchema)]
struct Input {
    n: u64,
}

impl Server {
    pub(crate) fn new(dice: Dice) -> Self {
        let recorded = Arc::new(Recorded::default());
        let counted = |count: fn(&Recorded) -> &AtomicUsize| {
            let recorded = Arc::clone(&recorded);
            move |input: Input| {
                count(&recorded).fetch_add(1, Ordering::SeqCst);
                async move { Ok::<_, ToolError>(input.n) }
            }
        };
        let schema = Json::parse(r#"{"type":"object"}"#).unwrap();
        let agent =
            Agent::new(RandomModel { dice: Mutex::new(dice), recorded: Arc::clone(&recorded) })
                .with_max_steps(4)
                .tool(Tool::new("ls", counted(|recorded| &recorded.ran)))
                .tool(
                    Tool::new("rm-rf", counted(|recorded| &recorded.ran_unapproved))
                        .needs_approval(),
                )
                .tool(Tool::client_executed("x", "", schema));
        let app = Router::new().nest("/api/chat", chat_routes(agent.into_chat_server()));
        Server { app: app.layer(without_authentication()), recorded }
    }

    /// Starts a chat, and returns the messages that the server then stores.
    pub(crate) async fn first_turn(&self, user_message: &str) -> Vec<String> {
        let body = format!(r#"{{"id":"chat","messages":[{user_message}]}}"#);
        assert_eq!(self.post(&body).await, 200);
        self.history().await.expect("the chat exists")
    }

    /// Posts this body, reads the whole response, and returns its status.
    pub(crate) async fn post(&self, body: &str) -> u16 {
        self.send(Method::POST, "/api/chat", body).await.0
    }

    /// The messages of the chat, if there is one.
    pub(crate) async fn history(&self) -> Option<Vec<String>> {
        let (status, body) = self.send(Method::GET, "/api/chat/chat", "").await;
        let history: Value = serde_json::from_slice(&body).ok().filter(|_| status == 200)?;
        Some(history["messages"].as_array()?.iter().map(Value::to_string).collect())
    }

    async fn send(&self, method: Method, uri: &str, body: &str) -> (u16, Vec<u8>) {
        let request = Request::builder()
            .method(method)
            .uri(uri)
            .header(header::HOST, "127.0.0.1:3000")
            .header(header::CONTENT_TYPE, "application/json")
            .body(Body::from(body.to_owned()))
            .unwrap();
        let response = self.app.clone().oneshot(request).await.unwrap();
        let status = response.status().as_u16();
        let body = to_bytes(response.into_body(), usize::MAX).await.unwrap();
        (status, body.to_vec())
    }

    pub(crate) fn model_calls(&self) -> usize {
        self.recorded.transcripts.lock().unwrap().len()
    }

    /// Checks the recorded prompts and tool runs.
    pub(crate) fn check(&self) {
        let count = |count: &AtomicUsize| count.load(Ordering::SeqCst);
        assert_eq!(count(&self.recorded.ran_unapproved), 0, "a tool ran without approval");
        assert_eq!(
            count(&self.recorded.ran),
            count(&self.recorded.called),
            "the tool ran as often as the model called it"
        );
        for transcript in &*self.recorded.transcripts.lock().unwrap() {
            check_promises(transcript);
            check_as_openai(transcript);
            check_as_anthropic(transcript);
        }
    }
}
