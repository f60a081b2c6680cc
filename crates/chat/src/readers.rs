//! [`Readers`]: how many responses each user reads, and what large responses share.
//!
//! # Unread responses share their bytes
//!
//! 200 repeats of a short request whose stored answer had 12 MB held 200 copies of the frames, with every store. A
//! cache of loaded chats would have to know what the frames depend on: the length of the log, the version of the
//! client, and the message that the client holds. So the frames are compared instead. If another response to the
//! same user has the same bytes, both read one copy, which is freed with its last reader. Each piece of 32 KiB is
//! copied, because a slice in a buffer of a connection would keep the whole. Different large responses of a user
//! may have 64 MiB together. The same holds for the JSON of a complete response, and for the message in front of a
//! run that continues it. JSON is measured and compared while it is written, and is in memory only if no other
//! response has it.

#[cfg(feature = "axum")]
use std::hash::Hasher;
use std::hash::{BuildHasher, RandomState};
#[cfg(feature = "axum")]
use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bytes::Bytes;
#[cfg(feature = "axum")]
use serde::Serialize;

use super::error::ChatError;
use super::registry::{Registry, Shared};
use crate::metrics;
use ui_message_stream::approval::Principal;

/// The responses of a server that are being read, by user. All clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct Readers {
    by_user: Registry<Principal, Mutex<OfUser>>,
    hasher: RandomState,
}

#[derive(Debug, Default)]
struct OfUser {
    readers: usize,
    /// The bodies of large responses, each with its hash.
    copies: Vec<(u64, Weak<Vec<u8>>)>,
}

/// A response that is being read. It counts until all clones are dropped.
#[derive(Debug, Clone)]
pub(crate) struct Reader(Arc<Count>);

#[derive(Debug)]
struct Count {
    of_user: Arc<Shared<Principal, Mutex<OfUser>>>,
    hasher: RandomState,
}

impl Readers {
    /// Counts a response of this user.
    ///
    /// # Errors
    /// [`ChatError::TooManyReaders`] if the user reads so many already.
    pub(super) fn add(&self, user: &Principal, max: usize) -> Result<Reader, ChatError> {
        let of_user = self.by_user.get(user);
        let mut counted = lock(&of_user);
        if counted.readers >= max {
            return Err(ChatError::TooManyReaders);
        }
        counted.readers += 1;
        drop(counted);
        metrics::add_readers(1.0);
        Ok(Reader(Arc::new(Count { of_user, hasher: self.hasher.clone() })))
    }
}

fn lock(of_user: &Mutex<OfUser>) -> MutexGuard<'_, OfUser> {
    of_user.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Reader {
    /// Returns the rest of a response, which is in memory as a whole, in small pieces. If another
    /// response to the same user has the same bytes, both read one copy. The pieces hold the reader.
    ///
    /// # Errors
    /// [`ChatError::TooManyReaders`] if the user does not read what all these responses hold.
    pub(crate) fn pieces(self, mut body: Vec<u8>) -> Result<Pieces, ChatError> {
        body.shrink_to_fit();
        let hash = self.0.hasher.hash_one(&body);
        let body = self.share(body, hash)?;
        Ok(Pieces { _reader: self, body, at: 0 })
    }

    /// Returns the JSON of a value as [`pieces`](Self::pieces) does. The value is written several times: it is first
    /// measured, and then compared with another response, because a body that is shared must not be in memory
    /// twice.
    #[cfg(feature = "axum")]
    pub(crate) fn json_pieces(self, value: &impl Serialize) -> Result<Pieces, JsonPiecesError> {
        let Count { of_user, hasher } = &*self.0;
        let mut hasher = hasher.build_hasher();
        let mut len = 0;
        let measure = |bytes: &[u8]| {
            hasher.write(bytes);
            len += bytes.len();
            true
        };
        serde_json::to_writer(Written(measure), value)?;
        let hash = hasher.finish();
        let known = lock(of_user).copy_of(hash, len).0;
        let known = known.filter(|body| {
            let mut rest = &***body;
            let is_next = |bytes: &[u8]| {
                let next = rest.strip_prefix(bytes);
                rest = next.unwrap_or_default();
                next.is_some()
            };
            serde_json::to_writer(Written(is_next), value).is_ok()
        });
        let body = match known {
            Some(body) => body,
            None => {
                let mut body = Vec::with_capacity(len);
                serde_json::to_writer(&mut body, value)?;
                self.share(body, hash)?
            }
        };
        Ok(Pieces { _reader: self, body, at: 0 })
    }

    fn share(&self, body: Vec<u8>, hash: u64) -> Result<Arc<Vec<u8>>, ChatError> {
        if body.len() <= PIECE_BYTES {
            return Ok(Arc::new(body));
        }
        let mut of_user = lock(&self.0.of_user);
        let (same, held) = of_user.copy_of(hash, body.len());
        // Compares without the lock.
        if let Some(same) = same {
            drop(of_user);
            return Ok(if *same == body { same } else { Arc::new(body) });
        }
        if held > 0 && held + body.capacity() > MAX_COPIED_BYTES {
            return Err(ChatError::TooManyReaders);
        }
        let body = Arc::new(body);
        of_user.copies.push((hash, Arc::downgrade(&body)));
        Ok(body)
    }
}

