//! Live runs: their leases, their readers, and how many a user may have.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{Instant, sleep};

use super::case::{Append, LONG, Log, SHORT, Store, control, frame};
use super::report::{Case, expect_equal};
use crate::store::{AppendResult, UserLimits};

pub(super) fn cases() -> Vec<Case> {
    [leases(), runs(), places()].into_iter().flatten().collect()
}

fn leases() -> Vec<Case> {
    vec![
        Case::new("a leased run is not lost", |store: Store| async move {
            let head = Log::with_run(store, LONG).await?.loaded().await?.head;
            expect_equal("the run", head.live_run, Some("run".into()))?;
            expect_equal("whether it is lost", head.is_lost, false)
        }),
        Case::new("a lease passes", |store: Store| async move {
            let log = Log::with_run(store, SHORT).await?;
            log.wait_until_lost().await
        }),
        Case::new("without a lease a run is lost at once", |store: Store| async move {
            let log = Log::none(store);
            let begin = Append { lease: None, ..log.create(&[]).beginning("run", LONG) };
            expect_equal("whether it is lost", log.appended(begin).await?.is_lost, true)
        }),
        Case::new("an append renews the lease", |store: Store| async move {
            let log = Log::with_run(store, SHORT).await?;
            log.wait_until_lost().await?;
            let renewal = Append { lease: Some(LONG), ..log.at(1, &[]) };
            expect_equal("whether it is lost", log.appended(renewal).await?.is_lost, false)
        }),
        Case::new("an append without a lease leaves it as it is", |store: Store| async move {
            let log = Log::with_run(store, LONG).await?;
            let head = log.appended(log.at(1, &[frame("a")])).await?;
            expect_equal("whether it is lost", head.is_lost, false)
        }),
        Case::new("a lease of zero hands the run over", |store: Store| async move {
            let log = Log::with_run(store, LONG).await?;
            let hand_over = Append { lease: Some(Duration::ZERO), ..log.at(1, &[]) };
            let head = log.appended(hand_over).await?;
            expect_equal("the run", (head.is_lost, head.live_run), (true, Some("run".into())))
        }),
        Case::new("a holder whose lease has passed may append", |store: Store| async move {
            let log = Log::with_run(store, Duration::ZERO).await?;
            log.appended(log.at(1, &[frame("a")])).await.map(drop)
        }),
        Case::new("only a lost run is ended as lost", |store: Store| async move {
            let log = Log::with_run(store, LONG).await?;
            let end = Append { only_lost: true, ..log.at(1, &[control("end")]).ending() };
            log.expect_conflict(end.clone()).await?;
            log.appended(Append { lease: Some(Duration::ZERO), ..log.at(1, &[]) }).await?;
            expect_equal("the run", log.appended(end).await?.live_run, None)
        }),
        Case::new("a chat without a live run has no lost run", |store: Store| async move {
            let log = Log::created(store).await?;
            log.expect_conflict(Append { only_lost: true, ..log.at(1, &[control("end")]) }).await
        }),
        Case::new("a lost run is replaced in one append", |store: Store| async move {
            let log = Log::with_run(store, Duration::ZERO).await?;
            let next = log.at(1, &[control("end"), control("begin")]).beginning("next", LONG);
            let head = log.appended(Append { only_lost: true, ..next }).await?;
            expect_equal("the run", (head.live_run, head.is_lost), (Some("next".into()), false))
        }),
        Case::new("a lease without a live run has no effect", |store: Store| async move {
            let log = Log::created(store).await?;
            let head = log.appended(Append { lease: Some(LONG), ..log.at(1, &[]) }).await?;
            expect_equal("the run", (head.live_run, head.is_lost), (None, false))
        }),
    ]
}

