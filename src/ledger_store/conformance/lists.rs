//! What waits for an answer: of a chat and of a person, and of nobody else.

use super::records::{a_chat, a_person, insert, kept, now, pending, question, random_id};
use super::{Case, Failed, Store, equal};
use crate::approval::{ApprovalState, Principal, RecordId, UnixMillis};
use crate::id::ChatId;
use crate::ledger_store::{Asked, LedgerStore};

pub(super) fn cases() -> Vec<Case> {
    let mut cases = vec![
        Case::new("a chat that nobody asked in lists nothing", |store: Store| async move {
            let chat = a_chat();
            let of = Asked::InChat { tenant: None, chat: &chat };
            equal("what is pending", pending(&*store, of).await?, vec![])
        }),
        Case::new("a person whom nobody asked lists nothing", |store: Store| async move {
            equal("what is pending", pending(&*store, Asked::By(&a_person())).await?, vec![])
        }),
        Case::new("a chat lists its questions, the oldest first", |store: Store| async move {
            let (chat, now) = (a_chat(), now(&*store).await?);
            let mut expected = Vec::new();
            for age in [3, 0, 4, 1, 2] {
                let mut record =
                    question(&a_person(), &chat, UnixMillis(now.0.saturating_sub(age)));
                // The later it was asked, the sooner it expires.
                record.expires_at = UnixMillis(now.0 + 1_000_000 + age * 1_000);
                insert(&*store, &record).await?;
                expected.push((record.requested_at, record.id));
            }
            expected.sort();
            let of = Asked::InChat { tenant: None, chat: &chat };
            equal("what is pending", pending(&*store, of).await?, second(expected))
        }),
        Case::new("a person's questions of all chats are listed, the oldest first", persons),
        Case::new("a list holds the records with their revisions", |store: Store| async move {
            let record = question(&a_person(), &a_chat(), now(&*store).await?);
            insert(&*store, &record).await?;
            let listed = store.pending(Asked::By(&record.requester)).await?.records;
            equal("how many there are", listed.len(), 1)?;
            let revision = kept(&*store, record.id).await?.revision;
            for kept in listed {
                equal("the revision", kept.revision, revision)?;
                equal("the record", &kept.record, &record)?;
            }
            Ok(())
        }),
        Case::new("what has expired is listed until somebody looks", |store: Store| async move {
            let now = now(&*store).await?;
            let mut record = question(&a_person(), &a_chat(), now);
            record.expires_at = UnixMillis(now.0.saturating_sub(1));
            insert(&*store, &record).await?;
            let of = Asked::By(&record.requester);
            equal("what is pending", pending(&*store, of).await?, vec![record.id])
        }),
        Case::new("what was decided leaves the others in the lists", |store: Store| async move {
            let (person, chat, now) = (a_person(), a_chat(), now(&*store).await?);
            let records: Vec<_> = (0..3).map(|_| question(&person, &chat, now)).collect();
            let mut expected = Vec::new();
            for record in &records {
                insert(&*store, record).await?;
                expected.push(record.id);
            }
            let mut decided = records[1].clone();
            decided.state = ApprovalState::Expired;
            let revision = kept(&*store, decided.id).await?.revision;
            store.replace(&decided, revision).await?;
            expected.remove(1);
            expected.sort();
            for of in [Asked::InChat { tenant: None, chat: &chat }, Asked::By(&person)] {
                equal("what is pending", pending(&*store, of).await?, expected.clone())?;
            }
            Ok(())
        }),
        Case::new("what was not replaced stays in the lists", |store: Store| async move {
            let record = question(&a_person(), &a_chat(), now(&*store).await?);
            insert(&*store, &record).await?;
            let mut decided = record.clone();
            decided.state = ApprovalState::Expired;
            let revision = kept(&*store, record.id).await?.revision;
            equal("the answer", store.replace(&decided, revision.wrapping_add(1)).await?, false)?;
            let of = Asked::By(&record.requester);
            equal("what is pending", pending(&*store, of).await?, vec![record.id])
        }),
    ];
    cases.extend(apart());
    cases
}

async fn persons(store: Store) -> Result<(), Failed> {
    let (person, now) = (a_person(), now(&*store).await?);
    let mut expected = Vec::new();
    for age in [1, 2, 0] {
        let record = question(&person, &a_chat(), UnixMillis(now.0.saturating_sub(age)));
        insert(&*store, &record).await?;
        insert(&*store, &question(&a_person(), &record.chat_id, now)).await?;
        expected.push((record.requested_at, record.id));
    }
    expected.sort();
    equal("what is pending", pending(&*store, Asked::By(&person)).await?, second(expected))
}

