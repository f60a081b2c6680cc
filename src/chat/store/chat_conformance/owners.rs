//! Owners: the conversations of each are separate.

use super::case::{Case, Owned, Store, message};
use crate::approval::Principal;
use crate::chat::store::conformance_case::{expect_equal, new_number};
use crate::chat::store::save_chat::SaveChat;

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new("two owners have chats with the same id", |store: Store| async move {
            let (ada, bob) = (Owned::new(&store), Owned::new(&store));
            let adas = ada.insert(&ada.chat("chat", 1)).await?;
            bob.expect_none("chat").await?;
            let bobs = bob.insert(&bob.chat("chat", 3)).await?;
            ada.expect_stored(&adas).await?;
            let mut chat = bobs.chat.clone();
            chat.messages.push(message(3, "added"));
            let bobs = bob.replace(&bobs, &chat).await?;
            ada.expect_stored(&adas).await?;
            bob.expect_stored(&bobs).await
        }),
        Case::new("the revision of another owner's chat does not count", |store| async move {
            let (ada, bob) = (Owned::new(&store), Owned::new(&store));
            let adas = ada.insert(&ada.chat("chat", 1)).await?;
            let chat = bob.chat("chat", 1);
            bob.expect_conflict(SaveChat::replacing(&adas, &chat)).await?;
            bob.expect_none("chat").await?;
            ada.expect_stored(&adas).await
        }),
        Case::new("tenants and the anonymous user are separate owners", |store| async move {
            let (user, tenant) = (new_number(), new_number());
            let owners = [
                Principal::new(user.clone()),
                Principal::new(user.clone()).with_tenant(tenant.clone()),
                Principal::new(tenant.clone()).with_tenant(user.clone()),
                Principal::new(tenant.clone()),
                Principal::anonymous().with_tenant(tenant.clone()),
                Principal::anonymous().with_tenant(user.clone()),
                // A key that joins the texts would mix these up with those above.
                Principal::new(format!("{tenant}:{user}")),
                Principal::new(format!("{tenant}/{user}")),
                Principal::new(format!("{tenant}{user}")),
                Principal::new("").with_tenant(tenant.clone()),
                Principal::new(user).with_tenant(""),
            ];
            let owners = owners.map(|owner| Owned::of(&store, owner));
            let mut stored = Vec::new();
            for (number, own) in owners.iter().enumerate() {
                stored.push(own.insert(&own.chat("chat", number)).await?);
            }
            for (own, stored) in owners.iter().zip(&stored) {
                own.expect_stored(stored).await?;
                own.expect_ids(&["chat"]).await?;
            }
            Ok(())
        }),
        Case::new("a chat of another owner is not listed", |store: Store| async move {
            let (ada, bob) = (Owned::new(&store), Owned::new(&store));
            ada.insert_empty("hers").await?;
            bob.insert_empty("his").await?;
            ada.expect_ids(&["hers"]).await?;
            bob.expect_ids(&["his"]).await?;
            Owned::new(&store).expect_ids(&[]).await
        }),
        Case::new("a chat of another owner is not deleted", |store: Store| async move {
            let (ada, bob) = (Owned::new(&store), Owned::new(&store));
            let adas = ada.insert(&ada.chat("chat", 2)).await?;
            expect_equal("the deletion", bob.delete("chat", adas.revision).await?, false)?;
            let bobs = bob.insert(&bob.chat("chat", 1)).await?;
            expect_equal("the deletion", bob.delete("chat", bobs.revision).await?, true)?;
            ada.expect_stored(&adas).await
        }),
        Case::new("ids of chats may hold any characters, and differ by each", |store| async move {
            let own = Owned::new(&store);
            let ids = [
                "chat",
                "Chat",
                "chat ",
                " chat",
                "chat/1",
                "chat:1",
                "a{b}c",
                "%41",
                "A",
                "é",
                "e\u{301}",
                "'\"\\",
                "*",
                "\u{1F600}",
                "",
            ];
            let mut stored = Vec::new();
            for (number, id) in ids.into_iter().enumerate() {
                stored.push(own.insert(&own.chat(id, number)).await?);
            }
            for stored in &stored {
                own.expect_stored(stored).await?;
            }
            let chats = own.list(4).await?;
            let mut listed = super::case::ids(&chats);
            listed.sort_unstable();
            let mut expected = ids.to_vec();
            expected.sort_unstable();
            expect_equal("the list", listed, expected)
        }),
    ]
}
