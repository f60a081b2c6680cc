//! The limit: frames that were written before, as a body. It shows what the server and the socket take.

use std::convert::Infallible;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use bench_work::{Answer, paced, said};
use futures::{Stream, StreamExt, stream};
use ui_message_stream::sse::Encoder;
use ui_message_stream::{Chunk, Translator};

use crate::events::events;

/// Sends `together` frames of a stored answer in each frame of the body.
pub(crate) fn routes(together: usize, deltas: usize) -> Router {
    let ready = |answer| {
        let frames = ready_frames(answer);
        let frames: Vec<Bytes> = frames.chunks(together).map(|some| some.concat().into()).collect();
        post(async move || respond(stream::iter(frames)))
    };
    let paced = post(async move || respond(paced(deltas).map(delta_frame)));
    Router::new()
        .route("/text", ready(bench_work::text()))
        .route("/outputs", ready(bench_work::outputs()))
        .route("/paced", paced)
}

/// Returns the frames of an answer, as this crate writes them.
fn ready_frames(answer: &'static Answer) -> Vec<Vec<u8>> {
    let (mut translator, mut encoder) = (Translator::new("msg_1"), Encoder::default());
    let mut frames = Vec::new();
    let mut write = |chunk: Chunk<'_>| {
        let mut frame = Vec::new();
        encoder.encode(&chunk, &mut frame);
        frames.push(frame);
    };
    for event in events(said(answer)) {
        translator.handle_event(&event, &mut write).expect("the events are valid");
    }
    frames.push(b"data: [DONE]\n\n".to_vec());
    frames
}

fn delta_frame(text: String) -> Bytes {
    let chunk = r#"{"type":"text-delta","id":"text-1","delta":""#;
    format!("data: {chunk}{text}\"}}\n\n").into()
}

fn respond(frames: impl Stream<Item = Bytes> + Send + 'static) -> Response {
    let body = Body::from_stream(frames.map(Ok::<_, Infallible>));
    ([(CONTENT_TYPE, "text/event-stream")], body).into_response()
}
