//! [`KeyRing`]: the key that seals approval ids, and retired keys that still verify older ones.

use std::fmt;

use hkdf::Hkdf;
use hmac::{Hmac, KeyInit};
use sha2::Sha256;
use zeroize::Zeroizing;

use super::UnixMillis;

/// The secret keys that authenticate approval ids. The active key creates the MAC of new ids.
/// Retired keys only verify the ids that they created.
///
/// To rotate keys, create a ring whose active key is the new key, and add the old key with
/// [`with_retired_key`](KeyRing::with_retired_key). Keep the old key until the last approval sealed
/// with it has expired. All servers that share a ledger must share the keys.
///
/// A secret is never used directly: the key for approvals is derived from the secret with
/// HKDF-SHA256. The same secret can therefore serve other purposes, too.
///
/// ```
/// use ui_message_stream::approval::{KeyRing, UnixMillis};
///
/// let not_after = UnixMillis(1_795_000_000_000);
/// let ring = KeyRing::new(2, b"thirty-two bytes from a good source")?
///     .with_retired_key(not_after, 1, b"the secret that served until this week")?;
/// assert!(KeyRing::new(1, b"short").is_err());
/// assert!(!format!("{ring:?}").contains("thirty-two"));
/// # Ok::<(), ui_message_stream::approval::KeyRingError>(())
/// ```
#[derive(Clone)]
pub struct KeyRing {
    active: Key,
    older: Vec<(UnixMillis, Key)>,
}

/// The error of a [`KeyRing`] that cannot be built from the given keys.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyRingError {
    /// The secret is short enough to be guessed.
    #[error(
        "the secret of key {key_id} has {bytes} bytes; at least {} are needed",
        KeyRing::MIN_SECRET_BYTES
    )]
    TooShort {
        /// The id of the key.
        key_id: u32,
        /// The length of its secret, in bytes.
        bytes: usize,
    },
    /// Two keys have the same id.
    #[error("key {key_id} is in the ring already")]
    DuplicateKeyId {
        /// The repeated id.
        key_id: u32,
    },
}

impl KeyRing {
    /// The minimum length of a secret, in bytes.
    pub const MIN_SECRET_BYTES: usize = 32;

    /// Creates a ring of one key, which seals and verifies.
    ///
    /// The key id is public. Every approval id contains the id of the key that sealed it.
    ///
    /// # Errors
    /// [`KeyRingError::TooShort`] if the secret has fewer than [`KeyRing::MIN_SECRET_BYTES`] bytes.
    pub fn new(key_id: u32, secret: &[u8]) -> Result<Self, KeyRingError> {
        Ok(KeyRing { active: Key::derive(key_id, secret)?, older: Vec::new() })
    }

    /// Adds a retired key, which is accepted up to and including `not_after`.
    ///
    /// New approval records never use a retired key. The key verifies the approval ids of records
    /// that it sealed, and creates the ids of these records again.
    ///
    /// # Errors
    /// - [`KeyRingError::DuplicateKeyId`] if another key of the ring has this id.
    /// - [`KeyRingError::TooShort`] if the secret has fewer than [`KeyRing::MIN_SECRET_BYTES`]
    ///   bytes.
    pub fn with_retired_key(
        mut self,
        not_after: UnixMillis,
        key_id: u32,
        secret: &[u8],
    ) -> Result<Self, KeyRingError> {
        if self.active.id == key_id || self.older.iter().any(|(_, key)| key.id == key_id) {
            return Err(KeyRingError::DuplicateKeyId { key_id });
        }
        self.older.push((not_after, Key::derive(key_id, secret)?));
        Ok(self)
    }

    /// Returns the ring with keys for the approval ids of stateless hosts, which no ledger accepts,
    /// and the other way round.
    ///
    /// The approval id of a ledger is used once because the ledger says so. A stateless host with
    /// the same secret must not accept it.
    #[cfg(feature = "approvals")]
    pub(super) fn with_other_purpose(mut self) -> Self {
        let older = self.older.iter_mut().map(|(_, key)| key);
        for key in older.chain([&mut self.active]) {
            std::mem::swap(&mut key.mac, &mut key.other_mac);
        }
        self
    }

    pub(super) fn active_key(&self) -> &Key {
        &self.active
    }

    /// Returns the key with this id, unless the key is unknown or is retired and past its
    /// `not_after`.
    pub(super) fn verification_key(&self, key_id: u32, now: UnixMillis) -> Option<&Key> {
        if self.active.id == key_id {
            return Some(&self.active);
        }
        let (not_after, key) = self.older.iter().find(|(_, key)| key.id == key_id)?;
        (now <= *not_after).then_some(key)
    }
}

impl fmt::Debug for KeyRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let older: Vec<u32> = self.older.iter().map(|(_, key)| key.id).collect();
        f.debug_struct("KeyRing")
            .field("active", &self.active.id)
            .field("older", &older)
            .finish_non_exhaustive()
    }
}

/// A derived key and its id.
#[derive(Clone)]
pub(super) struct Key {
    pub(super) id: u32,
    /// The HMAC state that already includes the key. The state is wiped when it is dropped.
    mac: Hmac<Sha256>,
    /// The HMAC state of the other purpose, see [`KeyRing::with_other_purpose`].
    #[cfg(feature = "approvals")]
    other_mac: Hmac<Sha256>,
}

impl Key {
    fn derive(id: u32, secret: &[u8]) -> Result<Self, KeyRingError> {
        if secret.len() < KeyRing::MIN_SECRET_BYTES {
            return Err(KeyRingError::TooShort { key_id: id, bytes: secret.len() });
        }
        let derive = |purpose: &[u8]| {
            let mut key = Zeroizing::new([0; 32]);
            Hkdf::<Sha256>::new(None, secret)
                .expand(purpose, &mut *key)
                .expect("HKDF-SHA256 gives up to 8 160 bytes");
            Hmac::new_from_slice(&*key).expect("HMAC takes a key of any length")
        };
        Ok(Key {
            id,
            mac: derive(PURPOSE),
            #[cfg(feature = "approvals")]
            other_mac: derive(STATELESS_PURPOSE),
        })
    }

    /// Returns a new MAC under this key, to be updated with the message.
    pub(super) fn mac(&self) -> Hmac<Sha256> {
        self.mac.clone()
    }
}

const PURPOSE: &[u8] = b"ui-message-stream/approval/v1";
#[cfg(feature = "approvals")]
const STATELESS_PURPOSE: &[u8] = b"ui-message-stream/stateless-approval/v1";

#[cfg(test)]
mod tests {
    use hmac::EagerHash;
    use hmac::digest::zeroize::ZeroizeOnDrop;
    use sha2::Sha256;

    #[test]
    fn a_key_is_wiped_from_memory_when_it_is_dropped() {
        // An HMAC stores only the states of two hashes, which are derived from its key.
        fn is_wiped<T: ZeroizeOnDrop>() {}
        is_wiped::<<Sha256 as EagerHash>::Core>();
    }
}
