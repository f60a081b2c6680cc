//! The lists of records: pending ones of a requester, of a chat, of a tool and of an audience, without the
//! records of others, and those with events to deliver.

use std::time::Duration;

use super::case::{Case, CaseFailure, Store, expect_equal};
use super::records::{
    check_listed, insert, load_one, new_chat_id, new_principal, new_record, now, pending_ids,
    random_id, read_pages,
};
use crate::approval::store::{LedgerStore, ListRecords, RecordCursor, RecordList, update};
use crate::approval::{
    ApprovalRecord, ApprovalState, LeaseHolderId, NoticeDelivery, Principal, RecordId,
    RecordedDecision, RevocationReason, Stepped, ToolOutcome, UnixMillis,
};
use crate::id::ChatId;
use crate::json::Json;

pub(super) fn cases() -> Vec<Case> {
    let mut cases = vec![
        Case::new("a chat without approval requests lists no records", |store: Store| async move {
            let requester = new_principal();
            let chat = new_chat_id();
            let of = RecordList::of_chat(&requester, &chat);
            expect_equal("what is pending", pending_ids(&*store, of).await?, vec![])
        }),
        Case::new(
            "a principal without approval requests lists no records",
            |store: Store| async move {
                expect_equal(
                    "what is pending",
                    pending_ids(&*store, RecordList::of_requester(&new_principal())).await?,
                    vec![],
                )
            },
        ),
        Case::new(
            "a chat lists its approval requests in the order in which they expire",
            |store: Store| async move {
                let requester = new_principal();
                let chat = new_chat_id();
                let now = now(&*store).await?;
                let mut expected = Vec::new();
                for age in [3, 0, 4, 1, 2] {
                    let mut record =
                        new_record(&requester, &chat, UnixMillis(now.0.saturating_sub(age)));
                    // The later the approval was requested, the sooner it expires.
                    record.expires_at = UnixMillis(now.0 + 1_000_000 + age * 1_000);
                    insert(&*store, &record).await?;
                    expected.push((record.expires_at, record.id));
                }
                expected.sort();
                let of = RecordList::of_chat(&requester, &chat);
                expect_equal("what is pending", pending_ids(&*store, of).await?, ids_of(expected))
            },
        ),
        Case::new(
            "a principal's approval requests of all chats are listed in the order in which they expire",
            pending_of_requester,
        ),
        Case::new("the list of all requesters is in the order of expiry", pending_of_all),
        Case::new(
            "an audience lists the requests of all requesters of its tenant, in all, by tool and by chat",
            pending_of_audience,
        ),
        Case::new(
            "an event is listed when it may be delivered, and until it was",
            events_to_deliver,
        ),
        Case::new(
            "the pages of a list hold each record once, while some are decided",
            pages_of_requester,
        ),
        Case::new(
            "a page that is later than now leaves out what has expired, wherever it begins",
            pages_later_than_now,
        ),
        Case::new("a list holds the records with their revisions", |store: Store| async move {
            let record = new_record(&new_principal(), &new_chat_id(), now(&*store).await?);
            insert(&*store, &record).await?;
            let listed = store
                .read_list((&RecordList::of_requester(&record.requester)).into())
                .await?
                .records;
            expect_equal("how many there are", listed.len(), 1)?;
            let revision = load_one(&*store, record.id).await?.revision;
            for versioned in listed {
                expect_equal("the revision", versioned.revision, revision)?;
                expect_equal("the record", &versioned.record, &record)?;
            }
            Ok(())
        }),
        Case::new(
            "an expired record is listed until its state changes",
            |store: Store| async move {
                let now = now(&*store).await?;
                let mut record = new_record(&new_principal(), &new_chat_id(), now);
                record.expires_at = UnixMillis(now.0.saturating_sub(1));
                insert(&*store, &record).await?;
                let of = RecordList::of_requester(&record.requester);
                expect_equal("what is pending", pending_ids(&*store, of).await?, vec![record.id])
            },
        ),
        Case::new("a decided record is removed from the lists", |store: Store| async move {
            let principal = new_principal();
            let chat = new_chat_id();
            let now = now(&*store).await?;
            let records: Vec<_> = (0..3).map(|_| new_record(&principal, &chat, now)).collect();
            let mut expected = Vec::new();
            for record in &records {
                insert(&*store, record).await?;
                expected.push(record.id);
            }
            let mut decided = records[1].clone();
            decided.state = ApprovalState::Expired;
            let revision = load_one(&*store, decided.id).await?.revision;
            store.compare_and_swap(&decided, revision).await?;
            expected.remove(1);
            expected.sort();
            for of in [RecordList::of_chat(&principal, &chat), RecordList::of_requester(&principal)]
            {
                expect_equal("what is pending", pending_ids(&*store, of).await?, expected.clone())?;
            }
            Ok(())
        }),
        Case::new("a record that was not replaced stays in the lists", |store: Store| async move {
            let record = new_record(&new_principal(), &new_chat_id(), now(&*store).await?);
            insert(&*store, &record).await?;
            let mut decided = record.clone();
            decided.state = ApprovalState::Expired;
            let revision = load_one(&*store, record.id).await?.revision;
            expect_equal(
                "the answer",
                store.compare_and_swap(&decided, revision.wrapping_add(1)).await?,
                false,
            )?;
            let of = RecordList::of_requester(&record.requester);
            expect_equal("what is pending", pending_ids(&*store, of).await?, vec![record.id])
        }),
    ];
    cases.extend(separation_cases());
    cases
}

