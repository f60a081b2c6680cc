//! [`FollowedList`]: the newest chats of a user, for the pages that follow all chats of the user.
//!
//! A task reads the list of a user when the store hints at a change, for all responses of this server that
//! follow it. Each response writes how the list differs from the one that it has written before.

use std::borrow::Cow;
use std::collections::HashSet;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{FutureExt, maybe_done};
use futures_util::stream::{self, Stream};
use serde::Serialize;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::readers::Reader;
use super::registry::{Registry, Shared};
use super::shutdown::Shutdown;
use super::store::{ChatPage, ChatStoreError, ListChats, LogStore};
use super::stream::KEEP_ALIVE_INTERVAL;
use ui_message_stream::approval::Principal;
use ui_message_stream::id::{ChatId, log_causes};
use ui_message_stream::response::BodyError;
use ui_message_stream::retry::Retries;
use ui_message_stream::sse::KEEP_ALIVE;

/// The lists of a server that responses follow, by their owners. All clones share them.
pub(super) type Followers = Registry<Principal, FollowedList>;

/// The newest state of a list, once it was read. `None` before the task that reads it is started.
#[derive(Debug, Default)]
pub(super) struct FollowedList(Mutex<Option<watch::Receiver<Option<Arc<ChatPage>>>>>);

impl FollowedList {
    /// Returns the states of a list, and starts the task that reads it, unless it runs. If the task ends, also with its
    /// runtime, the responses that follow the list are cut off.
    fn subscribe(
        &self,
        owner: &Principal,
        logs: &Arc<dyn LogStore>,
    ) -> watch::Receiver<Option<Arc<ChatPage>>> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pages) = known.as_ref().filter(|pages| pages.has_changed().is_ok()) {
            return pages.clone();
        }
        let (pages, receiver) = watch::channel(None);
        *known = Some(receiver.clone());
        let (owner, logs) = (owner.clone(), Arc::clone(logs));
        // The task may be dropped at once.
        drop(known);
        tokio::spawn(async move {
            if let Err(error) = read_list(&owner, &*logs, pages).await {
                let error = log_causes(&error);
                tracing::error!(error, "the responses that follow a list of chats are cut off");
            }
        });
        receiver
    }
}

/// Reads a list when it may have changed, until no response follows it.
///
/// # Errors
/// The store has failed for too long.
async fn read_list(
    owner: &Principal,
    logs: &dyn LogStore,
    pages: watch::Sender<Option<Arc<ChatPage>>>,
) -> Result<(), ChatStoreError> {
    let mut retries = Retries::default();
    while pages.receiver_count() > 0 {
        let mut changed = pin!(maybe_done(logs.changed_list(owner)));
        // What changes from here on is not missed.
        let _ = (&mut changed).now_or_never();
        let newest = ListChats { limit: MAX_FOLLOWED_CHATS, after: None, search: None };
        let list = logs.list(owner, newest);
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
    }
    Ok(())
}

/// A response that follows a list.
pub(super) struct Follower {
    list: Arc<Shared<Principal, FollowedList>>,
    logs: Arc<dyn LogStore>,
    shutdown: Shutdown,
    owner: Principal,
    /// How many of the newest chats the client follows.
    limit: usize,
    ends_at: Instant,
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
        (owner, limit): (&Principal, usize),
        reader: Reader,
    ) -> Self {
        Follower {
            list: followers.get(owner),
            logs: Arc::clone(logs),
            shutdown: shutdown.clone(),
            owner: owner.clone(),
            limit: limit.clamp(1, MAX_FOLLOWED_CHATS),
            ends_at: Instant::now() + MAX_AGE,
            pages: None,
            shown: None,
            _reader: reader,
        }
    }

    /// The events, until the client has to be authenticated again, the server is shut down, or the store has failed
    /// for too long.
    pub(super) fn events(self) -> impl Stream<Item = Result<Bytes, BodyError>> + Send {
        stream::unfold(Some(self), async |follower| {
            let mut follower = follower?;
            let events = follower.next_events().await?;
            let is_cut_off = events.is_err();
            Some((events, (!is_cut_off).then_some(follower)))
        })
    }

    /// Returns the next events, or a comment if there are none for a while. Returns `None` at the end.
    async fn next_events(&mut self) -> Option<Result<Bytes, BodyError>> {
        let Follower { list, logs, shutdown, owner, shown, ends_at, .. } = self;
        let subscribe = || list.subscribe(owner, logs);
        let pages = self.pages.get_or_insert_with(subscribe);
        let is_shown =
            |page: &Arc<ChatPage>| shown.as_ref().is_some_and(|shown| Arc::ptr_eq(shown, page));
        let page = tokio::select! {
            biased;
            () = shutdown.closed() => return None,
            () = sleep_until(*ends_at) => return None,
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
            (Some(before), Some(now)) => {
                add_changes(&self.followed(&before), &self.followed(now), &mut events);
            }
            (None, Some(now)) => add_event("chats", &*self.followed(now), &mut events),
            (_, None) => {}
        }
        // Further chats may have been deleted, which are not followed.
        let is_empty = events.is_empty();
        Some(Ok(if is_empty { Bytes::from_static(KEEP_ALIVE) } else { events.into() }))
    }

    /// Returns the chats of a page that the client follows.
    fn followed<'a>(&self, page: &'a ChatPage) -> Cow<'a, ChatPage> {
        if page.chats.len() > self.limit {
            let chats = page.chats.iter().take(self.limit + 1).cloned().collect();
            Cow::Owned(ChatPage::new(chats, self.limit))
        } else {
            Cow::Borrowed(page)
        }
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

/// How many of the newest chats of a user are read.
const MAX_FOLLOWED_CHATS: usize = 100;

/// After this time a response ends, and its client is authenticated again when it reconnects.
const MAX_AGE: Duration = Duration::from_secs(15 * 60);

/// How long a list is not read again after it was read.
const PAUSE: Duration = Duration::from_millis(50);

/// How long a list is not read without a hint. While a store may miss changes, it says so.
const TICK: Duration = Duration::from_secs(5);

/// How long the store has for a read of a list.
const MAX_READ_TIME: Duration = Duration::from_secs(5);
