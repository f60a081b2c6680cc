//! The command `record`: a proxy between a front end and a backend that writes each exchange to a
//! file.
//!
//! Requests and responses are forwarded unchanged and without buffering; the file is written in
//! addition. There is one exception: for a POST, the proxy asks the backend for an uncompressed
//! response. A file is written for every response that the client would read: every successful
//! response to a POST with an event in it, with any content type, and every `text/event-stream`,
//! even without an event. If no file is written, standard error says why.
//!
//! Only requests for this machine, from pages of this machine, are forwarded: the proxy would lead
//! other pages to a backend that they cannot reach.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE};
use axum::http::uri::{Authority, PathAndQuery, Scheme};
use axum::http::{HeaderValue, Method, Response, StatusCode, Uri, response};
use axum::response::IntoResponse;
use axum::serve::ListenerExt;
use http_body_util::BodyExt;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::value::RawValue;
use tokio::time::Instant;
use ui_message_stream::policy::ChatPolicy;
use ui_message_stream::sse::Decoder;

use crate::CliError;
use crate::listen::listen;
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

/// The state that all requests share.
#[derive(Debug)]
struct Recorder {
    client: Client<HttpConnector, Body>,
    backend: Authority,
    out: PathBuf,
    exchanges: AtomicUsize,
}

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn run(arguments: Arguments) -> Result<ExitCode, CliError> {
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
    let app = Router::new()
        .fallback(proxy)
        .with_state(Arc::new(recorder))
        .layer(ChatPolicy::default().allow_loopback_origins());
    let listener = listen(arguments.port).await?;
    println!("http://{}", listener.local_addr()?);
    let listener = listener.tap_io(|connection| drop(connection.set_nodelay(true)));
    axum::serve(listener, app).await?;
    Ok(ExitCode::SUCCESS)
}

async fn proxy(State(recorder): State<Arc<Recorder>>, request: Request) -> Response<Body> {
    match recorder.clone().exchange(request).await {
        Ok(response) => response,
        Err(error) => {
            eprintln!("{}: {error}", recorder.backend);
            (StatusCode::BAD_GATEWAY, "the backend does not answer").into_response()
        }
    }
}

impl Recorder {
    async fn exchange(self: Arc<Self>, request: Request) -> Result<Response<Body>, CliError> {
        let (mut parts, body) = request.into_parts();
        let is_post = parts.method == Method::POST;
        let subject = format!("{} {}", parts.method, parts.uri.path());
        if is_post && parts.headers.contains_key(ACCEPT_ENCODING) {
            parts.headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        }
        let path = parts.uri.path_and_query().cloned();
        parts.uri = Uri::builder()
            .scheme(Scheme::HTTP)
            .authority(self.backend.clone())
            .path_and_query(path.unwrap_or_else(|| PathAndQuery::from_static("/")))
            .build()?;
        let body = body.collect().await?.to_bytes();
        let request = Request::from_parts(parts, Body::from(body.clone()));
        let began = Instant::now();
        let (head, stream) = self.client.request(request).await?.into_parts();
        if !is_post {
            return Ok(Response::from_parts(head, Body::new(stream)));
        }
        if let Some(reason) = why_unreadable(&head) {
            eprintln!("{subject}: {reason}, nothing is written");
            return Ok(Response::from_parts(head, Body::new(stream)));
        }
        let mut recording = Recording {
            recorder: self,
            subject,
            request: body,
            began,
            decoder: Decoder::default(),
            file: RecordingFile::NotCreated,
        };
        // A response without an event is recorded too, so that `replay` serves it in the right
        // order.
        if is_event_stream(&head) {
            recording.open();
        }
        let recorded = stream.map_frame(move |frame| {
            if let Some(bytes) = frame.data_ref() {
                recording.write(bytes);
            }
            frame
        });
        Ok(Response::from_parts(head, Body::new(recorded)))
    }

    /// Creates the next file, which only the user who runs the program can read: it holds the chat.
    /// Files of an earlier run are kept.
    fn create_file(&self) -> Result<(PathBuf, File), CliError> {
        let mut options = File::options();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        loop {
            let number = self.exchanges.fetch_add(1, Ordering::Relaxed) + 1;
            let path = self.out.join(format!("{number:03}.jsonl"));
            match options.open(&path) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(format!("{}: {error}", path.display()).into()),
                Ok(file) => return Ok((path, file)),
            }
        }
    }
}

/// Returns why the client would not read events from this response, or why the proxy cannot read
/// them. Returns `None` if both can.
fn why_unreadable(head: &response::Parts) -> Option<String> {
    if !head.status.is_success() || head.status == StatusCode::NO_CONTENT {
        return Some(format!("the answer is {}", head.status));
    }
    let encoding = head.headers.get(CONTENT_ENCODING).filter(|value| *value != "identity")?;
    Some(format!("compressed ({encoding:?}) though asked not to be"))
}

fn is_event_stream(head: &response::Parts) -> bool {
    let kind = head.headers.get(CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    kind.get(..EVENT_STREAM.len()).is_some_and(|kind| kind.eq_ignore_ascii_case(EVENT_STREAM))
}

/// An exchange that is written while it is forwarded.
struct Recording {
    recorder: Arc<Recorder>,
    /// The method and path of the request: `POST /api/chat`.
    subject: String,
    request: Bytes,
    began: Instant,
    decoder: Decoder,
    file: RecordingFile,
}

/// The file of a recording.
enum RecordingFile {
    /// Not created: there was no event so far, and the response may not belong to a chat.
    NotCreated,
    Created(PathBuf, File),
    /// The file could not be created. The error was printed.
    Failed,
}

impl Recording {
    fn open(&mut self) {
        let opened = self.recorder.create_file().and_then(|(path, mut file)| {
            // A body that is not JSON is not a chat request. The chunks of the response are
            // recorded anyway.
            if let Ok(request) = serde_json::from_slice::<&RawValue>(&self.request) {
                writeln!(file, "{{\"request\":{}}}", one_line(request.get()))?;
            }
            Ok((path, file))
        });
        self.file = match opened {
            Ok((path, file)) => {
                let _ = writeln!(std::io::stdout(), "{}", path.display());
                RecordingFile::Created(path, file)
            }
            Err(error) => {
                eprintln!("{}: nothing is written: {error}", self.subject);
                RecordingFile::Failed
            }
        };
    }

    fn write(&mut self, bytes: &[u8]) {
        self.decoder.push(bytes);
        while let Some(event) = self.decoder.poll() {
            if matches!(self.file, RecordingFile::NotCreated) {
                self.open();
            }
            let RecordingFile::Created(path, file) = &mut self.file else { continue };
            if event.data == "[DONE]" {
                continue;
            }
            let path = path.display();
            if serde_json::from_str::<&RawValue>(&event.data).is_err() {
                eprintln!("{path}: line {} of the response is not JSON, left out", event.line);
                continue;
            }
            let at = self.began.elapsed().as_millis();
            let line = format!("{{\"at\":{at},\"chunk\":{}}}\n", one_line(&event.data));
            if let Err(error) = file.write_all(line.as_bytes()) {
                eprintln!("{path}: {error}");
            }
        }
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        if matches!(self.file, RecordingFile::NotCreated) {
            eprintln!("{}: no event in the answer, nothing is written", self.subject);
        }
    }
}

const EVENT_STREAM: &[u8] = b"text/event-stream";
