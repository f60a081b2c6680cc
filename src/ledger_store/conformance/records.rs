//! The records that the cases work with, and how they get into a store.

use std::time::Duration;

use super::{Failed, equal};
use crate::approval::{
    ApprovalRecord, ApprovalState, DefinitionDigest, KeyRing, Principal, Question, RecordId,
    UnixMillis,
};
use crate::id::ChatId;
use crate::json::Json;
use crate::ledger_store::{Asked, Kept, LedgerStore, Loaded};

/// Names that no other case has.
pub(super) fn a_chat() -> ChatId {
    format!("chat {}", random_id()).into()
}

pub(super) fn a_person() -> Principal {
    Principal::new(format!("person {}", random_id()))
}

pub(super) fn random_id() -> RecordId {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).expect("the system gives random numbers");
    RecordId::from_bytes(bytes)
}

/// A question that was just asked, and is open for an hour.
pub(super) fn question(requester: &Principal, chat: &ChatId, now: UnixMillis) -> ApprovalRecord {
    let question = Question {
        requester: requester.clone(),
        chat_id: chat.clone(),
        message_id: "message".into(),
        tool_call_id: "call".into(),
        tool_name: "tool".into(),
        definition: DefinitionDigest::of("tool", "", &Json::null()),
        input: Json::null(),
        provider_executed: false,
        idempotent: false,
        description: None,
        time_to_answer: Duration::from_secs(60 * 60),
    };
    // The id is never sealed here.
    let keys = KeyRing::new(1, &[0; 32]).expect("32 bytes are enough for a key");
    question.into_record(&keys, random_id(), now).expect("`null` is shown as it is")
}

/// Inserts a new record, which is to succeed.
pub(super) async fn insert(store: &dyn LedgerStore, record: &ApprovalRecord) -> Result<(), Failed> {
    equal("the answer to a new record", store.insert(record).await?, true)
}

pub(super) async fn now(store: &dyn LedgerStore) -> Result<UnixMillis, Failed> {
    Ok(store.load(&[]).await?.now)
}

/// Reads a record, which is to be there.
pub(super) async fn kept(store: &dyn LedgerStore, id: RecordId) -> Result<Kept, Failed> {
    let Loaded { records, .. } = store.load(&[id]).await?;
    equal("the number of records of one id", records.len(), 1)?;
    let kept = records.into_iter().next();
    kept.ok_or_else(|| Failed("the record is gone".to_owned()))
}

pub(super) async fn pending(
    store: &dyn LedgerStore,
    of: Asked<'_>,
) -> Result<Vec<RecordId>, Failed> {
    let records = store.pending(of).await?.records;
    Ok(records.into_iter().map(|kept| kept.record.id).collect())
}

/// Checks that both lists name a record if it waits for an answer, and only then.
pub(super) async fn is_listed_if_pending(
    store: &dyn LedgerStore,
    record: &ApprovalRecord,
) -> Result<(), Failed> {
    let expected: &[RecordId] = match record.state {
        ApprovalState::Pending => &[record.id],
        _ => &[],
    };
    let (requester, chat) = (&record.requester, &record.chat_id);
    let in_chat = Asked::InChat { tenant: requester.tenant(), chat };
    equal("what is pending in the chat", &*pending(store, in_chat).await?, expected)?;
    let by = Asked::By(requester);
    equal("what is pending of the person", &*pending(store, by).await?, expected)
}
