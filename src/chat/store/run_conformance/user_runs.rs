//! The live runs of one user.

use tokio::time::sleep;

use super::case::{
    Case, LONG_LEASE, Run, SHORT_LEASE, Store, expect_appended, frames, holder_id, new_key,
};
use crate::chat::log::{
    AppendResult, BeginResult, BeginRun, Fence, RunKey, TakeCondition, TakeResult,
};
use crate::chat::store::conformance_case::{CaseFailure, expect_equal};

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new(
            "a user with runs that are read begins no more than permitted",
            |store| async move {
                let runs = begin_two(&store).await?;
                for run in &runs {
                    let _ = run.read(0, 1).await?;
                }
                expect_equal("the third", begin_third(&runs[0]).await?, BeginResult::TooManyRuns)?;
                for run in &runs {
                    expect_equal("whether it has to end", has_to_end(run).await?, false)?;
                }
                Ok(())
            },
        ),
        Case::new("a run that has ended does not count", |store: Store| async move {
            let runs = begin_two(&store).await?;
            expect_appended(runs[0].end(1, 0, &frames(["a"])).await?)?;
            expect_equal("the third", begin_third(&runs[0]).await?, BeginResult::Begun(Fence(1)))?;
            expect_equal("whether the other has to end", has_to_end(&runs[1]).await?, false)
        }),
        Case::new("a run whose lease has passed does not count", |store: Store| async move {
            let first = Run::begin_with_lease(store, SHORT_LEASE).await?;
            let second = next_run(&first, 2).await?;
            sleep(SHORT_LEASE * 2).await;
            expect_equal("the third", begin_third(&second).await?, BeginResult::Begun(Fence(1)))
        }),
        Case::new("a run that was taken does not count", |store: Store| async move {
            let runs = begin_two(&store).await?;
            for run in &runs {
                let _ = run.read(0, 1).await?;
            }
            let taken = runs[0].take(3, 1, TakeCondition::Any).await?;
            expect_equal("the take", taken, TakeResult::Taken(Fence(2)))?;
            expect_equal("the third", begin_third(&runs[1]).await?, BeginResult::Begun(Fence(1)))
        }),
        Case::new("the runs of other users do not count", |store: Store| async move {
            let runs = begin_two(&store).await?;
            let other = Run::begin(store).await?;
            expect_equal(
                "another user's",
                begin_third(&other).await?,
                BeginResult::Begun(Fence(1)),
            )?;
            expect_equal("the third", begin_third(&runs[0]).await?, BeginResult::TooManyRuns)
        }),
        Case::new("a repeated begin is not counted twice", |store: Store| async move {
            let first = Run::begin(store).await?;
            let again = first.begin_again(1, LONG_LEASE).await?;
            expect_equal("the begin", again, BeginResult::Begun(Fence(1)))?;
            expect_equal("the second", begin_third(&first).await?, BeginResult::Begun(Fence(1)))
        }),
    ]
}

/// Begins two runs of a new user.
async fn begin_two(store: &Store) -> Result<[Run; 2], CaseFailure> {
    let first = Run::begin(store.clone()).await?;
    let second = next_run(&first, 2).await?;
    Ok([first, second])
}

/// Begins another run of the same user, in another chat.
async fn next_run(run: &Run, number: u8) -> Result<Run, CaseFailure> {
    let chat = format!("chat {number}").into();
    let key = RunKey { owner: run.key.owner.clone(), chat, run: new_key().run };
    let next = Run { store: run.store.clone(), key, lease: run.lease };
    let begun = next.begin_again(number, LONG_LEASE).await?;
    expect_equal("begin", begun, BeginResult::Begun(Fence(1)))?;
    Ok(next)
}

/// Begins a run of the same user, of whom two runs may be live.
async fn begin_third(run: &Run) -> Result<BeginResult, CaseFailure> {
    let key = RunKey { run: new_key().run, ..run.key.clone() };
    let begin = BeginRun { key: &key, holder: holder_id(9), lease: LONG_LEASE, max_user_runs: 2 };
    Ok(run.store.begin(begin).await?)
}

async fn has_to_end(run: &Run) -> Result<bool, CaseFailure> {
    match run.append(1, 0, &[]).await? {
        AppendResult::Appended(status) => Ok(status.has_to_end),
        refused => Err(CaseFailure(format!("the append is {refused:?}"))),
    }
}
