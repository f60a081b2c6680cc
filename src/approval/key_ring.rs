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
/// the same number. A server logs a warning, once for each key, when it finds such records in its
/// ledger, and for each answer to one.
///
/// A secret is never used directly: the key for approvals is derived from the secret with
/// HKDF-SHA256. The same secret can therefore serve other purposes, too.
///
/// # Secrets
/// A secret must be random, for example the output of `openssl rand -base64 32`: a person who guesses
/// it can create approval ids. A secret is refused, also that of a retired key, if it
/// - has fewer than [`KeyRing::MIN_SECRET_BYTES`] bytes,
/// - has fewer than 8 different bytes, or
/// - contains an example of a secret that this documentation once showed.
///
/// A secret that passes these checks can still be guessed if it is not random.
///
/// ```no_run
/// use ui_message_stream::approval::{KeyRing, UnixMillis};
///
/// // Both were made with `openssl rand -base64 32`, and all servers have the same.
/// let secret = std::env::var("APPROVAL_SECRET")?;
/// let retired = std::env::var("RETIRED_APPROVAL_SECRET")?;
///
/// let not_after = UnixMillis(1_795_000_000_000);
/// let ring = KeyRing::new(2, secret.as_bytes())?
///     .with_retired_key(not_after, 1, retired.as_bytes())?;
/// # let _ = ring;
/// # Ok::<(), Box<dyn std::error::Error>>(())
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
        "the secret of key {number} has {bytes} bytes; at least {} are needed: make one with \
         `openssl rand -base64 32`",
        KeyRing::MIN_SECRET_BYTES
    )]
    TooShort {
        /// The number of the key.
        number: u32,
        /// The length of its secret, in bytes.
        bytes: usize,
    },
    /// The secret consists of so few different bytes that it is not random.
    #[error(
        "the secret of key {number} has {different_bytes} different bytes; at least \
         {MIN_DIFFERENT_BYTES} are needed: make one with `openssl rand -base64 32`"
    )]
    NotRandom {
        /// The number of the key.
        number: u32,
        /// The number of different bytes in its secret.
        different_bytes: usize,
    },
    /// The secret is known: it contains an example that the documentation showed.
    #[error(
        "the secret of key {number} contains an example that the documentation showed: \
         make one with `openssl rand -base64 32`"
    )]
    Published {
        /// The number of the key.
        number: u32,
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
    /// [`KeyRingError::TooShort`], [`KeyRingError::NotRandom`] or [`KeyRingError::Published`] if the
    /// secret can be guessed: see [Secrets](KeyRing#secrets).
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
    /// - [`KeyRingError::TooShort`], [`KeyRingError::NotRandom`] or [`KeyRingError::Published`] if
    ///   the secret can be guessed: see [Secrets](KeyRing#secrets).
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

    /// Returns whether this key is in the ring, and not past its `not_after`.
    #[cfg(feature = "approvals")]
    pub(super) fn verifies(&self, key_id: KeyId, now: UnixMillis) -> bool {
        self.verification_key(key_id, now).is_some()
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
        check(number, secret)?;
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

/// Fails if the secret can be guessed: see [`KeyRing`].
fn check(number: u32, secret: &[u8]) -> Result<(), KeyRingError> {
    if secret.len() < KeyRing::MIN_SECRET_BYTES {
        return Err(KeyRingError::TooShort { number, bytes: secret.len() });
    }
    let different_bytes = (0..=u8::MAX).filter(|byte| secret.contains(byte)).count();
    if different_bytes < MIN_DIFFERENT_BYTES {
        return Err(KeyRingError::NotRandom { number, different_bytes });
    }
    // Contained, because a variable may come with quotation marks or the end of its line.
    let contains = |example: &&[u8]| secret.windows(example.len()).any(|part| part == *example);
    if PUBLISHED_SECRETS.iter().any(contains) {
        return Err(KeyRingError::Published { number });
    }
    Ok(())
}

/// 32 random bytes have fewer with a probability of 2⁻¹²².
const MIN_DIFFERENT_BYTES: usize = 8;

/// The secrets that the documentation showed. Hosts copied them, and they stay known.
const PUBLISHED_SECRETS: [&[u8]; 2] =
    [b"thirty-two bytes from a good source", b"the secret that served until this week"];

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
        let id = |number, secret| {
            KeyRing::new(number, &test_support::secret(secret)).unwrap().active_key_id()
        };
        assert_eq!(id(1, 7).to_string(), "39c70fbbe766066b");
        let ids = [id(1, 7), id(1, 8), id(2, 7), id(2, 8), id(257, 7)];
        for (at, one) in ids.iter().enumerate() {
            assert!(!ids[at + 1..].contains(one), "{ids:?}");
        }
    }

    #[test]
    fn a_secret_that_can_be_guessed_is_refused_as_an_active_and_as_a_retired_key() {
        let ring = KeyRing::new(1, &test_support::secret(1)).unwrap();
        let refusals = |secret: &[u8]| {
            let retired = ring.clone().with_retired_key(UnixMillis(0), 2, secret);
            [KeyRing::new(2, secret).unwrap_err(), retired.unwrap_err()]
        };
        let first = &test_support::secret(1)[..31];
        assert_eq!(
            refusals(first),
            [(); 2].map(|()| KeyRingError::TooShort { number: 2, bytes: 31 })
        );
        for (secret, different_bytes) in
            [(&[0; 32][..], 1), (&b"change".repeat(6), 6), (b"password".repeat(8).as_slice(), 7)]
        {
            let refused = KeyRingError::NotRandom { number: 2, different_bytes };
            assert_eq!(refusals(secret), [refused.clone(), refused]);
        }
        for example in
            ["thirty-two bytes from a good source", "the secret that served until this week"]
        {
            for secret in [example.to_owned(), format!("{example}\n"), format!("\"{example}\"")] {
                let refused = KeyRingError::Published { number: 2 };
                assert_eq!(refusals(secret.as_bytes()), [refused.clone(), refused], "{secret:?}");
            }
        }
    }

    #[test]
    fn a_secret_of_eight_different_bytes_is_accepted() {
        KeyRing::new(1, &b"12345678".repeat(4)).unwrap();
    }

    #[test]
    fn a_refusal_names_the_key_and_the_remedy() {
        let message = |secret: &[u8]| KeyRing::new(3, secret).unwrap_err().to_string();
        let remedy = ": make one with `openssl rand -base64 32`";
        for (secret, reason) in [
            (&[7; 31][..], "has 31 bytes; at least 32 are needed"),
            (&[7; 32][..], "has 1 different bytes; at least 8 are needed"),
            (PUBLISHED_SECRETS[0], "contains an example that the documentation showed"),
        ] {
            assert_eq!(message(secret), format!("the secret of key 3 {reason}{remedy}"));
        }
    }

    #[test]
    fn two_keys_of_one_number_do_not_fit_into_a_ring() {
        let ring = KeyRing::new(1, &test_support::secret(7)).unwrap();
        let refused =
            ring.with_retired_key(UnixMillis(0), 1, &test_support::secret(8)).unwrap_err();
        assert_eq!(refused, KeyRingError::DuplicateNumber { number: 1 });
    }

    #[test]
    fn a_key_is_wiped_from_memory_when_it_is_dropped() {
        // An HMAC stores only the states of two hashes, which are derived from its key.
        fn is_wiped<T: ZeroizeOnDrop>() {}
        is_wiped::<<Sha256 as EagerHash>::Core>();
    }
}
