//! A request body of any bytes is parsed or rejected, and a parsed body is parsed again with the
//! same result.

use ui_message_stream::approval::ResumePlan;
use ui_message_stream::request::{ChatRequest, Limits};
use ui_message_stream::{Translator, UiMessage};

/// Runs the target on one input.
///
/// # Panics
/// If the input shows a fault.
pub fn run(data: &[u8]) {
    let Ok(chat) = ChatRequest::parse(data, &Limits::default()) else {
        return;
    };
    for message in chat.messages() {
        let written = serde_json::to_string(&message).expect("a message serializes");
        let again = UiMessage::parse(&written).expect("what is written is read");
        assert_eq!(serde_json::to_string(&again).expect("a message serializes"), written);
    }
    let _ = ResumePlan::new(chat.messages(), chat.continued_message()).settle(&[]);
    if let Some(message) = chat.continued_message() {
        Translator::continuing(message).finish(&mut |_| {});
    }
}