fn runs() -> Vec<Case> {
    vec![
        Case::new("a run begins and ends", |store: Store| async move {
            let log = Log::with_run(store, LONG).await?;
            let head = log.appended(log.at(1, &[control("end")]).ending()).await?;
            expect_equal("the run", (head.live_run, head.is_lost), (None, false))
        }),
        Case::new("a run begins where another one ends", |store: Store| async move {
            let log = Log::with_run(store, LONG).await?;
            let next = log.after_control(1, &[control("end")]).beginning("next", LONG);
            expect_equal("the run", log.appended(next).await?.live_run, Some("next".into()))
        }),
        Case::new("a run resumes a lost one", |store: Store| async move {
            let log = Log::with_run(store, Duration::ZERO).await?;
            let next = log.at(1, &[control("end"), control("begin")]).resuming("next", LONG);
            let head = log.appended(limited(Append { only_lost: true, ..next }, 0)).await?;
            expect_equal("the run", (head.live_run, head.is_lost), (Some("next".into()), false))?;
            expect_equal("the time without a reader", head.unread < SECOND, true)
        }),
        Case::new("a run that resumes none needs a place", |store: Store| async move {
            let log = Log::created(store).await?;
            let next = log.at(1, &[control("begin")]).resuming("next", LONG);
            let refused = log.append(limited(next.clone(), 0)).await?;
            expect_equal("the append", refused, AppendResult::TooManyRuns)?;
            expect_equal("the run", log.appended(next).await?.live_run, Some("next".into()))
        }),
        Case::new("ids of runs may hold any text", |store: Store| async move {
            let log = Log::none(store);
            let begin = log.create(&[]).beginning("r\0ün\u{1F600}", LONG);
            let run = log.appended(begin).await?.live_run;
            expect_equal("the run", run, Some("r\0ün\u{1F600}".into()))?;
            let loaded = log.loaded().await?.head.live_run;
            expect_equal("the loaded run", loaded, Some("r\0ün\u{1F600}".into()))
        }),
        Case::new("the time without a reader grows", |store: Store| async move {
            let log = Log::with_run(store, LONG).await?;
            while log.loaded().await?.head.unread < SHORT {
                sleep(Duration::from_millis(20)).await;
            }
            Ok(())
        }),
        Case::new("a read of a client ends the time without a reader", |store: Store| async move {
            let log = Log::with_run(store, LONG).await?;
            // A store may write this time only once in a second.
            while log.loaded().await?.head.unread < 2 * SECOND {
                sleep(Duration::from_millis(50)).await;
            }
            let begin = Instant::now();
            let page = log.read_as(0, 9, true).await?;
            let is_read = page.is_some_and(|page| page.head.unread < SECOND);
            expect_equal("whether the run counts as read", is_read, true)?;
            let is_read = log.loaded().await?.head.unread < 3 * SECOND / 2 + begin.elapsed();
            expect_equal("after it", is_read, true)
        }),
        Case::new("a read of the server does not count", |store: Store| async move {
            let log = Log::with_run(store, LONG).await?;
            while log.loaded().await?.head.unread < SHORT {
                sleep(Duration::from_millis(20)).await;
            }
            let page = log.read_as(0, 9, false).await?;
            let is_unread = page.is_some_and(|page| page.head.unread >= SHORT);
            expect_equal("whether the run is unread", is_unread, true)
        }),
    ]
}

