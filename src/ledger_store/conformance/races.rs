//! Several at once: of those who want the same, one gets it.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use super::records::{a_chat, a_person, insert, is_listed_if_pending, kept, now, question};
use super::{Case, Failed, Store, equal};
use crate::approval::{
    ApprovalRecord, ApprovalState, ClaimAnswer, ClaimantId, Decision, DenyAnswer,
};
use crate::ledger_store::{LedgerStore, LedgerStoreError, change};

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new("of several inserts of one record, one succeeds", |store: Store| async move {
            let mut record = question(&a_person(), &a_chat(), now(&*store).await?);
            let answers = all(|at| {
                record.description = format!("contender {at}").into();
                let (store, record) = (Arc::clone(&store), record.clone());
                async move { store.insert(&record).await }
            });
            equal("how many succeed", count(&answers.await?, |won| *won), 1)
        }),
        Case::new("of several replacements of one revision, one succeeds", one_revision),
        Case::new("different records do not stop each other", |store: Store| async move {
            let (person, chat, now) = (a_person(), a_chat(), now(&*store).await?);
            let answers = all(|_| {
                let (store, mut record) = (Arc::clone(&store), question(&person, &chat, now));
                async move {
                    let is_new = store.insert(&record).await?;
                    let kept = store.load(&[record.id]).await?.records;
                    record.state = ApprovalState::Expired;
                    let revision = kept.first().map_or(u64::MAX, |kept| kept.revision);
                    Ok(is_new && store.replace(&record, revision).await?)
                }
            });
            equal("how many succeed", count(&answers.await?, |won| *won), CONTENDERS)
        }),
        Case::new("of several claims, one wins", |store: Store| async move {
            let record = question(&a_person(), &a_chat(), now(&*store).await?);
            insert(&*store, &record).await?;
            let answers = all(|_| claim(Arc::clone(&store), record.clone())).await?;
            equal("how many won", count(&answers, is_won), 1)?;
            let waiting = count(&answers, |answer| matches!(answer, ClaimAnswer::InFlight));
            equal("how many wait", waiting, CONTENDERS - 1)
        }),
        Case::new("of a yes and a no, one counts, and all agree", yes_and_no),
        Case::new("a claim that is abandoned is won again by one", |store: Store| async move {
            let mut record = question(&a_person(), &a_chat(), now(&*store).await?);
            record.idempotent = true;
            insert(&*store, &record).await?;
            let decision = decision(&record, &*store).await?;
            let nobody = ClaimantId::from_bytes([0; 16]);
            change(&*store, record.id, |record, _| record.claim(&decision, nobody, Duration::ZERO))
                .await?;
            let answers = all(|_| claim(Arc::clone(&store), record.clone())).await?;
            equal("how many won", count(&answers, is_won), 1)
        }),
    ]
}

async fn one_revision(store: Store) -> Result<(), Failed> {
    let record = question(&a_person(), &a_chat(), now(&*store).await?);
    insert(&*store, &record).await?;
    for _ in 0..10 {
        let revision = kept(&*store, record.id).await?.revision;
        let answers = all(|at| {
            let (store, mut record) = (Arc::clone(&store), record.clone());
            record.description = format!("contender {at}").into();
            async move { Ok((at, store.replace(&record, revision).await?)) }
        })
        .await?;
        let winners: Vec<usize> =
            answers.into_iter().filter(|(_, won)| *won).map(|(at, _)| at).collect();
        let [winner] = winners[..] else {
            return Err(Failed(format!("contenders {winners:?} succeed, expected one")));
        };
        let stands = kept(&*store, record.id).await?.record.description;
        equal("what stands", &*stands, &*format!("contender {winner}"))?;
    }
    Ok(())
}

async fn yes_and_no(store: Store) -> Result<(), Failed> {
    let record = question(&a_person(), &a_chat(), now(&*store).await?);
    insert(&*store, &record).await?;
    let answers = all(|at| {
        let (store, record) = (Arc::clone(&store), record.clone());
        async move {
            if at % 2 == 0 {
                let answer = claim(store, record).await?;
                return Ok(!matches!(answer, ClaimAnswer::Refused(_)));
            }
            let decision = decision(&record, &*store).await?;
            let changed = change(&*store, record.id, |record, _| record.deny(&decision));
            Ok(!matches!(changed.await?, Some((_, DenyAnswer::Denied))))
        }
    })
    .await?;
    let read = kept(&*store, record.id).await?.record;
    let is_claimed = matches!(read.state, ApprovalState::Claimed { .. });
    equal("how many agree", count(&answers, |yes| *yes == is_claimed), CONTENDERS)?;
    is_listed_if_pending(&*store, &read).await
}

async fn claim(store: Store, record: ApprovalRecord) -> Result<ClaimAnswer, LedgerStoreError> {
    let decision = decision(&record, &*store).await?;
    let mut claimant = [0; 16];
    getrandom::fill(&mut claimant).map_err(LedgerStoreError::new)?;
    let claimant = ClaimantId::from_bytes(claimant);
    let changed = change(&*store, record.id, |record, _| {
        record.claim(&decision, claimant, Duration::from_secs(60 * 60))
    });
    match changed.await? {
        Some((_, answer)) => Ok(answer),
        None => Err(LedgerStoreError::new("the record is gone")),
    }
}

async fn decision(
    record: &ApprovalRecord,
    store: &dyn LedgerStore,
) -> Result<Decision, LedgerStoreError> {
    let now = store.load(&[]).await?.now;
    Ok(Decision { approved_by: record.requester.clone(), responded_at: now, reason: None })
}

fn is_won(answer: &ClaimAnswer) -> bool {
    matches!(answer, ClaimAnswer::Won(_))
}

fn count<T>(answers: &[T], which: impl Fn(&T) -> bool) -> usize {
    answers.iter().filter(|answer| which(answer)).count()
}

/// What all contenders get, each on a task of its own.
async fn all<T: Send + 'static, Fut>(
    mut contender: impl FnMut(usize) -> Fut,
) -> Result<Vec<T>, Failed>
where
    Fut: Future<Output = Result<T, LedgerStoreError>> + Send + 'static,
{
    let mut contenders: JoinSet<_> = (0..CONTENDERS).map(&mut contender).collect();
    let mut answers = Vec::new();
    while let Some(answer) = contenders.join_next().await {
        answers.push(answer.map_err(|error| Failed(error.to_string()))??);
    }
    Ok(answers)
}

const CONTENDERS: usize = 16;
