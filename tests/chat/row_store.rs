//! A store that keeps each message in a row of its own, as one in SQL does: it passes the conformance
//! suite, the same store with a fault does not, and what a turn writes does not depend on the length
//! of its chat.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use axum::http::Method;
use futures::stream;
use serde_json::json;
use test_support::external_processes::say;
use test_support::test_server::{Client, Host};
use ui_message_stream::approval::{Approvals, EmptyToolbox, Principal, UnixMillis};
use ui_message_stream::chat::store::{
    ChatPage, ChatStore, ChatStoreError, ChatSummary, ListChats, ReloadedChat, SaveChat,
    SaveResult, VersionedChat, chat_conformance,
};
use ui_message_stream::chat::{Chat, ChatServer, Turn};
use ui_message_stream::id::ChatId;
use ui_message_stream::limits::ChatLimits;
use ui_message_stream::message::Role;
use ui_message_stream::request::Limits;
use ui_message_stream::{AgentEvent, BoxFuture, ChatRequest, UiMessage};

/// A store with two tables.
#[derive(Debug)]
struct RowStore {
    tables: Mutex<Tables>,
    created: Instant,
    fault: Option<Fault>,
    /// The bytes that were written, and how often a chat was loaded.
    written: AtomicUsize,
    loads: AtomicUsize,
}

#[derive(Debug, Default)]
struct Tables {
    chats: BTreeMap<Key, ChatRow>,
    messages: BTreeMap<(Key, usize), String>,
    last_revision: u64,
}

type Key = (Option<String>, Option<String>, String);

#[derive(Debug, Clone)]
struct ChatRow {
    head: String,
    title: String,
    revision: u64,
    updated_at: UnixMillis,
    expires_at: Option<UnixMillis>,
}

/// What a store does wrong.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    IgnoresRevisions,
    InsertsTwice,
    CreatesReplacedChats,
    CountsRevisionsOfTheRow,
    IgnoresOwners,
    IgnoresTenants,
    IgnoresCase,
    KeepsTheHead,
    KeepsRemovedMessages,
    OnlyAddsMessages,
    KeepsOneMessageTooMany,
    KeepsMessagesOfDeletedChats,
    KeepsTheTitle,
    KeepsTheTime,
    ListsOtherOwners,
    ListsOldestFirst,
    RepeatsTheLastOfAPage,
    SkipsTheFirstOfAPage,
    AlwaysNamesANextPage,
    DeletesNothing,
    DeletesAnyRevision,
    DeletesAllOfTheOwner,
    ReportsEveryDeletion,
    IgnoresTimesToLive,
    ListsExpiredChats,
    DoesNotRenewTimes,
    KeepsTheFirstTimeToLive,
    NeverChanges,
    IgnoresTheMaximum,
    RefusesReplacedChats,
    RefusesChatsThatExist,
    CountsOtherOwners,
    CountsExpiredChats,
    Panics,
}

impl RowStore {
    fn new(fault: Option<Fault>) -> Self {
        RowStore {
            tables: Mutex::default(),
            created: Instant::now(),
            fault,
            written: AtomicUsize::new(0),
            loads: AtomicUsize::new(0),
        }
    }

