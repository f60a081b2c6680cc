//! [`BodyBudget`]: how many bytes of incomplete request bodies are held in memory.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use futures_util::future::{AbortHandle, AbortRegistration};

use crate::approval::Principal;

/// How many bytes the request bodies may have that are being received. All clones share them.
#[derive(Clone)]
pub(crate) struct BodyBudget(Arc<Budget>);

struct Budget {
    max_bytes: usize,
    bodies: Mutex<Bodies>,
}

#[derive(Default)]
struct Bodies {
    next_id: u64,
    bytes: usize,
    /// By id: the body whose first byte was received first comes first.
    by_id: BTreeMap<u64, Entry>,
}

struct Entry {
    /// All bodies without a principal count as those of one more user.
    owner: Option<Principal>,
    bytes: usize,
    cut_off: AbortHandle,
}

impl Default for BodyBudget {
    /// The budget of this process, which all policies share that do not set another one.
    fn default() -> Self {
        static OF_PROCESS: LazyLock<BodyBudget> = LazyLock::new(|| BodyBudget::new(MAX_BYTES));
        OF_PROCESS.clone()
    }
}

impl BodyBudget {
    pub(crate) fn new(max_bytes: usize) -> Self {
        BodyBudget(Arc::new(Budget { max_bytes, bodies: Mutex::default() }))
    }

    /// Begins a body of at most `max_len` bytes. Reading it has to be [abortable], with the returned
    /// registration.
    ///
    /// [abortable]: futures_util::future::Abortable
    pub(crate) fn begin(
        &self,
        owner: Option<Principal>,
        max_len: usize,
    ) -> (IncompleteBody, AbortRegistration) {
        let (cut_off, registration) = AbortHandle::new_pair();
        let budget = self.clone();
        let bytes = Vec::new();
        (IncompleteBody { budget, owner, max_len, id: None, cut_off, bytes }, registration)
    }

    fn lock(&self) -> MutexGuard<'_, Bodies> {
        self.0.bodies.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for BodyBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("BodyBudget");
        debug.field("max_bytes", &self.0.max_bytes).field("bytes", &self.lock().bytes).finish()
    }
}

/// A request body that is being received. Its bytes count until it is dropped.
pub(crate) struct IncompleteBody {
    budget: BodyBudget,
    owner: Option<Principal>,
    max_len: usize,
    /// `None` before the first byte.
    id: Option<u64>,
    cut_off: AbortHandle,
    bytes: Vec<u8>,
}

impl IncompleteBody {
    /// Returns how many bytes the body may have.
    pub(crate) fn max_len(&self) -> usize {
        self.max_len
    }

    /// Adds bytes that were received. If the bodies of this owner have too many bytes then, the oldest of
    /// them are cut off. If all bodies have too many, the oldest of the owner that holds the most is.
    /// Returns `false` if this one was cut off.
    pub(crate) fn extend(&mut self, bytes: &[u8]) -> bool {
        let len = self.bytes.len() + bytes.len();
        if len > self.bytes.capacity() {
            // Grows as a `Vec` does, but not beyond the longest body.
            let capacity = (2 * self.bytes.capacity()).min(self.max_len).max(len);
            if !self.reserve(capacity - self.bytes.capacity()) {
                return false;
            }
            self.bytes.reserve_exact(capacity - self.bytes.len());
        }
        self.bytes.extend_from_slice(bytes);
        true
    }

    /// Returns the bytes of the body, which is complete.
    pub(crate) fn complete(mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }

    fn reserve(&mut self, bytes: usize) -> bool {
        // A single body always fits.
        let max = self.budget.0.max_bytes.max(self.max_len);
        let share = (self.budget.0.max_bytes / SHARES).max(self.max_len);
        let mut bodies = self.budget.lock();
        let id = match self.id {
            Some(id) => id,
            None => {
                let id = bodies.next_id;
                bodies.next_id += 1;
                let owner = self.owner.clone();
                let cut_off = self.cut_off.clone();
                bodies.by_id.insert(id, Entry { owner, bytes: 0, cut_off });
                *self.id.insert(id)
            }
        };
        let Some(entry) = bodies.by_id.get_mut(&id) else { return false };
        entry.bytes += bytes;
        bodies.bytes += bytes;
        while bodies.held_by(&self.owner) > share {
            bodies.cut_off_oldest(&self.owner);
        }
        while bodies.bytes > max
            && let Some(owner) = bodies.owner_of_most()
        {
            bodies.cut_off_oldest(&owner);
        }
        bodies.by_id.contains_key(&id)
    }
}

impl Drop for IncompleteBody {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.budget.lock().remove(id);
        }
    }
}

impl Bodies {
    fn held_by(&self, owner: &Option<Principal>) -> usize {
        let of_owner = self.by_id.values().filter(|entry| entry.owner == *owner);
        of_owner.map(|entry| entry.bytes).sum()
    }

    /// Returns the owner whose bodies have the most bytes. Among equal ones, it is that of the oldest
    /// body.
    fn owner_of_most(&self) -> Option<Option<Principal>> {
        let mut held = HashMap::<_, usize>::new();
        for entry in self.by_id.values() {
            *held.entry(&entry.owner).or_default() += entry.bytes;
        }
        // The last of equal ones is returned.
        let entries = self.by_id.values().rev();
        entries.max_by_key(|entry| held.get(&entry.owner)).map(|entry| entry.owner.clone())
    }

