//! Leases and fences: one holder, who loses the run when another holder takes it.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::case::{Case, LONG_LEASE, Run, SHORT_LEASE, Store, expect_appended, frames};
use crate::chat::log::{
    AppendRefusal, AppendResult, BeginResult, Fence, RunState, TakeCondition, TakeRefusal,
    TakeResult,
};
use crate::chat::store::conformance_case::{CaseFailure, CaseResult, expect_equal};

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new("a take refuses the appends of the old holder", |store: Store| async move {
            let run = Run::begin(store).await?;
            expect_appended(run.append(1, 0, &frames(["a"])).await?)?;
            let taken = run.take(2, 1, TakeCondition::Any).await?;
            expect_equal("the take", taken, TakeResult::Taken(Fence(2)))?;
            let refused = AppendResult::Refused(AppendRefusal::Taken);
            expect_equal("an append", run.append(1, 1, &frames(["b"])).await?, refused)?;
            expect_equal("a renewal", run.append(1, 1, &[]).await?, refused)?;
            expect_equal("an end", run.end(1, 1, &[]).await?, refused)?;
            expect_appended(run.append(2, 1, &frames(["c"])).await?)?;
            run.expect_log(&frames(["a", "c"])).await
        }),
        Case::new("an append with a fence that was not given is refused", |store| async move {
            let run = Run::begin(store).await?;
            let refused = AppendResult::Refused(AppendRefusal::Taken);
            for fence in [0, 2, u64::MAX] {
                let result = run.append(fence, 0, &frames(["a"])).await?;
                expect_equal("the append", result, refused)?;
            }
            run.expect_log(&[]).await
        }),
        Case::new("a take with an old fence is refused with the newest", |store| async move {
            let run = Run::begin(store).await?;
            let _ = run.take(2, 1, TakeCondition::Any).await?;
            let refused = TakeResult::Refused(TakeRefusal::OtherFence(Fence(2)));
            for fence in [0, 1, 3] {
                let result = run.take(3, fence, TakeCondition::Any).await?;
                expect_equal("the take", result, refused)?;
            }
            expect_equal("the fence", run.read(0, 1).await?.fence, Fence(2))
        }),
        Case::new("of concurrent takes one wins", |store: Store| async move {
            let run = Run::begin(store).await?;
            let takes = (2..18).map(|holder| run.take(holder, 1, TakeCondition::Any));
            let mut won = 0;
            for result in futures_util::future::join_all(takes).await {
                won += usize::from(result? == TakeResult::Taken(Fence(2)));
            }
            expect_equal("the number of winners", won, 1)
        }),
        Case::new("a leased run is not taken as if its lease had passed", |store| async move {
            let run = Run::begin(store).await?;
            let refused = TakeResult::Refused(TakeRefusal::LeaseRenewed);
            expect_equal("the take", run.take(2, 1, TakeCondition::LeasePassed).await?, refused)?;
            expect_appended(run.append(1, 0, &frames(["a"])).await?)
        }),
        Case::new("a run whose lease has passed is taken", |store: Store| async move {
            let run = Run::begin_with_lease(store, SHORT_LEASE).await?;
            sleep(SHORT_LEASE * 2).await;
            expect_equal("the state", run.read(0, 1).await?.state, RunState::LeasePassed)?;
            let taken = run.take(2, 1, TakeCondition::LeasePassed).await?;
            expect_equal("the take", taken, TakeResult::Taken(Fence(2)))
        }),
        Case::new(
            "a holder whose lease has passed continues if no one took the run",
            |store| async move {
                let run = Run::begin_with_lease(store, SHORT_LEASE).await?;
                sleep(SHORT_LEASE * 2).await;
                expect_appended(run.append(1, 0, &frames(["a"])).await?)?;
                expect_leased_after(&run, |_| run.append(1, 1, &[])).await
            },
        ),
        Case::new("an empty append renews the lease", |store: Store| async move {
            let run = Run::begin_with_lease(store, SHORT_LEASE * 4).await?;
            sleep(SHORT_LEASE * 3).await;
            expect_leased_after(&run, |_| async {
                expect_appended(run.append(1, 0, &[]).await?)?;
                sleep(SHORT_LEASE * 2).await;
                Ok(())
            })
            .await?;
            run.expect_log(&[]).await
        }),
        Case::new("a take renews the lease", |store: Store| async move {
            let run = Run::begin_with_lease(store, SHORT_LEASE * 4).await?;
            sleep(SHORT_LEASE * 3).await;
            let run = &run;
            expect_leased_after(run, |fence| async move {
                let _ = run.take(2, fence, TakeCondition::Any).await?;
                sleep(SHORT_LEASE * 2).await;
                Ok(())
            })
            .await
        }),
        Case::new("a holder hands a run over with a lease of zero", |store: Store| async move {
            let run = Run::begin(store).await?;
            expect_appended(run.append(1, 0, &frames(["a"])).await?)?;
            // It is the holder that began the run.
            for _ in 0..2 {
                let taken = run.take_for(1, 1, TakeCondition::Any, Duration::ZERO).await?;
                expect_equal("the take", taken, TakeResult::Taken(Fence(2)))?;
                expect_equal("the state", run.read(0, 1).await?.state, RunState::LeasePassed)?;
            }
            let refused = AppendResult::Refused(AppendRefusal::Taken);
            expect_equal("a late append", run.append(1, 1, &frames(["b"])).await?, refused)?;
            let taken = run.take(3, 2, TakeCondition::LeasePassed).await?;
            expect_equal("the next take", taken, TakeResult::Taken(Fence(3)))?;
            expect_equal("the state", run.read(0, 1).await?.state, RunState::Leased)?;
            run.expect_log(&frames(["a"])).await
        }),
        Case::new("a take begins a lease of its own duration", |store: Store| async move {
            let run = Run::begin_with_lease(store, SHORT_LEASE).await?;
            let _ = run.take_for(2, 1, TakeCondition::Any, LONG_LEASE).await?;
            sleep(SHORT_LEASE * 2).await;
            expect_equal("the state", run.read(0, 1).await?.state, RunState::Leased)?;
            let _ = run.take_for(3, 2, TakeCondition::Any, SHORT_LEASE).await?;
            expect_appended(run.append(3, 0, &[]).await?)?;
            sleep(SHORT_LEASE * 2).await;
            expect_equal("the state", run.read(0, 1).await?.state, RunState::LeasePassed)
        }),
        Case::new("a repeated begin renews the lease", |store: Store| async move {
            let run = Run::begin_with_lease(store, SHORT_LEASE * 4).await?;
            sleep(SHORT_LEASE * 3).await;
            let again = run.begin_again(1, LONG_LEASE).await?;
            expect_equal("the begin", again, BeginResult::Begun(Fence(1)))?;
            sleep(SHORT_LEASE * 2).await;
            expect_equal("the state", run.read(0, 1).await?.state, RunState::Leased)
        }),
        Case::new("a read does not renew the lease", |store: Store| async move {
            let run = Run::begin_with_lease(store, SHORT_LEASE * 2).await?;
            for _ in 0..3 {
                sleep(SHORT_LEASE).await;
                let _ = run.read(0, 1).await?;
            }
            expect_equal("the state", run.read(0, 1).await?.state, RunState::LeasePassed)
        }),
        Case::new("a refused append does not renew the lease", |store: Store| async move {
            let run = Run::begin_with_lease(store, SHORT_LEASE * 2).await?;
            for _ in 0..3 {
                sleep(SHORT_LEASE).await;
                let _ = run.append(9, 0, &[]).await?;
            }
            expect_equal("the state", run.read(0, 1).await?.state, RunState::LeasePassed)
        }),
        Case::new("an ended log has no lease", |store: Store| async move {
            let run = Run::begin_with_lease(store, SHORT_LEASE).await?;
            expect_appended(run.end(1, 0, &frames(["a"])).await?)?;
            sleep(SHORT_LEASE * 2).await;
            expect_equal("the state", run.read(0, 1).await?.state, RunState::Ended)?;
            let ended = TakeResult::Refused(TakeRefusal::Ended);
            expect_equal("the take", run.take(2, 1, TakeCondition::LeasePassed).await?, ended)
        }),
    ]
}

/// Fails unless the run is leased after `renew`, which is called with the number of the attempt,
/// from 1. An attempt that takes longer than the lease says nothing and is repeated, so that no
/// case fails because the machine is busy.
async fn expect_leased_after<T, Fut>(run: &Run, renew: impl Fn(u64) -> Fut) -> CaseResult
where
    Fut: Future<Output = Result<T, CaseFailure>>,
{
    for attempt in 1..=50 {
        let begin = Instant::now();
        renew(attempt).await?;
        let state = run.read(0, 1).await?.state;
        if begin.elapsed() < run.lease {
            return expect_equal("the state", state, RunState::Leased);
        }
    }
    Err(CaseFailure(format!("50 renewals took longer than their lease of {:?}", run.lease)))
}