    fn has(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    fn now(&self) -> UnixMillis {
        UnixMillis(1_000_000).after(self.created.elapsed())
    }

    fn key(&self, owner: &Principal, id: &ChatId) -> Key {
        let (tenant, user) = (owner.tenant().map(str::to_owned), owner.id().map(str::to_owned));
        let id = match self.has(Fault::IgnoresCase) {
            true => id.as_str().to_lowercase(),
            false => id.as_str().to_owned(),
        };
        match self.fault {
            Some(Fault::IgnoresOwners) => (None, None, id),
            Some(Fault::IgnoresTenants) => (None, user, id),
            _ => (tenant, user, id),
        }
    }

    fn is_expired(&self, row: &ChatRow) -> bool {
        !self.has(Fault::IgnoresTimesToLive) && row.expires_at.is_some_and(|at| at <= self.now())
    }

    fn find(&self, tables: &Tables, key: &Key) -> Option<ChatRow> {
        tables.chats.get(key).filter(|row| !self.is_expired(row)).cloned()
    }

    fn read(
        &self,
        owner: &Principal,
        id: &ChatId,
    ) -> Result<Option<VersionedChat>, ChatStoreError> {
        self.loads.fetch_add(1, Ordering::Relaxed);
        let (key, tables) = (self.key(owner, id), self.tables.lock().unwrap());
        let Some(row) = self.find(&tables, &key) else { return Ok(None) };
        let places = (key.clone(), 0)..=(key, usize::MAX);
        let messages = tables.messages.range(places).map(|(_, body)| body);
        VersionedChat::from_json(&row.head, messages, row.revision).map(Some)
    }

    fn write(&self, save: SaveChat<'_>) -> Result<SaveResult, ChatStoreError> {
        let chat = save.chat;
        let (key, mut tables) = (self.key(&chat.owner, &chat.id), self.tables.lock().unwrap());
        let old = tables.chats.get(&key).cloned();
        let current = self.find(&tables, &key).map(|row| row.revision);
        let is_ignored = match self.fault {
            Some(Fault::IgnoresRevisions) => current.is_some() && save.revision.is_some(),
            Some(Fault::InsertsTwice) => save.revision.is_none(),
            Some(Fault::CreatesReplacedChats) => current.is_none(),
            _ => false,
        };
        let is_full = save.max_user_chats.is_some_and(|max| self.count(&tables, &key) >= max);
        if is_full && self.has(Fault::RefusesChatsThatExist) {
            return Ok(SaveResult::TooManyChats);
        }
        if current != save.revision && !is_ignored {
            return Ok(SaveResult::Conflict);
        }
        if is_full && (current.is_none() || self.has(Fault::RefusesReplacedChats)) {
            return Ok(SaveResult::TooManyChats);
        }
        tables.last_revision += 1;
        let revision = match self.has(Fault::CountsRevisionsOfTheRow) {
            true => current.unwrap_or(0) + 1,
            false => tables.last_revision,
        };
        let head = save.head_json()?;
        self.written.fetch_add(head.len(), Ordering::Relaxed);
        let mut row = ChatRow {
            head,
            title: chat.title(),
            revision,
            updated_at: self.now(),
            expires_at: save.keep_for.map(|time| self.now().after(time)),
        };
        if let Some(old) = old.filter(|_| current.is_some()) {
            match self.fault {
                Some(Fault::KeepsTheHead) => row.head = old.head,
                Some(Fault::KeepsTheTitle) => row.title = old.title,
                Some(Fault::KeepsTheTime) => row.updated_at = old.updated_at,
                Some(Fault::DoesNotRenewTimes) => {
                    row.expires_at = row.expires_at.and(old.expires_at);
                }
                Some(Fault::KeepsTheFirstTimeToLive) if old.expires_at.is_some() => {
                    row.expires_at = row.expires_at.or(old.expires_at);
                }
                _ => {}
            }
        }
        let length = match (self.fault, save.revision) {
            (Some(Fault::KeepsRemovedMessages), _)
            | (Some(Fault::KeepsMessagesOfDeletedChats), None) => usize::MAX,
            _ => chat.messages.len(),
        };
        let rest = (key.clone(), length)..=(key.clone(), usize::MAX);
        let rest: Vec<_> = tables.messages.range(rest).map(|(place, _)| place.clone()).collect();
        for place in rest.iter().filter(|place| place.1 < usize::MAX) {
            tables.messages.remove(place);
        }
        for changed in save.changed_messages() {
            let (place, body) = changed?;
            let is_kept = match self.fault {
                Some(Fault::OnlyAddsMessages) => {
                    tables.messages.contains_key(&(key.clone(), place))
                }
                Some(Fault::KeepsOneMessageTooMany) => {
                    save.revision.is_some() && place == save.unchanged
                }
                _ => false,
            };
            if !is_kept {
                self.written.fetch_add(body.len(), Ordering::Relaxed);
                tables.messages.insert((key.clone(), place), body);
            }
        }
        tables.chats.insert(key, row);
        Ok(SaveResult::Saved(revision))
    }

    /// Returns the number of chats of the owner.
    fn count(&self, tables: &Tables, key: &Key) -> usize {
        let counts = |(other, row): &(&Key, &ChatRow)| {
            let is_owner = (&other.0, &other.1) == (&key.0, &key.1);
            (is_owner || self.has(Fault::CountsOtherOwners))
                && (!self.is_expired(row) || self.has(Fault::CountsExpiredChats))
        };
        match self.has(Fault::IgnoresTheMaximum) {
            true => 0,
            false => tables.chats.iter().filter(counts).count(),
        }
    }

    fn page(&self, owner: &Principal, list: ListChats<'_>) -> ChatPage {
        let (of_owner, tables) = (self.key(owner, &"".into()), self.tables.lock().unwrap());
        let rows = tables.chats.iter().filter(|(key, row)| {
            let is_owner = (&key.0, &key.1) == (&of_owner.0, &of_owner.1);
            (is_owner || self.has(Fault::ListsOtherOwners))
                && (!self.is_expired(row) || self.has(Fault::ListsExpiredChats))
        });
        let summaries = rows.map(|(key, row)| ChatSummary {
            id: (*key.2).into(),
            title: row.title.clone(),
            updated_at: row.updated_at,
        });
        let mut chats: Vec<ChatSummary> = summaries.collect();
        chats.sort_by_key(|chat| std::cmp::Reverse(chat.cursor()));
        if self.has(Fault::ListsOldestFirst) {
            chats.reverse();
        }
        if let Some(after) = list.after {
            chats.retain(|chat| match self.fault {
                Some(Fault::RepeatsTheLastOfAPage) => chat.cursor() <= *after,
                Some(Fault::ListsOldestFirst) => chat.cursor() > *after,
                _ => chat.cursor() < *after,
            });
            if self.has(Fault::SkipsTheFirstOfAPage) && !chats.is_empty() {
                chats.remove(0);
            }
        }
        let mut page = ChatPage::new(chats, list.limit);
        if self.has(Fault::AlwaysNamesANextPage) {
            page.next = page.chats.last().map(ChatSummary::cursor);
        }
        page
    }

    fn remove(&self, owner: &Principal, id: &ChatId, revision: u64) -> bool {
        assert!(!self.has(Fault::Panics), "out of order");
        let (key, mut tables) = (self.key(owner, id), self.tables.lock().unwrap());
        let current = self.find(&tables, &key).map(|row| row.revision);
        let is_other = current != Some(revision);
        if is_other && !(self.has(Fault::DeletesAnyRevision) && current.is_some()) {
            return self.has(Fault::ReportsEveryDeletion);
        }
        match self.fault {
            Some(Fault::DeletesNothing) => {}
            Some(Fault::DeletesAllOfTheOwner) => {
                tables.chats.retain(|other, _| (&other.0, &other.1) != (&key.0, &key.1));
            }
            Some(Fault::KeepsMessagesOfDeletedChats) => drop(tables.chats.remove(&key)),
            _ => {
                tables.chats.remove(&key);
                tables.messages.retain(|(other, _), _| *other != key);
            }
        }
        true
    }
}

impl ChatStore for RowStore {
    fn load<'a>(
        &'a self,
        owner: &'a Principal,
        id: &'a ChatId,
    ) -> BoxFuture<'a, Result<Option<VersionedChat>, ChatStoreError>> {
        Box::pin(async move { self.read(owner, id) })
    }

    fn reload<'a>(
        &'a self,
        owner: &'a Principal,
        id: &'a ChatId,
        revision: u64,
    ) -> BoxFuture<'a, Result<ReloadedChat, ChatStoreError>> {
        Box::pin(async move {
            let key = self.key(owner, id);
            let current = self.find(&self.tables.lock().unwrap(), &key).map(|row| row.revision);
            if current == Some(revision) || self.has(Fault::NeverChanges) {
                return Ok(ReloadedChat::Unchanged);
            }
            let changed = |stored| ReloadedChat::Changed(Box::new(stored));
            Ok(self.read(owner, id)?.map_or(ReloadedChat::NotFound, changed))
        })
    }

    fn save<'a>(&'a self, save: SaveChat<'a>) -> BoxFuture<'a, Result<SaveResult, ChatStoreError>> {
        Box::pin(async move { self.write(save) })
    }

    fn list<'a>(
        &'a self,
        owner: &'a Principal,
        list: ListChats<'a>,
    ) -> BoxFuture<'a, Result<ChatPage, ChatStoreError>> {
        Box::pin(async move { Ok(self.page(owner, list)) })
    }

    fn delete<'a>(
        &'a self,
        owner: &'a Principal,
        id: &'a ChatId,
        revision: u64,
    ) -> BoxFuture<'a, Result<bool, ChatStoreError>> {
        Box::pin(async move { Ok(self.remove(owner, id, revision)) })
    }
}