async fn pages_of_requester(store: Store) -> Result<(), CaseFailure> {
    let requester = new_principal();
    let now = now(&*store).await?;
    let mut records = Vec::new();
    for number in 0_u64..25 {
        let mut record = new_record(&requester, &new_chat_id(), now);
        // Several records have the same time, and some have expired.
        record.expires_at = UnixMillis((now.0 + 10_000 * (number / 4)).saturating_sub(20_000));
        insert(&*store, &record).await?;
        records.push(record);
    }
    records.sort_by_key(|record| (record.expires_at, record.id));
    let decided: Vec<RecordId> = [2, 6, 11].map(|at: usize| records[at].id).to_vec();
    let list = RecordList::of_requester(&requester);
    let mut query = ListRecords { limit: 7, ..(&list).into() };
    let mut listed = Vec::new();
    let mut pages = 0;
    loop {
        let page = store.read_list(query).await?;
        if page.records.len() > query.limit {
            return Err(CaseFailure(format!("{} records in a page of 7", page.records.len())));
        }
        listed.extend(page.records.into_iter().map(|versioned| versioned.record.id));
        query.after = page.next;
        pages += 1;
        if query.after.is_none() {
            break;
        }
        if pages == 1 {
            // One of the first page, its last one, and one of the second page.
            for id in &decided {
                let revoke =
                    |record: &ApprovalRecord, now| record.revoke(RevocationReason::ByHost, now);
                update(&*store, *id, revoke).await?;
            }
        }
    }
    let mut expected: Vec<RecordId> = records.iter().map(|record| record.id).collect();
    expected.retain(|id| *id != decided[2]);
    expect_equal("what the pages hold", listed, expected)?;
    expect_equal("the number of pages", pages, 4)?;
    let left = store.read_list((&list).into()).await?;
    expect_equal("how many are left", left.records.len(), 22)?;
    expect_equal("whether there are more", left.next, None)
}

async fn pages_later_than_now(store: Store) -> Result<(), CaseFailure> {
    let requester = new_principal();
    let now = now(&*store).await?;
    let mut places = Vec::new();
    for number in 0_u64..7 {
        let mut record = new_record(&requester, &new_chat_id(), now);
        // The first three have expired, and each two of the others have the same time.
        record.expires_at = match number {
            0..3 => UnixMillis(now.0.saturating_sub(3 - number)),
            _ => UnixMillis(now.0 + 1_000_000 * number.div_ceil(2)),
        };
        insert(&*store, &record).await?;
        places.push(RecordCursor::of_pending(&record));
    }
    places.sort();
    let list = RecordList::of_requester(&requester);
    for (after, first) in [(None, 3), (Some(0), 3), (Some(2), 3), (Some(3), 4), (Some(6), 7)] {
        for limit in [1, 2, 64] {
            let after = after.map(|at: usize| places[at]);
            let query = ListRecords { list: &list, after, later_than_now: true, limit };
            let listed = read_pages(&*store, query).await?;
            let listed: Vec<RecordId> = listed.iter().map(|record| record.id).collect();
            let expected: Vec<RecordId> = places[first..].iter().map(|place| place.id).collect();
            expect_equal("what the pages hold", listed, expected)?;
        }
    }
    Ok(())
}

