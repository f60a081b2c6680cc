//! The contents of a conversation: what is loaded is what was saved.

use super::case::{Case, Owned, Store, message};
use crate::approval::PendingToolCall;
use crate::chat::conversation::{Chat, HistoryCompleteness};
use crate::chat::store::conformance_case::{CaseFailure, CaseResult};
use crate::chat::store::save_chat::SaveChat;
use crate::json::Json;
use crate::message::UiMessage;

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new("a chat that was never saved is not loaded", |store: Store| async move {
            Owned::new(&store).expect_none("chat").await
        }),
        Case::new("a chat without messages is stored", |store: Store| async move {
            let own = Owned::new(&store);
            own.expect_stored(&own.insert_empty("chat").await?).await
        }),
        Case::new("the head and all kinds of parts are stored", |store: Store| async move {
            let own = Owned::new(&store);
            let stored = own.insert(&full_chat(&own)?).await?;
            own.expect_stored(&stored).await?;
            let mut chat = stored.chat.clone();
            chat.messages.push(message(2, "next"));
            own.expect_stored(&own.replace(&stored, &chat).await?).await
        }),
        Case::new("any text of a message is stored", |store: Store| async move {
            let own = Owned::new(&store);
            let mut chat = own.chat("chat", 0);
            for (at, text) in ["\0", "'; --\\", "e\u{301}\u{1F600}\u{202E}", "\r\n\t\"", "%s {}"]
                .into_iter()
                .enumerate()
            {
                chat.messages.push(message(at, text));
            }
            own.expect_stored(&own.insert(&chat).await?).await
        }),
        Case::new("a large message is stored", |store: Store| async move {
            let own = Owned::new(&store);
            let mut chat = own.chat("chat", 1);
            chat.messages.push(message(1, &"long ".repeat(200_000)));
            own.expect_stored(&own.insert(&chat).await?).await
        }),
        Case::new("a message is added", |store: Store| async move {
            expect_change(store, 3, |chat| chat.messages.push(message(3, "added"))).await
        }),
        Case::new("the first message is added to a chat", |store: Store| async move {
            expect_change(store, 0, |chat| chat.messages.push(message(0, "added"))).await
        }),
        Case::new("several messages are added", |store: Store| async move {
            let add = |chat: &mut Chat| chat.messages.extend((3..6).map(|at| message(at, "added")));
            expect_change(store, 3, add).await
        }),
        Case::new("the last message is replaced", |store: Store| async move {
            expect_change(store, 3, |chat| drop(chat.messages.replace(2, message(2, "new")))).await
        }),
        Case::new("the first message is replaced", |store: Store| async move {
            expect_change(store, 3, |chat| drop(chat.messages.replace(0, message(0, "new")))).await
        }),
        Case::new("a message in the middle is replaced and one is added", |store| async move {
            let change = |chat: &mut Chat| {
                chat.messages.replace(2, message(2, "new"));
                chat.messages.push(message(5, "added"));
            };
            expect_change(store, 5, change).await
        }),
        Case::new("a message is inserted before others", |store: Store| async move {
            expect_change(store, 4, |chat| chat.messages.insert(1, message(9, "between"))).await
        }),
        Case::new("messages are removed", |store: Store| async move {
            expect_change(store, 5, |chat| chat.messages.truncate(2)).await
        }),
        Case::new("all messages are removed", |store: Store| async move {
            expect_change(store, 3, |chat| chat.messages.truncate(0)).await
        }),
        Case::new("messages are removed and another one is added", |store: Store| async move {
            let change = |chat: &mut Chat| {
                chat.messages.truncate(1);
                chat.messages.push(message(7, "edited"));
            };
            expect_change(store, 5, change).await
        }),
        Case::new("removed messages stay removed when the chat grows again", |store| async move {
            let own = Owned::new(&store);
            let full = own.insert(&own.chat("chat", 6)).await?;
            let mut chat = full.chat.clone();
            chat.messages.truncate(1);
            let mut stored = own.replace(&full, &chat).await?;
            for at in 1..4 {
                chat.messages.push(message(at + 10, "later"));
                stored = own.replace(&stored, &chat).await?;
                own.expect_stored(&stored).await?;
            }
            Ok(())
        }),
        Case::new("only the head changes", |store: Store| async move {
            expect_change(store, 3, |chat| chat.history = HistoryCompleteness::Truncated).await
        }),
        Case::new("a field of the head that is removed is gone", |store: Store| async move {
            let own = Owned::new(&store);
            let stored = own.insert(&full_chat(&own)?).await?;
            let mut chat = stored.chat.clone();
            chat.client_executed.clear();
            chat.call_outcomes.clear();
            own.expect_stored(&own.replace(&stored, &chat).await?).await
        }),
        Case::new("a save may count fewer messages as unchanged", |store: Store| async move {
            let own = Owned::new(&store);
            let stored = own.insert(&own.chat("chat", 5)).await?;
            let mut chat = stored.chat.clone();
            chat.messages.push(message(5, "added"));
            let mut save = SaveChat::replacing(&stored, &chat);
            save.unchanged = 2;
            let stored = own.saved(save).await?;
            own.expect_stored(&stored).await?;
            let mut save = SaveChat::replacing(&stored, &chat);
            save.unchanged = 0;
            own.expect_stored(&own.saved(save).await?).await
        }),
        Case::new("a chat grows to 300 messages, one by one", |store: Store| async move {
            let own = Owned::new(&store);
            let mut stored = own.insert_empty("chat").await?;
            let mut chat = stored.chat.clone();
            for at in 0..300 {
                chat.messages.push(message(at, "text"));
                stored = own.replace(&stored, &chat).await?;
            }
            own.expect_stored(&stored).await
        }),
    ]
}

