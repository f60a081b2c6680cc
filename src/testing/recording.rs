//! [`Recording`]: a recorded exchange, compared with what a route says now.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::snapshot::snapshot;
use crate::chunk::Chunk;

/// A file of `ui-message-stream record`: one request, and the chunks of its response.
///
/// A test sends the [request](Self::request) to the route and passes the chunks of the response to
/// [`assert_matches`](Self::assert_matches). Ids and times may differ, as in [`snapshot`].
///
/// ```
/// use futures::stream;
/// use ui_message_stream::request::Limits;
/// use ui_message_stream::testing::{Recording, collect_chunks};
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
/// let recording = Recording::read(&file);
/// let request = ChatRequest::parse(recording.request(), &Limits::default()).unwrap();
/// recording.assert_matches(&collect_chunks(chat(request).await).await?);
/// # std::fs::remove_file(&file).unwrap();
/// # Ok::<(), ui_message_stream::testing::CollectError>(())
/// # }).unwrap();
/// ```
#[derive(Debug)]
pub struct Recording {
    path: PathBuf,
    request: Box<RawValue>,
    chunks: Vec<RecordedChunk>,
}

#[derive(Debug, Serialize, Deserialize)]
struct RecordedChunk {
    /// The time after the request, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    at: Option<u64>,
    chunk: Box<RawValue>,
}

#[derive(Serialize, Deserialize)]
struct RecordedRequest {
    request: Box<RawValue>,
}

impl Recording {
    /// Reads a recording. A relative path begins at the working directory, which in a test is the
    /// folder of the package.
    ///
    /// # Panics
    /// If the file cannot be read, if its first line holds no request, or if another line holds no
    /// chunk.
    #[track_caller]
    pub fn read(path: impl AsRef<Path>) -> Self {
        let path = path.as_ref().to_owned();
        let text = fs::read_to_string(&path)
            .unwrap_or_else(|error| panic!("the recording {}: {error}", path.display()));
        let mut lines = text.lines().filter(|line| !line.trim().is_empty());
        let request = serde_json::from_str(lines.next().unwrap_or_default());
        let RecordedRequest { request } = request.unwrap_or_else(|error| {
            panic!("the recording {}: line 1 holds no request: {error}", path.display())
        });
        let chunks = lines.enumerate().map(|(index, line)| {
            serde_json::from_str(line).unwrap_or_else(|error| {
                panic!("the recording {}: line {}: {error}", path.display(), index + 2)
            })
        });
        Recording { request, chunks: chunks.collect(), path }
    }

    /// Returns the body of the recorded POST.
    pub fn request(&self) -> &[u8] {
        self.request.get().as_bytes()
    }

    /// Compares the recorded chunks with those of a response.
    ///
    /// With `RECORD=1` in the environment, the chunks of the response replace the recorded ones in
    /// the file. The test then passes.
    ///
    /// # Panics
    /// If the chunks differ, with the first line that differs, or if the file cannot be written.
    #[track_caller]
    pub fn assert_matches(&self, chunks: &[Chunk<'_>]) {
        if std::env::var_os("RECORD").is_some_and(|value| value == "1") {
            return self.write(chunks);
        }
        let recorded: Vec<&RawValue> = self.chunks.iter().map(|line| &*line.chunk).collect();
        let (recorded, now) = (snapshot(&recorded), snapshot(chunks));
        let (mut recorded, mut now) = (recorded.lines(), now.lines());
        let path = self.path.display();
        for line in 2.. {
            let (was, is) = (recorded.next(), now.next());
            assert!(
                was == is,
                "{path}, line {line}: the response has changed; `RECORD=1` records it again\n\
                 recorded: {}\n     now: {}",
                was.unwrap_or("nothing"),
                is.unwrap_or("nothing"),
            );
            if was.is_none() {
                break;
            }
        }
    }

    #[track_caller]
    fn write(&self, chunks: &[Chunk<'_>]) {
        let mut text = to_line(&RecordedRequest { request: self.request.clone() });
        for (index, chunk) in chunks.iter().enumerate() {
            let chunk = serde_json::value::to_raw_value(chunk).expect("chunks serialize");
            let at = self.chunks.get(index).and_then(|recorded| recorded.at);
            text.push_str(&to_line(&RecordedChunk { at, chunk }));
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

    fn chunks(delta: &str) -> Vec<Chunk<'static>> {
        vec![
            Chunk::TextStart { id: "7".into(), provider_metadata: None },
            Chunk::TextDelta {
                id: "7".into(),
                delta: delta.to_owned().into(),
                provider_metadata: None,
            },
        ]
    }

    #[test]
    fn a_recording_that_was_written_again_matches_and_names_the_line_that_differs() {
        let file = std::env::temp_dir().join(format!("recording-{}.jsonl", std::process::id()));
        fs::write(
            &file,
            "{\"request\":{\"id\":\"c\"}}\n{\"at\":5,\"chunk\":{\"type\":\"start\"}}\n",
        )
        .unwrap();
        let old = Recording::read(&file);
        assert_eq!(old.request(), br#"{"id":"c"}"#);
        old.write(&chunks("Hi"));
        let recorded = Recording::read(&file);
        assert_eq!(recorded.chunks[0].at, Some(5));
        recorded.assert_matches(&chunks("Hi"));
        let differing = std::panic::catch_unwind(|| recorded.assert_matches(&chunks("Hello")));
        let message = *differing.unwrap_err().downcast::<String>().unwrap();
        fs::remove_file(&file).unwrap();
        assert!(message.contains("line 3: the response has changed"), "{message}");
        assert!(message.contains(r#""delta":"Hello""#), "{message}");
    }
}