/// The store may hold records of other cases.
async fn pending_of_all(store: Store) -> Result<(), CaseFailure> {
    let now = now(&*store).await?;
    let mut expected = Vec::new();
    // The first one has expired.
    for expires_at in [now.0.saturating_sub(1), now.0 + 2_000, now.0 + 1_000] {
        let mut record = new_record(&new_principal(), &new_chat_id(), now);
        record.expires_at = UnixMillis(expires_at);
        insert(&*store, &record).await?;
        expected.push((record.expires_at, record.id));
    }
    let mut decided = load_one(&*store, expected[2].1).await?.record;
    decided.state = ApprovalState::Expired;
    let revision = load_one(&*store, decided.id).await?.revision;
    expect_equal("the answer", store.compare_and_swap(&decided, revision).await?, true)?;
    let first = expected.remove(2);
    expected.sort();
    let list = RecordList::pending();
    let listed = read_pages(&*store, ListRecords { limit: 16, ..(&list).into() }).await?;
    let listed: Vec<RecordId> = listed.iter().map(|record| record.id).collect();
    expect_equal("whether the decided one is listed", listed.contains(&first.1), false)?;
    let own: Vec<RecordId> = listed
        .into_iter()
        .filter(|id| expected.iter().any(|(_, expected)| expected == id))
        .collect();
    expect_equal("what is pending", own, ids_of(expected))
}

async fn pending_of_audience(store: Store) -> Result<(), CaseFailure> {
    let now = now(&*store).await?;
    let salt = random_id();
    let [tenant, other_tenant] = ["a", "b"].map(|name| format!("tenant {name} {salt}"));
    let asked = |tenant: &str, tool: &str, audience: &[&str], age: u64| {
        let requester = new_principal().with_tenant(tenant);
        let record = new_record(&requester, &"chat".into(), now);
        ApprovalRecord {
            tool_name: tool.into(),
            audience: audience.iter().map(|name| Box::from(*name)).collect(),
            expires_at: UnixMillis(now.0 + 1_000_000 - age),
            ..record
        }
    };
    let records = [
        asked(&tenant, "transfer", &["finance", "finance"], 0),
        asked(&tenant, "delete", &["finance", "board"], 1),
        asked(&other_tenant, "transfer", &["finance"], 2),
        asked(&tenant, "transfer", &[], 3),
    ];
    for record in &records {
        insert(&*store, record).await?;
    }
    let [first, second, ..] = records.each_ref().map(|record| record.id);
    let finance = RecordList::of_audience(Some(&tenant), "finance");
    for (list, expected) in [
        (finance.clone(), vec![second, first]),
        (finance.of_tool("transfer"), vec![first]),
        (finance.in_chat(&"chat".into()), vec![second, first]),
        (finance.in_chat(&"chat 2".into()), vec![]),
        (RecordList::of_audience(Some(&tenant), "board"), vec![second]),
        (RecordList::of_audience(None, "finance").of_tool(&tenant), vec![]),
    ] {
        expect_equal("what is pending", pending_ids(&*store, list).await?, expected)?;
    }
    let revoke = |record: &ApprovalRecord, now| record.revoke(RevocationReason::ByHost, now);
    update(&*store, second, revoke).await?;
    expect_equal("what is left", pending_ids(&*store, finance).await?, vec![first])
}

