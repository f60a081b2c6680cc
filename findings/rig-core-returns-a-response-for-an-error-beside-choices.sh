#!/usr/bin/env bash
# rig-core 0.44.0, 2026-12-01, Rust 1.95.
#
# Behaviour: a model behind Chat Completions fails in the middle of an answer. If the last chunk has `error` and an empty
# list of choices, the stream ends with an error that holds the message. If the chunk also has a choice, with the reason
# `error`, as OpenRouter writes it, `error` is not looked at, with the settings for OpenRouter either: the stream ends
# without an error, `finish()` returns a response, and the `error` of this response is None. Its `stop()` says that the
# reason is `error`; the message of the provider is in the raw document alone.
#
# What most would guess: a chunk with `error` is an error, with or without choices.
#
# Whom it matters to: programs behind OpenRouter and similar gateways. They show the beginning of an answer as a whole one
# unless they look at `stop()`, and have to look into `raw` to see whether another attempt makes sense.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
mkdir src
cat >Cargo.toml <<'TOML'
[package]
name = "beside"
version = "0.0.0"
edition = "2024"

[dependencies]
bytes = "=1.12.2"
futures = "=0.3.34"
rig-core = { version = "=0.44.0", default-features = false }
TOML
cat >src/main.rs <<'RUST'
use std::future::{Future, ready};

use bytes::Bytes;
use rig_core::completion::CompletionRequest;
use rig_core::http_client::*;
use rig_core::providers::openai::{OpenAIConfig, wire::OPENROUTER};

#[derive(Clone)]
struct Provider(&'static str);
impl HttpClientExt for Provider {
    fn send<T: Into<Bytes> + Send, U: From<Bytes> + Send + 'static>(
        &self,
        _: Request<T>,
    ) -> impl Future<Output = Result<Response<LazyBody<U>>>> + Send + 'static {
        ready(Err(Error::StreamEnded))
    }

    fn send_multipart<U: From<Bytes> + Send + 'static>(
        &self,
        _: Request<multipart::MultipartForm>,
    ) -> impl Future<Output = Result<Response<LazyBody<U>>>> + Send + 'static {
        ready(Err(Error::StreamEnded))
    }

    async fn send_streaming<T: Into<Bytes> + Send>(&self, _: Request<T>) -> Result<StreamingResponse> {
        let body: BoxedStream = Box::pin(futures::stream::iter([Ok(Bytes::from(self.0))]));
        Ok(Response::builder().header("content-type", "text/event-stream").body(body).unwrap())
    }
}

fn main() {
    for choices in ["", r#"{"index":0,"delta":{"content":""},"finish_reason":"error"}"#] {
        let begun = r#"{"choices":[{"index":0,"delta":{"content":"Pay 1"}}]}"#;
        let failed = format!(r#"{{"error":{{"code":502,"message":"overloaded"}},"choices":[{choices}]}}"#);
        let body = format!("data: {begun}\n\ndata: {failed}\n\ndata: [DONE]\n\n");
        let model = OpenAIConfig::with_key(&OPENROUTER, "none").connect(Provider(body.leak())).chat("model");
        let stream = model.stream(CompletionRequest::new("How much?")).unwrap();
        match futures::executor::block_on(stream.finish()) {
            Ok(response) => println!("response, error {:?}, stop {:?}", response.error, response.stop()),
            Err(error) => println!("{error}"),
        }
    }
}
RUST
printed=$(cargo run --quiet)
printf '%s\n' "$printed"
[ "$printed" = 'ProviderResponseError: {"error":{"code":502,"message":"overloaded"},"choices":[]}
response, error None, stop Error("Provider finish_reason: error")' ]
