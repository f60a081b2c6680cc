//! [`Followers`]: the newest chats of a user, for the pages that follow all chats of the user.
//!
//! A task reads the list of a user when the store hints at a change, for all responses of this server that
//! follow it. Each response writes how the list differs from the one that it has written before.

use std::collections::{HashMap, HashSet};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{FutureExt, maybe_done};
use futures_util::stream::{self, Stream};
use serde::Serialize;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::readers::Reader;
use super::shutdown::Shutdown;
use super::store::{ChatPage, ChatStoreError, ListChats, LogStore};
use super::stream::KEEP_ALIVE_INTERVAL;
use ui_message_stream::approval::Principal;
use ui_message_stream::id::{ChatId, log_causes};
use ui_message_stream::response::BodyError;
use ui_message_stream::retry::Retries;
use ui_message_stream::sse::KEEP_ALIVE;

/// The lists of a server that responses follow. All clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct Followers(Arc<Mutex<HashMap<Key, Pages>>>);

/// The owner of a list, and how many chats of it are followed.
type Key = (Principal, usize);

/// The newest state of a list, once it was read.
type Pages = watch::Sender<Option<Arc<ChatPage>>>;

impl Followers {
    /// Returns the states of a list, and starts the task that reads it, unless it runs.
    fn subscribe(
        &self,
        key: &Key,
        logs: &Arc<dyn LogStore>,
    ) -> watch::Receiver<Option<Arc<ChatPage>>> {
        let mut lists = self.lock();
        if let Some(pages) = lists.get(key) {
            return pages.subscribe();
        }
        let (pages, receiver) = watch::channel(None);
        lists.insert(key.clone(), pages.clone());
        let (followers, key, logs) = (self.clone(), key.clone(), Arc::clone(logs));
        tokio::spawn(async move {
            if let Err(error) = followers.read_list(&key, &*logs, pages).await {
                let error = log_causes(&error);
                tracing::error!(error, "the responses that follow a list of chats are cut off");
                followers.lock().remove(&key);
            }
        });
        receiver
    }

    /// Reads a list when it may have changed, until no response follows it.
    ///
    /// # Errors
    /// The store has failed for too long.
    async fn read_list(
        &self,
        key: &Key,
        logs: &dyn LogStore,
        pages: Pages,
    ) -> Result<(), ChatStoreError> {
        let (owner, limit) = key;
        let mut retries = Retries::default();
        loop {
            let mut changed = pin!(maybe_done(logs.changed_list(owner)));
            // What changes from here on is not missed.
            let _ = (&mut changed).now_or_never();
            let list = logs.list(owner, ListChats { limit: *limit, after: None, search: None });
            let page = timeout(MAX_READ_TIME, list).await;
            match page.unwrap_or_else(|_| Err(ChatStoreError::new("no reply"))) {
                Ok(page) => {
                    retries = Retries::default();
                    pages.send_if_modified(|known| {
                        let is_new = known.as_deref() != Some(&page);
                        if is_new {
                            *known = Some(Arc::new(page));
                        }
                        is_new
                    });
                    // Entries that follow each other at once are read together.
                    sleep(PAUSE).await;
                    tokio::select! {
                        () = changed => {}
                        () = sleep(TICK) => {}
                        () = pages.closed() => {}
                    }
                }
                Err(error) => retries.pause(u32::MAX, error, "list chats").await?,
            }
            let mut lists = self.lock();
            if pages.receiver_count() == 0 {
                lists.remove(key);
                return Ok(());
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Pages>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A response that follows a list.
pub(super) struct Follower {
    followers: Followers,
    logs: Arc<dyn LogStore>,
    shutdown: Shutdown,
    key: Key,
    pages: Option<watch::Receiver<Option<Arc<ChatPage>>>>,
    /// What the client has read.
    shown: Option<Arc<ChatPage>>,
    _reader: Reader,
}

impl Follower {
    pub(super) fn new(
        followers: &Followers,
        logs: &Arc<dyn LogStore>,
        shutdown: &Shutdown,
        key: Key,
        reader: Reader,
    ) -> Self {
        Follower {
            followers: followers.clone(),
            logs: Arc::clone(logs),
            shutdown: shutdown.clone(),
            key,
            pages: None,
            shown: None,
            _reader: reader,
        }
    }

    /// The events, until the server is shut down, or the store has failed for too long.
    pub(super) fn events(self) -> impl Stream<Item = Result<Bytes, BodyError>> + Send {
        stream::unfold(Some(self), async |follower| {
            let mut follower = follower?;
            let events = follower.next_events().await?;
            let is_cut_off = events.is_err();
            Some((events, (!is_cut_off).then_some(follower)))
        })
    }

    /// Returns the next events, or a comment if there are none for a while. Returns `None` if the server is
    /// shut down.
    async fn next_events(&mut self) -> Option<Result<Bytes, BodyError>> {
        let Follower { followers, logs, shutdown, key, shown, .. } = self;
        let subscribe = || followers.subscribe(key, logs);
        let pages = self.pages.get_or_insert_with(subscribe);
        let is_shown =
            |page: &Arc<ChatPage>| shown.as_ref().is_some_and(|shown| Arc::ptr_eq(shown, page));
        let page = tokio::select! {
            biased;
            () = shutdown.closed() => return None,
            page = pages.wait_for(|page| page.as_ref().is_some_and(|page| !is_shown(page))) => {
                page.map(|page| page.clone())
            }
            () = sleep(KEEP_ALIVE_INTERVAL) => return Some(Ok(Bytes::from_static(KEEP_ALIVE))),
        };
        // The task has ended, because the store has failed.
        let Ok(page) = page else { return Some(Err(BodyError::CutOff)) };
        let before = std::mem::replace(&mut self.shown, page);
        let mut events = String::new();
        match (before, &self.shown) {
            (Some(before), Some(now)) => add_changes(&before, now, &mut events),
            (None, Some(now)) => add_event("chats", now, &mut events),
            (_, None) => {}
        }
        // Further chats may have been deleted, which are not followed.
        let is_empty = events.is_empty();
        Some(Ok(if is_empty { Bytes::from_static(KEEP_ALIVE) } else { events.into() }))
    }
}

/// Adds the events of what has changed, the oldest change first.
fn add_changes(before: &ChatPage, now: &ChatPage, events: &mut String) {
    #[derive(Serialize)]
    struct Deleted<'a> {
        id: &'a ChatId,
    }
    let kept: HashSet<&ChatId> = now.chats.iter().map(|chat| &chat.id).collect();
    for chat in before.chats.iter().filter(|chat| !kept.contains(&chat.id)) {
        let place = (chat.updated_at, &chat.id);
        // An older chat than the last one may still be there.
        if now.next.as_ref().is_none_or(|last| place > (last.updated_at, &last.id)) {
            add_event("deleted", &Deleted { id: &chat.id }, events);
        }
    }
    for chat in now.chats.iter().rev().filter(|chat| !before.chats.contains(chat)) {
        add_event("chat", chat, events);
    }
}

fn add_event(name: &str, data: &impl Serialize, events: &mut String) {
    // Its values are strings, numbers and flags: each can be written.
    let data = serde_json::to_string(data).unwrap_or_default();
    events.extend(["event: ", name, "\ndata: ", &data, "\n\n"]);
}

/// How long a list is not read again after it was read.
const PAUSE: Duration = Duration::from_millis(50);

/// How long a list is not read without a hint. While a store may miss changes, it says so.
const TICK: Duration = Duration::from_secs(5);

/// How long the store has for a read of a list.
const MAX_READ_TIME: Duration = Duration::from_secs(5);
