//! Insertions of several records at once, and the limits of pending records.

use super::case::{Case, CaseFailure, Store, expect_equal};
use super::records::{
    insert, insert_all, load_one, new_chat_id, new_principal, new_record, now, pending_ids,
    read_pages,
};
use crate::approval::store::{
    Inserted, LedgerStore, ListRecords, PendingLimit, PendingLimits, RecordList, update,
};
use crate::approval::{ApprovalRecord, Principal, RecordId, RevocationReason, UnixMillis};
use crate::id::ChatId;

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new("an insertion of no records stores none", |store: Store| async move {
            insert_all(&*store, &[]).await?;
            let limits = PendingLimits { chat: 0, requester: 0 };
            let none = Inserted { stored: 0, refused_by: None };
            expect_equal("the answer at a limit", store.insert_all(&[], limits).await?, none)
        }),
        Case::new("three hundred records are inserted at once", |store: Store| async move {
            let requester = new_principal();
            let chat = new_chat_id();
            let records = sorted_records(&requester, &chat, now(&*store).await?, 300);
            insert_all(&*store, &records).await?;
            let of = RecordList::of_chat(&requester, &chat);
            let listed = read_pages(&*store, ListRecords { limit: 50, ..(&of).into() }).await?;
            expect_equal("whether all are listed as inserted", listed == records, true)
        }),
        Case::new(
            "records are inserted in order up to the limit of the chat",
            |store: Store| async move {
                let requester = new_principal();
                let chat = new_chat_id();
                let now = now(&*store).await?;
                let limits = PendingLimits { chat: 5, requester: 100 };
                let elsewhere = sorted_records(&requester, &new_chat_id(), now, 4);
                insert_all(&*store, &elsewhere).await?;
                let records = sorted_records(&requester, &chat, now, 8);
                let expected = Inserted { stored: 3, refused_by: Some(PendingLimit::Chat) };
                insert_all(&*store, &records[6..]).await?;
                let inserted = store.insert_all(&records[..6], limits).await?;
                expect_equal("the answer", inserted, expected)?;
                let of = RecordList::of_chat(&requester, &chat);
                let stored = [&records[..3], &records[6..]].concat();
                expect_equal("what is pending", pending_ids(&*store, of).await?, ids(&stored))
            },
        ),
        Case::new(
            "records are inserted in order up to the limit of the requester",
            |store: Store| async move {
                let requester = new_principal();
                let chat = new_chat_id();
                let now = now(&*store).await?;
                let limits = PendingLimits { chat: 100, requester: 5 };
                insert_all(&*store, &sorted_records(&requester, &new_chat_id(), now, 4)).await?;
                insert_all(&*store, &sorted_records(&new_principal(), &chat, now, 4)).await?;
                let records = sorted_records(&requester, &chat, now, 3);
                let expected = Inserted { stored: 1, refused_by: Some(PendingLimit::Requester) };
                expect_equal("the answer", store.insert_all(&records, limits).await?, expected)?;
                let of = RecordList::of_chat(&requester, &chat);
                let stored = pending_ids(&*store, of).await?;
                expect_equal("what is pending", stored, ids(&records[..1]))
            },
        ),
        Case::new("a repeated insertion gets the same answer", |store: Store| async move {
            let requester = new_principal();
            let chat = new_chat_id();
            let now = now(&*store).await?;
            let limits = PendingLimits { chat: 2, requester: 100 };
            let records = sorted_records(&requester, &chat, now, 4);
            let expected = Inserted { stored: 2, refused_by: Some(PendingLimit::Chat) };
            for _ in 0..3 {
                let inserted = store.insert_all(&records, limits).await?;
                expect_equal("the answer", inserted, expected)?;
            }
            // The decision on a record makes room for one more. The decided record stays as it is.
            revoke(&*store, records[0].id).await?;
            let expected = Inserted { stored: 3, refused_by: Some(PendingLimit::Chat) };
            expect_equal("the answer", store.insert_all(&records, limits).await?, expected)?;
            let decided = load_one(&*store, records[0].id).await?.record;
            expect_equal("whether it is pending", decided.is_pending(), false)?;
            let of = RecordList::of_requester(&requester);
            expect_equal("what is pending", pending_ids(&*store, of).await?, ids(&records[1..3]))
        }),
        Case::new("expired and decided records have no limit", |store: Store| async move {
            let requester = new_principal();
            let chat = new_chat_id();
            let now = now(&*store).await?;
            let mut expired = sorted_records(&requester, &chat, now, 10);
            for record in &mut expired {
                record.expires_at = UnixMillis(now.0.saturating_sub(1));
            }
            insert_all(&*store, &expired).await?;
            let decided = new_record(&requester, &chat, now);
            insert(&*store, &decided).await?;
            revoke(&*store, decided.id).await?;
            let limits = PendingLimits { chat: 2, requester: 2 };
            let records = sorted_records(&requester, &chat, now, 2);
            let all = Inserted { stored: 2, refused_by: None };
            expect_equal("the answer", store.insert_all(&records, limits).await?, all)?;
            let more = [new_record(&requester, &chat, now)];
            expect_equal("one more", store.insert_all(&more, limits).await?.stored, 0)
        }),
    ]
}

/// Returns new records of one chat in the order in which they are listed.
fn sorted_records(
    requester: &Principal,
    chat: &ChatId,
    now: UnixMillis,
    count: usize,
) -> Vec<ApprovalRecord> {
    let mut records: Vec<_> = (0..count).map(|_| new_record(requester, chat, now)).collect();
    records.sort_by_key(|record| record.id);
    records
}

fn ids(records: &[ApprovalRecord]) -> Vec<RecordId> {
    records.iter().map(|record| record.id).collect()
}

async fn revoke(store: &dyn LedgerStore, id: RecordId) -> Result<(), CaseFailure> {
    let revoke = |record: &ApprovalRecord, now| record.revoke(RevocationReason::ByHost, now);
    update(store, id, revoke).await?;
    Ok(())
}
