//! What a sink has not got.

use std::time::Duration;

use tokio::time::sleep;

use super::case::{Append, LONG, Log, SHORT, Store, control, frame};
use super::lists::{TICK, chats};
use super::report::{Case, CaseFailure, CaseResult, expect_equal};
use crate::store::{Epoch, Undelivered};
use ui_message_stream::id::ChatId;

pub(super) fn cases() -> Vec<Case> {
    [changes(), acknowledgments(), deletions()].into_iter().flatten().collect()
}

impl Log {
    /// Creates a log with one control entry, for a sink.
    async fn for_sink(store: Store) -> Result<Self, CaseFailure> {
        let log = Log::none(store);
        log.appended(log.create(&[control("created")]).for_sink()).await?;
        Ok(log)
    }

    fn at_position(&self, position: u64) -> Undelivered {
        Undelivered { key: self.key.clone(), epoch: self.epoch, position }
    }

    /// Returns what the sink has to get of the chats of this owner.
    async fn undelivered(&self, retry_after: Duration) -> Result<Vec<Undelivered>, CaseFailure> {
        let all = self.store.undelivered(1 << 20, retry_after).await?;
        let mut own: Vec<_> =
            all.into_iter().filter(|delivery| delivery.key.owner == self.key.owner).collect();
        own.sort();
        Ok(own)
    }

    async fn expect_undelivered(&self, expected: &[Undelivered]) -> CaseResult {
        let undelivered = self.undelivered(Duration::ZERO).await?;
        expect_equal("what is undelivered", &*undelivered, expected)
    }

    async fn acknowledge(&self, position: u64) -> Result<Option<Undelivered>, CaseFailure> {
        Ok(self.store.acknowledge(&self.at_position(position)).await?)
    }

    async fn expect_acknowledged(&self, position: u64) -> CaseResult {
        expect_equal("what comes next", self.acknowledge(position).await?, None)
    }
}

fn changes() -> Vec<Case> {
    vec![
        Case::new("an append that is for no sink leaves nothing undelivered", |store| async move {
            let log = Log::created(store).await?;
            log.expect_undelivered(&[]).await?;
            log.delete(1).await?;
            log.expect_undelivered(&[]).await
        }),
        Case::new("an append for a sink is undelivered up to its last entry", |store| async move {
            let log = Log::for_sink(store).await?;
            log.expect_undelivered(&[log.at_position(1)]).await?;
            log.appended(log.at(1, &[frame("a")])).await?;
            log.expect_undelivered(&[log.at_position(1)]).await?;
            log.appended(log.at(2, &[frame("b"), control("c")]).for_sink()).await?;
            log.expect_undelivered(&[log.at_position(4)]).await
        }),
        Case::new("an append that is refused leaves nothing undelivered", |store| async move {
            let log = Log::created(store).await?;
            log.expect_conflict(log.at(7, &[control("a")]).for_sink()).await?;
            log.expect_undelivered(&[]).await
        }),
        Case::new("what was returned is returned again after its time", |store| async move {
            let log = Log::for_sink(store).await?;
            let first = log.undelivered(LONG).await?;
            let again = log.undelivered(LONG).await?;
            expect_equal("the numbers", (first.len(), again.len()), (1, 0))?;
            let other = log.other("other");
            other.appended(other.create(&[control("a")]).for_sink()).await?;
            expect_equal("the other chat", log.undelivered(SHORT).await?.len(), 1)?;
            while log.undelivered(Duration::ZERO).await? != [other.at_position(1)] {
                sleep(SHORT / 4).await;
            }
            log.appended(log.at(1, &[control("b")]).for_sink()).await?;
            log.expect_undelivered(&[log.at_position(2), other.at_position(1)]).await
        }),
        Case::new("what was changed first is returned first", |store: Store| async move {
            let chats = chats(store, &["a", "b", "c", "d"]).await?;
            for log in &chats {
                log.appended(log.at(1, &[control("b")]).for_sink()).await?;
                sleep(TICK).await;
            }
            chats[0].appended(chats[0].at(2, &[control("c")]).for_sink()).await?;
            sleep(TICK).await;
            chats[1].delete(2).await?;
            let mut own = Vec::new();
            // There may be logs of other owners.
            while own.len() < chats.len()
                && let Some(next) = chats[0].store.undelivered(1, LONG).await?.pop()
            {
                own.extend((next.key.owner == chats[0].key.owner).then_some(next.key.chat));
            }
            expect_equal("the order", own, ["c", "d", "a", "b"].map(ChatId::from).into())
        }),
        Case::new("a page has no more logs than asked for", |store: Store| async move {
            for _ in 0..3 {
                Log::for_sink(store.clone()).await?;
            }
            let page = store.undelivered(2, LONG).await?;
            expect_equal("the number", page.len(), 2)
        }),
    ]
}

