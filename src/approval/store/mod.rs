//! [`LedgerStore`]: the storage of approval records, in which each approval counts once.
//!
//! A store has four operations: insert, load, list, and compare-and-swap. The rules for the state
//! of a record are in the module [`approval`](crate::approval). [`InMemoryLedger`] serves one
//! process. Several servers share a `RedisStore` (package `ui-message-stream-redis`), a
//! `PostgresStore` (`ui-message-stream-postgres`), or their own implementation of this trait, which
//! `conformance` tests (feature `testing`).

#[cfg(feature = "testing")]
pub mod conformance;
mod failure_log;
mod memory;
mod replay_guard;

use std::error::Error as StdError;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

pub use self::failure_log::FailureLog;
pub use self::memory::InMemoryLedger;
pub(crate) use self::memory::system_time;
pub use self::replay_guard::{ApprovalUse, InMemoryReplayGuard, ReplayGuard};

use crate::approval::{ApprovalRecord, Principal, RecordId, Transition, UnixMillis};
use crate::boxed::{BoxError, BoxFuture};
use crate::id::ChatId;

/// The storage of approval records.
///
/// [`InMemoryLedger`] implements it for one process, `RedisStore` (package
/// `ui-message-stream-redis`) and `PostgresStore` (`ui-message-stream-postgres`) for several
/// servers. For another database, implement these four functions and test them with
/// `conformance::check` (feature `testing`). Pass the store to
/// [`Approvals::with_ledger`](crate::approval::Approvals::with_ledger):
///
/// ```
/// use std::sync::Arc;
///
/// use ui_message_stream::approval::store::{InMemoryLedger, LedgerStore};
/// use ui_message_stream::approval::{Approvals, EmptyToolbox, KeyRing, KeyRingError, Toolbox};
///
/// fn approvals(
///     tools: impl Toolbox,
///     ledger: impl LedgerStore,
///     secret: &[u8],
/// ) -> Result<Approvals, KeyRingError> {
///     // Servers that share a ledger must share the key, too.
///     let keys = KeyRing::new(1, secret)?;
///     Ok(Approvals::new(tools).with_keys(keys).with_ledger(Arc::new(ledger)))
/// }
///
/// let secret = b"thirty-two bytes from a good source";
/// let approvals = approvals(EmptyToolbox, InMemoryLedger::new(), secret)?;
/// # Ok::<(), KeyRingError>(())
/// ```
///
/// # What a store must guarantee
/// - Durability: after an insert or a swap has succeeded, every server reads the record as it was
///   written, even after a crash of this process. (If the store loses a record, its approval is
///   rejected and its tool is not executed.)
/// - Atomicity: [`compare_and_swap`](Self::compare_and_swap) is one atomic step. Of several
///   simultaneous calls for the same revision, one succeeds.
/// - One clock: the field `now` of each result comes from one clock for all servers that share the
///   store, for example that of the database. It never runs backwards.
/// - Formats: a record that a newer version of this crate wrote is an error and not a missing record.
///   [`ApprovalRecord::check_format`] finds it.
/// - Retention: a record, claimed or not, is kept for at least [`RECORD_RETENTION`] after its
///   `expires_at`.
///
/// # Cancel safety
/// A caller may drop the returned futures. It is then not known whether the operation took place.
#[doc(alias = "postgres")]
#[doc(alias = "sqlite")]
#[doc(alias = "sql")]
#[doc(alias = "database")]
#[doc(alias = "persist")]
#[doc(alias = "storage")]
pub trait LedgerStore: Send + Sync + fmt::Debug + 'static {
    /// Inserts a new record. Returns `false` if there is already a record with this id.
    ///
    /// # Errors
    /// [`LedgerStoreError`] if the store fails. It is then not known whether the record was
    /// inserted. A store that can delete users refuses the requests of a run whose user it has deleted.
    fn insert<'a>(
        &'a self,
        record: &'a ApprovalRecord,
    ) -> BoxFuture<'a, Result<bool, LedgerStoreError>>;

    /// Loads the records with these ids. Unknown ids are left out.
    ///
    /// `ids` may be empty: the snapshot then holds only the time.
    ///
    /// # Errors
    /// [`LedgerStoreError`] if the store fails.
    fn load<'a>(&'a self, ids: &'a [RecordId])
    -> BoxFuture<'a, Result<Snapshot, LedgerStoreError>>;

    /// Loads a page of the pending records that match a filter, oldest first: by the time of the
    /// request, and by their id where the times are equal.
    ///
    /// A record whose `expires_at` has passed is still listed while its state is
    /// [`Pending`](crate::approval::ApprovalState::Pending).
    ///
    /// # Errors
    /// [`LedgerStoreError`] if the store fails.
    fn pending<'a>(
        &'a self,
        query: PendingQuery<'a>,
    ) -> BoxFuture<'a, Result<PendingRecords, LedgerStoreError>>;

    /// Replaces a record if its revision is still `revision`. Returns `false` if the record has
    /// another revision or does not exist.
    ///
    /// # Errors
    /// [`LedgerStoreError`] if the store fails. It is then not known whether the record was
    /// replaced.
    fn compare_and_swap<'a>(
        &'a self,
        record: &'a ApprovalRecord,
        revision: u64,
    ) -> BoxFuture<'a, Result<bool, LedgerStoreError>>;
}

