//! The stream between an AI agent and the chat in front of it, with a person in the loop.
//!
//! Agent events become the UI message stream that `useChat` (Vercel AI SDK v6) reads; what comes
//! back, the whole history in every request, becomes a checked request and *deferred tool results*:
//! what the person approved, denied, or answered for the client.
//!
//! ```text
//!         POST body                                                       SSE body
//!             │                                                              ▲
//!    ┌────────▼────────┐   ┌─────────────────────┐   ┌────────────┐   ┌──────┴───────────┐
//!    │ ChatRequest     │──▶│ DeferredToolResults │──▶│ your agent │──▶│ Translator       │
//!    │ parse, limits   │   │ what was decided    │   │            │   │ AgentEvent→chunk │
//!    └─────────────────┘   └─────────────────────┘   └────────────┘   └──────────────────┘
//!      request               approval                                   translator → sse → body
//! ```
//!
//! An agent behind `useChat`, as an axum route:
//!
//! ```
//! # #[cfg(feature = "axum")] {
//! use axum::{Router, routing::post};
//! use futures::{Stream, stream};
//! use ui_message_stream::{AgentEvent, ChatRequest, UiMessageStream};
//!
//! /// Your agent: whatever it says, as a stream of events.
//! fn run(chat: &ChatRequest) -> impl Stream<Item = AgentEvent> + Send + use<> {
//!     stream::iter([AgentEvent::text("Hello, "), AgentEvent::text(format!("chat {}!", chat.id()))])
//! }
//!
//! async fn chat(chat: ChatRequest) -> UiMessageStream {
//!     UiMessageStream::reply(&chat, run(&chat))
//! }
//!
//! let app: Router = Router::new().route("/api/chat", post(chat));
//! # }
//! ```
//!
//! # Features
//!
//! | feature | what it adds | default |
//! |---|---|---|
//! | (none) | the core: synchronous, without a runtime | always |
//! | `body` | `UiMessageStream`, an `http_body::Body` and a `Stream` of bytes | with each of the others |
//! | `axum` | extractor, response and policy for axum 0.8 | yes |
//! | `approvals` | approvals that are asked for once and used once: ledger, toolbox, audit | yes |
//! | `agent` | an agent for those who have none: a model, typed tools, the loop | no |
//! | `testing` | for your own tests: snapshots, conformance, a scripted agent, a conversation | no |
//!
//! Packages beside this one bring an engine or a vendor: `ui-message-stream-openai` and
//! `ui-message-stream-rig` (models and agents), `ui-message-stream-mcp` (tools of a Model Context
//! Protocol server), `ui-message-stream-redis` (a ledger that several servers share) and
//! `ui-message-stream-cli` (the program `ui-message-stream`).

#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(not(test), deny(clippy::unwrap_used))]
#![deny(clippy::disallowed_methods)]

pub mod json;
pub mod record;
pub mod id;
pub mod metadata;
pub mod chunk;
pub mod message;
pub mod request;
pub mod approval;
pub mod model_message;
pub mod event;
pub mod run;
pub mod translator;
pub mod sse;
pub mod reducer;
pub mod checker;
pub mod history;

#[cfg(feature = "body")]
pub mod stream;
#[cfg(feature = "body")]
pub mod writer;
#[cfg(feature = "body")]
pub mod smooth;
#[cfg(feature = "body")]
pub mod body;
#[cfg(feature = "axum")]
pub mod axum;
#[cfg(feature = "approvals")]
pub mod ledger_store;
#[cfg(feature = "approvals")]
pub mod approvals;
#[cfg(feature = "approvals")]
pub mod chat_store;
#[cfg(feature = "approvals")]
pub mod chat;
#[cfg(feature = "agent")]
pub mod adapter;
#[cfg(feature = "agent")]
pub mod agent;
#[cfg(feature = "testing")]
pub mod testing;

pub use chunk::Chunk;
pub use event::AgentEvent;
pub use json::Json;
pub use message::UiMessage;
pub use request::ChatRequest;
pub use translator::Translator;

#[cfg(feature = "body")]
pub use body::UiMessageStream;

#[cfg(all(doctest, feature = "axum"))]
#[doc = include_str!("../README.md")]
struct ReadmeExamples;

#[cfg(all(doctest, feature = "axum", feature = "testing"))]
#[doc = include_str!("../docs/testing-your-route.md")]
struct TestingYourRouteExamples;
