//! [`LedgerStore`]: the storage of approval records, in which each approval counts once.
//!
//! A store has four operations: insert several, load, list, and compare-and-swap. The rules for the state
//! of a record are in the module [`approval`](crate::approval). [`InMemoryLedger`] serves one
//! process. Several servers share a `RedisStore` (package `ui-message-stream-redis`), a
//! `PostgresStore` (`ui-message-stream-postgres`), or their own implementation of this trait, which
//! `conformance` tests (feature `testing`).
//!
//! # A ledger store only compares and replaces
//!
//! This keeps the rules in one place. The next state of a record is a pure function of the record, the request and
//! the time. A store saves the result if the record still has the revision that was read; otherwise the function is
//! called again. A store in any database is four functions, and none of them knows what a claim is.
//! `approval::store::conformance` tests them. The same holds for Redis: its scripts compare a revision and maintain
//! the lists of pending records. They make two decisions: how many records the limits admit, as every store does,
//! and that a claim is refused if Redis may have lost an earlier one. The store also provides the time, so that all
//! servers that share it agree on which records have expired. The ledger in memory belongs to one process, so it
//! measures the time with a monotonic clock. A clock that follows the system and never runs backwards would stand
//! still after a jump forward and back, and a claim would look lost after a jump forward.

#[cfg(feature = "testing")]
pub mod conformance;
mod failure_log;
mod lists;
mod memory;
mod replay_guard;

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use self::failure_log::FailureLog;
pub use self::lists::{ListPlace, ListRecords, RecordCursor, RecordCursorError, RecordList};
pub use self::memory::InMemoryLedger;
pub(crate) use self::memory::system_time;
pub use self::replay_guard::{ApprovalUse, InMemoryReplayGuard, ReplayGuard};

use crate::approval::{ApprovalRecord, InputError, RecordId, Transition, UnixMillis};
use crate::boxed::{BoxError, BoxFuture};

/// The storage of approval records.
///
/// [`InMemoryLedger`] implements it for one process, `RedisStore` (package
/// `ui-message-stream-redis`) and `PostgresStore` (`ui-message-stream-postgres`) for several
/// servers. For another database, for example the one of the host's own tables, implement these four functions
/// after the source of [`InMemoryLedger`], which is the model, and test them with `conformance::check` (feature
/// `testing`). Pass the store to [`Approvals::with_ledger`](crate::approval::Approvals::with_ledger):
///
/// ```no_run
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
/// let secret = std::env::var("APPROVAL_SECRET")?; // of `openssl rand -base64 32`
/// let approvals = approvals(EmptyToolbox, InMemoryLedger::new(), secret.as_bytes())?;
/// # let _ = approvals;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # What a store must guarantee
/// - Durability: after an insertion or a swap has succeeded, every server reads the record as it was
///   written, even after a crash of this process. (If the store loses a record, its approval is
///   rejected and its tool is not executed.)
/// - Atomicity: [`compare_and_swap`](Self::compare_and_swap) is one atomic step. Of several
///   simultaneous calls for the same revision, one succeeds.
/// - One clock: the field `now` of each result comes from one clock for all servers that share the
///   store, for example that of the database. It never runs backwards.
/// - Formats: a record that a newer version of this crate wrote is an error and not a missing record.
///   [`read_record`] reads records by this rule.
/// - Retention: a record, claimed or not, is kept for at least [`RECORD_RETENTION`] after its
///   `expires_at`. A time that [never comes](UnixMillis::is_never) may be above `i64::MAX`: a column of
///   signed numbers holds `i64::MAX` in its place, and the record itself the exact time.
///
/// # What a store may rely on
/// The [bucket](RecordId::bucket) of an id is that of the requester of its record: a store of several nodes
/// chooses the node by it. A host that creates records itself takes their ids from
/// [`RecordId::of_requester`].
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
    /// Inserts new records of one requester and one chat, in order, until a limit is reached.
    ///
    /// The operation is one atomic step: it counts the pending records that have not expired and
    /// inserts as many records as [`PendingLimits::admit`] allows. To count, it reads at most as many
    /// records of an index as the limit allows. All servers that share the store count the same
    /// records, so simultaneous insertions never exceed a limit together.
    ///
    /// A record whose id the store already has is not changed and counts as inserted. A caller
    /// therefore repeats an insertion whose reply was lost with the same records.
    ///
    /// # Errors
    /// [`LedgerStoreError`] if the store fails. It is then not known whether the records were
    /// inserted: as many as the limits allowed, or none. A store that can delete users refuses the
    /// requests of a run whose user it has deleted.
    fn insert_all<'a>(
        &'a self,
        records: &'a [ApprovalRecord],
        limits: PendingLimits,
    ) -> BoxFuture<'a, Result<Inserted, LedgerStoreError>>;

    /// Loads the records with these ids. Unknown ids are left out.
    ///
    /// `ids` may be empty: the snapshot then holds only the time.
    ///
    /// # Errors
    /// [`LedgerStoreError`] if the store fails.
    fn load<'a>(&'a self, ids: &'a [RecordId])
    -> BoxFuture<'a, Result<Snapshot, LedgerStoreError>>;

    /// Loads a page of a list, in the order of the times by which the records are in it, and of their ids
    /// where the times are equal.
    ///
    /// After each insertion and each swap, a record is in the lists that [`RecordList::that_have`] returns, and
    /// in no others. A page begins after [`ListRecords::begins_after`]. The order is that of an index: a page reads
    /// at most one record more than it holds.
    ///
    /// # Errors
    /// [`LedgerStoreError`] if the store fails.
    fn read_list<'a>(
        &'a self,
        list: ListRecords<'a>,
    ) -> BoxFuture<'a, Result<ListedRecords, LedgerStoreError>>;

    /// Replaces a record if its revision is still `revision`. Returns `false` if the record has
    /// another revision or does not exist.
    ///
    /// `revision` may be any `u64`: for one that a column of the database cannot hold, the result is
    /// `Ok(false)` too.
    ///
    /// What decides [which lists can have it](RecordList::places_of) never changes: the requester, the chat,
    /// the tool, the audience, and whether there is a [delivery](ApprovalRecord::delivery).
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

