//! The stored form of chats: newer formats are refused by name.

use std::error::Error;

use ui_message_stream::chat::Chat;
use ui_message_stream::chat::store::{SaveChat, VersionedChat};

fn stored() -> String {
    let path = format!("{}/fixtures/formats/chat-1.json", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(path).unwrap().trim_end().to_owned()
}

const NEWER: &str = "chat record: format 2 is newer than this version of ui-message-stream reads (1); \
                     upgrade the server";

#[test]
fn a_chat_is_read_and_written() {
    let chat: Chat = serde_json::from_str(&stored()).unwrap();
    assert_eq!(serde_json::to_string(&chat).unwrap(), stored());
}

#[test]
fn a_chat_is_stored_as_a_head_with_its_format_and_messages() {
    let chat: Chat = serde_json::from_str(&stored()).unwrap();
    let save = SaveChat::new(&chat);
    let head = save.head_json().unwrap();
    assert!(head.starts_with(r#"{"format":1,"id":"chat","#), "{head}");
    let messages: Vec<String> = save.changed_messages().map(|it| it.unwrap().1).collect();
    let read = VersionedChat::from_json(&head, &messages, 7).unwrap();
    assert_eq!((read.chat, read.revision), (chat, 7));
    // A head is not a chat without messages, and a chat is not a head.
    let error = serde_json::from_str::<Chat>(&head).unwrap_err().to_string();
    assert!(error.starts_with("chat record: no `messages`"), "{error}");
    let cause = |head: &str| {
        let error = VersionedChat::from_json(head, &messages, 7).unwrap_err();
        error.source().unwrap().to_string()
    };
    let error = cause(&stored());
    assert!(error.starts_with("chat record: `messages` in the head of a chat; "), "{error}");
    // The format is that of the messages, too.
    let newer = head.replace(r#"{"format":1,"#, r#"{"format":2,"#);
    assert!(cause(&newer).starts_with(NEWER), "{}", cause(&newer));
}

#[test]
fn a_chat_of_a_newer_format_is_refused_by_name() {
    let newer =
        r#"{"format":2,"id":"chat","owner":{"id":"ada"},"messages":{"m1":{"role":"user"}}}"#;
    let error = serde_json::from_str::<Chat>(newer).unwrap_err().to_string();
    assert!(error.starts_with(NEWER), "{error}");
}

#[test]
fn a_format_of_a_chat_that_is_not_a_number_is_an_error() {
    for format in ["\"1\"", "null", "0", "true"] {
        let json = stored().replace("\"format\":1", &format!("\"format\":{format}"));
        let error = serde_json::from_str::<Chat>(&json).unwrap_err().to_string();
        let expected = "chat record: the format is not a whole number from 1";
        assert!(error.starts_with(expected), "{format}: {error}");
    }
}
