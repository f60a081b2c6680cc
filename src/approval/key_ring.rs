//! [`KeyRing`]: the key that seals approval ids, and retired keys that still verify older ones.

use std::fmt;

use hkdf::Hkdf;
use hmac::{Hmac, KeyInit};
use sha2::Sha256;
use zeroize::Zeroizing;

use super::{KeyId, UnixMillis};

/// The secret keys that authenticate approval ids. The active key creates the MAC of new ids.
/// Retired keys only verify the ids that they created.
///
/// To rotate keys, create a ring whose active key is the new key, and add the old key with
/// [`with_retired_key`](KeyRing::with_retired_key). Keep the old key until the last approval sealed
/// with it has expired. All servers that share a ledger must share the keys.
///
/// A key is a number and a secret. Each approval record holds the [`KeyId`] that is derived from
/// both. If no key of the ring has this id, the record is void: it is not listed, and cannot be
/// approved or denied. So a new secret voids all open approval requests of the old one, also under
/// the same number.
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
        "the secret of key {number} has {bytes} bytes; at least {} are needed",
        KeyRing::MIN_SECRET_BYTES
    )]
    TooShort {
        /// The number of the key.
        number: u32,
        /// The length of its secret, in bytes.
        bytes: usize,
    },
    /// Two keys have the same number.
    #[error("key {number} is in the ring already")]
    DuplicateNumber {
        /// The repeated number.
        number: u32,
    },
}

impl KeyRing {
    /// The minimum length of a secret, in bytes.
    pub const MIN_SECRET_BYTES: usize = 32;

    /// Creates a ring of one key, which seals and verifies.
    ///
    /// The number tells the keys of a ring apart, and is not secret.
    ///
    /// # Errors
    /// [`KeyRingError::TooShort`] if the secret has fewer than [`KeyRing::MIN_SECRET_BYTES`] bytes.
    pub fn new(number: u32, secret: &[u8]) -> Result<Self, KeyRingError> {
        Ok(KeyRing { active: Key::derive(number, secret)?, older: Vec::new() })
    }

    /// Adds a retired key, which is accepted up to and including `not_after`.
    ///
    /// New approval records never use a retired key. The key verifies the approval ids of records
    /// that it sealed, and creates the ids of these records again.
    ///
    /// # Errors
    /// - [`KeyRingError::DuplicateNumber`] if another key of the ring has this number.
    /// - [`KeyRingError::TooShort`] if the secret has fewer than [`KeyRing::MIN_SECRET_BYTES`]
    ///   bytes.
    pub fn with_retired_key(
        mut self,
        not_after: UnixMillis,
        number: u32,
        secret: &[u8],
    ) -> Result<Self, KeyRingError> {
        if self.active.number == number || self.older.iter().any(|(_, key)| key.number == number) {
            return Err(KeyRingError::DuplicateNumber { number });
        }
        self.older.push((not_after, Key::derive(number, secret)?));
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

    /// Returns the id of the key that seals new approval ids.
    pub fn active_key_id(&self) -> KeyId {
        self.active.id
    }

    /// Returns the key with this id, unless the key is unknown or is retired and past its
    /// `not_after`.
    pub(super) fn verification_key(&self, key_id: KeyId, now: UnixMillis) -> Option<&Key> {
        if self.active.id == key_id {
            return Some(&self.active);
        }
        let (not_after, key) = self.older.iter().find(|(_, key)| key.id == key_id)?;
        (now <= *not_after).then_some(key)
    }
}

impl fmt::Debug for KeyRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let older: Vec<KeyId> = self.older.iter().map(|(_, key)| key.id).collect();
        f.debug_struct("KeyRing")
            .field("active", &self.active.id)
            .field("older", &older)
            .finish_non_exhaustive()
    }
}

/// A derived key and its id.
#[derive(Clone)]
pub(super) struct Key {
    number: u32,
    id: KeyId,
    /// The HMAC state that already includes the key. The state is wiped when it is dropped.
    mac: Hmac<Sha256>,
    /// The HMAC state of the other purpose, see [`KeyRing::with_other_purpose`].
    #[cfg(feature = "approvals")]
    other_mac: Hmac<Sha256>,
}

impl Key {
    fn derive(number: u32, secret: &[u8]) -> Result<Self, KeyRingError> {
        if secret.len() < KeyRing::MIN_SECRET_BYTES {
            return Err(KeyRingError::TooShort { number, bytes: secret.len() });
        }
        let hkdf = Hkdf::<Sha256>::new(None, secret);
        let expand = |purpose: &[&[u8]], bytes: &mut [u8]| {
            hkdf.expand_multi_info(purpose, bytes).expect("HKDF-SHA256 gives up to 8 160 bytes");
        };
        let derive = |purpose: &[u8]| {
            let mut key = Zeroizing::new([0; 32]);
            expand(&[purpose], &mut *key);
            Hmac::new_from_slice(&*key).expect("HMAC takes a key of any length")
        };
        let mut id = [0; 8];
        expand(&[ID_PURPOSE, &number.to_be_bytes()], &mut id);
        Ok(Key {
            number,
            id: KeyId(id),
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

const ID_PURPOSE: &[u8] = b"ui-message-stream/key-id/v1";
const PURPOSE: &[u8] = b"ui-message-stream/approval/v1";
#[cfg(feature = "approvals")]
const STATELESS_PURPOSE: &[u8] = b"ui-message-stream/stateless-approval/v1";

#[cfg(test)]
mod tests {
    use hmac::EagerHash;
    use hmac::digest::zeroize::ZeroizeOnDrop;
    use sha2::Sha256;

    use super::*;

    #[test]
    fn the_id_of_a_key_follows_from_its_number_and_its_secret() {
        let id = |number, secret| KeyRing::new(number, &[secret; 32]).unwrap().active_key_id();
        assert_eq!(id(1, 7).to_string(), "0527ff89144bcd9c");
        let ids = [id(1, 7), id(1, 8), id(2, 7), id(2, 8), id(257, 7)];
        for (at, one) in ids.iter().enumerate() {
            assert!(!ids[at + 1..].contains(one), "{ids:?}");
        }
    }

    #[test]
    fn two_keys_of_one_number_do_not_fit_into_a_ring() {
        let ring = KeyRing::new(1, &[7; 32]).unwrap();
        let refused = ring.with_retired_key(UnixMillis(0), 1, &[8; 32]).unwrap_err();
        assert_eq!(refused, KeyRingError::DuplicateNumber { number: 1 });
    }

    #[test]
    fn a_key_is_wiped_from_memory_when_it_is_dropped() {
        // An HMAC stores only the states of two hashes, which are derived from its key.
        fn is_wiped<T: ZeroizeOnDrop>() {}
        is_wiped::<<Sha256 as EagerHash>::Core>();
    }
}
