//! [`OtherKeys`]: the keys of other servers that seal approval requests of the same ledger. The log names them.

use std::sync::{Mutex, PoisonError};

use crate::approval::store::system_time;
use crate::approval::token::Token;
use crate::approval::{ApprovalRecord, KeyId, KeyRing};
use crate::id::ApprovalId;

/// The keys that have sealed open approval requests of the ledger and that this server does not have.
///
/// Servers that share a ledger and not their key refuse each other's questions, and a refusal has one text
/// for all reasons. So the log says what is wrong. A key that was replaced on purpose is logged in the same
/// way: this server does not know why it lacks the key.
#[derive(Debug, Default)]
pub(super) struct OtherKeys(Mutex<Vec<KeyId>>);

impl OtherKeys {
    /// Logs the keys of these open requests that are not in the ring, each key once.
    pub(super) fn note<'r>(
        &self,
        open: impl IntoIterator<Item = &'r ApprovalRecord>,
        keys: &KeyRing,
    ) {
        let now = system_time();
        for record in open.into_iter().filter(|record| !keys.verifies(record.key_id, now)) {
            let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if known.contains(&record.key_id) || known.len() == MAX_KEYS {
                continue;
            }
            known.push(record.key_id);
            let sealed_by = record.key_id;
            let key = keys.active_key_id();
            tracing::warn!(
                %sealed_by,
                %key,
                "open approval requests of the ledger were sealed by another key: this server does not list \
                 them and refuses their answers. Give all servers of the ledger the same secret \
                 (`Approvals::with_keys`), and keep an old one for a while (`KeyRing::with_retired_key`). If \
                 the secret was replaced without it, nothing is wrong"
            );
        }
    }

    /// Logs that an answer is refused whose approval id does not open, if one of these keys has sealed it.
    /// Nothing verifies the id.
    pub(super) fn warn_of_answer(&self, id: &ApprovalId, keys: &KeyRing) {
        let Some(sealed_by) = Token::unverified(id).map(|token| token.key_id()) else { return };
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.contains(&sealed_by) && !keys.verifies(sealed_by, system_time()) {
            let key = keys.active_key_id();
            tracing::warn!(
                %sealed_by,
                %key,
                "an answer is refused: its approval request was sealed by another key. Give all servers of the \
                 ledger the same secret"
            );
        }
    }
}

/// How many keys are logged. Each start of a server without a configured key makes one.
const MAX_KEYS: usize = 64;
