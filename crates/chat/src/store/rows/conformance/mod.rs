//! [`check`]: tests whether a database keeps the guarantees of [`Rows`], step by step.
//!
//! Not tested is what needs time, a crash or a second process.

mod cases;
mod checked;

use self::checked::Checked;
use super::database::Rows;
use super::step::Step;
use crate::store::conformance::report::{
    CaseFailure, CaseResult, Report, expect_equal, new_number,
};
use ui_message_stream::approval::UnixMillis;

/// Runs every case against a database, and returns the number of cases.
///
/// `store` is called once for each case. It may return the same database each time: the cases use new partitions, and
/// leave rows in them. This needs a tokio runtime whose time is not paused.
///
/// # Panics
/// If a case fails. The panic follows after all cases have run. Its message holds the name of each failed case, the step
/// that had another reply, and both replies.
pub async fn check<S: Rows>(store: impl AsyncFn() -> S) -> usize {
    let mut report = Report::default();
    for (name, case) in cases::CASES {
        report.run(name, run(store().await, *case)).await;
    }
    report.finish()
}

/// Runs the steps of a case in one call, and each in its own, in a new partition each time.
async fn run(store: impl Rows, case: fn(&str) -> Vec<Checked>) -> CaseResult {
    for (is_one_call, can_wait) in [(true, false), (false, false), (true, true), (false, true)] {
        let steps = case(&new_number());
        let calls = if is_one_call { "all in one call" } else { "one a call" };
        let (mut number, mut time) = (0, FIRST_TIME);
        for steps in steps.chunks(if is_one_call { steps.len() } else { 1 }) {
            let (call, known) = (format!("the call from step {} on", number + 1), store.now());
            let run = steps.iter().map(|it| Step { can_wait, ..it.step.clone() }).collect();
            let replies = store.run(run).await.map_err(|error| {
                let CaseFailure(why) = error.into();
                CaseFailure(format!("{call} is an error: {why}"))
            })?;
            expect_equal(&format!("the number of replies to {call}"), replies.len(), steps.len())?;
            for (Checked { step, is_applied, found }, reply) in steps.iter().zip(replies) {
                number += 1;
                let of = format!("of step {number} ({calls})");
                expect_equal(
                    &format!("is_applied {of}, {step:?},"),
                    reply.is_applied,
                    *is_applied,
                )?;
                for ((read, expected), found) in step.reads.iter().zip(found).zip(&reply.found) {
                    expect_equal(&format!("the answer {of} to {read:?}"), found, expected)?;
                }
                expect_equal(&format!("the answers {of}"), reply.found.len(), found.len())?;
                let times = time.max(known.unwrap_or_default())..=LAST_TIME;
                if !times.contains(&reply.now) {
                    let why = format!("now {of} is {:?}, not within {times:?}", reply.now);
                    return Err(CaseFailure(why));
                }
                time = reply.now;
            }
        }
    }
    Ok(())
}

/// Milliseconds since 1970 are after this, and seconds are not.
const FIRST_TIME: UnixMillis = UnixMillis(1 << 40);

/// Milliseconds since 1970 are before this, and microseconds are not.
const LAST_TIME: UnixMillis = UnixMillis(1 << 43);

#[cfg(test)]
mod tests {
    use super::check;
    use crate::store::InMemoryLogStore;

    #[tokio::test]
    async fn rows_in_memory_pass_the_conformance_suite() {
        check(async || InMemoryLogStore::new()).await;
    }
}
