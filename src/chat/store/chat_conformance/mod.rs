//! [`check`]: tests whether a store of conversations keeps the guarantees of [`ChatStore`].
//!
//! ```
//! use ui_message_stream::chat::store::{InMemoryChatStore, chat_conformance};
//!
//! # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
//! # runtime.block_on(async {
//! let cases = chat_conformance::check(async || InMemoryChatStore::new()).await;
//! println!("{cases} cases");
//! # });
//! ```
//!
//! Not tested is what needs a crash: that a conversation survives the process.

mod case;
mod deletions;
mod lists;
mod messages;
mod owners;
mod revisions;
mod times;
mod user_chats;

use std::sync::Arc;

use self::case::Case;
use super::chat_store::ChatStore;
use super::conformance_case::Report;

/// Runs every case against a store, and returns the number of cases.
///
/// `store` is called once for each case. The cases use new owners, so that `store` may return the
/// same database each time, also a database that already holds conversations. This needs a tokio
/// runtime whose time is not paused. The cases of the time to live wait for a few seconds.
///
/// # Panics
/// If a case fails. The panic follows after all cases have run. Its message holds the name of each
/// failed case, and the reason.
pub async fn check<S: ChatStore>(store: impl AsyncFn() -> S) -> usize {
    let cases = [
        messages::cases(),
        revisions::cases(),
        owners::cases(),
        lists::cases(),
        deletions::cases(),
        times::cases(),
        user_chats::cases(),
    ];
    let cases: Vec<Case> = cases.into_iter().flatten().collect();
    let mut report = Report::default();
    for case in cases {
        report.run(case, Arc::new(store().await)).await;
    }
    report.finish()
}
