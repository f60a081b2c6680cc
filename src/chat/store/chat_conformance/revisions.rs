//! Revisions: each save compares one and gives another.

use std::collections::HashSet;

use futures_util::future::join_all;

use super::case::{Case, Owned, Store, message};
use crate::chat::store::conformance_case::{CaseFailure, expect_equal};
use crate::chat::store::save_chat::{ReloadedChat, SaveChat, SaveResult};

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new("a chat that exists is not inserted again", |store: Store| async move {
            let own = Owned::new(&store);
            let stored = own.insert(&own.chat("chat", 2)).await?;
            own.expect_conflict(SaveChat::new(&own.chat("chat", 1))).await?;
            own.expect_stored(&stored).await
        }),
        Case::new("a save with an old revision changes nothing", |store: Store| async move {
            let own = Owned::new(&store);
            let old = own.insert(&own.chat("chat", 2)).await?;
            let mut chat = old.chat.clone();
            chat.messages.push(message(2, "added"));
            let newer = own.replace(&old, &chat).await?;
            let other = own.chat("chat", 1);
            own.expect_conflict(SaveChat::replacing(&old, &other)).await?;
            own.expect_stored(&newer).await
        }),
        Case::new("a chat that does not exist is not replaced", |store: Store| async move {
            let own = Owned::new(&store);
            let other = own.insert_empty("other").await?;
            let chat = own.chat("chat", 1);
            own.expect_conflict(SaveChat::replacing(&other, &chat)).await?;
            own.expect_none("chat").await
        }),
        Case::new("the revision of another chat does not count", |store: Store| async move {
            let own = Owned::new(&store);
            let (one, other) = (own.insert_empty("one").await?, own.insert_empty("other").await?);
            let mut chat = one.chat.clone();
            chat.messages.push(message(0, "added"));
            own.expect_conflict(SaveChat::replacing(&other, &chat)).await?;
            own.expect_stored(&one).await
        }),
        Case::new("each save gives a new revision, also without a change", |store| async move {
            let own = Owned::new(&store);
            let mut stored = own.insert(&own.chat("chat", 1)).await?;
            let mut revisions = HashSet::from([stored.revision]);
            for _ in 0..10 {
                stored = own.replace(&stored, &stored.chat.clone()).await?;
                own.expect_stored(&stored).await?;
                if !revisions.insert(stored.revision) {
                    return Err(CaseFailure(format!("{} was used before", stored.revision)));
                }
            }
            Ok(())
        }),
        Case::new("of concurrent inserts one is saved", |store: Store| async move {
            let own = Owned::new(&store);
            let chats: Vec<_> = (0..8).map(|messages| own.chat("chat", messages)).collect();
            let saves = chats.iter().map(|chat| own.store.save(SaveChat::new(chat)));
            let mut saved = Vec::new();
            for (result, chat) in join_all(saves).await.into_iter().zip(&chats) {
                if let SaveResult::Saved(revision) = result? {
                    saved.push((revision, chat));
                }
            }
            expect_equal("the number of saved chats", saved.len(), 1)?;
            let loaded = own.load("chat").await?.map(|loaded| (loaded.revision, loaded.chat));
            let expected = saved.first().map(|(revision, chat)| (*revision, (*chat).clone()));
            expect_equal("the chat", loaded, expected)
        }),
        Case::new("of concurrent replacements of a revision one is saved", |store| async move {
            let own = Owned::new(&store);
            let stored = own.insert(&own.chat("chat", 3)).await?;
            let versions = (0..8).map(|number| {
                let mut chat = stored.chat.clone();
                chat.messages.truncate(3 - number % 3);
                chat.messages.push(message(10 + number, "added"));
                chat
            });
            let versions: Vec<_> = versions.collect();
            let saves = versions.iter().map(|chat| SaveChat::replacing(&stored, chat));
            let mut saved = Vec::new();
            let results = join_all(saves.map(|save| own.store.save(save))).await;
            for (result, chat) in results.into_iter().zip(&versions) {
                if let SaveResult::Saved(revision) = result? {
                    saved.push((revision, chat));
                }
            }
            expect_equal("the number of saved chats", saved.len(), 1)?;
            let loaded = own.load("chat").await?.map(|loaded| (loaded.revision, loaded.chat));
            let expected = saved.first().map(|(revision, chat)| (*revision, (*chat).clone()));
            expect_equal("the chat", loaded, expected)
        }),
        Case::new("of concurrent saves of many chats all are saved", |store| async move {
            let own = Owned::new(&store);
            let ids: Vec<String> = (0..16).map(|number| format!("chat {number}")).collect();
            let chats: Vec<_> = ids.iter().map(|id| own.chat(id, 2)).collect();
            let mut revisions = HashSet::new();
            for result in
                join_all(chats.iter().map(|chat| own.store.save(SaveChat::new(chat)))).await
            {
                match result? {
                    SaveResult::Saved(revision) => revisions.insert(revision),
                    result => return Err(CaseFailure(format!("a save is {result:?}"))),
                };
            }
            // A revision belongs to one chat: two chats may have the same one.
            expect_equal("the number of chats", own.list(100).await?.len(), ids.len())
        }),
        Case::new("a chat that has not changed is not loaded again", |store| async move {
            let own = Owned::new(&store);
            let stored = own.insert(&own.chat("chat", 2)).await?;
            match own.reload("chat", stored.revision).await? {
                ReloadedChat::Unchanged => Ok(()),
                other => Err(CaseFailure(format!("the chat is {other:?}"))),
            }
        }),
        Case::new("a chat that has changed is loaded again", |store: Store| async move {
            let own = Owned::new(&store);
            let old = own.insert(&own.chat("chat", 2)).await?;
            let mut chat = old.chat.clone();
            chat.messages.push(message(2, "added"));
            let newer = own.replace(&old, &chat).await?;
            match own.reload("chat", old.revision).await? {
                ReloadedChat::Changed(loaded) => {
                    expect_equal("the revision", loaded.revision, newer.revision)?;
                    expect_equal("the chat", loaded.chat, newer.chat)
                }
                other => Err(CaseFailure(format!("the chat is {other:?}"))),
            }
        }),
        Case::new("a chat that was never saved is not reloaded", |store: Store| async move {
            let own = Owned::new(&store);
            let other = own.insert_empty("other").await?;
            match own.reload("chat", other.revision).await? {
                ReloadedChat::NotFound => Ok(()),
                found => Err(CaseFailure(format!("the chat is {found:?}"))),
            }
        }),
    ]
}
