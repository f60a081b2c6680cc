//! A provider behind rig's transport: it answers with what it is given, and keeps what it was asked.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

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
use test_support::repository;

/// A provider.
#[derive(Clone, Default)]
pub(crate) struct Provider(Arc<Mutex<Desk>>);

#[derive(Default)]
struct Desk {
    answers: VecDeque<(u16, String)>,
    asked: Vec<Value>,
}

impl Provider {
    /// Answers the first request with the first of these streams, and so on.
    pub(crate) fn streaming(answers: impl IntoIterator<Item = String>) -> Self {
        Self::answering(answers.into_iter().map(|answer| (200, answer)))
    }

    pub(crate) fn answering(answers: impl IntoIterator<Item = (u16, String)>) -> Self {
        let answers = answers.into_iter().collect();
        Provider(Arc::new(Mutex::new(Desk { answers, asked: Vec::new() })))
    }

    /// Answers what is asked next with these.
    pub(crate) fn then(&self, answers: impl IntoIterator<Item = String>) {
        let mut desk = self.0.lock().unwrap();
        desk.answers = answers.into_iter().map(|answer| (200, answer)).collect();
    }

    /// The bodies of the requests so far.
    pub(crate) fn asked(&self) -> Vec<Value> {
        self.0.lock().unwrap().asked.clone()
    }

    /// Chat Completions, as rig speaks them.
    pub(crate) fn chat(&self) -> DynModel<Completion> {
        OpenAIConfig::new("sk-very-secret").connect(self.clone()).chat("a-model").erase()
    }

    /// Responses, as rig speaks them.
    pub(crate) fn responses(&self) -> DynModel<Completion> {
        OpenAIConfig::new("sk-very-secret").connect(self.clone()).responses("a-model").erase()
    }

    /// Gemini, as rig speaks it.
    pub(crate) fn gemini(&self) -> DynModel<Completion> {
        let config = GeminiConfig::new("sk-very-secret");
        config.connect(self.clone()).completion("gemini-3-pro-image").erase()
    }

    /// Messages, as rig speaks them.
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
        let mut desk = self.0.lock().unwrap();
        desk.asked.push(serde_json::from_slice(&body).unwrap());
        let nothing = (418, "nothing is left to say".to_owned());
        let (status, answer) = desk.answers.pop_front().unwrap_or(nothing);
        let status = status.try_into().unwrap();
        if status != 200 {
            return Err(Error::non_success_with_details(status, Default::default(), answer));
        }
        // Cut where no event ends and some characters do not.
        let piece = if answer.len() < 100_000 { 37 } else { 65_537 };
        let pieces: Vec<Bytes> =
            answer.as_bytes().chunks(piece).map(Bytes::copy_from_slice).collect();
        let body: BoxedStream = Box::pin(stream::iter(pieces).map(Ok));
        let response = Response::builder().header("content-type", "text/event-stream").body(body);
        response.map_err(Error::Protocol)
    }
}

/// A recorded stream, one event's data a line, as it goes over the wire.
pub(crate) fn as_stream(lines: &str) -> String {
    let events: String = lines.lines().map(|line| format!("data: {line}\n\n")).collect();
    format!("{events}data: [DONE]\n\n")
}

/// One of the fixtures, as a stream.
pub(crate) fn fixture(name: &str) -> String {
    as_stream(&lines_of(name))
}

/// One of the fixtures, one event's data a line.
pub(crate) fn lines_of(name: &str) -> String {
    let path = repository().join(format!("fixtures/providers/{name}.jsonl"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// An answer that says a word and makes these calls: id, tool and input.
pub(crate) fn calling(calls: &[(&str, &str, &str)]) -> String {
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