fn places() -> Vec<Case> {
    vec![
        Case::new("a user has a maximum number of live runs", |store: Store| async move {
            let log = Log::with_run(store, LONG).await?;
            let other = log.other("other");
            let begin = other.create(&[control("a")]).beginning("r", LONG);
            let refused = other.append(limited(begin.clone(), 1)).await?;
            expect_equal("the append", refused, AppendResult::TooManyRuns)?;
            other.expect_none().await?;
            other.appended(limited(begin, 2)).await.map(drop)
        }),
        Case::new("a run that takes the place of another needs none", |store: Store| async move {
            let log = Log::with_run(store, LONG).await?;
            let next = log.at(1, &[control("end")]).beginning("next", LONG);
            log.appended(limited(next, 1)).await.map(drop)
        }),
        Case::new("an append to a live run needs no place", |store: Store| async move {
            let log = Log::with_run(store, LONG).await?;
            log.appended(limited(log.at(1, &[frame("a")]), 1)).await.map(drop)
        }),
        Case::new("a run that has ended has no place", |store: Store| async move {
            let log = Log::with_run(store, LONG).await?;
            log.appended(log.at(1, &[control("end")]).ending()).await?;
            let other = log.other("other");
            other.appended(limited(other.create(&[]).beginning("r", LONG), 1)).await.map(drop)
        }),
        Case::new("lost runs have no place", |store: Store| async move {
            let log = Log::none(store);
            // More than are read in one call.
            for number in 0..100 {
                let lost = log.other(&number.to_string());
                lost.appended(lost.create(&[]).beginning("r", Duration::ZERO)).await?;
            }
            log.appended(limited(log.create(&[]).beginning("r", LONG), 1)).await?;
            let other = log.other("other");
            let refused = other.append(limited(other.create(&[]).beginning("r", LONG), 1)).await?;
            expect_equal("behind them", refused, AppendResult::TooManyRuns)
        }),
        Case::new("a deleted chat has no place", |store: Store| async move {
            let log = Log::with_run(store, LONG).await?;
            log.delete(1).await?;
            let other = log.other("other");
            other.appended(limited(other.create(&[]).beginning("r", LONG), 1)).await.map(drop)
        }),
        Case::new("another owner has places of its own", |store: Store| async move {
            Log::with_run(store.clone(), LONG).await?;
            let other = Log::none(store);
            other.appended(limited(other.create(&[]).beginning("r", LONG), 1)).await.map(drop)
        }),
        Case::new(
            "a run that nobody reads has to end for another one",
            |store: Store| async move {
                let log = Log::with_run(store, LONG).await?;
                let other = log.other("other");
                let begin = limited(other.create(&[]).beginning("r", LONG), 1);
                other.appended(unread(begin, Duration::ZERO)).await?;
                let head = log.loaded().await?.head;
                expect_equal(
                    "the run",
                    (head.has_to_end, head.live_run),
                    (true, Some("run".into())),
                )?;
                // Its holder learns it from its next append.
                expect_equal("the append", log.appended(log.at(1, &[])).await?.has_to_end, true)
            },
        ),
        Case::new("a run that has to end has no place", |store: Store| async move {
            let log = Log::with_run(store, LONG).await?;
            for (number, chat) in ["b", "c"].into_iter().enumerate() {
                let other = log.other(chat);
                let begin = limited(other.create(&[]).beginning("r", LONG), 1 + number);
                other.appended(unread(begin, Duration::ZERO)).await?;
            }
            expect_equal("b", log.other("b").loaded().await?.head.has_to_end, false)
        }),
        Case::new("the run that was not read for longest has to end", |store: Store| async move {
            let log = Log::with_run(store, LONG).await?;
            let second = log.other("second");
            sleep(SHORT).await;
            second.appended(second.create(&[]).beginning("r", LONG)).await?;
            let third = log.other("third");
            let begin = limited(third.create(&[]).beginning("r", LONG), 2);
            third.appended(unread(begin, Duration::ZERO)).await?;
            let has_to_end =
                (log.loaded().await?.head.has_to_end, second.loaded().await?.head.has_to_end);
            expect_equal("the runs", has_to_end, (true, false))
        }),
        Case::new("the next run of a chat does not have to end", |store: Store| async move {
            let log = Log::with_run(store, LONG).await?;
            let other = log.other("other");
            let begin = limited(other.create(&[]).beginning("r", LONG), 1);
            other.appended(unread(begin, Duration::ZERO)).await?;
            let next = log.at(1, &[control("end")]).beginning("next", LONG);
            expect_equal("the run", log.appended(next).await?.has_to_end, false)
        }),
        Case::new("of concurrent runs for the last place one begins", |store: Store| async move {
            let log = Log::created(store).await?;
            let begin = |number: usize| {
                let other = log.other(&number.to_string());
                async move { other.append(limited(other.create(&[]).beginning("r", LONG), 1)).await }
            };
            let mut begun = 0;
            for result in join_all((0..8).map(begin)).await {
                begun += usize::from(matches!(result?, AppendResult::Appended { .. }));
            }
            expect_equal("the number of runs", begun, 1)
        }),
    ]
}

fn limited(append: Append, runs: usize) -> Append {
    Append { limits: UserLimits { runs, ..append.limits }, ..append }
}

fn unread(append: Append, unread: Duration) -> Append {
    Append { limits: UserLimits { unread, ..append.limits }, ..append }
}

const SECOND: Duration = Duration::from_secs(1);