#[tokio::test]
async fn a_store_with_a_row_for_each_message_passes_the_conformance_suite() {
    let cases = chat_conformance::check(async || RowStore::new(None)).await;
    say(&format!("conformance of a store with a row for each message: {cases} cases"));
}

#[tokio::test]
async fn a_store_with_a_fault_fails_the_conformance_case_for_it() {
    let checks = [
        (Fault::IgnoresRevisions, "a save with an old revision changes nothing: "),
        (Fault::InsertsTwice, "a chat that exists is not inserted again: "),
        (Fault::CreatesReplacedChats, "a chat that does not exist is not replaced: "),
        (
            Fault::CountsRevisionsOfTheRow,
            "a chat that is created again has no revision of the old one: ",
        ),
        (Fault::IgnoresOwners, "two owners have chats with the same id: "),
        (Fault::IgnoresTenants, "tenants and the anonymous user are separate owners: "),
        (Fault::IgnoresCase, "ids of chats may hold any characters, and differ by each: "),
        (Fault::KeepsTheHead, "only the head changes: "),
        (Fault::KeepsRemovedMessages, "messages are removed: "),
        (Fault::OnlyAddsMessages, "the last message is replaced: "),
        (Fault::KeepsOneMessageTooMany, "a message is added: "),
        (
            Fault::KeepsMessagesOfDeletedChats,
            "a chat that is created again has none of the old messages: ",
        ),
        (Fault::KeepsTheTitle, "a chat is listed with its title: "),
        (Fault::KeepsTheTime, "the time of a chat is that of its last save: "),
        (Fault::ListsOtherOwners, "a chat of another owner is not listed: "),
        (Fault::ListsOldestFirst, "the chat that was saved last is listed first: "),
        (Fault::RepeatsTheLastOfAPage, "pages of any size hold each chat once: "),
        (Fault::SkipsTheFirstOfAPage, "pages of any size hold each chat once: "),
        (Fault::AlwaysNamesANextPage, "only a page before others names the next one: "),
        (Fault::DeletesNothing, "a deleted chat is not loaded and not listed: "),
        (Fault::DeletesAnyRevision, "a chat with another revision is not deleted: "),
        (Fault::DeletesAllOfTheOwner, "the other chats of the owner stay: "),
        (Fault::ReportsEveryDeletion, "a chat that does not exist is not deleted: "),
        (Fault::IgnoresTimesToLive, "after its time a chat is not loaded and not listed: "),
        (Fault::ListsExpiredChats, "after its time a chat is not loaded and not listed: "),
        (Fault::DoesNotRenewTimes, "each save begins the time again: "),
        (Fault::KeepsTheFirstTimeToLive, "a save without a time keeps the chat: "),
        (Fault::NeverChanges, "a chat that has changed is loaded again: "),
        (Fault::IgnoresTheMaximum, "at the limit a new chat is refused, or another one is removed"),
        (Fault::RefusesReplacedChats, "at the limit the chats that exist are saved: "),
        (Fault::RefusesChatsThatExist, "at the limit a chat that exists is a conflict: "),
        (Fault::CountsOtherOwners, "the chats of others do not count: "),
        (Fault::CountsExpiredChats, "a chat whose time has passed does not count: "),
        (Fault::Panics, "out of order"),
    ];
    let checks = checks.map(|(fault, named)| {
        let store = async move || RowStore::new(Some(fault));
        (fault, named, tokio::spawn(chat_conformance::check(store)))
    });
    for (fault, named, check) in checks {
        let Err(error) = check.await else { panic!("{fault:?} is not noticed") };
        let text = error.into_panic();
        let text = text.downcast_ref::<String>().unwrap();
        assert!(text.contains(named), "{fault:?}: {text}");
    }
}

