//! The functions of [`LogStore`] over [`Rows`].

use std::time::Duration;

use tokio::time::sleep;

use super::appends::append_log;
use super::changes::{LISTED_AT_ONCE, change, delete_logs, delete_unreadable, heads, members, run};
use super::database::Rows;
use super::log_rows::{ENTRIES, MESSAGES, READS, SNAPSHOT, all, row_of};
use super::rules::head::{Head, Loaded, is_unreadable};
use super::rules::{self, millis};
use super::step::{Item, Read, Step, Write};
use super::sweeps;
use crate::store::{
    AppendLog, AppendResult, ChatPage, ChatStoreError, ChatSummary, Epoch, LeftToServer, ListChats,
    LoadLog, LoadedLog, LogKey, LogPage, LogStore, PutSnapshot, ReadLogEntries, ReadMessages,
    Snapshot, StoredEntry, Undelivered,
};
use ui_message_stream::BoxFuture;
use ui_message_stream::approval::{Principal, UnixMillis};

impl<R: Rows> LogStore for R {
    fn load<'a>(
        &'a self,
        load: LoadLog<'a>,
    ) -> BoxFuture<'a, Result<Option<LoadedLog>, ChatStoreError>> {
        Box::pin(load_log(self, load))
    }

    fn messages<'a>(
        &'a self,
        read: ReadMessages<'a>,
    ) -> BoxFuture<'a, Result<Option<Vec<String>>, ChatStoreError>> {
        Box::pin(async move {
            let row = row_of(&read.key.chat);
            let page = all(&row, MESSAGES, read.first as u64, read.max_bytes);
            let step = Step::of(&read.key.owner).read_log(&read.key.chat).read(page);
            let mut reply = run(self, step).await?;
            let stored = reply.log()?;
            let is_same =
                |head: &&Head| head.epoch == read.epoch.0 && head.folded == Some(read.position);
            let messages = reply.texts()?;
            Ok(stored.log(reply.now.0).filter(is_same).map(|_| messages))
        })
    }

    fn read<'a>(
        &'a self,
        read: ReadLogEntries<'a>,
    ) -> BoxFuture<'a, Result<Option<LogPage>, ChatStoreError>> {
        Box::pin(read_entries(self, read))
    }

    fn append<'a>(
        &'a self,
        append: AppendLog<'a>,
    ) -> BoxFuture<'a, Result<AppendResult, ChatStoreError>> {
        Box::pin(append_log(self, append))
    }

    fn put_snapshot<'a>(
        &'a self,
        put: PutSnapshot<'a>,
    ) -> BoxFuture<'a, Result<bool, ChatStoreError>> {
        Box::pin(async move {
            let row = row_of(&put.key.chat);
            let text = |text: &str| text.to_owned().into_bytes().into();
            let message = |message: &String| Item { kind: 0, bytes: text(message) };
            let changed = change(self, put.key, |stored, now| {
                let (head, kept) = rules::put_snapshot(stored, &put, now)?;
                let keep =
                    Write::Keep { row: row.clone(), sequence: MESSAGES, from: 0, until: kept };
                let items = put.changed.iter().map(message).collect();
                let (row, sequence) = (row.clone(), MESSAGES);
                let push = Write::Push { row, sequence, first: 0, at: None, items };
                let step = Step::of(&put.key.owner).write(keep).write(push);
                Some((head, step.replace(&row_of(&put.key.chat), SNAPSHOT, text(put.head))))
            });
            changed.await
        })
    }

    fn delete<'a>(
        &'a self,
        key: &'a LogKey,
        epoch: Epoch,
        control: u64,
    ) -> BoxFuture<'a, Result<bool, ChatStoreError>> {
        Box::pin(async move {
            let is_same = move |stored: &Loaded, now| {
                stored.log(now).is_some_and(|log| (log.epoch, log.control) == (epoch.0, control))
            };
            let chats = std::slice::from_ref(&key.chat);
            Ok(delete_logs(self, &key.owner, chats, is_same).await? > 0)
        })
    }

    fn delete_user<'a>(
        &'a self,
        owner: &'a Principal,
    ) -> BoxFuture<'a, Result<usize, ChatStoreError>> {
        Box::pin(async move {
            let mut deleted = 0;
            loop {
                let (before, mut after, mut left) = (deleted, None, Vec::new());
                loop {
                    let page = members(self, owner, after.take(), DELETED_AT_ONCE).await?.0;
                    after = page.last().cloned();
                    if after.is_none() {
                        break;
                    }
                    let chats: Vec<_> = page.iter().map(|(_, chat)| chat.as_str().into()).collect();
                    match delete_logs(self, owner, &chats, |_, _| true).await {
                        Ok(number) => deleted += number,
                        // It does not keep the others.
                        Err(error) if is_unreadable(&error) => {}
                        Err(error) => return Err(error),
                    }
                    left.extend(page);
                }
                if left.is_empty() {
                    return Ok(deleted);
                }
                // Others have another place meanwhile.
                if deleted == before {
                    for (at, chat) in left {
                        deleted += delete_unreadable(self, owner, at, &chat.into()).await?;
                    }
                }
            }
        })
    }

    fn rename<'a>(
        &'a self,
        key: &'a LogKey,
        title: &'a str,
    ) -> BoxFuture<'a, Result<bool, ChatStoreError>> {
        Box::pin(change(self, key, move |stored, now| {
            let head = stored.log(now)?.clone();
            let step =
                Step::of(&key.owner).with_hint(key, Some((Epoch(head.epoch), stored.length)));
            Some((Head { title: title.to_owned(), is_renamed: true, ..head }, step))
        }))
    }

    fn list<'a>(
        &'a self,
        owner: &'a Principal,
        list: ListChats<'a>,
    ) -> BoxFuture<'a, Result<ChatPage, ChatStoreError>> {
        Box::pin(list_logs(self, owner, list))
    }

    fn undelivered(
        &self,
        limit: usize,
        retry_after: Duration,
    ) -> BoxFuture<'_, Result<Vec<Undelivered>, ChatStoreError>> {
        Box::pin(sweeps::take_undelivered(self, limit, millis(retry_after)))
    }

    fn acknowledge<'a>(
        &'a self,
        delivered: &'a Undelivered,
    ) -> BoxFuture<'a, Result<Option<Undelivered>, ChatStoreError>> {
        Box::pin(sweeps::acknowledge(self, delivered))
    }

    fn sweep(&self) -> BoxFuture<'_, Result<LeftToServer, ChatStoreError>> {
        Box::pin(async move {
            let rest = Rows::sweep(self).await;
            let (left, swept) = sweeps::sweep(self).await;
            // The server has something to do.
            if left == LeftToServer::default() { swept.and(rest).map(|()| left) } else { Ok(left) }
        })
    }

    fn ping(&self) -> BoxFuture<'_, Result<(), ChatStoreError>> {
        Rows::ping(self)
    }

    fn changed<'a>(&'a self, key: &'a LogKey, length: u64) -> BoxFuture<'a, ()> {
        Rows::changed(self, key, length)
    }

    fn hinted_entries(&self, key: &LogKey, epoch: Epoch, position: u64) -> Vec<StoredEntry> {
        Rows::hinted_entries(self, key, epoch, position)
    }

    fn changed_list<'a>(&'a self, owner: &'a Principal) -> BoxFuture<'a, ()> {
        Rows::changed_list(self, owner)
    }
}

