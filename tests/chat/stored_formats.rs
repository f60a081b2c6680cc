//! The stored form of chats: the older format is read, newer ones are refused by name.

use ui_message_stream::approval::DeferredOutcome;
use ui_message_stream::chat::Chat;

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
fn a_chat_of_a_newer_format_is_refused_by_name() {
    let error = serde_json::from_str::<Chat>(&fixture("chat-3.json")).unwrap_err().to_string();
    let expected = "chat record: format 3 is newer than this version of ui-message-stream reads \
                    (1 and 2); upgrade the server";
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
