//! A client in the browser: it stores the messages and posts them.

use futures::StreamExt;
use serde_json::{Value, json};
use ui_message_stream::approval::Principal;
use ui_message_stream::chunk::ReceivedChunk;
use ui_message_stream::reducer::Reducer;
use ui_message_stream::request::Limits;
use ui_message_stream::{ChatRequest, UiMessage};
use ui_message_stream_chat::ChatServer;

#[derive(Default)]
pub(crate) struct Page {
    pub(crate) messages: Vec<Value>,
}

impl Page {
    /// Posts the messages, and applies the response to them.
    pub(crate) async fn post(&mut self, chats: &ChatServer) -> Vec<Value> {
        let body = json!({"id": "chat", "messages": self.messages}).to_string();
        let request = ChatRequest::parse(body.as_bytes(), &Limits::default()).unwrap();
        let response = chats.stream_response(&Principal::new("ada"), request).await.unwrap();
        let frames: Vec<_> = response.map(Result::unwrap).collect().await;
        let text = String::from_utf8(frames.concat()).unwrap();
        let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
        let chunks: Vec<&str> = data.filter(|data| *data != "[DONE]").collect();
        let continued = self.messages.pop_if(|message| message["role"] == "assistant");
        let mut reducer = match continued {
            Some(message) => Reducer::continuing(UiMessage::parse(&message.to_string()).unwrap()),
            None => Reducer::new(),
        };
        for chunk in &chunks {
            reducer.push(&ReceivedChunk::parse(chunk).unwrap()).unwrap();
        }
        self.messages.push(serde_json::to_value(reducer.into_message()).unwrap());
        chunks.iter().map(|chunk| serde_json::from_str(chunk).unwrap()).collect()
    }

    /// The call of this id in the last message.
    pub(crate) fn call(&mut self, id: &Value) -> &mut Value {
        let parts = self.messages.last_mut().unwrap()["parts"].as_array_mut().unwrap();
        parts.iter_mut().find(|part| part["toolCallId"] == *id).unwrap()
    }
}
