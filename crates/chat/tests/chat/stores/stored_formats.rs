//! The stored form of chats: newer formats are refused by name.

use ui_message_stream_chat::Chat;

fn stored() -> String {
    let path = test_support::repository().join("fixtures/formats/chat-1.json");
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
fn a_chat_of_a_newer_format_is_refused_by_name() {
    let newer =
        r#"{"format":2,"id":"chat","owner":{"id":"ada"},"messages":{"m1":{"role":"user"}}}"#;
    let error = serde_json::from_str::<Chat>(newer).unwrap_err().to_string();
    assert!(error.starts_with(NEWER), "{error}");
}
