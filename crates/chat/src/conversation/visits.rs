//! Counts the messages that an operation on a conversation looks at.

use super::messages::VISITS;
use super::{Chat, PostedHistory, RequestEffect};
use ui_message_stream::approval::Principal;
use ui_message_stream::id::MessageId;
use ui_message_stream::message::UiMessage;
use ui_message_stream::request::{ChatRequest, Limits};

/// Returns how many messages this looks at.
fn visits_of(operation: impl FnOnce()) -> usize {
    let before = VISITS.get();
    operation();
    VISITS.get() - before
}

/// A conversation with this many turns. Each answer has called a tool.
fn chat_of(turns: usize) -> Chat {
    let mut chat = Chat::new("c", Principal::new("ada"));
    for turn in 0..turns {
        let question =
            format!(r#"{{"id":"m{turn}","role":"user","parts":[{{"type":"text","text":"Hi"}}]}}"#);
        let answer = format!(
            r#"{{"id":"a{turn}","role":"assistant","parts":[{{"type":"tool-act","toolCallId":"{turn}","state":"output-available","input":{{}},"output":1}}]}}"#
        );
        chat.messages.push(UiMessage::parse(&question).unwrap());
        chat.messages.push(UiMessage::parse(&answer).unwrap());
    }
    chat
}

#[test]
fn an_edit_a_regeneration_and_an_approval_look_at_few_messages_of_a_long_conversation() {
    let turns = 5_000;
    let chat = chat_of(turns);
    let last = turns - 1;
    let edit = format!(
        r#"{{"id":"c","messageId":"m{last}","message":{{"id":"m{last}","role":"user","parts":[{{"type":"text","text":"Changed"}}]}}}}"#
    );
    let regenerate =
        format!(r#"{{"id":"c","trigger":"regenerate-message","messageId":"m{last}"}}"#);
    let by_id = format!(r#"{{"id":"c","trigger":"regenerate-message","messageId":"a{last}"}}"#);
    for body in [edit, regenerate, by_id] {
        let request = ChatRequest::parse(body.as_bytes(), &Limits::default()).unwrap();
        let visits = visits_of(|| {
            let effect = chat.clone().apply_request(&request, PostedHistory::Keep);
            assert_eq!(effect, RequestEffect::NewResponse);
        });
        assert!(visits < turns / 5, "{body}: {visits} messages");
    }
    let visits = visits_of(|| {
        assert!(chat.is_followed_by_user(&MessageId::from("a0")));
        assert!(!chat.is_followed_by_user(&format!("a{last}").into()));
    });
    assert!(visits < turns / 5, "an approval: {visits} messages");
}
