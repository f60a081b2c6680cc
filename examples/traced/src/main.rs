//! Tracing and metrics: sends the spans of an agent to a collector. The spans show where the time goes and how
//! approvals were decided, and follow the OpenTelemetry conventions for generative AI. Run
//! `cargo run -p traced` with a collector at `OTEL_EXPORTER_OTLP_ENDPOINT` (`http://localhost:4318`
//! by default). Prometheus finds the counters of the server at `http://localhost:9100/metrics`.
//!
//! ```sh
//! say() { curl -s http://localhost:3000/api/chat -H 'content-type: application/json' \
//!   -H 'accept: application/json' -d '{"id": "c", "messages": [{"id": "m'$RANDOM'", "role": "user",
//!   "parts": [{"type": "text", "text": "'"$1"'"}]}]}'; }
//! say 'How warm is it?'
//! say 'Open the window'    # requests an approval; `approvals[0].approvalId` is its id:
//! curl http://localhost:3000/api/approvals -H 'content-type: application/json' \
//!   -d '{"decisions": [{"approvalId": "…", "approved": true}]}'
//! ```
//!
//! The spans contain no message text, no tool input and no tool output. They contain the error
//! messages of tools and providers, except for the messages of [`ToolError`].

use axum::Router;
use futures::stream;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::SpanExporter;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::net::TcpListener;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use ui_message_stream::AgentEvent;
use ui_message_stream::axum::{LocalAddress, without_authentication};
use ui_message_stream::chunk::FinishReason;
use ui_message_stream::event::ToolCall;
use ui_message_stream::model::{Model, ModelEvent, ModelMessage, ModelRequest, ModelStream, Usage};
use ui_message_stream_agent::{Agent, Tool, ToolError};
use ui_message_stream_chat::axum::{approval_routes, chat_routes};

/// A model that reads the thermometer, or opens the window if the user's message contains "window",
/// and then says so.
#[derive(Debug)]
struct Scripted;

impl Model for Scripted {
    fn call(&self, request: ModelRequest) -> ModelStream {
        let last = request.messages.last();
        let event = match last {
            Some(ModelMessage::Tool { .. }) => ModelEvent::Event(AgentEvent::text("So be it.")),
            last => {
                let is_hot = format!("{last:?}").contains("window");
                let tool = if is_hot { "open_window" } else { "temperature" };
                let call = ToolCall::new(uuid::Uuid::new_v4().to_string(), tool);
                ModelEvent::ToolCall(Box::new(call), r#"{"room":"kitchen"}"#.to_owned())
            }
        };
        let mut usage = Usage::default();
        (usage.input_tokens, usage.output_tokens) = (42, 7);
        let events = [event, ModelEvent::Usage(usage), ModelEvent::Finished(FinishReason::Stop)];
        Box::pin(stream::iter(events.map(Ok)))
    }

    fn name(&self) -> Option<&str> {
        Some("scripted")
    }

    fn provider(&self) -> Option<&str> {
        Some("nobody")
    }
}

/// Reads the thermometer of a room.
#[derive(Deserialize, JsonSchema)]
struct Temperature {
    room: String,
}

async fn temperature(input: Temperature) -> Result<String, ToolError> {
    Ok(format!("21 degrees in the {}", input.room))
}

/// Opens the window of a room.
#[derive(Deserialize, JsonSchema)]
struct OpenWindow {
    room: String,
}

async fn open_window(input: OpenWindow) -> Result<String, ToolError> {
    Ok(format!("it is open in the {}", input.room))
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let exporter = SpanExporter::builder().with_http().build()?;
    let resource = Resource::builder().with_service_name("chat").build();
    let provider =
        SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build();
    let spans = tracing_opentelemetry::layer().with_tracer(provider.tracer("chat"));
    let logs = tracing_subscriber::fmt::layer();
    tracing_subscriber::registry().with(LevelFilter::INFO).with(spans).with(logs).init();

    let first_byte = Matcher::Full("ui_message_stream_first_byte_seconds".to_owned());
    PrometheusBuilder::new()
        .set_buckets_for_metric(first_byte, &[0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0])?
        .with_http_listener(([127, 0, 0, 1], 9100))
        .install()?;

    let agent = Agent::new(Scripted)
        .tool(Tool::new("temperature", temperature))
        .tool(Tool::new("open_window", open_window).needs_approval());
    let chats = agent.into_chat_server();
    let app = Router::new()
        .nest("/api/chat", chat_routes(chats.clone()))
        .nest("/api/approvals", approval_routes(chats))
        .layer(without_authentication())
        .into_make_service_with_connect_info::<LocalAddress>();
    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("http://{}/api/chat; the spans leave every five seconds", listener.local_addr()?);
    let stopped = async { drop(tokio::signal::ctrl_c().await) };
    axum::serve(listener, app).with_graceful_shutdown(stopped).await?;
    provider.shutdown()?;
    Ok(())
}