/// Saves a conversation with this number of messages, changes and saves it, and compares what is
/// stored. Then does the same with the loaded version.
async fn expect_change(
    store: Store,
    messages: usize,
    change: impl Fn(&mut Chat) + Send,
) -> CaseResult {
    let own = Owned::new(&store);
    for id in ["saved", "loaded"] {
        let mut stored = own.insert(&own.chat(id, messages)).await?;
        if id == "loaded" {
            let loaded = own.load(id).await?;
            stored = loaded.ok_or_else(|| CaseFailure("the chat is not found".to_owned()))?;
        }
        let mut chat = stored.chat.clone();
        change(&mut chat);
        own.expect_stored(&own.replace(&stored, &chat).await?).await?;
    }
    Ok(())
}

/// Returns a conversation with two messages and a head that is not empty.
fn full_chat(own: &Owned) -> Result<Chat, CaseFailure> {
    let mut chat = own.chat("chat", 1);
    let message = r#"{"id": "m1", "role": "assistant", "metadata": {"model": "x", "n": 1.50},
        "parts": [
            {"type": "step-start"},
            {"type": "reasoning", "text": "hm", "state": "done"},
            {"type": "tool-search", "toolCallId": "c1", "state": "output-available",
                "input": {"b": 1, "a": [null, true]}, "output": {"text": "é"}},
            {"type": "tool-delete", "toolCallId": "c2", "state": "approval-requested",
                "input": {}, "approval": {"id": "ap1"}},
            {"type": "file", "mediaType": "text/plain", "url": "data:,x"},
            {"type": "data-note", "id": "d1", "data": {"x": 1}},
            {"type": "text", "text": "Done.", "state": "done"}
        ]}"#;
    let message = UiMessage::parse(message).map_err(|error| CaseFailure(error.to_string()))?;
    chat.messages.push(message);
    chat.history = HistoryCompleteness::Imported;
    let call = PendingToolCall::client_executed("c3", "locate", Json::null());
    chat.call_outcomes.push(call.with_outcome(crate::approval::DeferredOutcome::Expired));
    chat.client_executed.push(call);
    Ok(chat)
}
