//! Repetitions: a request whose reply was lost is repeated, and is recognized.

use super::case::{Case, LONG_LEASE, Run, Store, expect_appended, frames};
use crate::chat::log::{
    AppendRefusal, AppendResult, BeginResult, Fence, RunState, TakeCondition, TakeRefusal,
    TakeResult,
};
use crate::chat::store::conformance_case::expect_equal;

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new("a repeated begin of the same holder succeeds", |store: Store| async move {
            let run = Run::begin(store).await?;
            let again = run.begin_again(1, LONG_LEASE).await?;
            expect_equal("the begin", again, BeginResult::Begun(Fence(1)))
        }),
        Case::new("another holder cannot begin a run that exists", |store: Store| async move {
            let run = Run::begin(store).await?;
            let other = run.begin_again(2, LONG_LEASE).await?;
            expect_equal("the begin", other, BeginResult::Exists)?;
            expect_appended(run.append(1, 0, &frames(["a"])).await?)
        }),
        Case::new("a run with entries cannot begin again", |store: Store| async move {
            let run = Run::begin(store).await?;
            expect_appended(run.append(1, 0, &frames(["a"])).await?)?;
            let again = run.begin_again(1, LONG_LEASE).await?;
            expect_equal("the begin", again, BeginResult::Exists)?;
            run.expect_log(&frames(["a"])).await
        }),
        Case::new("a run that was taken or has ended cannot begin again", |store| async move {
            let run = Run::begin(store.clone()).await?;
            let taken = run.take(2, 1, TakeCondition::Any).await?;
            expect_equal("the take", taken, TakeResult::Taken(Fence(2)))?;
            for holder in [1, 2] {
                let again = run.begin_again(holder, LONG_LEASE).await?;
                expect_equal("the begin", again, BeginResult::Exists)?;
            }
            let run = Run::begin(store).await?;
            expect_appended(run.end(1, 0, &[]).await?)?;
            let again = run.begin_again(1, LONG_LEASE).await?;
            expect_equal("the begin after the end", again, BeginResult::Exists)
        }),
        Case::new("a repeated append succeeds and changes nothing", |store: Store| async move {
            let run = Run::begin(store).await?;
            expect_appended(run.append(1, 0, &frames(["a", "b"])).await?)?;
            expect_appended(run.append(1, 0, &frames(["a", "b"])).await?)?;
            expect_appended(run.append(1, 2, &frames(["c"])).await?)?;
            expect_appended(run.append(1, 0, &frames(["a", "b"])).await?)?;
            expect_appended(run.append(1, 1, &frames(["b"])).await?)?;
            run.expect_log(&frames(["a", "b", "c"])).await
        }),
        Case::new("other entries at a position that is held are refused", |store| async move {
            let run = Run::begin(store).await?;
            expect_appended(run.append(1, 0, &frames(["a", "b"])).await?)?;
            let gap = AppendResult::Refused(AppendRefusal::Gap);
            expect_equal("another", run.append(1, 0, &frames(["x"])).await?, gap)?;
            expect_equal("more", run.append(1, 1, &frames(["b", "c"])).await?, gap)?;
            expect_equal("an end in the middle", run.end(1, 0, &frames(["a"])).await?, gap)?;
            run.expect_log(&frames(["a", "b"])).await
        }),
        Case::new("a repeated append succeeds after the end", |store: Store| async move {
            let run = Run::begin(store).await?;
            expect_appended(run.append(1, 0, &frames(["a"])).await?)?;
            expect_appended(run.end(1, 1, &frames(["b"])).await?)?;
            expect_appended(run.append(1, 0, &frames(["a"])).await?)?;
            expect_appended(run.end(1, 1, &frames(["b"])).await?)?;
            run.expect_log(&frames(["a", "b"])).await
        }),
        Case::new("a repeated end without entries succeeds", |store: Store| async move {
            let run = Run::begin(store).await?;
            expect_appended(run.end(1, 0, &[]).await?)?;
            expect_appended(run.end(1, 0, &[]).await?)
        }),
        Case::new("a repeated append with an old fence is refused", |store: Store| async move {
            let run = Run::begin(store).await?;
            expect_appended(run.append(1, 0, &frames(["a"])).await?)?;
            let taken = run.take(2, 1, TakeCondition::Any).await?;
            expect_equal("the take", taken, TakeResult::Taken(Fence(2)))?;
            let refused = AppendResult::Refused(AppendRefusal::Taken);
            expect_equal("the append", run.append(1, 0, &frames(["a"])).await?, refused)
        }),
        Case::new("the new holder may repeat what the old one appended", |store| async move {
            let run = Run::begin(store).await?;
            expect_appended(run.append(1, 0, &frames(["a"])).await?)?;
            let _ = run.take(2, 1, TakeCondition::Any).await?;
            expect_appended(run.append(2, 0, &frames(["a"])).await?)?;
            run.expect_log(&frames(["a"])).await
        }),
        Case::new("a repeated take of the same holder gets the same fence", |store| async move {
            let run = Run::begin(store).await?;
            for _ in 0..3 {
                let taken = run.take(2, 1, TakeCondition::Any).await?;
                expect_equal("the take", taken, TakeResult::Taken(Fence(2)))?;
            }
            expect_appended(run.append(2, 0, &frames(["a"])).await?)
        }),
        Case::new(
            "a repeated take is refused once another holder took the run",
            |store| async move {
                let run = Run::begin(store).await?;
                let _ = run.take(2, 1, TakeCondition::Any).await?;
                let _ = run.take(3, 2, TakeCondition::Any).await?;
                let refused = TakeResult::Refused(TakeRefusal::OtherFence(Fence(3)));
                expect_equal("the take", run.take(2, 1, TakeCondition::Any).await?, refused)
            },
        ),
        Case::new("a run that has ended is not taken", |store: Store| async move {
            let run = Run::begin(store).await?;
            expect_appended(run.end(1, 0, &frames(["a"])).await?)?;
            let ended = TakeResult::Refused(TakeRefusal::Ended);
            expect_equal("the take", run.take(2, 1, TakeCondition::Any).await?, ended)?;
            expect_equal("the state", run.read(0, 1).await?.state, RunState::Ended)
        }),
    ]
}