async fn load_log(
    rows: &impl Rows,
    load: LoadLog<'_>,
) -> Result<Option<LoadedLog>, ChatStoreError> {
    let LogKey { owner, chat } = load.key;
    let row = row_of(chat);
    let mut stored = run(rows, Step::of(owner).read_log(chat)).await?.log()?;
    loop {
        let from = stored.head.as_ref().and_then(|head| head.folded);
        let entries = Read::Items {
            row: row.clone(),
            sequence: ENTRIES,
            from: from.unwrap_or(0),
            max_bytes: usize::MAX,
            only_marked: !load.has_frames,
        };
        let mut step = Step::of(owner).expect(&row, stored.version).read_log(chat).read(entries);
        step = step.read(all(&row, SNAPSHOT, 0, usize::MAX));
        if load.has_messages {
            step = step.read(all(&row, MESSAGES, 0, usize::MAX));
        }
        let mut reply = run(rows, step).await?;
        stored = reply.log()?;
        // Otherwise the snapshot may be another one.
        if reply.is_applied {
            let Some(head) = stored.log(reply.now.0) else { return Ok(None) };
            let entries = reply.entries()?;
            let snapshot = reply.texts()?.pop();
            let messages = if load.has_messages { reply.texts()? } else { Vec::new() };
            let snapshot = snapshot.zip(head.folded);
            return Ok(Some(LoadedLog {
                head: stored.log_head(head, reply.now.0),
                snapshot: snapshot.map(|(head, position)| Snapshot { position, head, messages }),
                entries,
            }));
        }
    }
}

