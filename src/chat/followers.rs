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
use futures_util::stream;
use serde::Serialize;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::error::ChatError;
use super::inner::Inner;
use super::readers::Reader;
use super::server::ChatServer;
use super::store::{ChatPage, ChatStoreError, ListChats, LogStore};
use super::stream::{ChatStream, KEEP_ALIVE_INTERVAL};
use crate::approval::Principal;
use crate::id::{ChatId, log_causes};
use crate::response::BodyError;
use crate::retry::Retries;
use crate::sse::KEEP_ALIVE;

impl ChatServer {
    /// Follows the newest conversations of this principal, at most `limit`. The response tells a page what
    /// other pages and servers change: a run begins or ends, a question is asked or closed, messages change,
    /// a conversation is begun, renamed or deleted.
    ///
    /// It is a stream of server-sent events, which an `EventSource` reads:
    ///
    /// | event | data |
    /// |---|---|
    /// | `chats` | the first event: the conversations, as `GET /` of the routes lists them |
    /// | `chat` | a conversation that has changed, or is new among them, in the same form |
    /// | `deleted` | `{"id"}` of a conversation that was deleted |
    ///
    /// `version` grows with each change of the messages, so a page loads a conversation again when it shows
    /// another version. Changes that follow each other at once may be one event. A conversation that newer
    /// ones have replaced among the newest is followed no longer, until it changes. After a reconnect, the
    /// event `chats` says what has changed meanwhile.
    ///
    /// The response counts as one that the user reads, and ends when the server is shut down. It is cut off
    /// if the store fails for 30 seconds.
    ///
    /// ```
    /// # use ui_message_stream::chat::{ChatError, ChatServer};
    /// use ui_message_stream::approval::Principal;
    /// use ui_message_stream::chat::ChatStream;
    ///
    /// /// A handler of any server that is built on hyper.
    /// fn events(
    ///     chats: &ChatServer,
    ///     user: &Principal,
    /// ) -> Result<http::Response<ChatStream>, ChatError> {
    ///     Ok(chats.follow(user, 20)?.into_http_response())
    /// }
    /// # let _ = events;
    /// ```
    ///
    /// # Errors
    /// [`ChatError::TooManyReaders`] if the user reads too many responses.
    #[doc(alias = "EventSource")]
    #[doc(alias = "subscribe")]
    pub fn follow(&self, principal: &Principal, limit: usize) -> Result<ChatStream, ChatError> {
        let follower = Follower {
            chats: Arc::clone(&self.0),
            key: (principal.clone(), limit.max(1)),
            pages: None,
            shown: None,
            _reader: self.reader(principal)?,
        };
        Ok(ChatStream::of_pages(stream::unfold(Some(follower), async |follower| {
            let mut follower = follower?;
            let page = follower.next_events().await?;
            let is_cut_off = page.is_err();
            Some((page, (!is_cut_off).then_some(follower)))
        })))
    }
}

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
struct Follower {
    chats: Arc<Inner>,
    key: Key,
    pages: Option<watch::Receiver<Option<Arc<ChatPage>>>>,
    /// What the client has read.
    shown: Option<Arc<ChatPage>>,
    _reader: Reader,
}

impl Follower {
    /// Returns the next events, or a comment if there are none for a while. Returns `None` if the server is
    /// shut down.
    async fn next_events(&mut self) -> Option<Result<Bytes, BodyError>> {
        let Follower { chats, key, shown, .. } = self;
        let subscribe = || chats.followers.subscribe(key, &chats.logs);
        let pages = self.pages.get_or_insert_with(subscribe);
        let is_shown =
            |page: &Arc<ChatPage>| shown.as_ref().is_some_and(|shown| Arc::ptr_eq(shown, page));
        let page = tokio::select! {
            biased;
            () = chats.shutdown.closed() => return None,
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
