//! What a store keeps: each record once, as it was, for as long as it was promised.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use super::records::{a_chat, a_person, insert, kept, now, question, random_id};
use super::{Case, Failed, Store, equal};
use crate::approval::{
    ApprovalState, ClaimantId, Decision, DefinitionDigest, Principal, RecordId, ToolOutcome,
    UnixMillis,
};
use crate::json::Json;
use crate::ledger_store::{Asked, KEPT_FOR};

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new("a record is read as it was inserted", |store: Store| async move {
            let mut record =
                question(&a_person().of_tenant("tenant"), &a_chat(), now(&*store).await?);
            record.key_id = u32::MAX;
            record.message_id = "".into();
            record.tool_call_id = "call \"1\"\n\0日本 😀".into();
            record.tool_name = "töol".into();
            record.definition = DefinitionDigest::of("tool", "does it", &Json::null());
            record.input = json(r#"{"b": 1.0,"a":[1e2,-0,"\u00e9\/"],  "":{}}"#)?;
            record.provider_executed = true;
            record.idempotent = true;
            record.description = "Really?\r\n'\"\\ \u{202e}".into();
            insert(&*store, &record).await?;
            equal("the record", kept(&*store, record.id).await?.record, record)
        }),
        Case::new("a record is read as it was replaced", |store: Store| async move {
            let mut record = question(&a_person(), &a_chat(), now(&*store).await?);
            insert(&*store, &record).await?;
            record.state = ApprovalState::Done {
                decision: Decision {
                    approved_by: Principal::anonymous().of_tenant("tenant"),
                    responded_at: UnixMillis(1),
                    reason: Some(String::new()),
                },
                fence: 1 << 40,
                outcome: ToolOutcome::Output(json(r#"{ "é": [1.50, null] }"#)?),
                at: UnixMillis(1 << 53),
            };
            let revision = kept(&*store, record.id).await?.revision;
            equal("the answer", store.replace(&record, revision).await?, true)?;
            equal("the record", kept(&*store, record.id).await?.record, record)
        }),
        Case::new("a record of a megabyte is kept", |store: Store| async move {
            let mut record = question(&a_person(), &a_chat(), now(&*store).await?);
            record.input = json(&format!("\"{}\"", "x".repeat(1 << 20)))?;
            insert(&*store, &record).await?;
            equal("whether it is the same", kept(&*store, record.id).await?.record == record, true)
        }),
        Case::new("a record of the deepest input is kept", |store: Store| async move {
            let mut record = question(&a_person(), &a_chat(), now(&*store).await?);
            let depth = Json::MAX_DEPTH;
            record.input = json(&format!("{}{}", "[".repeat(depth), "]".repeat(depth)))?;
            insert(&*store, &record).await?;
            equal("the record", kept(&*store, record.id).await?.record, record)
        }),
        Case::new("a record that is there is not inserted again", |store: Store| async move {
            let record = question(&a_person(), &a_chat(), now(&*store).await?);
            insert(&*store, &record).await?;
            let mut second = record.clone();
            second.description = "another".into();
            equal("the answer to the same", store.insert(&record).await?, false)?;
            equal("the answer to another", store.insert(&second).await?, false)?;
            equal("the record", kept(&*store, record.id).await?.record, record)
        }),
        Case::new(
            "a record that was decided on is not inserted again",
            |store: Store| async move {
                let record = question(&a_person(), &a_chat(), now(&*store).await?);
                insert(&*store, &record).await?;
                let mut decided = record.clone();
                decided.state = ApprovalState::Expired;
                let revision = kept(&*store, record.id).await?.revision;
                equal("the answer", store.replace(&decided, revision).await?, true)?;
                equal("the answer to the same", store.insert(&record).await?, false)?;
                equal("the record", kept(&*store, record.id).await?.record, decided)
            },
        ),
        Case::new("a record that is not there is not replaced", |store: Store| async move {
            let record = question(&a_person(), &a_chat(), now(&*store).await?);
            for revision in [0, 1, u64::MAX] {
                equal("the answer", store.replace(&record, revision).await?, false)?;
            }
            equal("how many there are", store.load(&[record.id]).await?.records.len(), 0)
        }),
        Case::new("a revision that is past is not replaced", |store: Store| async move {
            let record = question(&a_person(), &a_chat(), now(&*store).await?);
            insert(&*store, &record).await?;
            let mut past = Vec::new();
            let mut changed = record.clone();
            for number in 0..5 {
                let revision = kept(&*store, record.id).await?.revision;
                if past.contains(&revision) {
                    return Err(Failed(format!("revision {revision} came twice")));
                }
                past.push(revision);
                changed.description = format!("change {number}").into();
                equal("the answer", store.replace(&changed, revision).await?, true)?;
                for old in &past {
                    equal("the answer to a past one", store.replace(&record, *old).await?, false)?;
                }
            }
            equal("the record", kept(&*store, record.id).await?.record, changed)
        }),
        Case::new("a revision that is not there yet is not replaced", |store: Store| async move {
            let record = question(&a_person(), &a_chat(), now(&*store).await?);
            insert(&*store, &record).await?;
            let revision = kept(&*store, record.id).await?.revision;
            let mut other = record.clone();
            other.state = ApprovalState::Expired;
            for wrong in [revision.wrapping_add(1), revision.wrapping_sub(1), u64::MAX] {
                equal("the answer", store.replace(&other, wrong).await?, false)?;
            }
            equal("the record", kept(&*store, record.id).await?.record, record)
        }),
        Case::new("many are read at once, and those that are not there left out", many),
        Case::new("no records are read, only the time", |store: Store| async move {
            equal("how many there are", store.load(&[]).await?.records.len(), 0)
        }),
        Case::new("the clock does not run backwards", |store: Store| async move {
            let (chat, mut latest) = (a_chat(), UnixMillis(0));
            for _ in 0..50 {
                let of = Asked::InChat { tenant: None, chat: &chat };
                for now in [now(&*store).await?, store.pending(of).await?.now] {
                    if now < latest {
                        return Err(Failed(format!("after {latest:?} it is {now:?}")));
                    }
                    latest = now;
                }
            }
            Ok(())
        }),
        Case::new("what has expired is kept", |store: Store| async move {
            let now = now(&*store).await?;
            let mut record = question(&a_person(), &a_chat(), now);
            let long_ago = KEPT_FOR - Duration::from_secs(60 * 60);
            record.expires_at = UnixMillis(now.0.saturating_sub(millis(long_ago)));
            insert(&*store, &record).await?;
            insert(&*store, &question(&a_person(), &a_chat(), now)).await?;
            equal("the record", kept(&*store, record.id).await?.record, record)
        }),
        Case::new("what was claimed is kept when it has expired", |store: Store| async move {
            let now = now(&*store).await?;
            let mut record = question(&a_person(), &a_chat(), now);
            record.expires_at = UnixMillis(now.0.saturating_sub(1));
            insert(&*store, &record).await?;
            record.state = ApprovalState::Claimed {
                decision: Decision {
                    approved_by: record.requester.clone(),
                    responded_at: now,
                    reason: None,
                },
                claimant: ClaimantId::from_bytes([7; 16]),
                fence: 1,
                lease_until: now,
            };
            let revision = kept(&*store, record.id).await?.revision;
            equal("the answer", store.replace(&record, revision).await?, true)?;
            insert(&*store, &question(&a_person(), &a_chat(), now)).await?;
            equal("the record", kept(&*store, record.id).await?.record, record)
        }),
        Case::new("a question that never expires is kept", |store: Store| async move {
            let mut record = question(&a_person(), &a_chat(), now(&*store).await?);
            record.expires_at = UnixMillis(u64::MAX);
            insert(&*store, &record).await?;
            equal("the record", kept(&*store, record.id).await?.record, record)
        }),
        Case::new("the store goes on where somebody stopped waiting", stopped_waiting),
    ]
}

async fn many(store: Store) -> Result<(), Failed> {
    let (chat, now) = (a_chat(), now(&*store).await?);
    let mut ids: Vec<RecordId> = Vec::new();
    let mut expected = Vec::new();
    for _ in 0..100 {
        let record = question(&a_person(), &chat, now);
        insert(&*store, &record).await?;
        ids.extend([record.id, random_id()]);
        expected.push(record.id);
    }
    let records = store.load(&ids).await?.records;
    let mut found: Vec<RecordId> = records.into_iter().map(|kept| kept.record.id).collect();
    found.sort();
    expected.sort();
    equal("what was found", found, expected)
}

/// Begins every operation and drops it; whether it took place is open, but nothing may stay behind
/// that stops the next.
async fn stopped_waiting(store: Store) -> Result<(), Failed> {
    let record = question(&a_person(), &a_chat(), now(&*store).await?);
    let ids = [record.id];
    poll_once(store.insert(&record)).await;
    store.insert(&record).await?;
    let revision = kept(&*store, record.id).await?.revision;
    let mut decided = record.clone();
    decided.state = ApprovalState::Expired;
    poll_once(store.load(&ids)).await;
    poll_once(store.pending(Asked::By(&record.requester))).await;
    poll_once(store.replace(&decided, revision)).await;
    let now = kept(&*store, record.id).await?;
    if now.record.is_pending() {
        store.replace(&decided, now.revision).await?;
    }
    equal("the record", kept(&*store, record.id).await?.record, decided)
}

async fn poll_once(begun: impl Future) {
    let mut begun = pin!(begun);
    poll_fn(|cx| Poll::Ready(begun.as_mut().poll(cx).is_ready())).await;
}

fn json(text: &str) -> Result<Json, Failed> {
    Json::parse(text).map_err(|error| Failed(error.to_string()))
}

fn millis(time: Duration) -> u64 {
    time.as_millis().try_into().unwrap_or(u64::MAX)
}
