//! A page of the messages of a conversation.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Serialize, Serializer};

use crate::conversation::model_ids::without_model_ids;
use crate::{ChatServer, Messages};
use ui_message_stream::id::MessageId;
use ui_message_stream::json::FieldError;
use ui_message_stream::message::AnswerEnd;
use ui_message_stream::message::UiMessage;

/// A page of the messages of a conversation, oldest first.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct HistoryPage {
    #[serde(serialize_with = "without_ids_of_model")]
    messages: Vec<Arc<UiMessage>>,
    /// The cursor of the page before this one, if there are older messages.
    #[serde(skip_serializing_if = "Option::is_none")]
    before: Option<String>,
    /// The cursor of the page after this one, if there are newer messages.
    #[serde(skip_serializing_if = "Option::is_none")]
    after: Option<String>,
    /// Whether the page ends with the newest message.
    #[serde(skip)]
    is_newest: bool,
    /// The version of the messages.
    version: u64,
    /// How the last answer has ended, on such a page.
    #[serde(skip_serializing_if = "Option::is_none")]
    ended: Option<AnswerEnd>,
}

impl HistoryPage {
    /// Returns the page that the query of a URL selects: before a message, after a message, or the
    /// newest one.
    pub(super) fn new(messages: &Messages, query: &str) -> Result<Self, FieldError> {
        let place =
            |name, cursor| find(messages, cursor).ok_or_else(|| FieldError::new(name, NO_PLACE));
        let parameters = (query_parameter(query, "before"), query_parameter(query, "after"));
        let range = match parameters {
            (Some(_), Some(_)) => return Err(FieldError::new("after", BOTH)),
            (None, Some(after)) => {
                let start = place("after", after)? + 1;
                start..messages.len().min(start.saturating_add(PAGE_MESSAGES))
            }
            (before, None) => {
                let end = match before {
                    Some(before) => place("before", before)?,
                    None => messages.len(),
                };
                end.saturating_sub(PAGE_MESSAGES)..end
            }
        };
        Ok(Self::of(messages, range))
    }

    fn of(messages: &Messages, range: Range<usize>) -> Self {
        let cursor = |at: usize| messages.get(at).map(|message| cursor(at, &message.id));
        HistoryPage {
            is_newest: range.end == messages.len(),
            version: 0,
            ended: None,
            before: cursor(range.start).filter(|_| range.start > 0),
            after: range.end.checked_sub(1).and_then(cursor).filter(|_| range.end < messages.len()),
            messages: range.filter_map(|at| messages.shared(at).map(Arc::clone)).collect(),
        }
    }

    /// Adds the version of the messages, and how the last answer has ended, if the page holds it.
    pub(super) fn of_chat(self, version: u64, ended: Option<AnswerEnd>) -> Self {
        HistoryPage { version, ended: ended.filter(|_| self.is_newest), ..self }
    }

    /// Leaves out what the client of this server does not show.
    pub(super) fn for_client_of(mut self, chats: &ChatServer) -> Self {
        for message in &mut self.messages {
            if let Cow::Owned(shown) = chats.client().shown(message) {
                *message = Arc::new(shown);
            }
        }
        self
    }
}

fn without_ids_of_model<S: Serializer>(
    messages: &[Arc<UiMessage>],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(messages.iter().map(|message| match without_model_ids(message) {
        Some(changed) => Cow::Owned(changed),
        None => Cow::Borrowed(&**message),
    }))
}

/// Returns the value of a parameter of a query. Cursors hold only characters that a URL does not
/// escape.
pub(super) fn query_parameter<'q>(query: &'q str, name: &str) -> Option<&'q str> {
    let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs.find(|(key, _)| *key == name).map(|(_, value)| value)
}

/// Returns the text of a place: the index of a message, and its id.
fn cursor(at: usize, id: &MessageId) -> String {
    format!("{at}-{}", URL_SAFE_NO_PAD.encode(id.as_str()))
}

/// Returns the index of the message that a cursor names.
///
/// The index finds it at once and tells messages with the same id apart. It is wrong if an answer
/// was inserted before the message, or if the user has edited an earlier one.
fn find(messages: &Messages, cursor: &str) -> Option<usize> {
    let (at, id) = cursor.split_once('-')?;
    let id = String::from_utf8(URL_SAFE_NO_PAD.decode(id).ok()?).ok()?;
    let at: usize = at.parse().ok()?;
    match messages.get(at) {
        Some(message) if message.id.as_str() == id => Some(at),
        _ => messages.position(&id.into()),
    }
}

/// The maximum number of messages of a page.
const PAGE_MESSAGES: usize = 100;

