//! A Rust backend for `useChat` (Vercel AI SDK v6 and v7), with human approval of tool calls.
//!
//! It is for people who write their agent in Rust and their chat in React: agent events become the
//! UI message stream that the client reads, and the posted messages become a checked request with
//! *deferred tool results* for the calls that an earlier turn left open (approved, denied with a
//! reason, or answered by the client).
//!
//! ```text
//!         POST body                                                       SSE body
//!             │                                                              ▲
//!    ┌────────▼────────┐   ┌─────────────────────┐   ┌────────────┐   ┌──────┴───────────┐
//!    │ ChatRequest     │──▶│ DeferredToolResults │──▶│ your agent │──▶│ Translator       │
//!    │ parse, limits   │   │ checked, claimed    │   │            │   │ AgentEvent→chunk │
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
//! /// Your agent: a stream of events.
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
//! # Where to begin
//!
//! - With your own agent: `UiMessageStream::reply`, as above, and `Approvals::run` for approvals.
//! - Without an agent: `Agent` of `ui-message-stream-agent`, a model with tools.
//! - Conversations that the server stores: `ChatServer` of `ui-message-stream-chat`, and its routes.
//! - The identity of the user: [`approval::Principal`].
//! - Storage: `approval::store::LedgerStore` for approvals; `LogStore` of `ui-message-stream-chat` for
//!   conversations and live responses.
//! - Tests of your own routes: `testing`.
//!
//! # Terms
//!
//! | term | meaning |
//! |---|---|
//! | host | your application, which uses this crate |
//! | client | the front end with `useChat`; its copy of the messages is not trusted |
//! | chunk, frame | one element of the UI message stream; the bytes of one server-sent event |
//! | turn, run | one answer of the agent; its execution on the server |
//! | continued message | the assistant message that a response adds to: with approvals, one message is written by several responses |
//! | open call | a tool call without a result |
//! | record, ledger | what the server knows about one approval request; the store of all records |
//! | redeem, claim | to check an approval against its record; to reserve the call, so that it is executed once |
//!
//! # Features
//!
//! | feature | what it adds | default |
//! |---|---|---|
//! | (none) | the core: chunks, messages, request parser, approvals, events, translator, SSE, reducer, checker. Synchronous, no runtime | always |
//! | `body` | `UiMessageStream`: a response as an `http_body::Body` and a `Stream` of bytes, for any server on tokio; `ChatPolicy::check` | yes; `axum`, `approvals` and `testing` enable it |
//! | `axum` | `ChatRequest`, `JsonBody` and `Principal` as extractors, `UiMessageStream` as response, `ChatPolicy` as layer and extractor, for axum 0.8 | yes |
//! | `approvals` | approvals that are used once: ledger, toolbox, audit | yes |
//! | `cors` | `ChatPolicy::cors`: the CORS headers for the pages that the policy allows | no |
//! | `serve` | `axum::serve` of this crate: an HTTP/1.1 server with timeouts and a maximum number of connections | no |
//! | `metrics` | requests, the time to the first byte and approvals as series of the `metrics` crate, for Prometheus | no |
//! | `testing` | for your own tests: snapshots, conformance of streams and ledgers, a scripted agent, a conversation | no |
//!
//! Chats, agents, and integrations with an engine or a vendor are packages of their own:
//! `ui-message-stream-chat` (conversations on the server, live responses that clients rejoin),
//! `ui-message-stream-agent` (any model, typed tools, the loop), `ui-message-stream-openai`
//! (models of OpenAI and of servers with its API), `ui-message-stream-rig` (models of `rig`, and
//! agents built with it), `ui-message-stream-mcp` (tools of a Model Context Protocol server),
//! `ui-message-stream-sqlite`, `ui-message-stream-redis` and `ui-message-stream-postgres` (stores of
//! chats, approvals and live responses) and `ui-message-stream-cli` (the program `ui-message-stream`).

#![cfg_attr(docsrs, feature(doc_cfg))]
// With all features every link is checked. With fewer, a link to an item of another feature is text.
#![cfg_attr(not(feature = "axum"), allow(rustdoc::broken_intra_doc_links))]
#![cfg_attr(not(test), deny(clippy::unwrap_used))]
#![deny(clippy::disallowed_methods)]

#[macro_use]
mod debug;
#[macro_use]
mod words;

#[cfg(feature = "body")]
mod boxed;
pub mod json;
pub mod id;
pub mod metadata;
#[cfg(feature = "approvals")]
mod metrics;
#[cfg(feature = "approvals")]
pub mod retry;
mod texts;
pub mod chunk;
pub mod message;
pub mod request;
pub mod event;
pub mod translator;
pub mod sse;
pub mod reducer;
pub mod checker;
pub mod approval;
pub mod model;
#[cfg(feature = "body")]
pub mod response;
#[cfg(feature = "body")]
pub mod policy;
#[cfg(feature = "axum")]
pub mod axum;
#[cfg(feature = "testing")]
pub mod testing;

#[doc(hidden)]
pub use serde_json as __serde_json;

pub use chunk::Chunk;
pub use event::AgentEvent;
pub use json::Json;
pub use message::UiMessage;
pub use request::ChatRequest;
pub use texts::{TextsReplacedError, UserText};
pub use translator::Translator;

#[cfg(feature = "body")]
pub use boxed::{BoxError, BoxFuture};
#[cfg(feature = "body")]
pub use response::UiMessageStream;

#[cfg(all(doctest, feature = "axum", feature = "testing"))]
#[doc = include_str!("../docs/testing-your-route.md")]
struct TestingYourRouteExamples;

#[cfg(all(doctest, feature = "axum", feature = "cors"))]
#[doc = include_str!("../docs/front-end.md")]
struct FrontEndExamples;

#[cfg(all(doctest, feature = "body"))]
#[doc = include_str!("../docs/development-proxy.md")]
struct DevelopmentProxyExamples;

#[cfg(all(doctest, feature = "approvals", feature = "axum"))]
#[doc = include_str!("../README.md")]
struct ReadmeExamples;