/// A turn with a constant agent, of a client that sends its last message only.
#[tokio::test]
async fn what_a_turn_writes_does_not_depend_on_the_length_of_the_chat() {
    let mut costs = Vec::new();
    for length in [10, 1_000, 5_000] {
        let store = Arc::new(RowStore::new(None));
        let ada = Principal::new("ada");
        let mut chat = Chat::new("chat", ada.clone());
        for at in 0..length {
            let role = if at % 2 == 0 { "user" } else { "assistant" };
            let parts = json!([{"type": "text", "text": "A message of a usual length."}]);
            let message = json!({"id": format!("m{at:05}"), "role": role, "parts": parts});
            chat.messages.push(UiMessage::parse(&message.to_string()).unwrap());
        }
        assert_ne!(store.save(SaveChat::new(&chat)).await.unwrap(), SaveResult::Conflict);
        store.written.store(0, Ordering::Relaxed);
        let agent = |_: Turn| stream::iter([AgentEvent::text("An answer.")]);
        let chats = ChatServer::new(agent, Approvals::new(EmptyToolbox)).with_store(store.clone());
        let message = json!({
            "id": "new", "role": "user", "parts": [{"type": "text", "text": "A question?"}],
        });
        let body = json!({"id": "chat", "message": message}).to_string();
        let request = ChatRequest::parse(body.as_bytes(), &Limits::default()).unwrap();
        let task = chats.stream_response(&ada, request).await.unwrap();
        drop(futures::StreamExt::collect::<Vec<_>>(task).await);
        let loads = store.loads.load(Ordering::Relaxed);
        let stored = store.load(&ada, &"chat".into()).await.unwrap().unwrap().chat;
        assert_eq!(stored.messages.len(), length + 2);
        assert_eq!(stored.messages.last().unwrap().role, Role::Assistant);
        costs.push((store.written.load(Ordering::Relaxed), loads));
    }
    say(&format!("bytes that a turn writes, and loads, at 10, 1 000, 5 000 messages: {costs:?}"));
    assert!(costs.iter().all(|cost| *cost == costs[0]), "{costs:?}");
    assert_eq!(costs[0].1, 1, "a turn loads its chat once");
}