const NO_PLACE: &str = "not a place in this chat";
const BOTH: &str = "cannot be combined with `before`";

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use ui_message_stream::message::{Part, Role};

    fn text(id: usize, text: &str) -> UiMessage {
        let part = json!({"id": format!("m{id}"), "role": "user", "parts": [
            {"type": "text", "text": text},
        ]});
        UiMessage::parse(&part.to_string()).unwrap()
    }

    #[test]
    fn the_pages_hold_each_message_once() {
        let messages: Messages = (0..250).map(|id| text(id, "")).collect();
        let read = |query: &str| {
            let page = HistoryPage::new(&messages, query).unwrap();
            let body = serde_json::to_value(page).unwrap();
            let ids = body["messages"].as_array().unwrap().iter();
            let ids: Vec<usize> =
                ids.map(|message| message["id"].as_str().unwrap()[1..].parse().unwrap()).collect();
            let cursor = |name: &str| body[name].as_str().map(ToOwned::to_owned);
            (ids, cursor("before"), cursor("after"))
        };
        let (ids, before, after) = read("");
        assert_eq!((ids, after), ((150..250).collect(), None));
        let (ids, before, after) = read(&format!("x=y&before={}", before.unwrap()));
        assert_eq!(ids, (50..150).collect::<Vec<_>>());
        assert!(after.is_some());
        let (ids, before, after) = read(&format!("before={}", before.unwrap()));
        assert_eq!((ids, before), ((0..50).collect(), None));
        let (ids, _, after) = read(&format!("after={}", after.unwrap()));
        assert_eq!(ids, (50..150).collect::<Vec<_>>());
        let (ids, before, after) = read(&format!("after={}", after.unwrap()));
        assert_eq!((ids, after), ((150..250).collect(), None));
        assert!(before.is_some());
    }

    #[test]
    fn a_cursor_names_the_message_although_its_index_has_changed() {
        let mut messages: Messages = (0..250).map(|id| text(id, "")).collect();
        let page = HistoryPage::new(&messages, "").unwrap();
        let before = format!("before={}", page.before.unwrap());
        messages.insert(10, UiMessage::new("late", Role::Assistant, Vec::<Part>::new()));
        let page = HistoryPage::new(&messages, &before).unwrap();
        assert_eq!(page.messages.last().unwrap().id.as_str(), "m149");
        messages.truncate(100);
        let gone = HistoryPage::new(&messages, &before).unwrap_err();
        assert_eq!(gone.to_string(), "before: not a place in this chat");
    }

    #[test]
    fn ids_that_the_model_gave_to_calls_are_left_out() {
        let message = |metadata: [Value; 2]| {
            let parts = metadata.map(|metadata| {
                json!({"type": "tool-t", "toolCallId": "call", "state": "output-available",
                    "input": {}, "output": 1, "callProviderMetadata": metadata})
            });
            json!({"id": "m", "role": "assistant", "parts": parts})
        };
        let own = json!({"toolCallId": "x".repeat(4_000)});
        let stored = message([
            json!({"ui-message-stream": own, "openai": {"itemId": "i"}}),
            json!({"ui-message-stream": own}),
        ]);
        let messages = Messages::from(vec![UiMessage::parse(&stored.to_string()).unwrap()]);
        let page = serde_json::to_value(HistoryPage::new(&messages, "").unwrap()).unwrap();
        let mut expected = message([json!({"openai": {"itemId": "i"}}), json!({})]);
        expected["parts"][1].as_object_mut().unwrap().remove("callProviderMetadata");
        assert_eq!(page["messages"], json!([expected]));
    }

    #[test]
    fn messages_with_the_same_id_are_read_to_the_first_one() {
        let messages: Messages = (0..250).map(|_| text(0, "")).collect();
        let mut query = String::new();
        let mut read = 0;
        loop {
            let page = HistoryPage::new(&messages, &query).unwrap();
            read += page.messages.len();
            let Some(before) = page.before else { break };
            query = format!("before={before}");
        }
        assert_eq!(read, 250);
    }

    #[test]
    fn invalid_cursors_are_errors() {
        let messages: Messages = (0..3).map(|id| text(id, "")).collect();
        for (query, error) in [
            ("before=", "before: not a place in this chat"),
            ("before=1", "before: not a place in this chat"),
            ("before=1-!", "before: not a place in this chat"),
            ("after=7-bTc", "after: not a place in this chat"),
            ("before=1-bTE&after=1-bTE", "after: cannot be combined with `before`"),
        ] {
            let refused = HistoryPage::new(&messages, query).unwrap_err();
            assert_eq!(refused.to_string(), error, "{query}");
        }
        assert!(HistoryPage::new(&messages, "before=1-bTE").is_ok());
    }
}
