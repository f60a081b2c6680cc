//! [`LiveRuns`]: the runs that are under way here, so that they can be stopped and waited for.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use crate::id::ChatId;

/// The runs under way in this process, by customer and chat.
#[derive(Debug, Clone, Default)]
pub(super) struct LiveRuns(Arc<Mutex<HashMap<Key, Vec<watch::Sender<Live>>>>>);

type Key = (Option<Box<str>>, ChatId);

/// How far a run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Live {
    /// For others to be over.
    Waits,
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
    pub(super) fn register(&self, tenant: Option<&str>, chat: &ChatId, live: Live) -> LiveRun {
        let (sender, _) = watch::channel(live);
        let key = key(tenant, chat);
        self.lock().entry(key.clone()).or_default().push(sender.clone());
        LiveRun { runs: self.clone(), key, sender }
    }

    /// Tells the runs of a chat to stop.
    pub(super) fn stop(&self, tenant: Option<&str>, chat: &ChatId) {
        for run in self.lock().get(&key(tenant, chat)).into_iter().flatten() {
            run.send_replace(Live::IsToStop);
        }
    }

    /// Waits until no run of a chat is under way, but for those that wait like this.
    pub(super) async fn are_over(&self, tenant: Option<&str>, chat: &ChatId) {
        let runs: Vec<watch::Receiver<Live>> = {
            let runs = self.lock();
            let runs = runs.get(&key(tenant, chat)).into_iter().flatten();
            runs.filter(|run| *run.borrow() != Live::Waits).map(watch::Sender::subscribe).collect()
        };
        for mut run in runs {
            while run.changed().await.is_ok() {}
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Vec<watch::Sender<Live>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LiveRun {
    /// Whether others run in this chat.
    pub(super) fn has_others(&self) -> bool {
        let runs = self.runs.lock();
        let mut runs = runs.get(&self.key).into_iter().flatten();
        runs.any(|run| !run.same_channel(&self.sender))
    }

    /// It waits no more, and runs, unless it was told to stop.
    pub(super) fn runs_now(&self) {
        self.sender.send_if_modified(|live| {
            let waits = *live == Live::Waits;
            if waits {
                *live = Live::Runs;
            }
            waits
        });
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
            of_chat.retain(|run| !run.same_channel(&self.sender));
            if of_chat.is_empty() {
                runs.remove(&self.key);
            }
        }
    }
}

fn key(tenant: Option<&str>, chat: &ChatId) -> Key {
    (tenant.map(Into::into), chat.clone())
}