async fn events_to_deliver(store: Store) -> Result<(), CaseFailure> {
    let now = now(&*store).await?;
    let mut record = new_record(&new_principal(), &new_chat_id(), now);
    // An event that was not delivered for more than a day, of a request that has not expired.
    record.requested_at = UnixMillis(now.0.saturating_sub(25 * 60 * 60 * 1_000));
    insert(&*store, &record).await?;
    // Another write does not remove it.
    insert(&*store, &new_record(&new_principal(), &new_chat_id(), now)).await?;
    let check_event = async |rule: &(dyn Fn(&ApprovalRecord, UnixMillis) -> _ + Sync), expected| {
        let updated = update(&*store, record.id, rule).await?;
        expect_equal("the event that is leased", updated.and_then(|it| it.1), expected)?;
        check_listed(&*store, &load_one(&*store, record.id).await?.record).await
    };
    let delivered =
        |number| move |record: &ApprovalRecord, now| NoticeDelivery::delivered(record, number, now);
    check_event(&NoticeDelivery::lease, Some(0)).await?;
    check_event(&NoticeDelivery::lease, None).await?;
    check_event(&delivered(0), None).await?;
    let decision = RecordedDecision::new(record.requester.clone(), now);
    let holder = LeaseHolderId::from_bytes([1; 16]);
    let claim =
        |record: &ApprovalRecord, _| record.claim(&decision, holder, Duration::from_secs(60));
    let claimed = update(&*store, record.id, claim).await?;
    let Some((_, Stepped::Granted(claim))) = claimed else {
        return Err(CaseFailure("the claim is not granted".to_owned()));
    };
    let outcome = ToolOutcome::Output(Json::null());
    update(&*store, record.id, |record, now| record.complete(&claim, &outcome, now)).await?;
    check_event(&NoticeDelivery::lease, Some(1)).await?;
    check_event(&delivered(1), Some(2)).await?;
    check_event(&delivered(2), None).await
}

async fn pending_of_requester(store: Store) -> Result<(), CaseFailure> {
    let principal = new_principal();
    let now = now(&*store).await?;
    let mut expected = Vec::new();
    for age in [1, 2, 0] {
        let mut record = new_record(&principal, &new_chat_id(), now);
        record.expires_at = UnixMillis(record.expires_at.0 + age);
        insert(&*store, &record).await?;
        insert(&*store, &new_record(&new_principal(), &record.chat_id, now)).await?;
        expected.push((record.expires_at, record.id));
    }
    expected.sort();
    expect_equal(
        "what is pending",
        pending_ids(&*store, RecordList::of_requester(&principal)).await?,
        ids_of(expected),
    )
}

/// A tenant, and the name of a chat or of a principal of that tenant.
type Name = (Option<&'static str>, &'static str);

