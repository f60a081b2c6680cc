//! Simultaneous operations: of several callers that want the same, one succeeds.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use super::case::{Case, CaseFailure, Store, expect_equal};
use super::records::{
    check_listed, insert, load_one, new_chat_id, new_principal, new_record, now, pending_ids,
};
use crate::approval::store::{LedgerStore, LedgerStoreError, PendingLimits, RecordList, update};
use crate::approval::{
    ApprovalRecord, ApprovalState, DeferredOutcome, LeaseHolderId, RecordedDecision, Stepped,
};

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new("of several insertions of one record, one is stored", insertions_of_one_record),
        Case::new(
            "simultaneous insertions do not exceed a limit together",
            insertions_below_a_limit,
        ),
        Case::new("of several replacements of one revision, one succeeds", swaps_of_one_revision),
        Case::new("different records do not stop each other", |store: Store| async move {
            let principal = new_principal();
            let chat = new_chat_id();
            let now = now(&*store).await?;
            let answers = run_contenders(|_| {
                let store = Arc::clone(&store);
                let mut record = new_record(&principal, &chat, now);
                async move {
                    let records = [record.clone()];
                    let inserted = store.insert_all(&records, PendingLimits::NONE).await?;
                    let versioned = store.load(&[record.id]).await?.records;
                    record.state = ApprovalState::Expired;
                    let revision =
                        versioned.first().map_or(u64::MAX, |versioned| versioned.revision);
                    Ok(inserted.stored == 1 && store.compare_and_swap(&record, revision).await?)
                }
            });
            expect_equal(
                "how many succeed",
                count(&answers.await?, |succeeded| *succeeded),
                CONTENDERS,
            )
        }),
        Case::new("of several concurrent claims, one is granted", |store: Store| async move {
            let record = new_record(&new_principal(), &new_chat_id(), now(&*store).await?);
            insert(&*store, &record).await?;
            let answers = run_contenders(|_| claim(Arc::clone(&store), record.clone())).await?;
            expect_equal("how many were granted", count(&answers, is_granted), 1)?;
            let waiting = count(&answers, |(record, answer)| {
                let is_executing =
                    matches!(record.outcome(), Some(DeferredOutcome::Executing { .. }));
                is_executing && *answer == Stepped::Counts
            });
            expect_equal("how many wait", waiting, CONTENDERS - 1)
        }),
        Case::new(
            "of a concurrent approval and denial, one is applied and all callers agree",
            claims_and_denials,
        ),
        Case::new("an abandoned claim is granted again once", |store: Store| async move {
            let mut record = new_record(&new_principal(), &new_chat_id(), now(&*store).await?);
            record.idempotent = true;
            insert(&*store, &record).await?;
            let decision = decision(&record, &*store).await?;
            let lost_holder = LeaseHolderId::from_bytes([0; 16]);
            update(&*store, record.id, |record, _| {
                record.claim(&decision, lost_holder, Duration::ZERO)
            })
            .await?;
            let answers = run_contenders(|_| claim(Arc::clone(&store), record.clone())).await?;
            expect_equal("how many were granted", count(&answers, is_granted), 1)
        }),
    ]
}

async fn insertions_of_one_record(store: Store) -> Result<(), CaseFailure> {
    let mut record = new_record(&new_principal(), &new_chat_id(), now(&*store).await?);
    let answers = run_contenders(|at| {
        record.description = format!("contender {at}").into();
        let store = Arc::clone(&store);
        let records = [record.clone()];
        async move {
            let inserted = store.insert_all(&records, PendingLimits::NONE).await?;
            let stored = store.load(&[records[0].id]).await?.records.into_iter();
            let described = stored.map(|versioned| versioned.record.description);
            Ok((inserted.stored, described.collect::<Vec<_>>()))
        }
    });
    let answers = answers.await?;
    let read = load_one(&*store, record.id).await?.record.description;
    expect_equal("who agrees", count(&answers, |(_, of)| *of == [read.clone()]), CONTENDERS)?;
    expect_equal("how many are told so", count(&answers, |(stored, _)| *stored == 1), CONTENDERS)
}

