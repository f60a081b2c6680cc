//! [`Loads`]: one conversation at a time is loaded for each user.
//!
//! # One load at a time for each user
//!
//! To load a chat of 12 MB and to write its stored answer takes 50 ms of a processor, and a store as long. When one
//! user repeated a POST 64 times, all threads of the runtime were busy with it, and the next request of another
//! user was noticed up to 15 seconds later. So the loads of one user wait for each other, and those of other users
//! come in between. Two at a time were not enough on two cores: a runtime looks for new requests only when a thread
//! has nothing else to do, or after 61 tasks.

use std::sync::Arc;

use tokio::sync::{Mutex, OwnedMutexGuard};

use super::registry::{Registry, Shared};
use ui_message_stream::approval::Principal;

/// The users for whom conversations are being loaded. All clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct Loads(Registry<Principal, Arc<Mutex<()>>>);

/// A load of a conversation. The next one for this user begins when this value is dropped.
#[derive(Debug)]
pub(super) struct LoadTurn {
    _guard: OwnedMutexGuard<()>,
    _of_user: Arc<Shared<Principal, Arc<Mutex<()>>>>,
}

impl Loads {
    /// Waits for the loads of this user that have begun before.
    pub(super) async fn turn(&self, user: &Principal) -> LoadTurn {
        let of_user = self.0.get(user);
        let guard = Arc::clone(&**of_user).lock_owned().await;
        LoadTurn { _guard: guard, _of_user: of_user }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn a_load_of_a_user_waits_for_the_one_before_it_and_not_for_another_user() {
        let loads = Loads::default();
        let ada = Principal::new("ada");
        let turn = |user: &Principal| {
            let loads = loads.clone();
            let user = user.clone();
            async move { loads.turn(&user).await }.boxed()
        };
        let first = turn(&ada).now_or_never().unwrap();
        let mut second = turn(&ada);
        assert!((&mut second).now_or_never().is_none());
        assert!(turn(&Principal::new("bob")).now_or_never().is_some());
        drop(first);
        let second = second.now_or_never().unwrap();
        let mut dropped = turn(&ada);
        assert!((&mut dropped).now_or_never().is_none());
        drop(dropped);
        drop(second);
        assert!(loads.0.is_empty());

        // The last one that waits is given up after the load before it has ended.
        let first = turn(&ada).now_or_never().unwrap();
        let mut dropped = turn(&ada);
        assert!((&mut dropped).now_or_never().is_none());
        drop(first);
        drop(dropped);
        assert!(loads.0.is_empty());
    }
}