/// The time for which a store keeps a record after the record has expired: 24 hours.
pub const RECORD_RETENTION: Duration = Duration::from_secs(24 * 60 * 60);

/// Selects pending records. The enum is exhaustive, because a store must support every filter.
#[derive(Debug, Clone, Copy)]
pub enum PendingFilter<'a> {
    /// The records of one requester in one chat. Two users may have chats with the same id.
    Chat {
        /// The owner of the chat.
        requester: &'a Principal,
        /// The id of the chat.
        chat: &'a ChatId,
    },
    /// The records of one requester, in all chats.
    Requester(&'a Principal),
}

/// Selects a page of pending records.
#[derive(Debug, Clone, Copy)]
pub struct PendingQuery<'a> {
    /// Which records are listed.
    pub filter: PendingFilter<'a>,
    /// The place after which the page begins. `None` for the first page.
    pub after: Option<PendingCursor>,
    /// The maximum number of records in the page.
    pub limit: usize,
}

/// Selects all pending records at once.
impl<'a> From<PendingFilter<'a>> for PendingQuery<'a> {
    fn from(filter: PendingFilter<'a>) -> Self {
        PendingQuery { filter, after: None, limit: usize::MAX }
    }
}

/// A place in a list of pending records: after the record with this time and this id.
///
/// The place stays valid if that record is decided. Its text is `time-id`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PendingCursor {
    /// The time of the approval request.
    pub requested_at: UnixMillis,
    /// The id of the record.
    pub id: RecordId,
}

impl fmt::Display for PendingCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.requested_at.0, self.id)
    }
}

impl FromStr for PendingCursor {
    type Err = PendingCursorError;

    fn from_str(text: &str) -> Result<Self, PendingCursorError> {
        let (time, id) = text.split_once('-').ok_or(PendingCursorError)?;
        let requested_at = UnixMillis(time.parse().map_err(|_| PendingCursorError)?);
        Ok(PendingCursor { requested_at, id: id.parse().map_err(|_| PendingCursorError)? })
    }
}

/// The error of a text that is not a [`PendingCursor`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a place in the list of approvals")]
pub struct PendingCursorError;

/// A page of pending records at one time.
#[derive(Debug, Clone)]
pub struct PendingRecords {
    /// The time, by the store's clock.
    pub now: UnixMillis,
    /// The records of the page.
    pub records: Vec<VersionedRecord>,
    /// Where the next page begins. `None` if there are no more records.
    pub next: Option<PendingCursor>,
    /// How many records match the filter and have not expired, on all pages together.
    pub unexpired: usize,
}

/// The records at one time.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// The time, by the store's clock.
    pub now: UnixMillis,
    /// The records.
    pub records: Vec<VersionedRecord>,
}

/// A record with its revision in the store.
#[derive(Debug, Clone)]
pub struct VersionedRecord {
    /// The record.
    pub record: ApprovalRecord,
    /// The revision of the record. It changes with each replacement and never returns.
    pub revision: u64,
}

/// A failure of the store: it is unreachable, too slow, or refuses the operation.
#[derive(Debug)]
pub struct LedgerStoreError(BoxError);

impl LedgerStoreError {
    /// Creates an error with its cause: an error of the store, or a text.
    pub fn new(source: impl Into<BoxError>) -> Self {
        LedgerStoreError(source.into())
    }
}

impl fmt::Display for LedgerStoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the approval ledger failed")
    }
}

impl StdError for LedgerStoreError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&*self.0)
    }
}

/// Applies a rule to a record and stores the new state of the record.
///
/// If another caller changed the record in between, the rule is applied again to the changed
/// record. Returns the record as it is afterwards and the output of the rule, or `None` if there is
/// no such record.
///
/// # Errors
/// [`LedgerStoreError`] if the store fails, or if the record was changed by others in each of 64
/// attempts. If the store fails, it is not known whether the record was changed. The rules allow
/// the same lease holder to try again.
pub async fn update<T: Send>(
    store: &dyn LedgerStore,
    id: RecordId,
    rule: impl Fn(&ApprovalRecord, UnixMillis) -> Transition<T> + Send,
) -> Result<Option<(ApprovalRecord, T)>, LedgerStoreError> {
    for _ in 0..MAX_ATTEMPTS {
        let Snapshot { now, records } = store.load(&[id]).await?;
        let Some(VersionedRecord { record, revision }) = records.into_iter().next() else {
            return Ok(None);
        };
        let Transition { output, next } = rule(&record, now);
        match next {
            None => return Ok(Some((record, output))),
            Some(next) if store.compare_and_swap(&next, revision).await? => {
                return Ok(Some((next, output)));
            }
            Some(_) => {}
        }
    }
    Err(LedgerStoreError::new("the record changes faster than it can be read"))
}

/// The maximum number of attempts to change a record. A record passes through fewer states.
const MAX_ATTEMPTS: usize = 64;
