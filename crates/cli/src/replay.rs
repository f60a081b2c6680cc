//! The command `replay`: serves recorded streams to a front end under development.
//!
//! The routes are those of a chat server. Each POST returns the next recording, independent of the
//! request body: an approval response is answered with the recording that followed it. After the
//! last recording, the first one is next. GET returns 204 because there is no stream to reconnect
//! to, and DELETE returns 204 because there is nothing to stop. Only pages of this machine are
//! answered, with any port.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{Response, StatusCode};
use axum::routing::{get, post};
use axum::serve::ListenerExt;
use futures_core::Stream;
use http_body_util::BodyExt;
use tower_http::cors::{Any, CorsLayer};
use ui_message_stream::policy::ChatPolicy;
use ui_message_stream::response::headers;

use crate::CliError;
use crate::listen::listen;
use crate::recording::{self, RecordedChunk};

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Recordings, in the order in which requests are answered by them.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Where to listen, on 127.0.0.1.
    #[arg(long, default_value_t = 3000)]
    port: u16,
    /// How many times faster than it was recorded; 0 for at once.
    #[arg(long, default_value_t = 1.0, value_parser = speed)]
    speed: f64,
}

fn speed(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(speed) if speed == 0.0 || (0.001..=1e6).contains(&speed) => Ok(speed),
        _ => Err("0, or a number from 0.001 to 1000000".to_owned()),
    }
}

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn run(arguments: &Arguments) -> Result<ExitCode, CliError> {
    let recordings: Result<Vec<_>, _> =
        arguments.files.iter().map(|path| recording::read(path).map(Arc::from)).collect();
    let recordings: Arc<[Arc<[RecordedChunk]>]> = recordings?.into();
    let next = Arc::new(AtomicUsize::new(0));
    let speed = arguments.speed;
    let post_route = post(async move |request: Body| {
        // A response sent before the request body is read would be cut off when the connection
        // closes.
        drop(request.collect().await);
        let number = next.fetch_add(1, Ordering::Relaxed) % recordings.len();
        let mut response =
            Response::new(Body::from_stream(frames(recordings[number].clone(), speed)));
        *response.headers_mut() = headers();
        response
    });
    let empty_route = get(async || StatusCode::NO_CONTENT).delete(async || StatusCode::NO_CONTENT);
    // The front end is under development and uses another port.
    let cors = CorsLayer::new().allow_origin(Any).allow_methods(Any).allow_headers(Any);
    let app = Router::new()
        .route("/api/chat", post_route)
        .route("/api/chat/{id}/stream", empty_route)
        .layer(cors)
        // Outside of CORS, so that a page of another machine gets no permission to read either.
        .layer(ChatPolicy::default().allow_loopback_origins());
    let listener = listen(arguments.port).await?;
    println!("http://{}/api/chat", listener.local_addr()?);
    let listener = listener.tap_io(|connection| drop(connection.set_nodelay(true)));
    axum::serve(listener, app).await?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the frames of a recording at their recorded times, scaled by `speed`.
fn frames(
    recording: Arc<[RecordedChunk]>,
    speed: f64,
) -> impl Stream<Item = Result<Bytes, std::convert::Infallible>> {
    async_stream::stream! {
        let began = tokio::time::Instant::now();
        for chunk in recording.iter() {
            if speed > 0.0 {
                let at = Duration::try_from_secs_f64(chunk.at.as_secs_f64() / speed);
                let remaining = at.unwrap_or(Duration::MAX).saturating_sub(began.elapsed());
                tokio::time::sleep(remaining).await;
            }
            yield Ok(Bytes::from(format!("data: {}\n\n", chunk.data)));
        }
        tokio::time::sleep(Duration::ZERO).await;
        yield Ok(Bytes::from_static(ui_message_stream::sse::DONE));
    }
}
