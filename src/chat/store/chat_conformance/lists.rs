//! Lists: pages of an owner's conversations, the last saved first.

use std::collections::BTreeSet;

use futures_util::future::join_all;

use super::case::{Case, Owned, Store, ids, message, next_millisecond};
use crate::chat::store::chat_page::ListChats;
use crate::chat::store::conformance_case::{CaseFailure, CaseResult, expect_equal};
use crate::chat::store::save_chat::{SaveChat, VersionedChat};

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new("an owner without chats has an empty list", |store: Store| async move {
            let page = Owned::new(&store).page(ListChats { limit: 10, after: None }).await?;
            expect_equal("the chats", page.chats, Vec::new())?;
            expect_equal("the next page", page.next, None)
        }),
        Case::new("the chat that was saved last is listed first", |store: Store| async move {
            let own = Owned::new(&store);
            let first = insert_all(&own, &["a", "b", "c"]).await?.swap_remove(0);
            own.expect_ids(&["c", "b", "a"]).await?;
            next_millisecond().await;
            own.replace(&first, &first.chat).await?;
            own.expect_ids(&["a", "c", "b"]).await
        }),
        Case::new("a chat is listed with its title", |store: Store| async move {
            let own = Owned::new(&store);
            let stored = own.insert(&own.chat("chat", 0)).await?;
            expect_title(&own, "").await?;
            let mut chat = stored.chat.clone();
            chat.messages.push(message(0, " Hello,\n é"));
            let stored = own.replace(&stored, &chat).await?;
            expect_title(&own, "Hello, é 0").await?;
            chat.messages.push(message(1, "answer"));
            let stored = own.replace(&stored, &chat).await?;
            expect_title(&own, "Hello, é 0").await?;
            chat.messages.truncate(0);
            chat.messages.push(message(2, &"long".repeat(100)));
            own.replace(&stored, &chat).await?;
            expect_title(&own, &"long".repeat(25)).await
        }),
        Case::new("the time of a chat is that of its last save", |store: Store| async move {
            let own = Owned::new(&store);
            let stored = own.insert_empty("chat").await?;
            let first = own.list(1).await?;
            next_millisecond().await;
            expect_equal("the list without a save", own.list(1).await?, first.clone())?;
            own.replace(&stored, &stored.chat).await?;
            let second = own.list(1).await?;
            let is_later =
                first.iter().zip(&second).all(|(one, two)| one.updated_at < two.updated_at);
            expect_equal("whether the time is later", is_later, true)
        }),
        Case::new("pages of any size hold each chat once", |store: Store| async move {
            let own = Owned::new(&store);
            insert_all(&own, &["a", "b", "c", "d", "e", "f"]).await?;
            for limit in 1..8 {
                let chats = own.list(limit).await?;
                expect_equal("the list", ids(&chats), vec!["f", "e", "d", "c", "b", "a"])?;
            }
            Ok(())
        }),
        Case::new("only a page before others names the next one", |store: Store| async move {
            let own = Owned::new(&store);
            insert_all(&own, &["a", "b", "c", "d"]).await?;
            let first = own.page(ListChats { limit: 2, after: None }).await?;
            let next = first.next.ok_or_else(|| CaseFailure("no second page".to_owned()))?;
            let second = own.page(ListChats { limit: 2, after: Some(&next) }).await?;
            expect_equal("the second page", ids(&second.chats), vec!["b", "a"])?;
            expect_equal("the third page", second.next, None)?;
            let all = own.page(ListChats { limit: 4, after: None }).await?;
            expect_equal("the page after all", all.next, None)
        }),
        Case::new("chats that are saved at once are on one page each", |store| async move {
            let own = Owned::new(&store);
            let names: Vec<String> = (0..20).map(|number| format!("chat {number}")).collect();
            let chats: Vec<_> = names.iter().map(|id| own.chat(id, 1)).collect();
            for result in
                join_all(chats.iter().map(|chat| own.store.save(SaveChat::new(chat)))).await
            {
                let _ = result?;
            }
            let listed = own.list(3).await?;
            expect_equal("the number of chats", listed.len(), names.len())?;
            let ids: BTreeSet<&str> = ids(&listed).into_iter().collect();
            expect_equal("the number of ids", ids.len(), names.len())?;
            let places: Vec<_> = listed.iter().map(|chat| chat.cursor()).collect();
            expect_equal(
                "whether the order is that of times and ids",
                places.is_sorted_by(|a, b| a > b),
                true,
            )
        }),
        Case::new(
            "a chat that is saved meanwhile leaves the other pages complete",
            |store| async move {
                let own = Owned::new(&store);
                let stored = insert_all(&own, &["a", "b", "c", "d"]).await?;
                let first = own.page(ListChats { limit: 2, after: None }).await?;
                next_millisecond().await;
                // One that was read, and one that was not.
                own.replace(&stored[3], &stored[3].chat).await?;
                own.replace(&stored[1], &stored[1].chat).await?;
                own.insert_empty("new").await?;
                let second = own.page(ListChats { limit: 2, after: first.next.as_ref() }).await?;
                expect_equal("the second page", ids(&second.chats), vec!["a"])?;
                expect_equal("the third page", second.next, None)
            },
        ),
        Case::new(
            "a chat that is deleted meanwhile leaves the other pages complete",
            |store| async move {
                let own = Owned::new(&store);
                let stored = insert_all(&own, &["a", "b", "c", "d", "e"]).await?;
                let first = own.page(ListChats { limit: 2, after: None }).await?;
                // The chat after which the second page begins, and the first one of that page.
                for at in [3, 2] {
                    let deleted =
                        own.delete(stored[at].chat.id.as_str(), stored[at].revision).await?;
                    expect_equal("the deletion", deleted, true)?;
                }
                let second = own.page(ListChats { limit: 2, after: first.next.as_ref() }).await?;
                expect_equal("the second page", ids(&second.chats), vec!["b", "a"])
            },
        ),
    ]
}

/// Inserts conversations with these ids, each later than the one before.
async fn insert_all(own: &Owned, ids: &[&str]) -> Result<Vec<VersionedChat>, CaseFailure> {
    let mut stored = Vec::new();
    for id in ids {
        stored.push(own.insert_empty(id).await?);
        next_millisecond().await;
    }
    Ok(stored)
}

async fn expect_title(own: &Owned, expected: &str) -> CaseResult {
    let titles: Vec<String> = own.list(1).await?.into_iter().map(|chat| chat.title).collect();
    expect_equal("the titles", titles, vec![expected.to_owned()])
}
