//! The maximum number of conversations of an owner.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::sleep;

use super::case::{Case, Owned, Store, message, next_millisecond};
use crate::chat::store::conformance_case::{CaseFailure, CaseResult, expect_equal};
use crate::chat::store::save_chat::{SaveChat, SaveResult};

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new(
            "at the limit a new chat is refused, or another one is removed for it",
            |store: Store| async move {
                let own = Owned::new(&store);
                for id in ["one", "two", "three"] {
                    expect_saved(insert(&own, id, 3).await?)?;
                    next_millisecond().await;
                }
                match insert(&own, "four", 3).await? {
                    SaveResult::TooManyChats => own.expect_ids(&["three", "two", "one"]).await,
                    SaveResult::Saved(_) => own.expect_ids(&["four", "three", "two"]).await,
                    SaveResult::Conflict => Err(CaseFailure("the save is a conflict".to_owned())),
                }
            },
        ),
        Case::new("at the limit the chats that exist are saved", |store: Store| async move {
            let own = Owned::new(&store);
            let (one, two) = (own.insert_empty("one").await?, own.insert_empty("two").await?);
            for stored in [one, two] {
                let mut chat = stored.chat.clone();
                chat.messages.push(message(0, "added"));
                let save = SaveChat::replacing(&stored, &chat).with_max_user_chats(Some(1));
                let stored = own.saved(save).await?;
                own.expect_stored(&stored).await?;
            }
            Ok(())
        }),
        Case::new("at the limit a chat that exists is a conflict", |store: Store| async move {
            let own = Owned::new(&store);
            let stored = own.insert(&own.chat("chat", 2)).await?;
            let again = insert(&own, "chat", 1).await?;
            expect_equal("the save", again, SaveResult::Conflict)?;
            own.expect_stored(&stored).await
        }),
        Case::new("the chats of others do not count", |store: Store| async move {
            let (own, other) = (Owned::new(&store), Owned::new(&store));
            let stored = other.insert(&other.chat("chat", 2)).await?;
            expect_saved(insert(&own, "chat", 1).await?)?;
            other.expect_stored(&stored).await
        }),
        Case::new("a deleted chat does not count", |store: Store| async move {
            let own = Owned::new(&store);
            let (one, two) = (own.insert_empty("one").await?, own.insert_empty("two").await?);
            expect_equal("the deletion", own.delete("two", two.revision).await?, true)?;
            expect_saved(insert(&own, "three", 2).await?)?;
            own.expect_stored(&one).await
        }),
        Case::new("a chat whose time has passed does not count", |store: Store| async move {
            let own = Owned::new(&store);
            let one = own.insert_empty("one").await?;
            let chat = own.chat("two", 1);
            own.saved(SaveChat::new(&chat).with_keep_for(Some(SHORT))).await?;
            sleep(SHORT + Duration::from_millis(50)).await;
            expect_saved(insert(&own, "three", 2).await?)?;
            own.expect_none("two").await?;
            own.expect_stored(&one).await
        }),
        Case::new(
            "of many chats that begin at once no more are stored than the owner may have",
            |store: Store| async move {
                let own = Owned::new(&store);
                let ids: Vec<String> = (0..12).map(|number| format!("chat {number}")).collect();
                for result in join_all(ids.iter().map(|id| insert(&own, id, 3))).await {
                    if result? == SaveResult::Conflict {
                        return Err(CaseFailure("a save is a conflict".to_owned()));
                    }
                }
                expect_equal("the number of chats", own.list(100).await?.len(), 3)
            },
        ),
        Case::new(
            "a chat that begins many times at once at the limit is stored once and else a conflict",
            |store: Store| async move {
                let own = Owned::new(&store);
                let results = join_all((0..12).map(|_| insert(&own, "one", 1))).await;
                let conflicts =
                    results.iter().filter(|result| matches!(result, Ok(SaveResult::Conflict)));
                expect_equal("the number of conflicts", conflicts.count(), 11)
            },
        ),
    ]
}

/// Inserts an empty conversation if its owner has less than this number.
async fn insert(own: &Owned, id: &str, max: usize) -> Result<SaveResult, CaseFailure> {
    let chat = own.chat(id, 0);
    Ok(own.store.save(SaveChat::new(&chat).with_max_user_chats(Some(max))).await?)
}

fn expect_saved(result: SaveResult) -> CaseResult {
    match result {
        SaveResult::Saved(_) => Ok(()),
        SaveResult::Conflict | SaveResult::TooManyChats => {
            Err(CaseFailure(format!("the chat is not saved: {result:?}")))
        }
    }
}

const SHORT: Duration = Duration::from_millis(100);
