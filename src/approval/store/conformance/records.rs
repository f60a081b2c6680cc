//! Creates the records of the cases, and inserts, loads and lists them.

use std::time::Duration;

use super::case::{CaseFailure, expect_equal};
use crate::approval::store::{
    Inserted, LedgerStore, ListPlace, ListRecords, PendingLimits, RecordCursor, RecordList,
    Snapshot, VersionedRecord,
};
use crate::approval::{
    ApprovalRecord, DefinitionDigest, KeyRing, NewApprovalRequest, NoticeDelivery, OnNewMessage,
    Principal, RecordId, UnixMillis,
};
use crate::id::ChatId;
use crate::json::Json;

/// Returns a chat id that no other case uses.
pub(super) fn new_chat_id() -> ChatId {
    format!("chat {}", random_id()).into()
}

/// Returns a principal that no other case uses.
pub(super) fn new_principal() -> Principal {
    Principal::new(format!("person {}", random_id()))
}

pub(super) fn random_id() -> RecordId {
    RecordId::from_bytes(random_bytes())
}

fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the system gives random numbers");
    bytes
}

/// Returns a new pending record that expires after an hour, with two audiences and an event to deliver.
pub(super) fn new_record(requester: &Principal, chat: &ChatId, now: UnixMillis) -> ApprovalRecord {
    let request = NewApprovalRequest {
        requester: requester.clone(),
        chat_id: chat.clone(),
        message_id: "message".into(),
        tool_call_id: "call".into(),
        tool_name: "tool".into(),
        definition: DefinitionDigest::new("tool", "", &Json::null()),
        input: Json::null(),
        provider_executed: false,
        idempotent: false,
        on_new_message: OnNewMessage::default(),
        decided_by_others: false,
        description: None,
        approval_ttl: Duration::from_secs(60 * 60),
        editable: Default::default(),
    };
    // The cases never use the approval id, so any key will do.
    let keys = KeyRing::new(1, &random_bytes::<32>()).expect("32 random bytes make a key");
    let id = RecordId::of_requester(requester, random_bytes());
    let record = request.into_record(&keys, id, now).expect("`null` is shown as it is");
    let audience = ["a", "b"].map(|name| format!("{name} {}", random_id()).into());
    ApprovalRecord {
        audience: audience.into(),
        delivery: Some(NoticeDelivery::default()),
        ..record
    }
}

/// Inserts a new record. Fails the case if the store does not insert it.
pub(super) async fn insert(
    store: &dyn LedgerStore,
    record: &ApprovalRecord,
) -> Result<(), CaseFailure> {
    insert_all(store, std::slice::from_ref(record)).await
}

/// Inserts records without limits. Fails the case if the store does not say that all are stored.
pub(super) async fn insert_all(
    store: &dyn LedgerStore,
    records: &[ApprovalRecord],
) -> Result<(), CaseFailure> {
    let inserted = store.insert_all(records, PendingLimits::NONE).await?;
    let all = Inserted { stored: records.len(), refused_by: None };
    expect_equal("the answer to an insertion without limits", inserted, all)
}

/// Returns the time of the store.
pub(super) async fn now(store: &dyn LedgerStore) -> Result<UnixMillis, CaseFailure> {
    Ok(store.load(&[]).await?.now)
}

/// Loads a record. Fails the case if the store does not return exactly one.
pub(super) async fn load_one(
    store: &dyn LedgerStore,
    id: RecordId,
) -> Result<VersionedRecord, CaseFailure> {
    let Snapshot { records, .. } = store.load(&[id]).await?;
    expect_equal("the number of records of one id", records.len(), 1)?;
    let versioned = records.into_iter().next();
    versioned.ok_or_else(|| CaseFailure("the record is gone".to_owned()))
}

/// Returns the ids of the pending records, in the order of the store.
pub(super) async fn pending_ids(
    store: &dyn LedgerStore,
    of: RecordList,
) -> Result<Vec<RecordId>, CaseFailure> {
    let records = store.read_list((&of).into()).await?.records;
    Ok(records.into_iter().map(|versioned| versioned.record.id).collect())
}

/// Returns the records of this page of a list and of all pages after it.
pub(super) async fn read_pages(
    store: &dyn LedgerStore,
    mut query: ListRecords<'_>,
) -> Result<Vec<ApprovalRecord>, CaseFailure> {
    let mut all = Vec::new();
    loop {
        let page = store.read_list(query).await?;
        all.extend(page.records.into_iter().map(|versioned| versioned.record));
        if page.next.is_none() {
            return Ok(all);
        }
        if page.next <= query.after {
            return Err(CaseFailure("the next page begins no later than this one".to_owned()));
        }
        query.after = page.next;
    }
}

/// Checks that a record is in the lists that its state says, and in no others.
pub(super) async fn check_listed(
    store: &dyn LedgerStore,
    record: &ApprovalRecord,
) -> Result<(), CaseFailure> {
    for ListPlace { list, at } in RecordList::places_of(record) {
        // Lists of more than one requester may hold records of earlier cases.
        let earliest =
            if list == RecordList::to_notify() { record.requested_at } else { record.expires_at };
        let before = UnixMillis(earliest.0.saturating_sub(1));
        let after = Some(RecordCursor::after_time(before));
        let mut listed = read_pages(store, ListRecords { after, ..(&list).into() }).await?;
        listed.retain(|listed| listed.id == record.id);
        let expected: Vec<_> = at.iter().map(|_| record.clone()).collect();
        expect_equal(&format!("what `{}` holds of the record", list.as_str()), listed, expected)?;
    }
    Ok(())
}
