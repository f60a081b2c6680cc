//! The stored form of chats: the older format is read, newer ones are refused by name.

use std::error::Error;

use ui_message_stream::approval::DeferredOutcome;
use ui_message_stream::chat::Chat;
use ui_message_stream::chat::store::{SaveChat, VersionedChat};

fn fixture(name: &str) -> String {
    let path = format!("{}/fixtures/formats/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(path).unwrap().trim_end().to_owned()
}

#[test]
fn a_chat_of_format_1_or_2_is_read_and_written_as_format_2() {
    let second = fixture("chat-2.json");
    let chat: Chat = serde_json::from_str(&second).unwrap();
    assert_eq!(serde_json::to_string(&chat).unwrap(), second);
    // Format 1 has no outcomes of calls: its reader compared the texts that users saw.
    let first: Chat = serde_json::from_str(&fixture("chat-1.json")).unwrap();
    let mut expected = chat;
    assert_eq!(expected.call_outcomes[0].outcome, DeferredOutcome::Expired);
    expected.call_outcomes.clear();
    assert_eq!(first, expected);
    assert!(serde_json::to_string(&first).unwrap().starts_with(r#"{"format":2,"id":"chat","#));
}

#[test]
fn a_chat_in_which_a_run_has_stored_a_step_has_format_3() {
    let third = fixture("chat-3.json");
    let chat: Chat = serde_json::from_str(&third).unwrap();
    assert_eq!(serde_json::to_string(&chat).unwrap(), third);
    assert!(third.starts_with(r#"{"format":3,"id":"chat","#), "{third}");
}

#[test]
fn a_chat_is_stored_as_a_head_with_its_format_and_messages() {
    let chat: Chat = serde_json::from_str(&fixture("chat-2.json")).unwrap();
    let save = SaveChat::new(&chat);
    let head = save.head_json().unwrap();
    assert!(head.starts_with(r#"{"format":2,"id":"chat","#), "{head}");
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
    let error = cause(&fixture("chat-2.json"));
    assert!(error.starts_with("chat record: `messages` in the head of a chat; "), "{error}");
    // The format is that of the messages, too.
    let newer = head.replace(r#"{"format":2,"#, r#"{"format":4,"#);
    let expected = "chat record: format 4 is newer than this version of ui-message-stream reads";
    assert!(cause(&newer).starts_with(expected), "{}", cause(&newer));
    let older = head.replace(r#"{"format":2,"#, "{");
    assert!(VersionedChat::from_json(&older, &messages, 7).is_ok());
}

#[test]
fn a_chat_of_a_newer_format_is_refused_by_name() {
    let error = serde_json::from_str::<Chat>(&fixture("chat-4.json")).unwrap_err().to_string();
    let expected = "chat record: format 4 is newer than this version of ui-message-stream reads \
                    (1 to 3); upgrade the server";
    assert!(error.starts_with(expected), "{error}");
}

#[test]
fn a_format_of_a_chat_that_is_not_a_number_is_an_error() {
    for format in ["\"2\"", "null", "0", "true"] {
        let json = fixture("chat-2.json").replace("\"format\":2", &format!("\"format\":{format}"));
        let error = serde_json::from_str::<Chat>(&json).unwrap_err().to_string();
        let expected = "chat record: the format is not a whole number from 1";
        assert!(error.starts_with(expected), "{format}: {error}");
    }
}