async fn insertions_below_a_limit(store: Store) -> Result<(), CaseFailure> {
    let requester = new_principal();
    let now = now(&*store).await?;
    let chats = [new_chat_id(), new_chat_id()];
    let limits = PendingLimits { chat: 20, requester: 30 };
    let answers = run_contenders(|at| {
        let chat = &chats[at % 2];
        let records = [(); 3].map(|()| new_record(&requester, chat, now));
        let store = Arc::clone(&store);
        async move { Ok(store.insert_all(&records, limits).await?.stored) }
    });
    let stored: usize = answers.await?.into_iter().sum();
    expect_equal("how many are said to be stored", stored, limits.requester)?;
    let of = RecordList::of_requester(&requester);
    expect_equal("how many are stored", pending_ids(&*store, of).await?.len(), limits.requester)?;
    for chat in &chats {
        let of = RecordList::of_chat(&requester, chat);
        let in_chat = pending_ids(&*store, of).await?.len();
        expect_equal("whether a chat is below its limit", in_chat <= limits.chat, true)?;
    }
    Ok(())
}

async fn swaps_of_one_revision(store: Store) -> Result<(), CaseFailure> {
    let record = new_record(&new_principal(), &new_chat_id(), now(&*store).await?);
    insert(&*store, &record).await?;
    for _ in 0..10 {
        let revision = load_one(&*store, record.id).await?.revision;
        let answers = run_contenders(|at| {
            let store = Arc::clone(&store);
            let mut record = record.clone();
            record.description = format!("contender {at}").into();
            async move { Ok((at, store.compare_and_swap(&record, revision).await?)) }
        })
        .await?;
        let winners: Vec<usize> =
            answers.into_iter().filter(|(_, succeeded)| *succeeded).map(|(at, _)| at).collect();
        let [winner] = winners[..] else {
            return Err(CaseFailure(format!("contenders {winners:?} succeed, expected one")));
        };
        let stored = load_one(&*store, record.id).await?.record.description;
        expect_equal("what stands", &*stored, &*format!("contender {winner}"))?;
    }
    Ok(())
}

async fn claims_and_denials(store: Store) -> Result<(), CaseFailure> {
    let record = new_record(&new_principal(), &new_chat_id(), now(&*store).await?);
    insert(&*store, &record).await?;
    let answers = run_contenders(|at| {
        let store = Arc::clone(&store);
        let record = record.clone();
        async move {
            if at % 2 == 0 {
                let (_, answer) = claim(store, record).await?;
                return Ok(!matches!(answer, Stepped::Refused(_)));
            }
            let decision = decision(&record, &*store).await?;
            let changed = update(&*store, record.id, |record, _| record.deny(&decision));
            Ok(!matches!(changed.await?, Some((_, Stepped::Counts))))
        }
    })
    .await?;
    let read = load_one(&*store, record.id).await?.record;
    let is_claimed = matches!(read.state, ApprovalState::Claimed { .. });
    expect_equal(
        "how many agree",
        count(&answers, |says_claimed| *says_claimed == is_claimed),
        CONTENDERS,
    )?;
    check_listed(&*store, &read).await
}

async fn claim(
    store: Store,
    record: ApprovalRecord,
) -> Result<(ApprovalRecord, Stepped), LedgerStoreError> {
    let decision = decision(&record, &*store).await?;
    let mut lease_holder = [0; 16];
    getrandom::fill(&mut lease_holder).map_err(LedgerStoreError::new)?;
    let lease_holder = LeaseHolderId::from_bytes(lease_holder);
    let changed = update(&*store, record.id, |record, _| {
        record.claim(&decision, lease_holder, Duration::from_secs(60 * 60))
    });
    changed.await?.ok_or_else(|| LedgerStoreError::new("the record is gone"))
}

async fn decision(
    record: &ApprovalRecord,
    store: &dyn LedgerStore,
) -> Result<RecordedDecision, LedgerStoreError> {
    let now = store.load(&[]).await?.now;
    Ok(RecordedDecision::new(record.requester.clone(), now))
}

fn is_granted((_, answer): &(ApprovalRecord, Stepped)) -> bool {
    matches!(answer, Stepped::Granted(_))
}

fn count<T>(answers: &[T], which: impl Fn(&T) -> bool) -> usize {
    answers.iter().filter(|answer| which(answer)).count()
}

/// Runs all contenders at once, each on its own task, and returns their results.
async fn run_contenders<T: Send + 'static, Fut>(
    mut contender: impl FnMut(usize) -> Fut,
) -> Result<Vec<T>, CaseFailure>
where
    Fut: Future<Output = Result<T, LedgerStoreError>> + Send + 'static,
{
    let mut contenders: JoinSet<_> = (0..CONTENDERS).map(&mut contender).collect();
    let mut answers = Vec::new();
    while let Some(answer) = contenders.join_next().await {
        answers.push(answer.map_err(|error| CaseFailure(error.to_string()))??);
    }
    Ok(answers)
}

/// The number of simultaneous callers.
const CONTENDERS: usize = 16;
