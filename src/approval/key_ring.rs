//! [`KeyRing`]: the keys that approvals are sealed with, and those that older ones still verify
//! with.

use std::fmt;

use hkdf::Hkdf;
use hmac::{Hmac, KeyInit};
use sha2::Sha256;
use zeroize::Zeroizing;

use super::UnixMillis;

/// The keys of approvals: one that seals, and older ones that still verify.
///
/// To rotate, make a ring whose first key is the new one and keep the old one
/// [until](KeyRing::and_until) the last approval sealed with it has expired. Every server that
/// shares a ledger shares the keys.
///
/// A secret is never used as it is: the key for approvals is derived from it (HKDF-SHA256), so that
/// the same secret can serve other purposes.
///
/// ```
/// use ui_message_stream::approval::{KeyRing, UnixMillis};
///
/// let ring = KeyRing::new(2, b"thirty-two bytes from a good source")?
///     .and_until(UnixMillis(1_795_000_000_000), 1, b"the secret that served until this week")?;
/// assert!(KeyRing::new(1, b"short").is_err());
/// assert!(!format!("{ring:?}").contains("thirty-two"));
/// # Ok::<(), ui_message_stream::approval::KeyRingError>(())
/// ```
#[derive(Clone)]
pub struct KeyRing {
    active: Key,
    older: Vec<(UnixMillis, Key)>,
}

/// Why secrets make no [`KeyRing`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyRingError {
    /// It can be guessed.
    #[error(
        "the secret of key {key_id} has {bytes} bytes; at least {} are needed",
        KeyRing::MIN_SECRET_BYTES
    )]
    TooShort {
        /// Which key.
        key_id: u32,
        /// How long its secret is.
        bytes: usize,
    },
    /// Two keys have the same id.
    #[error("key {key_id} is in the ring already")]
    Repeated {
        /// Which id.
        key_id: u32,
    },
}

impl KeyRing {
    /// How long a secret is at least.
    pub const MIN_SECRET_BYTES: usize = 32;

    /// A ring of one key, which seals and verifies. The id is public and names the key in every
    /// approval that it seals.
    ///
    /// # Errors
    /// [`KeyRingError::TooShort`].
    pub fn new(key_id: u32, secret: &[u8]) -> Result<Self, KeyRingError> {
        Ok(KeyRing { active: Key::derive(key_id, secret)?, older: Vec::new() })
    }

    /// Adds a key that only verifies, and that only until then.
    ///
    /// # Errors
    /// [`KeyRingError::TooShort`], and [`KeyRingError::Repeated`] for an id that is in use.
    pub fn and_until(
        mut self,
        not_after: UnixMillis,
        key_id: u32,
        secret: &[u8],
    ) -> Result<Self, KeyRingError> {
        if self.active.id == key_id || self.older.iter().any(|(_, key)| key.id == key_id) {
            return Err(KeyRingError::Repeated { key_id });
        }
        self.older.push((not_after, Key::derive(key_id, secret)?));
        Ok(self)
    }

    pub(super) fn active(&self) -> &Key {
        &self.active
    }

    /// The key with this id, if it may still verify.
    pub(super) fn verifying(&self, key_id: u32, now: UnixMillis) -> Option<&Key> {
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

/// A key, and the id that names it.
#[derive(Clone)]
pub(super) struct Key {
    pub(super) id: u32,
    /// Holds the key already mixed in, and wipes it when dropped.
    mac: Hmac<Sha256>,
}

impl Key {
    fn derive(id: u32, secret: &[u8]) -> Result<Self, KeyRingError> {
        if secret.len() < KeyRing::MIN_SECRET_BYTES {
            return Err(KeyRingError::TooShort { key_id: id, bytes: secret.len() });
        }
        let mut key = Zeroizing::new([0; 32]);
        Hkdf::<Sha256>::new(None, secret)
            .expand(PURPOSE, &mut *key)
            .expect("HKDF-SHA256 gives up to 8 160 bytes");
        let mac = Hmac::new_from_slice(&*key).expect("HMAC takes a key of any length");
        Ok(Key { id, mac })
    }

    /// A MAC under this key, to be fed.
    pub(super) fn mac(&self) -> Hmac<Sha256> {
        self.mac.clone()
    }
}

const PURPOSE: &[u8] = b"ui-message-stream/approval/v1";
