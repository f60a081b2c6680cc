//! [`Recording`]: a recorded conversation, compared with what a route says now.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use http::{Request, Response};
use http_body::Body;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::route::{Reply, Route};
use super::snapshot::Names;
use crate::boxed::BoxError;
use crate::message::{Part, ToolState};
use crate::request::{ChatRequest, Limits};

/// A conversation that `ui-message-stream record` wrote: in each file a request of a real client,
/// and the chunks of its response.
///
/// A test sends the requests to the route of today, one after the other, and compares the
/// responses. Ids and times may differ, as in [`snapshot`](super::snapshot()). Where a later request
/// holds an id, a signature or a time that an earlier response sent, it gets the one that the route
/// sent in the same place today. So a conversation with approvals is replayed on new
/// [`Approvals`](crate::approval::Approvals): the recorded answers of the user are answers to the
/// new requests.
///
/// ```
/// use futures::stream;
/// use ui_message_stream::testing::Recording;
/// use ui_message_stream::{AgentEvent, ChatRequest, UiMessageStream};
///
/// async fn chat(chat: ChatRequest) -> UiMessageStream {
///     UiMessageStream::reply(&chat, stream::iter([AgentEvent::text("Hello!")]))
/// }
///
/// # let file = std::env::temp_dir().join(format!("{}.jsonl", std::process::id()));
/// # std::fs::write(&file, r#"{"request":{"id":"c","messages":[]}}
/// # {"at":3,"chunk":{"type":"start","messageId":"msg_5"}}
/// # {"at":3,"chunk":{"type":"start-step"}}
/// # {"at":4,"chunk":{"type":"text-start","id":"0"}}
/// # {"at":4,"chunk":{"type":"text-delta","id":"0","delta":"Hello!"}}
/// # {"at":5,"chunk":{"type":"text-end","id":"0"}}
/// # {"at":5,"chunk":{"type":"finish-step"}}
/// # {"at":5,"chunk":{"type":"finish"}}
/// # "#.replace("\n# ", "\n")).unwrap();
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// Recording::read(&file).replay(chat).await;
/// # });
/// # std::fs::remove_file(&file).unwrap();
/// ```
#[derive(Debug)]
#[must_use]
pub struct Recording {
    exchanges: Vec<Exchange>,
}

/// One file: a request and its response.
#[derive(Debug)]
struct Exchange {
    path: PathBuf,
    request: Box<RawValue>,
    /// The times of the chunks.
    times: Vec<Option<u64>>,
    chunks: Vec<Box<RawValue>>,
}

#[derive(Serialize, Deserialize)]
struct RecordedRequest {
    request: Box<RawValue>,
}

#[derive(Serialize, Deserialize)]
struct RecordedChunk {
    /// The time after the request, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    at: Option<u64>,
    chunk: Box<RawValue>,
}

