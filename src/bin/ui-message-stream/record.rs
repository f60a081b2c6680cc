//! `record`: sits between a front end and a backend, and writes each exchange to a file.
//!
//! What passes is passed on untouched and as it comes; the file is written beside it.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use axum::http::uri::{Authority, PathAndQuery, Scheme};
use axum::http::{Method, Response, StatusCode, Uri};
use axum::response::IntoResponse;
use axum::serve::ListenerExt;
use http_body_util::BodyExt;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::value::RawValue;
use tokio::net::TcpListener;
use tokio::time::Instant;
use ui_message_stream::sse::Decoder;

use crate::Trouble;
use crate::recording::one_line;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The backend: `http://127.0.0.1:3000`.
    #[arg(value_name = "URL")]
    backend: Uri,
    /// The folder for the recordings: 001.jsonl, 002.jsonl, …
    #[arg(long, value_name = "DIR", default_value = "recordings")]
    out: PathBuf,
    /// Where to listen, on 127.0.0.1.
    #[arg(long, default_value_t = 3001)]
    port: u16,
}

/// What every request needs.
#[derive(Debug)]
struct Recorder {
    client: Client<HttpConnector, Body>,
    backend: Authority,
    out: PathBuf,
    exchanges: AtomicUsize,
}

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn run(arguments: Arguments) -> Result<ExitCode, Trouble> {
    let backend = match (arguments.backend.scheme_str(), arguments.backend.authority()) {
        (Some("http"), Some(authority)) if arguments.backend.path() == "/" => authority.clone(),
        _ => return Err("the backend is named as `http://host:port`".into()),
    };
    fs::create_dir_all(&arguments.out)
        .map_err(|error| format!("{}: {error}", arguments.out.display()))?;
    let recorder = Recorder {
        client: Client::builder(TokioExecutor::new()).build_http(),
        backend,
        out: arguments.out,
        exchanges: AtomicUsize::new(0),
    };
    let app = Router::new().fallback(pass).with_state(Arc::new(recorder));
    let listener = TcpListener::bind(("127.0.0.1", arguments.port)).await?;
    println!("http://{}", listener.local_addr()?);
    let listener = listener.tap_io(|connection| drop(connection.set_nodelay(true)));
    axum::serve(listener, app).await?;
    Ok(ExitCode::SUCCESS)
}

async fn pass(State(recorder): State<Arc<Recorder>>, request: Request) -> Response<Body> {
    match recorder.exchange(request).await {
        Ok(response) => response,
        Err(trouble) => {
            eprintln!("{}: {trouble}", recorder.backend);
            (StatusCode::BAD_GATEWAY, "the backend does not answer").into_response()
        }
    }
}

impl Recorder {
    async fn exchange(&self, request: Request) -> Result<Response<Body>, Trouble> {
        let (mut parts, body) = request.into_parts();
        let path = parts.uri.path_and_query().cloned();
        parts.uri = Uri::builder()
            .scheme(Scheme::HTTP)
            .authority(self.backend.clone())
            .path_and_query(path.unwrap_or_else(|| PathAndQuery::from_static("/")))
            .build()?;
        let body = body.collect().await?.to_bytes();
        let is_post = parts.method == Method::POST;
        let request = Request::from_parts(parts, Body::from(body.clone()));
        let began = Instant::now();
        let response = self.client.request(request).await?;
        let is_stream = response
            .headers()
            .get(CONTENT_TYPE)
            .and_then(|value| value.as_bytes().get(..EVENT_STREAM.len()))
            .is_some_and(|kind| kind.eq_ignore_ascii_case(EVENT_STREAM));
        let (parts, stream) = response.into_parts();
        if !(is_post && is_stream) {
            return Ok(Response::from_parts(parts, Body::new(stream)));
        }
        let mut file = self.new_recording(&body, began)?;
        if parts.headers.contains_key(CONTENT_ENCODING) {
            eprintln!("{}: compressed on the way, no chunks are written", file.path.display());
        }
        let recorded = stream.map_frame(move |frame| {
            if let Some(bytes) = frame.data_ref() {
                file.write(bytes);
            }
            frame
        });
        Ok(Response::from_parts(parts, Body::new(recorded)))
    }

    /// Begins the next file; those of an earlier run stay.
    fn new_recording(&self, request: &Bytes, began: Instant) -> Result<RecordingFile, Trouble> {
        loop {
            let number = self.exchanges.fetch_add(1, Ordering::Relaxed) + 1;
            let path = self.out.join(format!("{number:03}.jsonl"));
            match File::create_new(&path) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(format!("{}: {error}", path.display()).into()),
                Ok(file) => return RecordingFile::begin(path, file, request, began),
            }
        }
    }
}

/// One exchange, written as it passes.
struct RecordingFile {
    path: PathBuf,
    file: File,
    decoder: Decoder,
    began: Instant,
}

impl RecordingFile {
    fn begin(
        path: PathBuf,
        mut file: File,
        request: &Bytes,
        began: Instant,
    ) -> Result<Self, Trouble> {
        // A body that is not JSON is not a chat's; the chunks are worth having all the same.
        if let Ok(request) = serde_json::from_slice::<&RawValue>(request) {
            writeln!(file, "{{\"request\":{}}}", one_line(request.get()))?;
        }
        let _ = writeln!(std::io::stdout(), "{}", path.display());
        Ok(RecordingFile { path, file, decoder: Decoder::default(), began })
    }

    fn write(&mut self, bytes: &[u8]) {
        self.decoder.push(bytes);
        while let Some(event) = self.decoder.poll() {
            if event.data == "[DONE]" {
                continue;
            }
            if serde_json::from_str::<&RawValue>(&event.data).is_err() {
                let path = self.path.display();
                eprintln!("{path}: line {} of the response is not JSON, left out", event.line);
                continue;
            }
            let at = self.began.elapsed().as_millis();
            let line = format!("{{\"at\":{at},\"chunk\":{}}}\n", one_line(&event.data));
            if let Err(error) = self.file.write_all(line.as_bytes()) {
                eprintln!("{}: {error}", self.path.display());
            }
        }
    }
}

const EVENT_STREAM: &[u8] = b"text/event-stream";