#[tokio::test]
async fn a_new_chat_beyond_the_limit_of_its_user_is_refused_with_the_setting_until_one_is_deleted()
{
    let limits = ChatLimits::default().with_max_user_chats(2).with_max_user_runs(1);
    let host = Host::new().with_store(RowStore::new(None)).with_limits(limits);
    let (mut one, mut two) = (Client::new("alice", "one"), Client::new("alice", "two"));
    one.say(&host, "hello").await;
    two.say(&host, "delete notes.txt").await;
    let begin = async |user: &str| {
        let text = json!({"type": "text", "text": "hello"});
        let message = json!({"id": "m1", "role": "user", "parts": [text]});
        host.chat(user, json!({"id": "three", "messages": [message]}).to_string()).await
    };
    // A refused request leaves no run: the second one would be refused for that.
    for _ in 0..2 {
        let refused = begin("alice").await;
        let text = "you have 2 chats or more: delete one before you begin another; \
                    `ChatLimits::with_max_user_chats` allows more";
        assert_eq!((refused.status.as_u16(), &*refused.text), (413, text));
    }
    assert_eq!(host.get("alice", "/api/chat/three").await.status, 404);
    // The chats that exist, and other users, go on.
    one.say(&host, "hello").await;
    two.answer(&host, true).await;
    assert_eq!(host.tools.effects().len(), 1);
    assert_eq!(begin("bob").await.status, 200);
    let deleted = host.send("alice", Method::DELETE, "/api/chat/one", String::new()).await;
    assert!(deleted.status.is_success(), "{}", deleted.text);
    assert_eq!(begin("alice").await.status, 200);
}