impl Recording {
    /// Reads a recording: the folder that `record --out` wrote, whose files `*.jsonl` are read in
    /// the order of their names, or one file of it. A relative path begins at the working
    /// directory, which in a test is the folder of the package.
    ///
    /// # Panics
    /// If the folder has no file, if a file cannot be read, if its first line holds no request, or
    /// if another line holds no chunk.
    #[track_caller]
    pub fn read(path: impl AsRef<Path>) -> Self {
        let path = path.as_ref();
        let mut files = vec![path.to_owned()];
        if path.is_dir() {
            let entries = fs::read_dir(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
            let entries = entries.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            let paths = entries.into_iter().map(|entry| entry.path());
            files = paths.filter(|path| path.extension().is_some_and(|e| e == "jsonl")).collect();
            files.sort();
            assert!(!files.is_empty(), "{}: no file `*.jsonl` in this folder", path.display());
        }
        Recording { exchanges: files.into_iter().map(Exchange::read).collect() }
    }

    /// Sends the recorded requests to a handler, `async fn(ChatRequest) -> UiMessageStream` or one
    /// that returns another body, and compares its responses with the recorded ones. See
    /// [`replay_with_service`](Self::replay_with_service).
    ///
    /// # Panics
    /// As `replay_with_service`.
    pub async fn replay<'h, H, B>(&self, handler: H)
    where
        H: AsyncFn(ChatRequest) -> B + 'h,
        B: Body<Error: Into<BoxError>> + 'h,
    {
        self.replay_on(&Route::handler(handler)).await;
    }

    /// Sends the recorded requests to an HTTP service, for example an axum `Router`, and compares
    /// its responses with the recorded ones. The requests go to `uri`, through all layers and
    /// extractors of the service.
    ///
    /// With `RECORD=1` in the environment, the requests and responses of today replace the recorded
    /// ones in the files.
    ///
    /// ```no_run
    /// # #[cfg(feature = "axum")] {
    /// use tower::ServiceExt;
    /// use ui_message_stream::testing::Recording;
    ///
    /// # async fn test(app: axum::Router) {
    /// let recording = Recording::read("tests/recordings/transfer");
    /// recording.replay_with_service("/api/chat", async |post| app.clone().oneshot(post).await).await;
    /// # }
    /// # }
    /// ```
    ///
    /// # Panics
    /// - If a response differs, with the first line that differs, or is not a successful one.
    /// - If `uri` is not a URI, if the service fails without a response, or if a file cannot be
    ///   written.
    pub async fn replay_with_service<'h, H, B, E>(&self, uri: &str, service: H)
    where
        H: AsyncFn(Request<String>) -> Result<Response<B>, E> + 'h,
        B: Body<Error: Into<BoxError>> + 'h,
        E: fmt::Debug + 'h,
    {
        self.replay_on(&Route::http(uri, service)).await;
    }

    async fn replay_on(&self, route: &Route<'_>) {
        let records = std::env::var_os("RECORD").is_some_and(|value| value == "1");
        let replayed = self.replay_and_compare(route, records).await;
        if records {
            replayed.iter().for_each(Exchange::write);
        }
    }

    /// Returns the exchanges of today. They may differ if `records`.
    async fn replay_and_compare(&self, route: &Route<'_>, records: bool) -> Vec<Exchange> {
        let mut recorded_names = Names::default();
        let mut names = Names::default();
        let mut replayed = Vec::new();
        for recorded in &self.exchanges {
            let request = recorded_names.translate(&recorded.request, &names);
            let advice = recorded.advice_for_request(&recorded_names);
            let reply = route.post(request.clone(), None).await;
            let now = recorded.with_reply(request, reply, advice);
            let was = recorded_names.snapshot(&recorded.chunks);
            let is = names.snapshot(&now.chunks);
            if !records {
                recorded.compare(&was, &is, advice.or_else(|| now.advice_for_response(recorded)));
            }
            replayed.push(now);
        }
        replayed
    }
}

impl Exchange {
    #[track_caller]
    fn read(path: PathBuf) -> Self {
        let text = fs::read_to_string(&path)
            .unwrap_or_else(|error| panic!("the recording {}: {error}", path.display()));
        let mut lines = text.lines().filter(|line| !line.trim().is_empty());
        let request = serde_json::from_str(lines.next().unwrap_or_default());
        let RecordedRequest { request } = request.unwrap_or_else(|error| {
            panic!("the recording {}: line 1 holds no request: {error}", path.display())
        });
        let mut times = Vec::new();
        let mut chunks = Vec::new();
        for (index, line) in lines.enumerate() {
            let RecordedChunk { at, chunk } = serde_json::from_str(line).unwrap_or_else(|error| {
                panic!("the recording {}: line {}: {error}", path.display(), index + 2)
            });
            times.push(at);
            chunks.push(chunk);
        }
        Exchange { path, request, times, chunks }
    }

    /// Returns this exchange as it is now.
    fn with_reply(&self, request: String, reply: Reply, advice: Option<&str>) -> Exchange {
        let path = self.path.display();
        let body = &reply.body;
        assert!(
            reply.status.is_success(),
            "{path}: the response is {}: {}{}",
            reply.status,
            body.text(),
            advice.unwrap_or_default(),
        );
        if let Some(error) = &body.error {
            panic!("{path}: the body of the response failed: {error}");
        }
        let chunks = body.chunk_events().map(|event| {
            // A newline in JSON is between tokens. A recording has one chunk on each line.
            RawValue::from_string(event.data.replace(['\n', '\r'], " ")).unwrap_or_else(|error| {
                panic!("{path}: line {} of the response: {error}", event.line)
            })
        });
        let chunks: Vec<_> = chunks.collect();
        let request = RawValue::from_string(request).expect("JSON with other strings is JSON");
        let times = (0..chunks.len()).map(|at| self.times.get(at).copied().flatten()).collect();
        Exchange { path: self.path.clone(), request, times, chunks }
    }

