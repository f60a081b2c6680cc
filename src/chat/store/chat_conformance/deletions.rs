//! Deletions: nothing of a deleted conversation comes back.

use super::case::{Case, Owned, Store, message};
use crate::chat::store::conformance_case::{CaseFailure, CaseResult, expect_equal};
use crate::chat::store::save_chat::{ReloadedChat, SaveChat, SaveResult, VersionedChat};

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new("a deleted chat is not loaded and not listed", |store: Store| async move {
            let own = Owned::new(&store);
            let stored = own.insert(&own.chat("chat", 3)).await?;
            expect_deleted(&own, &stored).await?;
            own.expect_none("chat").await?;
            own.expect_ids(&[]).await?;
            match own.reload("chat", stored.revision).await? {
                ReloadedChat::NotFound => Ok(()),
                found => Err(CaseFailure(format!("the chat is {found:?}"))),
            }
        }),
        Case::new("a chat that does not exist is not deleted", |store: Store| async move {
            let own = Owned::new(&store);
            let other = own.insert_empty("other").await?;
            expect_equal("the deletion", own.delete("chat", other.revision).await?, false)?;
            expect_deleted(&own, &other).await?;
            let again = own.delete("other", other.revision).await?;
            expect_equal("the second deletion", again, false)
        }),
        Case::new("a chat with another revision is not deleted", |store: Store| async move {
            let own = Owned::new(&store);
            let old = own.insert(&own.chat("chat", 1)).await?;
            let mut chat = old.chat.clone();
            chat.messages.push(message(1, "added"));
            let newer = own.replace(&old, &chat).await?;
            expect_equal("the deletion", own.delete("chat", old.revision).await?, false)?;
            own.expect_stored(&newer).await
        }),
        Case::new("the other chats of the owner stay", |store: Store| async move {
            let own = Owned::new(&store);
            let (one, other) = (own.chat("one", 2), own.chat("other", 2));
            let (one, other) = (own.insert(&one).await?, own.insert(&other).await?);
            expect_deleted(&own, &one).await?;
            own.expect_stored(&other).await?;
            own.expect_ids(&["other"]).await
        }),
        Case::new("a deleted chat is not saved", |store: Store| async move {
            let own = Owned::new(&store);
            let stored = own.insert(&own.chat("chat", 2)).await?;
            expect_deleted(&own, &stored).await?;
            let mut chat = stored.chat.clone();
            chat.messages.push(message(2, "late"));
            own.expect_conflict(SaveChat::replacing(&stored, &chat)).await?;
            own.expect_none("chat").await
        }),
        Case::new(
            "a chat that is created again has none of the old messages",
            |store| async move {
                let own = Owned::new(&store);
                let old = own.insert(&own.chat("chat", 5)).await?;
                expect_deleted(&own, &old).await?;
                let mut chat = own.chat("chat", 0);
                chat.messages.push(message(9, "new"));
                let mut stored = own.insert(&chat).await?;
                own.expect_stored(&stored).await?;
                for at in 10..13 {
                    chat.messages.push(message(at, "next"));
                    stored = own.replace(&stored, &chat).await?;
                    own.expect_stored(&stored).await?;
                }
                Ok(())
            },
        ),
        Case::new(
            "a chat that is created again has no revision of the old one",
            |store| async move {
                let own = Owned::new(&store);
                let mut old = vec![own.insert_empty("chat").await?];
                for _ in 0..3 {
                    let stored = own.replace(&old[old.len() - 1], &old[0].chat).await?;
                    old.push(stored);
                }
                expect_deleted(&own, &old[3]).await?;
                let mut stored = own.insert_empty("chat").await?;
                for _ in 0..4 {
                    let chat = own.chat("chat", 1);
                    for old in &old {
                        own.expect_conflict(SaveChat::replacing(old, &chat)).await?;
                        let is_deleted = own.delete("chat", old.revision).await?;
                        expect_equal("the deletion", is_deleted, false)?;
                    }
                    own.expect_stored(&stored).await?;
                    stored = own.replace(&stored, &stored.chat).await?;
                }
                Ok(())
            },
        ),
        Case::new("of a deletion and a save of a revision one succeeds", |store| async move {
            let own = Owned::new(&store);
            for number in 0..8 {
                let id = format!("chat {number}");
                let stored = own.insert(&own.chat(&id, 2)).await?;
                let mut chat = stored.chat.clone();
                chat.messages.push(message(2, "added"));
                let save = own.store.save(SaveChat::replacing(&stored, &chat));
                let delete = own.store.delete(&own.owner, &stored.chat.id, stored.revision);
                let (saved, deleted) = futures_util::future::join(save, delete).await;
                match (saved?, deleted?) {
                    (SaveResult::Conflict, true) => own.expect_none(&id).await?,
                    (SaveResult::Saved(revision), false) => {
                        own.expect_stored(&VersionedChat { chat, revision }).await?;
                    }
                    both => return Err(CaseFailure(format!("the results are {both:?}"))),
                }
            }
            Ok(())
        }),
    ]
}

async fn expect_deleted(own: &Owned, stored: &VersionedChat) -> CaseResult {
    let deleted = own.delete(stored.chat.id.as_str(), stored.revision).await?;
    expect_equal("the deletion", deleted, true)
}