/// A tenant, and the name of a chat or a person there.
type Name = (Option<&'static str>, &'static str);

/// Pairs of names that a careless key would take for one.
fn apart() -> Vec<Case> {
    let pairs: [(&str, Name, Name); 11] = [
        ("of two tenants", (Some("a"), "x"), (Some("b"), "x")),
        ("of a tenant and of none", (Some("a"), "x"), (None, "x")),
        ("of the tenant without a name and of none", (Some(""), "x"), (None, "x")),
        ("that read the same when joined", (Some("a"), "bx"), (Some("ab"), "x")),
        ("that read the same when joined by a colon", (Some("a:b"), "x"), (Some("a"), "b:x")),
        ("that read the same when joined by a slash", (Some("a/b"), "x"), (Some("a"), "b/x")),
        (
            "that read the same when joined by nothing to see",
            (Some("a\0"), "x"),
            (Some("a"), "\0x"),
        ),
        (
            "that read the same when joined by a mark",
            (Some("a\u{1}b"), "x"),
            (Some("a"), "b\u{1}x"),
        ),
        ("that differ by case", (None, "x"), (None, "X")),
        ("that differ by a space", (None, "x"), (None, " x")),
        ("one of which is a pattern", (None, "*"), (None, "x")),
    ];
    let chats = pairs.map(|(how, one, other)| {
        Case::new(format!("chats {how} are kept apart"), move |store: Store| async move {
            let (salt, now) = (random_id(), now(&*store).await?);
            let name = |(tenant, name): Name| {
                let person = match tenant {
                    Some(tenant) => a_person().of_tenant(tenant),
                    None => a_person(),
                };
                (person, ChatId::from(format!("{name}{salt}")))
            };
            let ((ada, hers), (bob, his)) = (name(one), name(other));
            let (first, second) = (question(&ada, &hers, now), question(&bob, &his, now));
            insert(&*store, &first).await?;
            insert(&*store, &second).await?;
            let hers = Asked::InChat { tenant: ada.tenant(), chat: &hers };
            equal("what is pending in one", pending(&*store, hers).await?, vec![first.id])?;
            let his = Asked::InChat { tenant: bob.tenant(), chat: &his };
            equal("what is pending in the other", pending(&*store, his).await?, vec![second.id])
        })
    });
    let people = pairs.map(|(how, one, other)| {
        Case::new(format!("people {how} are kept apart"), move |store: Store| async move {
            let (salt, now) = (random_id(), now(&*store).await?);
            let name = |(tenant, name): Name| {
                let person = Principal::new(format!("{name}{salt}"));
                match tenant {
                    Some(tenant) => person.of_tenant(tenant),
                    None => person,
                }
            };
            are_apart(&*store, &name(one), &name(other), now).await
        })
    });
    let nobody = Case::new("nobody in particular is not a person", |store: Store| async move {
        let (tenant, now) = (format!("tenant {}", random_id()), now(&*store).await?);
        let nobody = Principal::anonymous().of_tenant(tenant.clone());
        for name in ["", "anonymous", "null"] {
            let person = Principal::new(name).of_tenant(tenant.clone());
            let (asked, other) = (question(&person, &a_chat(), now), Asked::By(&nobody));
            insert(&*store, &asked).await?;
            equal("what is pending", pending(&*store, other).await?, vec![])?;
        }
        Ok(())
    });
    let anybody = Case::new("nobody of a tenant is not a person", |store: Store| async move {
        let (name, now) = (format!("ada {}", random_id()), now(&*store).await?);
        let (nobody, person) = (Principal::anonymous().of_tenant(&*name), Principal::new(&*name));
        are_apart(&*store, &nobody, &person, now).await
    });
    chats.into_iter().chain(people).chain([nobody, anybody]).collect()
}

async fn are_apart(
    store: &dyn LedgerStore,
    one: &Principal,
    other: &Principal,
    now: UnixMillis,
) -> Result<(), Failed> {
    let (first, second) = (question(one, &a_chat(), now), question(other, &a_chat(), now));
    insert(store, &first).await?;
    insert(store, &second).await?;
    equal("what is pending of one", pending(store, Asked::By(one)).await?, vec![first.id])?;
    equal("what is pending of the other", pending(store, Asked::By(other)).await?, vec![second.id])
}

fn second(listed: Vec<(UnixMillis, RecordId)>) -> Vec<RecordId> {
    listed.into_iter().map(|(_, id)| id).collect()
}
