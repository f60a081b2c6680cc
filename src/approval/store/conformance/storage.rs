//! The storage of records: each record once, unchanged, until the end of its retention.

use std::time::Duration;

use futures_util::future::poll_immediate;

use super::case::{Case, CaseFailure, Store, expect_equal};
use super::records::{insert, load_one, new_chat_id, new_principal, new_record, now, random_id};
use crate::approval::store::{PendingLimits, RECORD_RETENTION, RecordList};
use crate::approval::{
    ApprovalState, DefinitionDigest, EditableInput, LeaseHolderId, Principal, RecordId,
    RecordedDecision, ToolOutcome, UnixMillis,
};
use crate::json::Json;

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new("a record is read as it was inserted", |store: Store| async move {
            let mut record = new_record(
                &new_principal().with_tenant("tenant"),
                &new_chat_id(),
                now(&*store).await?,
            );
            record.key_id =
                "00f1e2d3c4b5a697".parse().map_err(|error| CaseFailure(format!("{error}")))?;
            record.message_id = "".into();
            record.tool_call_id = "call \"1\"\n\0日本 😀".into();
            record.tool_name = "töol".into();
            record.definition = DefinitionDigest::new("tool", "does it", &Json::null());
            record.input = json(r#"{"b": 1.0,"a":[1e2,-0,"\u00e9\/"],  "":{}}"#)?;
            record.provider_executed = true;
            record.idempotent = true;
            record.description = "Really?\r\n'\"\\ \u{202e}".into();
            insert(&*store, &record).await?;
            expect_equal("the record", load_one(&*store, record.id).await?.record, record)
        }),
        Case::new("a record is read as it was replaced", |store: Store| async move {
            let mut record = new_record(&new_principal(), &new_chat_id(), now(&*store).await?);
            record.editable = EditableInput::Fields(vec!["path".into(), "".into()]);
            insert(&*store, &record).await?;
            record.state = ApprovalState::Completed {
                decision: RecordedDecision {
                    decided_by: Principal::anonymous().with_tenant("tenant"),
                    decided_at: UnixMillis(1),
                    reason: Some(String::new()),
                    changed_input: Some(json(r#"{ "path": null, "n": 1.0 }"#)?),
                },
                fence: 1 << 40,
                outcome: ToolOutcome::Output(json(r#"{ "é": [1.50, null] }"#)?),
                at: UnixMillis(1 << 53),
            };
            let revision = load_one(&*store, record.id).await?.revision;
            expect_equal("the answer", store.compare_and_swap(&record, revision).await?, true)?;
            expect_equal("the record", load_one(&*store, record.id).await?.record, record)
        }),
        Case::new("a changed input may be `null`", |store: Store| async move {
            let mut record = new_record(&new_principal(), &new_chat_id(), now(&*store).await?);
            insert(&*store, &record).await?;
            record.state = ApprovalState::OutcomeUnknown {
                decision: RecordedDecision {
                    decided_by: Principal::anonymous(),
                    decided_at: UnixMillis(1),
                    reason: None,
                    changed_input: Some(Json::null()),
                },
            };
            let revision = load_one(&*store, record.id).await?.revision;
            expect_equal("the answer", store.compare_and_swap(&record, revision).await?, true)?;
            expect_equal("the record", load_one(&*store, record.id).await?.record, record)
        }),
        Case::new("a record of a megabyte is kept", |store: Store| async move {
            let mut record = new_record(&new_principal(), &new_chat_id(), now(&*store).await?);
            record.input = json(&format!("\"{}\"", "x".repeat(1 << 20)))?;
            insert(&*store, &record).await?;
            expect_equal(
                "whether it is the same",
                load_one(&*store, record.id).await?.record == record,
                true,
            )
        }),
        Case::new("a record of the deepest input is kept", |store: Store| async move {
            let mut record = new_record(&new_principal(), &new_chat_id(), now(&*store).await?);
            let depth = Json::MAX_DEPTH;
            record.input = json(&format!("{}{}", "[".repeat(depth), "]".repeat(depth)))?;
            insert(&*store, &record).await?;
            expect_equal("the record", load_one(&*store, record.id).await?.record, record)
        }),
        Case::new(
            "a record that is there is not changed by another insertion",
            |store: Store| async move {
                let record = new_record(&new_principal(), &new_chat_id(), now(&*store).await?);
                insert(&*store, &record).await?;
                let mut second = record.clone();
                second.description = "another".into();
                for repeated in [&record, &second] {
                    insert(&*store, repeated).await?;
                }
                expect_equal("the record", load_one(&*store, record.id).await?.record, record)
            },
        ),
        Case::new(
            "a record that was decided on is not changed by another insertion",
            |store: Store| async move {
                let record = new_record(&new_principal(), &new_chat_id(), now(&*store).await?);
                insert(&*store, &record).await?;
                let mut decided = record.clone();
                decided.state = ApprovalState::Expired;
                let revision = load_one(&*store, record.id).await?.revision;
                expect_equal(
                    "the answer",
                    store.compare_and_swap(&decided, revision).await?,
                    true,
                )?;
                insert(&*store, &record).await?;
                expect_equal("the record", load_one(&*store, record.id).await?.record, decided)
            },
        ),
        Case::new("a record that is not there is not replaced", |store: Store| async move {
            let record = new_record(&new_principal(), &new_chat_id(), now(&*store).await?);
            for revision in [0, 1, u64::MAX] {
                expect_equal(
                    "the answer",
                    store.compare_and_swap(&record, revision).await?,
                    false,
                )?;
            }
            expect_equal("how many there are", store.load(&[record.id]).await?.records.len(), 0)
        }),
        Case::new("a swap with an old revision fails", |store: Store| async move {
            let record = new_record(&new_principal(), &new_chat_id(), now(&*store).await?);
            insert(&*store, &record).await?;
            let mut past = Vec::new();
            let mut changed = record.clone();
            for number in 0..5 {
                let revision = load_one(&*store, record.id).await?.revision;
                if past.contains(&revision) {
                    return Err(CaseFailure(format!("revision {revision} came twice")));
                }
                past.push(revision);
                changed.description = format!("change {number}").into();
                expect_equal(
                    "the answer",
                    store.compare_and_swap(&changed, revision).await?,
                    true,
                )?;
                for old in &past {
                    expect_equal(
                        "the answer to a past one",
                        store.compare_and_swap(&record, *old).await?,
                        false,
                    )?;
                }
            }
            expect_equal("the record", load_one(&*store, record.id).await?.record, changed)
        }),
        Case::new("a swap with a future revision fails", |store: Store| async move {
            let record = new_record(&new_principal(), &new_chat_id(), now(&*store).await?);
            insert(&*store, &record).await?;
            let revision = load_one(&*store, record.id).await?.revision;
            let mut other = record.clone();
            other.state = ApprovalState::Expired;
            for wrong in [revision.wrapping_add(1), revision.wrapping_sub(1), u64::MAX] {
                expect_equal("the answer", store.compare_and_swap(&other, wrong).await?, false)?;
            }
            expect_equal("the record", load_one(&*store, record.id).await?.record, record)
        }),
        Case::new("several records are loaded at once and unknown ids are left out", load_many),
        Case::new("a load without ids returns only the time", |store: Store| async move {
            expect_equal("how many there are", store.load(&[]).await?.records.len(), 0)
        }),
        Case::new("the clock does not run backwards", |store: Store| async move {
            let requester = new_principal();
            let chat = new_chat_id();
            let mut latest = UnixMillis(0);
            for _ in 0..50 {
                let of = RecordList::of_chat(&requester, &chat);
                for now in [now(&*store).await?, store.read_list((&of).into()).await?.now] {
                    if now < latest {
                        return Err(CaseFailure(format!("after {latest:?} it is {now:?}")));
                    }
                    latest = now;
                }
            }
            Ok(())
        }),
        Case::new("an expired record is kept", |store: Store| async move {
            let now = now(&*store).await?;
            let mut record = new_record(&new_principal(), &new_chat_id(), now);
            let long_ago = RECORD_RETENTION - Duration::from_secs(60 * 60);
            record.expires_at = UnixMillis(now.0.saturating_sub(millis(long_ago)));
            insert(&*store, &record).await?;
            insert(&*store, &new_record(&new_principal(), &new_chat_id(), now)).await?;
            expect_equal("the record", load_one(&*store, record.id).await?.record, record)
        }),
        Case::new("a claimed record is kept after it has expired", |store: Store| async move {
            let now = now(&*store).await?;
            let mut record = new_record(&new_principal(), &new_chat_id(), now);
            record.expires_at = UnixMillis(now.0.saturating_sub(1));
            insert(&*store, &record).await?;
            record.state = ApprovalState::Claimed {
                decision: RecordedDecision::new(record.requester.clone(), now),
                lease_holder: LeaseHolderId::from_bytes([7; 16]),
                fence: 1,
                lease_until: now,
            };
            let revision = load_one(&*store, record.id).await?.revision;
            expect_equal("the answer", store.compare_and_swap(&record, revision).await?, true)?;
            insert(&*store, &new_record(&new_principal(), &new_chat_id(), now)).await?;
            expect_equal("the record", load_one(&*store, record.id).await?.record, record)
        }),
        Case::new("a record without expiry is kept", |store: Store| async move {
            let mut record = new_record(&new_principal(), &new_chat_id(), now(&*store).await?);
            record.expires_at = UnixMillis(u64::MAX);
            insert(&*store, &record).await?;
            expect_equal("the record", load_one(&*store, record.id).await?.record, record)
        }),
        Case::new("a dropped future leaves the store usable", dropped_futures),
    ]
}

async fn load_many(store: Store) -> Result<(), CaseFailure> {
    let chat = new_chat_id();
    let now = now(&*store).await?;
    let mut ids: Vec<RecordId> = Vec::new();
    let mut expected = Vec::new();
    for _ in 0..100 {
        let record = new_record(&new_principal(), &chat, now);
        insert(&*store, &record).await?;
        ids.extend([record.id, random_id()]);
        expected.push(record.id);
    }
    let records = store.load(&ids).await?.records;
    let mut found: Vec<RecordId> =
        records.into_iter().map(|versioned| versioned.record.id).collect();
    found.sort();
    expected.sort();
    expect_equal("what was found", found, expected)
}

/// Polls the future of every operation once and drops it.
///
/// The operation may or may not take place, but it must not block the next operation.
async fn dropped_futures(store: Store) -> Result<(), CaseFailure> {
    let record = new_record(&new_principal(), &new_chat_id(), now(&*store).await?);
    let ids = [record.id];
    let records = [record.clone()];
    poll_immediate(store.insert_all(&records, PendingLimits::NONE)).await;
    insert(&*store, &record).await?;
    let revision = load_one(&*store, record.id).await?.revision;
    let mut decided = record.clone();
    decided.state = ApprovalState::Expired;
    poll_immediate(store.load(&ids)).await;
    poll_immediate(store.read_list((&RecordList::of_requester(&record.requester)).into())).await;
    poll_immediate(store.compare_and_swap(&decided, revision)).await;
    let current = load_one(&*store, record.id).await?;
    if current.record.is_pending() {
        store.compare_and_swap(&decided, current.revision).await?;
    }
    expect_equal("the record", load_one(&*store, record.id).await?.record, decided)
}

fn json(text: &str) -> Result<Json, CaseFailure> {
    Json::parse(text).map_err(|error| CaseFailure(error.to_string()))
}

fn millis(time: Duration) -> u64 {
    time.as_millis().try_into().unwrap_or(u64::MAX)
}
