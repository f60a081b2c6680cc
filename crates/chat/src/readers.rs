//! [`Readers`]: how many responses each user reads, and what large responses share.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bytes::Bytes;

use super::error::ChatError;
use crate::metrics;
use ui_message_stream::approval::Principal;

/// The responses of a server that are being read, by user. All clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct Readers(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    by_user: Mutex<HashMap<Principal, OfUser>>,
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
pub(crate) struct Reader(Arc<Counted>);

#[derive(Debug)]
struct Counted {
    readers: Readers,
    user: Principal,
}

impl Readers {
    /// Counts a response of this user.
    ///
    /// # Errors
    /// [`ChatError::TooManyReaders`] if the user reads so many already.
    pub(super) fn add(&self, user: &Principal, max: usize) -> Result<Reader, ChatError> {
        let mut by_user = self.lock();
        let readers = by_user.get(user).map_or(0, |of_user| of_user.readers);
        if readers >= max {
            return Err(ChatError::TooManyReaders);
        }
        by_user.entry(user.clone()).or_default().readers += 1;
        metrics::add_readers(1.0);
        Ok(Reader(Arc::new(Counted { readers: self.clone(), user: user.clone() })))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Principal, OfUser>> {
        self.0.by_user.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reader {
    /// Returns the rest of a response, which is in memory as a whole, in small pieces. If another
    /// response to the same user has the same bytes, both read one copy. The pieces hold the reader.
    ///
    /// # Errors
    /// [`ChatError::TooManyReaders`] if the user does not read what all these responses hold.
    pub(crate) fn pieces(
        self,
        body: Vec<u8>,
    ) -> Result<impl Iterator<Item = Bytes> + Send + use<>, ChatError> {
        let body = match body.len() > PIECE_BYTES {
            true => self.share(body)?,
            false => Arc::new(body),
        };
        Ok((0..body.len()).step_by(PIECE_BYTES).map(move |at| {
            let _reader = &self;
            // A copy, because a slice in a buffer of the connection would keep the whole body.
            Bytes::copy_from_slice(&body[at..body.len().min(at + PIECE_BYTES)])
        }))
    }

    fn share(&self, body: Vec<u8>) -> Result<Arc<Vec<u8>>, ChatError> {
        let Counted { readers, user } = &*self.0;
        let hash = readers.0.hasher.hash_one(&body);
        let mut by_user = readers.lock();
        let Some(of_user) = by_user.get_mut(user) else { return Ok(Arc::new(body)) };
        let (mut same, mut held) = (None, 0);
        of_user.copies.retain(|(hash_of_copy, copy)| {
            let Some(copy) = copy.upgrade() else { return false };
            held += copy.capacity();
            if *hash_of_copy == hash && copy.len() == body.len() {
                same = Some(copy);
            }
            true
        });
        // Compares without the lock.
        if let Some(same) = same {
            drop(by_user);
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

impl Drop for Counted {
    fn drop(&mut self) {
        metrics::add_readers(-1.0);
        let mut by_user = self.readers.lock();
        if let Some(of_user) = by_user.get_mut(&self.user) {
            of_user.readers -= 1;
            if of_user.readers == 0 {
                by_user.remove(&self.user);
            }
        }
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
        let (readers, ada) = (Readers::default(), Principal::new("ada"));
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
        assert!(readers.lock().is_empty());
    }

    #[test]
    fn equal_bodies_of_a_user_are_one_and_too_many_different_ones_are_refused() {
        let (readers, ada) = (Readers::default(), Principal::new("ada"));
        let share = |byte| readers.add(&ada, 64).unwrap().pieces(vec![byte; 30 << 20]);
        let (first, second) = (share(1).unwrap(), share(1).unwrap());
        let held = |user| {
            let copies = &readers.lock()[user].copies;
            copies
                .iter()
                .filter_map(|(_, copy)| copy.upgrade())
                .map(|copy| copy.len())
                .sum::<usize>()
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
