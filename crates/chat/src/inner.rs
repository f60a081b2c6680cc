//! [`Inner`]: the state that all clones of a [`ChatServer`](super::ChatServer) share.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use super::agent::ChatAgent;
use super::folds::Folds;
use super::followers::Followers;
use super::hints::Hints;
use super::loads::Loads;
use super::log::client::ClientSettings;
use super::readers::Readers;
use super::run_counts::RunCounters;
use super::shutdown::Shutdown;
use super::sink::Sink;
use super::store::{LogKey, LogStore, Undelivered};
use super::tail::Tails;
use super::ticks::Ticks;
use super::{Chat, HistoryImport, PostedHistory};
use crate::ChatLimits;
use ui_message_stream::approval::Approvals;
use ui_message_stream::request::ChatRequest;

/// The agent, the services and the settings of a server of conversations.
#[derive(Clone)]
pub(super) struct Inner {
    pub(super) agent: Arc<dyn ChatAgent>,
    pub(super) approvals: Approvals,
    pub(super) logs: Arc<dyn LogStore>,
    /// Whether a task sweeps the store.
    pub(super) is_sweeping: Arc<AtomicBool>,
    pub(super) limits: ChatLimits,
    pub(super) posted_history: PostedHistory,
    /// Whether it was logged that messages are kept which a page has removed.
    pub(super) has_warned_of_kept: Arc<AtomicBool>,
    pub(super) history_import: HistoryImport,
    pub(super) clients: ClientSettings,
    pub(super) run_lease: Duration,
    pub(super) ticks: Ticks,
    pub(super) hints: Hints,
    pub(super) run_counters: RunCounters,
    pub(super) readers: Readers,
    pub(super) followers: Followers,
    pub(super) tails: Tails,
    pub(super) loads: Loads,
    pub(super) folds: Folds,
    /// The logs whose lost runs are being ended, because somebody has loaded them.
    pub(super) mending: Arc<Mutex<BTreeSet<LogKey>>>,
    pub(super) shutdown: Shutdown,
    pub(super) sink: Option<Arc<Sink>>,
}

impl Inner {
    /// Delivers a change, if the server has a sink.
    pub(super) fn deliver_later(&self, next: Undelivered) {
        if let Some(sink) = &self.sink
            && let Some(counted) = self.shutdown.count_delivery()
        {
            sink.add(next, counted);
        }
    }

    /// Logs once that messages are kept which the posted history of this request lacks.
    pub(super) fn warn_of_kept(&self, chat: &Chat, request: &ChatRequest) {
        let kept = chat.kept_messages(request);
        if kept > 0 && !self.has_warned_of_kept.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                kept,
                "the posted history lacks messages that the server keeps, and the model reads them; if \
                 the page has removed them, set `PostedHistory::Truncate`"
            );
        }
    }
}

/// Returns the server, unless it was dropped or shuts down.
pub(super) fn running(chats: &Weak<Inner>) -> Option<Arc<Inner>> {
    chats.upgrade().filter(|chats| !chats.shutdown.has_begun())
}

/// How many chats are worked on at once.
pub(super) const MAX_AT_ONCE: usize = 8;
