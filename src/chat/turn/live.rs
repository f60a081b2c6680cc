//! [`LiveRuns`]: the registry of the runs of this process, for stopping them and waiting for their
//! end.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use crate::approval::Principal;
use crate::id::{ChatId, MessageId};

/// The active runs of this process, by owner and chat, oldest first.
#[derive(Debug, Clone, Default)]
pub(in crate::chat) struct LiveRuns(Arc<Mutex<HashMap<Key, Vec<Writes>>>>);

type Key = (Principal, ChatId);

/// The registry entry of a run: the message that the run writes, and its state.
#[derive(Debug, Clone)]
struct Writes {
    message_id: MessageId,
    sender: watch::Sender<Live>,
}

/// The state of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::chat) enum Live {
    Runs,
    IsToStop,
}

/// The registration of a run. Other runs can stop this run and wait for its end until this value is
/// dropped.
#[derive(Debug)]
pub(in crate::chat) struct LiveRun {
    runs: LiveRuns,
    key: Key,
    sender: watch::Sender<Live>,
}

impl LiveRuns {
    /// Registers a run that writes this message.
    pub(in crate::chat) fn register(
        &self,
        owner: &Principal,
        chat: &ChatId,
        message_id: &MessageId,
    ) -> LiveRun {
        let (sender, _) = watch::channel(Live::Runs);
        let key = key(owner, chat);
        let writes = Writes { message_id: message_id.clone(), sender: sender.clone() };
        self.lock().entry(key.clone()).or_default().push(writes);
        LiveRun { runs: self.clone(), key, sender }
    }

    /// Requests that the runs of a chat stop.
    pub(in crate::chat) fn stop(&self, owner: &Principal, chat: &ChatId) {
        for run in self.lock().get(&key(owner, chat)).into_iter().flatten() {
            run.sender.send_replace(Live::IsToStop);
        }
    }

    /// Requests that the runs of a chat that write this message stop.
    pub(in crate::chat) fn stop_answer(
        &self,
        owner: &Principal,
        chat: &ChatId,
        answer: &MessageId,
    ) {
        let runs = self.lock();
        let runs = runs.get(&key(owner, chat)).into_iter().flatten();
        for run in runs.filter(|run| run.message_id == *answer) {
            run.sender.send_replace(Live::IsToStop);
        }
    }

    /// Returns the state of the runs of a chat that write this message: `IsToStop` if all of them
    /// are to stop, and `None` if there are none.
    pub(in crate::chat) fn state(
        &self,
        owner: &Principal,
        chat: &ChatId,
        message_id: &MessageId,
    ) -> Option<Live> {
        let runs = self.lock();
        let runs = runs.get(&key(owner, chat)).into_iter().flatten();
        let states =
            runs.filter(|run| run.message_id == *message_id).map(|run| *run.sender.borrow());
        states.min_by_key(|state| *state == Live::IsToStop)
    }

    /// Waits until all runs of a chat that are registered now have ended. A registered run must not
    /// call this, because it would wait for itself.
    pub(in crate::chat) async fn are_over(&self, owner: &Principal, chat: &ChatId) {
        let runs: Vec<watch::Receiver<Live>> = {
            let runs = self.lock();
            let runs = runs.get(&key(owner, chat)).into_iter().flatten();
            runs.map(|run| run.sender.subscribe()).collect()
        };
        are_over(runs).await;
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Vec<Writes>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LiveRun {
    /// Returns whether other runs are registered for this chat.
    pub(in crate::chat) fn has_others(&self) -> bool {
        let runs = self.runs.lock();
        let mut runs = runs.get(&self.key).into_iter().flatten();
        runs.any(|run| !run.sender.same_channel(&self.sender))
    }

    /// Returns whether a run that was registered before this one writes the same message.
    pub(in crate::chat) fn has_earlier_of_message(&self) -> bool {
        let runs = self.runs.lock();
        let runs = runs.get(&self.key).into_iter().flatten();
        let own = runs.clone().find(|run| run.sender.same_channel(&self.sender));
        let mut earlier = runs.take_while(|run| !run.sender.same_channel(&self.sender));
        own.is_some_and(|own| earlier.any(|run| run.message_id == own.message_id))
    }

    /// Waits until the runs of this chat that were registered before this one have ended. It does
    /// not wait for later ones, so that no two runs wait for each other.
    pub(in crate::chat) async fn earlier_are_over(&self) {
        let earlier: Vec<watch::Receiver<Live>> = {
            let runs = self.runs.lock();
            let runs = runs.get(&self.key).into_iter().flatten();
            let earlier = runs.take_while(|run| !run.sender.same_channel(&self.sender));
            earlier.map(|run| run.sender.subscribe()).collect()
        };
        are_over(earlier).await;
    }

    /// Returns whether this run was requested to stop.
    pub(in crate::chat) fn is_to_stop(&self) -> bool {
        *self.sender.borrow() == Live::IsToStop
    }

    /// Returns a receiver of the state of this run.
    pub(in crate::chat) fn subscribe(&self) -> watch::Receiver<Live> {
        self.sender.subscribe()
    }
}

impl Drop for LiveRun {
    fn drop(&mut self) {
        let mut runs = self.runs.lock();
        if let Some(for_chat) = runs.get_mut(&self.key) {
            for_chat.retain(|run| !run.sender.same_channel(&self.sender));
            if for_chat.is_empty() {
                runs.remove(&self.key);
            }
        }
    }
}

/// Waits until all these runs have ended.
async fn are_over(runs: Vec<watch::Receiver<Live>>) {
    for mut run in runs {
        while run.changed().await.is_ok() {}
    }
}

fn key(owner: &Principal, chat: &ChatId) -> Key {
    (owner.clone(), chat.clone())
}