    fn cut_off_oldest(&mut self, owner: &Option<Principal>) {
        let mut bodies = self.by_id.iter();
        if let Some((&id, entry)) = bodies.find(|(_, entry)| entry.owner == *owner) {
            entry.cut_off.abort();
            self.remove(id);
        }
    }

    fn remove(&mut self, id: u64) {
        if let Some(entry) = self.by_id.remove(&id) {
            self.bytes -= entry.bytes;
        }
    }
}

/// The default of [`ChatPolicy::with_max_incoming_bytes`](super::ChatPolicy::with_max_incoming_bytes).
const MAX_BYTES: usize = 256 << 20;

/// The bodies of one principal have at most one of so many shares.
const SHARES: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    fn begin(budget: &BodyBudget, owner: &str) -> IncompleteBody {
        budget.begin(Some(Principal::new(owner)), 100).0
    }

    fn is_cut_off(body: &IncompleteBody) -> bool {
        body.cut_off.is_aborted()
    }

    #[test]
    fn the_oldest_body_of_a_principal_is_cut_off_beyond_its_share() {
        let budget = BodyBudget::new(8 * 100);
        let mut other = begin(&budget, "bob");
        assert!(other.extend(&[0; 60]));
        // It has no bytes, so that to cut it off would free none.
        let empty = begin(&budget, "ada");
        let mut first = begin(&budget, "ada");
        assert!(first.extend(&[0; 60]));
        let mut second = begin(&budget, "ada");
        assert!(second.extend(&[0; 40]));
        assert!(!is_cut_off(&first));
        assert!(second.extend(&[0; 1]));
        assert_eq!([&other, &empty, &first, &second].map(is_cut_off), [false, false, true, false]);
        assert!(!first.extend(&[0; 60]));
        assert_eq!(second.complete(), [0; 41]);
        assert_eq!(budget.lock().bytes, 60);
    }

    #[test]
    fn of_equal_owners_the_oldest_body_is_cut_off_beyond_the_total() {
        let budget = BodyBudget::new(8 * 100);
        let bodies = (0..8).map(|user| {
            let mut body = begin(&budget, &user.to_string());
            assert!(body.extend(&[0; 100]));
            body
        });
        let bodies: Vec<_> = bodies.collect();
        let mut last = begin(&budget, "ada");
        assert!(last.extend(&[0; 100]));
        assert!(is_cut_off(&bodies[0]) && !bodies[1..].iter().any(is_cut_off));
        drop((bodies, last));
        let empty = budget.lock();
        assert_eq!((empty.bytes, empty.by_id.len()), (0, 0));
    }

    #[test]
    fn a_body_that_is_the_oldest_itself_is_cut_off() {
        let budget = BodyBudget::new(8 * 100);
        let mut oldest = begin(&budget, "ada");
        assert!(oldest.extend(&[0; 10]));
        let mut newer = begin(&budget, "ada");
        assert!(newer.extend(&[0; 80]));
        assert!(!oldest.extend(&[0; 20]) && is_cut_off(&oldest));
        assert!(newer.extend(&[0; 20]));
    }

    #[test]
    fn a_body_that_is_longer_than_the_budget_is_received_alone() {
        let budget = BodyBudget::new(8);
        let mut body = begin(&budget, "ada");
        assert!(body.extend(&[0; 100]));
        assert!(begin(&budget, "bob").extend(&[0; 100]) && is_cut_off(&body));
    }

    #[test]
    fn the_owner_of_the_most_bytes_is_cut_off_beyond_the_total() {
        let budget = BodyBudget::new(8 * 100);
        let received = |owner: &str, bytes| {
            let mut body = begin(&budget, owner);
            assert!(body.extend(&vec![0; bytes]));
            body
        };
        let oldest = received("bob", 60);
        let of_ada = [received("ada", 50), received("ada", 50)];
        let others: Vec<_> = (0..7).map(|user| received(&user.to_string(), 95)).collect();
        assert!(is_cut_off(&of_ada[0]) && !is_cut_off(&of_ada[1]) && !is_cut_off(&oldest));
        assert!(!others.iter().any(is_cut_off));
    }

    #[test]
    fn bodies_without_a_principal_have_the_share_of_one() {
        let budget = BodyBudget::new(8 * 100);
        let mut of_ada = begin(&budget, "ada");
        assert!(of_ada.extend(&[0; 60]));
        let bodies = (0..8).map(|_| {
            let mut body = budget.begin(None, 100).0;
            assert!(body.extend(&[0; 100]));
            body
        });
        let bodies: Vec<_> = bodies.collect();
        assert!(bodies[..7].iter().all(is_cut_off) && !is_cut_off(&bodies[7]));
        assert!(!is_cut_off(&of_ada));
    }

    #[test]
    fn the_debug_output_names_no_user() {
        let budget = BodyBudget::new(800);
        let mut body = begin(&budget, "ada");
        assert!(body.extend(b"secret"));
        assert_eq!(format!("{budget:?}"), "BodyBudget { max_bytes: 800, bytes: 6 }");
    }
}
