//! A provider behind rig's transport. Sends prepared responses and records the requests.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use futures::future::ready;
use futures::{StreamExt, stream};
use rig_core::http_client::multipart::MultipartForm;
use rig_core::http_client::{
    BoxedStream, Error, HttpClientExt, LazyBody, Request, Response, Result, StreamingResponse,
};
use rig_core::providers::anthropic::AnthropicConfig;
use rig_core::providers::gemini::GeminiConfig;
use rig_core::providers::openai::OpenAIConfig;
use rig_core::wasm_compat::WasmCompatSend;
use rig_core::{DynModel, operation::Completion};
use serde_json::{Value, json};
use tokio::net::TcpListener;

pub(crate) use test_support::recorded_streams::{as_stream, fixture, lines_of};

/// A provider in this process.
#[derive(Clone, Default)]
pub(crate) struct Provider(Arc<Mutex<Exchanges>>);

#[derive(Default)]
struct Exchanges {
    responses: VecDeque<(u16, String)>,
    requests: Vec<Value>,
}

impl Provider {
    /// Creates a provider that answers each request with the next of these streams.
    pub(crate) fn with_streams(streams: impl IntoIterator<Item = String>) -> Self {
        Self::with_responses(streams.into_iter().map(|stream| (200, stream)))
    }

    /// Creates a provider that answers each request with the next status and body.
    pub(crate) fn with_responses(responses: impl IntoIterator<Item = (u16, String)>) -> Self {
        let responses = responses.into_iter().collect();
        Provider(Arc::new(Mutex::new(Exchanges { responses, requests: Vec::new() })))
    }

    /// Answers each of the next requests with the next of these streams.
    pub(crate) fn respond_with(&self, streams: impl IntoIterator<Item = String>) {
        let mut exchanges = self.0.lock().unwrap();
        exchanges.responses = streams.into_iter().map(|stream| (200, stream)).collect();
    }

    /// Returns the bodies of the requests so far.
    pub(crate) fn requests(&self) -> Vec<Value> {
        self.0.lock().unwrap().requests.clone()
    }

    /// Listens on a port of its own, for clients that are not rig's. Returns the address.
    pub(crate) async fn listen(&self) -> String {
        let provider = self.clone();
        let respond = move |body: Bytes| ready(provider.respond(&body).1);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}/v1", listener.local_addr().unwrap());
        let app = Router::new().fallback(respond);
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        address
    }

    /// Records a request. Returns the next status and body.
    fn respond(&self, request: &[u8]) -> (u16, String) {
        let mut exchanges = self.0.lock().unwrap();
        exchanges.requests.push(serde_json::from_slice(request).unwrap());
        let no_response = (418, "nothing is left to say".to_owned());
        exchanges.responses.pop_front().unwrap_or(no_response)
    }

    /// Returns rig's model for Chat Completions.
    pub(crate) fn chat(&self) -> DynModel<Completion> {
        OpenAIConfig::new("sk-very-secret").connect(self.clone()).chat("a-model").erase()
    }

    /// Returns rig's model for Responses.
    pub(crate) fn responses(&self) -> DynModel<Completion> {
        OpenAIConfig::new("sk-very-secret").connect(self.clone()).responses("a-model").erase()
    }

    /// Returns rig's model for Gemini.
    pub(crate) fn gemini(&self) -> DynModel<Completion> {
        let config = GeminiConfig::new("sk-very-secret");
        config.connect(self.clone()).completion("gemini-3-pro-image").erase()
    }

    /// Returns rig's model for Anthropic's Messages.
    pub(crate) fn anthropic(&self, model: &str) -> DynModel<Completion> {
        AnthropicConfig::new("sk-very-secret").connect(self.clone()).completion(model).erase()
    }
}

impl HttpClientExt for Provider {
    fn send<T, U>(
        &self,
        _: Request<T>,
    ) -> impl Future<Output = Result<Response<LazyBody<U>>>> + WasmCompatSend + 'static
    where
        T: Into<Bytes> + WasmCompatSend,
        U: From<Bytes> + WasmCompatSend + 'static,
    {
        ready(Err(Error::StreamEnded))
    }

    fn send_multipart<U>(
        &self,
        _: Request<MultipartForm>,
    ) -> impl Future<Output = Result<Response<LazyBody<U>>>> + WasmCompatSend + 'static
    where
        U: From<Bytes> + WasmCompatSend + 'static,
    {
        ready(Err(Error::StreamEnded))
    }

    async fn send_streaming<T>(&self, request: Request<T>) -> Result<StreamingResponse>
    where
        T: Into<Bytes> + WasmCompatSend,
    {
        let body: Bytes = request.into_body().into();
        let (status, content) = self.respond(&body);
        let status = status.try_into().unwrap();
        if status != 200 {
            return Err(Error::non_success_with_details(status, Default::default(), content));
        }
        // The boundaries of the pieces are inside events, and some are inside characters.
        let piece = if content.len() < 100_000 { 37 } else { 65_537 };
        let pieces: Vec<Bytes> =
            content.as_bytes().chunks(piece).map(Bytes::copy_from_slice).collect();
        let body: BoxedStream = Box::pin(stream::iter(pieces).map(Ok));
        let kind = if content.starts_with('{') { "application/json" } else { "text/event-stream" };
        let response = Response::builder().header("content-type", kind).body(body);
        response.map_err(Error::Protocol)
    }
}

/// Returns a response with a text and these calls: id, tool and input.
pub(crate) fn stream_with_calls(calls: &[(&str, &str, &str)]) -> String {
    let mut events = vec![
        json!({"type": "message_start", "message": {"id": "msg_c", "type": "message",
            "role": "assistant", "model": "claude", "content": [], "stop_reason": null,
            "stop_sequence": null, "usage": {"input_tokens": 3, "output_tokens": 1}}}),
        json!({"type": "content_block_start", "index": 0,
            "content_block": {"type": "text", "text": ""}}),
        json!({"type": "content_block_delta", "index": 0,
            "delta": {"type": "text_delta", "text": "So."}}),
        json!({"type": "content_block_stop", "index": 0}),
    ];
    for (at, (id, tool, input)) in calls.iter().enumerate() {
        let index = at + 1;
        events.extend([
            json!({"type": "content_block_start", "index": index,
                "content_block": {"type": "tool_use", "id": id, "name": tool, "input": {}}}),
            json!({"type": "content_block_delta", "index": index,
                "delta": {"type": "input_json_delta", "partial_json": input}}),
            json!({"type": "content_block_stop", "index": index}),
        ]);
    }
    events.extend([
        json!({"type": "message_delta", "delta": {"stop_reason": "tool_use"},
            "usage": {"output_tokens": 4}}),
        json!({"type": "message_stop"}),
    ]);
    events.iter().map(|event| format!("data: {event}\n\n")).collect()
}
