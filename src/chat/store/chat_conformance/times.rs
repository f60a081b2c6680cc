//! The time to live of a conversation.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::case::{Case, Owned, Store, message};
use crate::chat::store::conformance_case::{CaseFailure, expect_equal};
use crate::chat::store::save_chat::{ReloadedChat, SaveChat, VersionedChat};

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new("after its time a chat is not loaded and not listed", |store| async move {
            let own = Owned::new(&store);
            let stored = expired(&own, "chat").await?;
            own.insert_empty("other").await?;
            own.expect_none("chat").await?;
            own.expect_ids(&["other"]).await?;
            match own.reload("chat", stored.revision).await? {
                ReloadedChat::NotFound => Ok(()),
                found => Err(CaseFailure(format!("the chat is {found:?}"))),
            }
        }),
        Case::new("after its time a chat is not saved and not deleted", |store| async move {
            let own = Owned::new(&store);
            let stored = expired(&own, "chat").await?;
            own.expect_conflict(SaveChat::replacing(&stored, &stored.chat)).await?;
            let deleted = own.delete("chat", stored.revision).await?;
            expect_equal("the deletion", deleted, false)?;
            own.expect_none("chat").await
        }),
        Case::new(
            "after its time a chat is created again, without its messages",
            |store| async move {
                let own = Owned::new(&store);
                let old = expired(&own, "chat").await?;
                let mut chat = own.chat("chat", 0);
                chat.messages.push(message(9, "new"));
                let stored = own.insert(&chat).await?;
                own.expect_stored(&stored).await?;
                own.expect_conflict(SaveChat::replacing(&old, &old.chat)).await?;
                chat.messages.push(message(10, "next"));
                own.expect_stored(&own.replace(&stored, &chat).await?).await?;
                own.expect_ids(&["chat"]).await
            },
        ),
        Case::new("a chat is there until its time has passed", |store: Store| async move {
            let own = Owned::new(&store);
            let chat = own.chat("chat", 2);
            let save = SaveChat::new(&chat).with_keep_for(Some(Duration::from_secs(3600)));
            let stored = own.saved(save).await?;
            own.expect_stored(&stored).await?;
            own.expect_ids(&["chat"]).await
        }),
        Case::new("each save begins the time again", |store: Store| async move {
            let own = Owned::new(&store);
            let chat = own.chat("chat", 1);
            let mut stored = own.saved(SaveChat::new(&chat).with_keep_for(Some(LONG))).await?;
            for _ in 0..2 {
                let saved_at = Instant::now();
                let save = SaveChat::replacing(&stored, &chat).with_keep_for(Some(LONG));
                stored = own.saved(save).await?;
                sleep(LONG.mul_f32(0.7)).await;
                let loaded = own.load("chat").await?;
                // A machine that sleeps for too long says nothing about the store.
                if saved_at.elapsed() >= LONG {
                    return Ok(());
                }
                expect_equal("whether the chat is loaded", loaded.is_some(), true)?;
            }
            Ok(())
        }),
        Case::new("a save without a time keeps the chat", |store: Store| async move {
            let own = Owned::new(&store);
            let chat = own.chat("chat", 1);
            let stored = own.saved(SaveChat::new(&chat).with_keep_for(Some(LONG))).await?;
            let stored = own.replace(&stored, &chat).await?;
            sleep(LONG * 2).await;
            own.expect_stored(&stored).await
        }),
        Case::new("a save may shorten the time", |store: Store| async move {
            let own = Owned::new(&store);
            let stored = own.insert(&own.chat("chat", 1)).await?;
            let save = SaveChat::replacing(&stored, &stored.chat).with_keep_for(Some(SHORT));
            let _ = own.saved(save).await?;
            sleep(SHORT * 3).await;
            own.expect_none("chat").await?;
            own.expect_ids(&[]).await
        }),
    ]
}

/// Saves a conversation with three messages and returns it after its time has passed.
async fn expired(own: &Owned, id: &str) -> Result<VersionedChat, CaseFailure> {
    let chat = own.chat(id, 3);
    let stored = own.saved(SaveChat::new(&chat).with_keep_for(Some(SHORT))).await?;
    sleep(SHORT * 3).await;
    Ok(stored)
}

/// A time to live that passes during a case.
const SHORT: Duration = Duration::from_millis(100);

/// A time to live within which a chat is saved again.
const LONG: Duration = Duration::from_millis(1000);