async fn read_entries(
    rows: &impl Rows,
    read: ReadLogEntries<'_>,
) -> Result<Option<LogPage>, ChatStoreError> {
    let LogKey { owner, chat } = read.key;
    let row = row_of(chat);
    let page = all(&row, ENTRIES, read.position, read.max_bytes);
    let mut reply = run(rows, Step::of(owner).read_log(chat).read(page)).await?;
    let (mut stored, now) = (reply.log()?, reply.now.0);
    let Some(head) = stored.log(now).cloned() else { return Ok(None) };
    let is_stored = (head.first..=stored.length).contains(&read.position);
    if head.epoch != read.epoch.0 || !is_stored {
        return Ok(None);
    }
    if let Some(live) = head.live.as_ref().filter(|_| read.is_reader) {
        if stored.unread(live, now) >= READ_PRECISION {
            let note = Step { can_wait: true, ..Step::of(owner) };
            let note = note.replace(&row, READS, now.to_string().into());
            // A failure is the next read's to repeat, and this page does not wait for a lock.
            tokio::select! {
                biased;
                _ = run(rows, note) => {}
                () = async { sleep(MAX_NOTE_TIME).await } => {}
            }
        }
        stored.read_at = Some(now);
    }
    let entries = reply.entries()?.into_iter().map(|(_, entry)| entry).collect();
    Ok(Some(LogPage { head: stored.log_head(&head, now), entries }))
}

async fn list_logs(
    rows: &impl Rows,
    owner: &Principal,
    list: ListChats<'_>,
) -> Result<ChatPage, ChatStoreError> {
    let search = list.search.map(str::to_ascii_lowercase);
    let is_found = |head: &Head| {
        search.as_ref().is_none_or(|search| head.title.to_ascii_lowercase().contains(search))
    };
    let mut after = list.after.map(|after| (after.updated_at.0, after.id.as_str().to_owned()));
    let mut chats = Vec::new();
    loop {
        let missing = list.limit.saturating_add(1).saturating_sub(chats.len());
        let count = if search.is_some() { LISTED_AT_ONCE } else { missing.min(LISTED_AT_ONCE) };
        let (page, now) = heads(rows, owner, after.take(), count).await?;
        after = page.last().map(|(at, chat, _)| (*at, chat.clone()));
        for (at, chat, head) in page {
            // A chat that was updated meanwhile is further ahead: on the first page.
            let is_here = |head: &Head| head.updated_at == at || list.after.is_none();
            let head = head.filter(|head| is_here(head) && !head.is_expired(now));
            chats.extend(head.filter(is_found).map(|head| summary(chat, head)));
        }
        if after.is_none() || chats.len() > list.limit {
            chats.sort_by(|a, b| (b.updated_at, &b.id).cmp(&(a.updated_at, &a.id)));
            return Ok(ChatPage::new(chats, list.limit));
        }
    }
}

fn summary(chat: String, head: Head) -> ChatSummary {
    ChatSummary {
        id: chat.into(),
        title: head.title,
        updated_at: UnixMillis(head.updated_at),
        is_live: head.live.is_some(),
        has_questions: head.has_questions,
        control: head.control,
    }
}

/// A run that was read within this time, in milliseconds, is not marked as read again.
const READ_PRECISION: u64 = 1_000;

/// How many chats of a user are read together to be deleted.
const DELETED_AT_ONCE: usize = 100;

/// How long a read of a client waits until it is stored that the run was read.
const MAX_NOTE_TIME: Duration = Duration::from_millis(100);