impl OfUser {
    /// Returns the body with this hash and length, and the bytes of all bodies.
    fn copy_of(&mut self, hash: u64, len: usize) -> (Option<Arc<Vec<u8>>>, usize) {
        let mut same = None;
        let mut held = 0;
        self.copies.retain(|(hash_of_copy, copy)| {
            let Some(copy) = copy.upgrade() else { return false };
            held += copy.capacity();
            if *hash_of_copy == hash && copy.len() == len {
                same = Some(copy);
            }
            true
        });
        (same, held)
    }
}

/// A response that is in memory as a whole, in small pieces.
pub(crate) struct Pieces {
    _reader: Reader,
    body: Arc<Vec<u8>>,
    at: usize,
}

#[cfg(feature = "axum")]
impl Pieces {
    /// The bytes of the whole response.
    pub(crate) fn total(&self) -> usize {
        self.body.len()
    }
}

impl Iterator for Pieces {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        let rest = self.body.get(self.at..).filter(|rest| !rest.is_empty())?;
        let piece = &rest[..rest.len().min(PIECE_BYTES)];
        self.at += piece.len();
        // A copy, because a slice in a buffer of the connection would keep the whole body.
        Some(Bytes::copy_from_slice(piece))
    }
}

/// Why there are no pieces of a value.
#[cfg(feature = "axum")]
#[derive(Debug, thiserror::Error)]
pub(crate) enum JsonPiecesError {
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error(transparent)]
    Chat(#[from] ChatError),
}

/// A writer that passes what is written to a function, and fails if it returns `false`.
#[cfg(feature = "axum")]
struct Written<F>(F);

#[cfg(feature = "axum")]
impl<F: FnMut(&[u8]) -> bool> Write for Written<F> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if (self.0)(bytes) { Ok(bytes.len()) } else { Err(io::ErrorKind::InvalidData.into()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Count {
    fn drop(&mut self) {
        metrics::add_readers(-1.0);
        lock(&self.of_user).readers -= 1;
    }
}

/// The maximum number of bytes of a piece. hyper holds up to 16 of them until it has written them.
const PIECE_BYTES: usize = 32 << 10;

/// How many bytes the responses of one user hold at most that have different bodies. A single one may
/// have more.
const MAX_COPIED_BYTES: usize = 64 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_a_maximum_number_of_readers_and_another_user_has_its_own() {
        let readers = Readers::default();
        let ada = Principal::new("ada");
        let first = readers.add(&ada, 2).unwrap();
        let second = readers.add(&ada, 2).unwrap();
        assert!(matches!(readers.add(&ada, 2), Err(ChatError::TooManyReaders)));
        readers.add(&Principal::new("bob"), 2).unwrap();
        let clone = first.clone();
        drop(first);
        assert!(readers.add(&ada, 2).is_err());
        drop(clone);
        readers.add(&ada, 2).unwrap();
        drop(second);
        assert!(readers.by_user.is_empty());
    }

    #[test]
    fn equal_bodies_of_a_user_are_one_and_too_many_different_ones_are_refused() {
        let readers = Readers::default();
        let ada = Principal::new("ada");
        let share = |byte| readers.add(&ada, 64).unwrap().pieces(vec![byte; 30 << 20]);
        let first = share(1).unwrap();
        let second = share(1).unwrap();
        let held = |user| {
            let of_user = readers.by_user.get(user);
            let copies = &lock(&of_user).copies;
            let held = copies.iter().filter_map(|(_, copy)| copy.upgrade());
            held.map(|copy| copy.len()).sum::<usize>()
        };
        assert_eq!(held(&ada), 30 << 20);
        let other = share(2).unwrap();
        assert!(matches!(share(3), Err(ChatError::TooManyReaders)));
        assert_eq!(second.map(|piece| piece.len()).sum::<usize>(), 30 << 20);
        drop(first);
        drop(share(3).unwrap());
        drop(other);
        // A single body of any length fits.
        let large = readers.add(&ada, 64).unwrap().pieces(vec![0; 65 << 20]).unwrap();
        assert!(large.map(|piece| piece.len()).all(|len| len == PIECE_BYTES));
    }
}