/// How many pending records that have not expired there may be after an insertion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PendingLimits {
    /// The maximum number of the requester's records in the chat.
    pub chat: usize,
    /// The maximum number of the requester's records in all chats.
    pub requester: usize,
}

impl PendingLimits {
    /// No limits.
    pub const NONE: PendingLimits = PendingLimits { chat: usize::MAX, requester: usize::MAX };

    /// Returns the result of an insertion: how many records are stored after it, and which limit
    /// refused the others.
    ///
    /// `existing` of the `records` are in the store already. `in_chat` and `of_requester` are the
    /// numbers of pending records before the insertion that have not expired. A store may stop to
    /// count at the limit.
    pub fn admit(
        &self,
        records: usize,
        existing: usize,
        in_chat: usize,
        of_requester: usize,
    ) -> Inserted {
        let in_chat = self.chat.saturating_sub(in_chat);
        let of_requester = self.requester.saturating_sub(of_requester);
        let stored = records.min(existing.saturating_add(in_chat.min(of_requester)));
        let limit =
            if in_chat <= of_requester { PendingLimit::Chat } else { PendingLimit::Requester };
        Inserted { stored, refused_by: (stored < records).then_some(limit) }
    }
}

/// The result of an insertion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct Inserted {
    /// How many of the records are stored, from the first on.
    pub stored: usize,
    /// The limit that refused the other records. `None` if all are stored.
    pub refused_by: Option<PendingLimit>,
}

/// One of the [`PendingLimits`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PendingLimit {
    /// [`PendingLimits::chat`].
    Chat,
    /// [`PendingLimits::requester`].
    Requester,
}

/// A page of a list at one time.
#[derive(Debug, Clone)]
pub struct ListedRecords {
    /// The time, by the store's clock.
    pub now: UnixMillis,
    /// The records of the page.
    pub records: Vec<VersionedRecord>,
    /// Where the next page begins. `None` if there are no more records.
    pub next: Option<RecordCursor>,
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

/// Reads a record from the JSON that a store keeps. Returns `None`, and logs it, if the JSON is no record: it
/// counts as lost, and the others are still read.
///
/// # Errors
/// If `is_strict`, [`LedgerStoreError`] for a record of a format that this version does not read. If it were
/// left out, its approval would be rejected as lost, although a newer server can redeem it. A store is strict
/// when it loads records by their ids, and in the lists that are [strict](RecordList::is_strict).
pub fn read_record(
    id: &str,
    json: &str,
    is_strict: bool,
) -> Result<Option<ApprovalRecord>, LedgerStoreError> {
    let error = match serde_json::from_str(json) {
        Ok(record) => return Ok(Some(record)),
        Err(error) => error,
    };
    if let (Err(newer), true) = (ApprovalRecord::check_format(json), is_strict) {
        tracing::error!(id, error = %newer, "a record in the ledger cannot be read");
        return Err(LedgerStoreError::new(newer));
    }
    // Only the position of the error is logged, because its text may hold contents of the record.
    tracing::error!(id, column = error.column(), "a record in the ledger cannot be read");
    Ok(None)
}

/// A failure of the store: it is unreachable, too slow, or refuses the operation.
#[derive(Debug, Clone)]
pub struct LedgerStoreError(Arc<dyn StdError + Send + Sync>);

impl LedgerStoreError {
    /// Creates an error with its cause: an error of the store, or a text.
    pub fn new(source: impl Into<BoxError>) -> Self {
        LedgerStoreError(source.into().into())
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

/// Why the decisions of a request are not redeemed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RedeemError {
    /// The ledger or the replay guard failed, and no call was claimed. The same request can be sent again;
    /// the HTTP status for it is 503.
    #[error(transparent)]
    Ledger(#[from] LedgerStoreError),
    /// The approver has changed an input, and the tool does not accept the change. Nothing was stored.
    /// The HTTP status for it is 400, with the text of the error: another input may be accepted.
    #[error(transparent)]
    Input(#[from] InputError),
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
    update_loaded(store, id, None, rule).await
}

/// Does as [`update`] does, and applies the rule first to a record that was loaded at this time of the store.
pub(crate) async fn update_loaded<T: Send>(
    store: &dyn LedgerStore,
    id: RecordId,
    mut loaded: Option<(UnixMillis, VersionedRecord)>,
    rule: impl Fn(&ApprovalRecord, UnixMillis) -> Transition<T> + Send,
) -> Result<Option<(ApprovalRecord, T)>, LedgerStoreError> {
    for _ in 0..MAX_ATTEMPTS {
        if loaded.is_none() {
            let Snapshot { now, records } = store.load(&[id]).await?;
            loaded = records.into_iter().next().map(|versioned| (now, versioned));
        }
        let Some((now, VersionedRecord { record, revision })) = loaded.take() else {
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

/// The maximum number of attempts to change a record.
const MAX_ATTEMPTS: usize = 64;