/// Returns cases with pairs of names that a careless choice of keys would confuse.
fn separation_cases() -> Vec<Case> {
    let pairs: [(&str, Name, Name); 11] = [
        ("of two tenants", (Some("a"), "x"), (Some("b"), "x")),
        ("of a tenant and of no tenant", (Some("a"), "x"), (None, "x")),
        ("of a tenant with an empty name and of no tenant", (Some(""), "x"), (None, "x")),
        ("that read the same when joined", (Some("a"), "bx"), (Some("ab"), "x")),
        ("that read the same when joined by a colon", (Some("a:b"), "x"), (Some("a"), "b:x")),
        ("that read the same when joined by a slash", (Some("a/b"), "x"), (Some("a"), "b/x")),
        ("that read the same when joined by a NUL", (Some("a\0"), "x"), (Some("a"), "\0x")),
        (
            "that read the same when joined by U+0001",
            (Some("a\u{1}b"), "x"),
            (Some("a"), "b\u{1}x"),
        ),
        ("that differ by case", (None, "x"), (None, "X")),
        ("that differ by a space", (None, "x"), (None, " x")),
        ("one of which is a pattern", (None, "*"), (None, "x")),
    ];
    let chats = pairs.map(|(how, one, other)| {
        Case::new(format!("chats {how} are kept apart"), move |store: Store| async move {
            let salt = random_id();
            let now = now(&*store).await?;
            let name = |(tenant, name): Name| {
                let principal = Principal::new(format!("person {salt}"));
                let principal = match tenant {
                    Some(tenant) => principal.with_tenant(tenant),
                    None => principal,
                };
                (principal, ChatId::from(format!("{name}{salt}")))
            };
            check_chats_separated(&*store, &name(one), &name(other), now).await
        })
    });
    let users = [
        ("that have the same id and belong to two users", ("ada", "x"), ("bob", "x")),
        ("that read the same when joined with their users", ("a", "bx"), ("ab", "x")),
        ("whose user and id are exchanged", ("a", "b"), ("b", "a")),
    ];
    let chats_of_users = users.map(|(how, one, other)| {
        Case::new(format!("chats {how} are kept apart"), move |store: Store| async move {
            let salt = random_id();
            let now = now(&*store).await?;
            let tenant = format!("tenant {salt}");
            let name = |(user, chat): (&str, &str)| {
                (Principal::new(user).with_tenant(tenant.clone()), ChatId::from(chat))
            };
            check_chats_separated(&*store, &name(one), &name(other), now).await
        })
    });
    let requesters = pairs.map(|(how, one, other)| {
        Case::new(format!("principals {how} are kept apart"), move |store: Store| async move {
            let salt = random_id();
            let now = now(&*store).await?;
            let name = |(tenant, name): Name| {
                let principal = Principal::new(format!("{name}{salt}"));
                match tenant {
                    Some(tenant) => principal.with_tenant(tenant),
                    None => principal,
                }
            };
            check_separated(&*store, &name(one), &name(other), now).await
        })
    });
    let anonymous = Case::new(
        "the anonymous principal differs from a principal with an empty id",
        |store: Store| async move {
            let tenant = format!("tenant {}", random_id());
            let now = now(&*store).await?;
            let anonymous = Principal::anonymous().with_tenant(tenant.clone());
            for name in ["", "anonymous", "null"] {
                let principal = Principal::new(name).with_tenant(tenant.clone());
                let asked = new_record(&principal, &new_chat_id(), now);
                let other = RecordList::of_requester(&anonymous);
                insert(&*store, &asked).await?;
                expect_equal("what is pending", pending_ids(&*store, other).await?, vec![])?;
            }
            Ok(())
        },
    );
    let anonymous_of_tenant = Case::new(
        "the anonymous principal of a tenant differs from a principal with the tenant's name as id",
        |store: Store| async move {
            let name = format!("ada {}", random_id());
            let now = now(&*store).await?;
            let anonymous = Principal::anonymous().with_tenant(&*name);
            let principal = Principal::new(&*name);
            check_separated(&*store, &anonymous, &principal, now).await
        },
    );
    let chats = chats.into_iter().chain(chats_of_users);
    chats.chain(requesters).chain([anonymous, anonymous_of_tenant]).collect()
}

/// Checks that the pending records of two chats are listed separately.
async fn check_chats_separated(
    store: &dyn LedgerStore,
    (one, one_chat): &(Principal, ChatId),
    (other, other_chat): &(Principal, ChatId),
    now: UnixMillis,
) -> Result<(), CaseFailure> {
    let first = new_record(one, one_chat, now);
    let second = new_record(other, other_chat, now);
    insert(store, &first).await?;
    insert(store, &second).await?;
    let one_chat = RecordList::of_chat(one, one_chat);
    expect_equal("what is pending in one", pending_ids(store, one_chat).await?, vec![first.id])?;
    let other_chat = RecordList::of_chat(other, other_chat);
    let listed = pending_ids(store, other_chat).await?;
    expect_equal("what is pending in the other", listed, vec![second.id])
}

/// Checks that the pending records of two principals are listed separately.
async fn check_separated(
    store: &dyn LedgerStore,
    one: &Principal,
    other: &Principal,
    now: UnixMillis,
) -> Result<(), CaseFailure> {
    let first = new_record(one, &new_chat_id(), now);
    let second = new_record(other, &new_chat_id(), now);
    insert(store, &first).await?;
    insert(store, &second).await?;
    expect_equal(
        "what is pending of one",
        pending_ids(store, RecordList::of_requester(one)).await?,
        vec![first.id],
    )?;
    expect_equal(
        "what is pending of the other",
        pending_ids(store, RecordList::of_requester(other)).await?,
        vec![second.id],
    )
}

fn ids_of(listed: Vec<(UnixMillis, RecordId)>) -> Vec<RecordId> {
    listed.into_iter().map(|(_, id)| id).collect()
}
