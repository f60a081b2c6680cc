//! A client in the browser: it stores the messages and posts them.

use chat_test_support::answers::answer;
use serde_json::{Value, json};
use test_support::requests::send;
use test_support::responses::{chunks_of, message_of};
use ui_message_stream::UiMessage;
use ui_message_stream_chat::ChatServer;

#[derive(Default)]
pub(crate) struct Page {
    pub(crate) messages: Vec<Value>,
}

impl Page {
    /// Posts the messages, and applies the response to them.
    pub(crate) async fn post(&mut self, chats: &ChatServer) -> Vec<Value> {
        let text = answer(chats, send("chat", &json!(self.messages))).await.unwrap();
        let continued = self.messages.pop_if(|message| message["role"] == "assistant");
        let held = continued.map(|message| UiMessage::parse(&message.to_string()).unwrap());
        self.messages.push(serde_json::to_value(message_of(held, &text)).unwrap());
        chunks_of(&text)
    }

    /// The call of this id in the last message.
    pub(crate) fn call(&mut self, id: &Value) -> &mut Value {
        let parts = self.messages.last_mut().unwrap()["parts"].as_array_mut().unwrap();
        parts.iter_mut().find(|part| part["toolCallId"] == *id).unwrap()
    }
}
