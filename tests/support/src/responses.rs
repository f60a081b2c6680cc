//! What a client reads from a response.

use std::fmt::Debug;

use axum::body::HttpBody;
use bytes::Bytes;
use http_body_util::BodyExt;
use serde_json::Value;
use ui_message_stream::UiMessage;
use ui_message_stream::chunk::ReceivedChunk;
use ui_message_stream::reducer::Reducer;

/// Reads a body to its end.
///
/// # Panics
/// If the body fails.
pub async fn text_of(body: impl HttpBody<Data = Bytes, Error: Debug>) -> String {
    String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap()
}

/// Returns the data of the frames in the text of a response, without the `[DONE]` at its end.
pub fn data_of(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|data| *data != "[DONE]")
}

/// Returns the chunks in the text of a response.
pub fn chunks_of(text: &str) -> Vec<Value> {
    data_of(text).map(|data| serde_json::from_str(data).unwrap()).collect()
}

/// Returns the message of a client that holds `held` and reads the text of a response.
///
/// # Panics
/// If the client rejects a chunk.
pub fn message_of(held: Option<UiMessage>, text: &str) -> UiMessage {
    let mut reducer = held.map_or_else(Reducer::new, Reducer::continuing);
    for data in data_of(text) {
        let chunk = ReceivedChunk::parse(data).unwrap();
        reducer.push(&chunk).unwrap_or_else(|error| panic!("{error}: {data}\n{text}"));
    }
    reducer.into_message()
}
