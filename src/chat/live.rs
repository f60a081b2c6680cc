//! [`LiveRuns`]: the runs that are under way here, so that they can be stopped and waited for.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use crate::id::{ChatId, MessageId};

/// The runs under way in this process, by customer and chat.
#[derive(Debug, Clone, Default)]
pub(super) struct LiveRuns(Arc<Mutex<HashMap<Key, Vec<Writes>>>>);

type Key = (Option<Box<str>>, ChatId);

/// A run, and the message that it writes.
#[derive(Debug, Clone)]
struct Writes {
    message_id: MessageId,
    sender: watch::Sender<Live>,
}

/// How far a run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Live {
    Runs,
    IsToStop,
}

/// A run that others can stop and wait for, as long as this is kept.
#[derive(Debug)]
pub(super) struct LiveRun {
    runs: LiveRuns,
    key: Key,
    sender: watch::Sender<Live>,
}

impl LiveRuns {
    pub(super) fn register(
        &self,
        tenant: Option<&str>,
        chat: &ChatId,
        message_id: &MessageId,
    ) -> LiveRun {
        let (sender, _) = watch::channel(Live::Runs);
        let key = key(tenant, chat);
        let writes = Writes { message_id: message_id.clone(), sender: sender.clone() };
        self.lock().entry(key.clone()).or_default().push(writes);
        LiveRun { runs: self.clone(), key, sender }
    }

    /// Tells the runs of a chat to stop.
    pub(super) fn stop(&self, tenant: Option<&str>, chat: &ChatId) {
        for run in self.lock().get(&key(tenant, chat)).into_iter().flatten() {
            run.sender.send_replace(Live::IsToStop);
        }
    }

    /// Tells the run that writes this message to stop.
    pub(super) fn stop_answer(&self, tenant: Option<&str>, chat: &ChatId, answer: &MessageId) {
        let runs = self.lock();
        let runs = runs.get(&key(tenant, chat)).into_iter().flatten();
        for run in runs.filter(|run| run.message_id == *answer) {
            run.sender.send_replace(Live::IsToStop);
        }
    }

    /// Waits until the runs of a chat that are under way now are over. A run that is registered must
    /// not: it would wait for itself.
    pub(super) async fn are_over(&self, tenant: Option<&str>, chat: &ChatId) {
        let runs: Vec<watch::Receiver<Live>> = {
            let runs = self.lock();
            let runs = runs.get(&key(tenant, chat)).into_iter().flatten();
            runs.map(|run| run.sender.subscribe()).collect()
        };
        are_over(runs).await;
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Vec<Writes>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LiveRun {
    /// Whether others run in this chat.
    pub(super) fn has_others(&self) -> bool {
        let runs = self.runs.lock();
        let mut runs = runs.get(&self.key).into_iter().flatten();
        runs.any(|run| !run.sender.same_channel(&self.sender))
    }

    /// Whether a run that was begun before writes the same message.
    pub(super) fn has_earlier_of_message(&self) -> bool {
        let runs = self.runs.lock();
        let runs = runs.get(&self.key).into_iter().flatten();
        let own = runs.clone().find(|run| run.sender.same_channel(&self.sender));
        let mut earlier = runs.take_while(|run| !run.sender.same_channel(&self.sender));
        own.is_some_and(|own| earlier.any(|run| run.message_id == own.message_id))
    }

    /// Waits until the runs of this chat that were begun before this one are over. It waits for none
    /// but these, so that no two wait for each other.
    pub(super) async fn earlier_are_over(&self) {
        let earlier: Vec<watch::Receiver<Live>> = {
            let runs = self.runs.lock();
            let runs = runs.get(&self.key).into_iter().flatten();
            let earlier = runs.take_while(|run| !run.sender.same_channel(&self.sender));
            earlier.map(|run| run.sender.subscribe()).collect()
        };
        are_over(earlier).await;
    }

    /// Whether it was told to stop.
    pub(super) fn is_to_stop(&self) -> bool {
        *self.sender.borrow() == Live::IsToStop
    }

    /// What it is told.
    pub(super) fn subscribe(&self) -> watch::Receiver<Live> {
        self.sender.subscribe()
    }
}

impl Drop for LiveRun {
    fn drop(&mut self) {
        let mut runs = self.runs.lock();
        if let Some(of_chat) = runs.get_mut(&self.key) {
            of_chat.retain(|run| !run.sender.same_channel(&self.sender));
            if of_chat.is_empty() {
                runs.remove(&self.key);
            }
        }
    }
}

async fn are_over(runs: Vec<watch::Receiver<Live>>) {
    for mut run in runs {
        while run.changed().await.is_ok() {}
    }
}

fn key(tenant: Option<&str>, chat: &ChatId) -> Key {
    (tenant.map(Into::into), chat.clone())
}
