//! Translates a case as a route would, and records the chunks and the answers.

use serde_json::Value;
use ui_message_stream::chunk::FinishReason;
use ui_message_stream::sse::{DONE, Encoder};
use ui_message_stream::{Chunk, Json, Translator, UiMessage};

use super::case::{Case, Origin};

/// The translator's result for a case.
#[derive(Debug, Default)]
pub(crate) struct Translated {
    /// The body of the response.
    pub(crate) sse: String,
    /// The kind of each chunk of the body.
    pub(crate) kinds: Vec<String>,
    /// The fields that only `ai@7` knows.
    pub(crate) fields: Vec<&'static str>,
    /// For each event: `Ok`, or the name of the error.
    pub(crate) answers: Vec<String>,
}

/// Translates all events and ends the message.
pub(crate) fn translated(case: &Case) -> Translated {
    let mut made = Translated::default();
    let mut frames = Vec::new();
    let mut encoder = Encoder::default();
    let mut out = |chunk: Chunk<'_>| {
        made.kinds.push(chunk.kind().into_owned());
        made.fields.extend(fields_of_v7(&chunk));
        encoder.encode(&chunk, &mut frames);
    };
    let mut translator = translator(case);
    if case.starts_early {
        translator.start(&mut out);
    }
    for event in &case.events {
        made.answers.push(match translator.handle_event(event, &mut out) {
            Ok(()) => "Ok".to_owned(),
            Err(error) => variant(&error),
        });
    }
    translator.finish(&mut out);
    frames.extend_from_slice(DONE);
    made.sse = String::from_utf8(frames).expect("frames are text");
    made
}

/// The names of the fields of a chunk that only `ai@7` knows.
fn fields_of_v7(chunk: &Chunk<'_>) -> Vec<&'static str> {
    let mut fields = Vec::new();
    match chunk {
        Chunk::TextEnd { citations: Some(_), .. } => fields.push("citations"),
        Chunk::ToolApprovalRequest { reason, is_automatic, .. } => {
            fields.extend(reason.as_ref().map(|_| "reason"));
            fields.extend(is_automatic.map(|_| "isAutomatic"));
        }
        Chunk::Finish { finish_reason: Some(FinishReason::Interrupted), .. } => {
            fields.push("interrupted");
        }
        _ => {}
    }
    fields
}

fn translator(case: &Case) -> Translator {
    let mut translator = match &case.origin {
        Origin::New(id) => Translator::new(id.as_str()),
        Origin::Unnamed => Translator::without_message_id(),
        Origin::Continued(message) => Translator::continuing(&parsed(message)),
    };
    translator = translator.with_version(case.version);
    if !case.approvals {
        translator = translator.without_approvals();
    }
    if let Some(metadata) = &case.metadata {
        let metadata = Json::from_serialize(metadata).expect("the metadata was made as `Json`");
        translator = translator.with_metadata(metadata);
    }
    translator
}

fn parsed(message: &Value) -> UiMessage {
    UiMessage::parse(&message.to_string())
        .unwrap_or_else(|error| panic!("a client's message is refused: {error}\n{message}"))
}

/// The name of an error's variant, with which its `Debug` text begins.
fn variant(error: &impl std::fmt::Debug) -> String {
    let debug = format!("{error:?}");
    debug.split(['(', ' ', '{']).next().unwrap_or_default().to_owned()
}