fn acknowledgments() -> Vec<Case> {
    vec![
        Case::new("what is acknowledged is delivered", |store| async move {
            let log = Log::for_sink(store).await?;
            // The log may have had more entries when it was read.
            log.expect_acknowledged(3).await?;
            log.expect_undelivered(&[]).await?;
            log.appended(log.at(1, &[control("b")]).for_sink()).await?;
            log.expect_undelivered(&[log.at_position(2)]).await
        }),
        Case::new("an older delivery acknowledges nothing", |store| async move {
            let log = Log::for_sink(store).await?;
            log.appended(log.at(1, &[control("b")]).for_sink()).await?;
            let next = log.acknowledge(1).await?;
            expect_equal("what comes next", next, Some(log.at_position(2)))?;
            log.expect_undelivered(&[log.at_position(2)]).await?;
            log.expect_acknowledged(2).await?;
            let next = log.acknowledge(1).await?;
            expect_equal("after the newer one", next, Some(log.at_position(2)))?;
            log.expect_undelivered(&[]).await
        }),
        Case::new("a delivery of an earlier log acknowledges nothing", |store| async move {
            let log = Log::for_sink(store).await?;
            let earlier = Log { epoch: Epoch(1), ..log.clone() };
            for position in [9, Undelivered::DELETED] {
                let next = earlier.acknowledge(position).await?;
                expect_equal("what comes next", next, Some(log.at_position(1)))?;
            }
            log.expect_undelivered(&[log.at_position(1)]).await
        }),
        Case::new(
            "a delivery of a deleted log does not acknowledge another one",
            |store| async move {
                // The clock of its server may have been set back.
                let log = Log { epoch: Epoch(3), ..Log::none(store) };
                log.appended(log.create(&[control("a")]).for_sink()).await?;
                let higher = Log { epoch: Epoch(8), ..log.clone() };
                for position in [9, Undelivered::DELETED] {
                    let next = higher.acknowledge(position).await?;
                    expect_equal("what comes next", next, Some(log.at_position(1)))?;
                }
                log.expect_undelivered(&[log.at_position(1)]).await
            },
        ),
        Case::new("a delivery of a later log acknowledges those before", |store| async move {
            let log = Log::for_sink(store).await?;
            log.delete(1).await?;
            let later = Log { epoch: Epoch(8), ..log.clone() };
            // By a server without a sink.
            later.appended(later.create(&[control("b")])).await?;
            later.expect_acknowledged(1).await?;
            log.expect_undelivered(&[]).await?;
            later.delete(1).await?;
            log.expect_undelivered(&[later.at_position(Undelivered::DELETED)]).await
        }),
    ]
}

fn deletions() -> Vec<Case> {
    vec![
        Case::new("a deletion is undelivered until it is acknowledged", |store| async move {
            let log = Log::for_sink(store).await?;
            log.expect_acknowledged(1).await?;
            log.delete(1).await?;
            let deletion = log.at_position(Undelivered::DELETED);
            log.expect_undelivered(std::slice::from_ref(&deletion)).await?;
            expect_equal("what comes next", log.acknowledge(1).await?, Some(deletion.clone()))?;
            log.expect_acknowledged(Undelivered::DELETED).await?;
            log.expect_undelivered(&[]).await?;
            // Another server may have delivered the log after the deletion.
            expect_equal("after it", log.acknowledge(1).await?, Some(deletion))?;
            log.expect_acknowledged(Undelivered::DELETED).await
        }),
        Case::new("the deletion of a user leaves all logs undelivered", |store| async move {
            let log = Log::for_sink(store).await?;
            let other = log.other("other");
            let plain = log.other("plain");
            other.appended(other.create(&[control("a")]).for_sink()).await?;
            plain.appended(plain.create(&[control("a")])).await?;
            log.store.delete_user(&log.key.owner).await?;
            let deletions = [log, other.clone()].map(|log| log.at_position(Undelivered::DELETED));
            other.expect_undelivered(&deletions).await
        }),
        Case::new("a chat whose time has passed is undelivered", |store| async move {
            let log = Log::none(store);
            let create = log.create(&[control("a")]).for_sink();
            log.appended(Append { keep_for: Some(SHORT), ..create }).await?;
            log.wait_until_gone().await?;
            log.store.sweep().await?;
            log.expect_undelivered(&[log.at_position(Undelivered::DELETED)]).await
        }),
        Case::new("a chat that begins again replaces its deletion", |store| async move {
            let log = Log::for_sink(store).await?;
            log.delete(1).await?;
            let next = Log { epoch: Epoch(8), ..log.clone() };
            next.appended(next.create(&[control("b")])).await?;
            log.expect_undelivered(&[log.at_position(Undelivered::DELETED)]).await?;
            next.appended(next.at(1, &[control("c")]).for_sink()).await?;
            log.expect_undelivered(&[next.at_position(2)]).await?;
            let late = log.acknowledge(Undelivered::DELETED).await?;
            expect_equal("what comes next", late, Some(next.at_position(2)))?;
            next.expect_acknowledged(2).await
        }),
    ]
}
