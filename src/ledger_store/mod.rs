//! [`LedgerStore`]: where the records of approvals are kept, so that each is used once.
//!
//! A store compares and replaces; what may become of a record is the [approval](crate::approval)
//! room's to say. [`MemoryLedger`] serves one process; several servers share a `RedisLedger`
//! (package `ui-message-stream-redis`), or a store of their own behind this trait, which
//! `conformance` tests (feature `testing`).

#[cfg(feature = "testing")]
pub mod conformance;
mod memory;

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

pub use futures_core::future::BoxFuture;

pub use self::memory::MemoryLedger;
pub(crate) use self::memory::system_time;

use crate::approval::{ApprovalRecord, Principal, RecordId, Transition, UnixMillis};
use crate::id::ChatId;

/// Keeps the records of approvals.
///
/// # What a store promises
/// - What it answered, it keeps: a record that was inserted or replaced is read as such by everybody
///   from then on, also after a crash of this process. (What a store loses is refused, never run.)
/// - [`replace`](Self::replace) is one atomic step. Of several at once for the same revision one
///   succeeds.
/// - `now` is one clock for all who share the store, and does not run backwards.
/// - A record is kept until [`KEPT_FOR`] after it has expired, and one that is claimed for as long.
///
/// The functions may be dropped while they wait: then it is not known whether they took place.
pub trait LedgerStore: Send + Sync + fmt::Debug + 'static {
    /// Keeps a new record. `false` if there is one with this id.
    fn insert<'a>(
        &'a self,
        record: &'a ApprovalRecord,
    ) -> BoxFuture<'a, Result<bool, LedgerStoreError>>;

    /// Reads records. Those that it does not have are left out; none may be asked for, to read the
    /// clock.
    fn load<'a>(&'a self, ids: &'a [RecordId]) -> BoxFuture<'a, Result<Loaded, LedgerStoreError>>;

    /// Reads the records that wait for an answer, the oldest first.
    fn pending<'a>(&'a self, of: Asked<'a>) -> BoxFuture<'a, Result<Loaded, LedgerStoreError>>;

    /// Replaces a record, if it still has this revision. `false` if it does not.
    fn replace<'a>(
        &'a self,
        record: &'a ApprovalRecord,
        revision: u64,
    ) -> BoxFuture<'a, Result<bool, LedgerStoreError>>;
}

/// How long a record is kept after it has expired.
pub const KEPT_FOR: Duration = Duration::from_secs(24 * 60 * 60);

/// Whose questions are meant. Exhaustive, since a store has to answer each of them.
#[derive(Debug, Clone, Copy)]
pub enum Asked<'a> {
    /// Those of a chat.
    InChat {
        /// The customer that it belongs to.
        tenant: Option<&'a str>,
        /// Which one.
        chat: &'a ChatId,
    },
    /// Those of all chats of a person.
    By(&'a Principal),
}

/// Records as they were at a moment.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// When, by the store's clock.
    pub now: UnixMillis,
    /// What there is.
    pub records: Vec<Kept>,
}

/// A record as it is kept.
#[derive(Debug, Clone)]
pub struct Kept {
    /// The record.
    pub record: ApprovalRecord,
    /// Changes with each replacement.
    pub revision: u64,
}

/// A store that does not answer, or not in time.
#[derive(Debug)]
pub struct LedgerStoreError(Box<dyn StdError + Send + Sync>);

impl LedgerStoreError {
    /// Why, in whatever words the store has.
    pub fn new(source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        LedgerStoreError(source.into())
    }
}

impl fmt::Display for LedgerStoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the ledger of approvals did not answer")
    }
}

impl StdError for LedgerStoreError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&*self.0)
    }
}

/// Asks a rule of the ledger about a record, and keeps what the record becomes; asks again if
/// somebody else changed it meanwhile. `None` if there is no such record.
///
/// # Errors
/// [`LedgerStoreError`]: it is not known whether the record was changed. The rules are such that
/// the same claimant may ask again.
pub async fn change<T: Send>(
    store: &dyn LedgerStore,
    id: RecordId,
    rule: impl Fn(&ApprovalRecord, UnixMillis) -> Transition<T> + Send,
) -> Result<Option<(ApprovalRecord, T)>, LedgerStoreError> {
    for _ in 0..MOST_ATTEMPTS {
        let Loaded { now, records } = store.load(&[id]).await?;
        let Some(Kept { record, revision }) = records.into_iter().next() else {
            return Ok(None);
        };
        let Transition { answer, next } = rule(&record, now);
        match next {
            None => return Ok(Some((record, answer))),
            Some(next) if store.replace(&next, revision).await? => {
                return Ok(Some((next, answer)));
            }
            Some(_) => {}
        }
    }
    Err(LedgerStoreError::new("the record changes faster than it can be read"))
}

/// A record has fewer states than this to go through.
const MOST_ATTEMPTS: usize = 64;