    /// Compares the lines of two snapshots.
    fn compare(&self, was: &str, is: &str, advice: Option<&str>) {
        let mut recorded = was.lines();
        let mut now = is.lines();
        for line in 2.. {
            let was = recorded.next();
            let is = now.next();
            assert!(
                was == is,
                "{}, line {line}: the response has changed{}\n\
                 recorded: {}\n     now: {}",
                self.path.display(),
                advice.unwrap_or("; `RECORD=1` records it again"),
                was.unwrap_or("nothing"),
                is.unwrap_or("nothing"),
            );
            if was.is_none() {
                break;
            }
        }
    }

    /// Returns what to do about a response that differs because the request answers an approval
    /// request that no earlier response sent.
    fn advice_for_request(&self, names: &Names) -> Option<&'static str> {
        let request = ChatRequest::parse(self.request.get().as_bytes(), &Limits::default()).ok()?;
        let is_unknown = |part: &Part| match part.as_tool().map(|part| &part.state) {
            Some(ToolState::ApprovalResponded { approval, .. }) => {
                !names.has_approval(&approval.id)
            }
            _ => false,
        };
        request.messages().iter().any(|message| message.parts.iter().any(is_unknown)).then_some(
            ". Its request answers an approval request that no earlier exchange of this recording \
             holds, so a new server refuses it: record the conversation from its beginning, into \
             a folder, and read the folder",
        )
    }

    /// Returns what to do if this response refuses or fails more often than the recorded one.
    fn advice_for_response(&self, recorded: &Exchange) -> Option<&'static str> {
        (self.failures() > recorded.failures()).then_some(
            ". It refuses or fails where the recorded one did not: find the reason before you \
             record it again",
        )
    }

    /// Returns how many chunks say that something was refused or failed.
    fn failures(&self) -> usize {
        #[derive(Deserialize)]
        struct Kind {
            r#type: String,
        }
        let is_failure = |kind: &Kind| {
            matches!(
                &*kind.r#type,
                "abort" | "error" | "tool-input-error" | "tool-output-denied" | "tool-output-error"
            )
        };
        let kinds = self.chunks.iter().filter_map(|chunk| serde_json::from_str(chunk.get()).ok());
        kinds.filter(is_failure).count()
    }

    fn write(&self) {
        let mut text = to_line(&RecordedRequest { request: self.request.clone() });
        for (at, chunk) in self.times.iter().zip(&self.chunks) {
            text.push_str(&to_line(&RecordedChunk { at: *at, chunk: chunk.clone() }));
        }
        let written = fs::write(&self.path, text);
        written.unwrap_or_else(|error| panic!("the recording {}: {error}", self.path.display()));
    }
}

fn to_line(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("raw JSON serializes") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn echo(request: ChatRequest) -> String {
        let id = request.continued_message().map_or("msg_new", |message| &message.id);
        format!(
            "data: {{\"type\":\"start\",\"messageId\":\"{id}\"}}\n\ndata: {{\"type\":\"finish\"}}\n\n"
        )
    }

    #[tokio::test]
    async fn a_recording_that_was_written_again_has_the_ids_and_chunks_of_today() {
        let folder = std::env::temp_dir().join(format!("written-again-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let old = [
            (
                "1.jsonl",
                r#"{"request":{"id":"c","messages":[{"id":"u","role":"user","parts":[]}]}}"#,
            ),
            (
                "2.jsonl",
                r#"{"request":{"id":"c","messages":[{"id":"msg_old","role":"assistant","parts":[]}]}}"#,
            ),
        ];
        for (name, request) in old {
            let chunk = r#"{"at":5,"chunk":{"type":"start","messageId":"msg_old"}}"#;
            fs::write(folder.join(name), format!("{request}\n{chunk}\n")).unwrap();
        }
        let route = Route::handler(echo);
        let recording = Recording::read(&folder);
        let today = recording.replay_and_compare(&route, true).await;
        today.iter().for_each(Exchange::write);
        let written = Recording::read(&folder);
        let second = fs::read_to_string(folder.join("2.jsonl")).unwrap();
        written.replay(echo).await;
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(
            second,
            concat!(
                r#"{"request":{"id":"c","messages":[{"id":"msg_new","role":"assistant","parts":[]}]}}"#,
                "\n",
                r#"{"at":5,"chunk":{"type":"start","messageId":"msg_new"}}"#,
                "\n",
                r#"{"chunk":{"type":"finish"}}"#,
                "\n",
            )
        );
    }
}
