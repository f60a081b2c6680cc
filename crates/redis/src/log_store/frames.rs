//! Appends of frames, which are most appends: those of several runs are sent in one call.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::oneshot;
use tokio::task::yield_now;
use ui_message_stream::id::RunId;
use ui_message_stream_chat::store::{
    AppendLog, AppendResult, EntryKind, Expected, LiveRunChange, LogHead,
};

use super::append::add_entries;
use super::millis;
use crate::error::RedisStoreError;
use crate::scripts::Arguments;
use crate::{RedisStore, scripts};

/// Appends that wait for the next call.
#[derive(Default)]
pub(crate) struct WaitingFrames(Mutex<Vec<Waiting>>);

struct Waiting {
    arguments: Arguments,
    result: oneshot::Sender<Result<Reply, RedisStoreError>>,
}

impl WaitingFrames {
    fn take(&self) -> Vec<Waiting> {
        std::mem::take(&mut *self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Waiting>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The task that makes the next call. If it is dropped before, with its runtime, the appends fail.
struct NextCall(Option<RedisStore>);

impl Drop for NextCall {
    fn drop(&mut self) {
        if let Some(store) = &self.0 {
            store.inner.frames.take();
        }
    }
}

/// The number of control entries, the run, how long no client has read it, and whether it has to end. `None` if
/// `log_append.lua` has to look at the log.
type Reply = Option<(u64, String, u64, bool)>;

impl RedisStore {
    /// Appends frames of the holder of a run. Returns `None` if the append is another one, or if a script has to
    /// look at the log that does more.
    pub(super) async fn append_frames(
        &self,
        append: AppendLog<'_>,
    ) -> Result<Option<AppendResult>, RedisStoreError> {
        let AppendLog {
            key,
            entries,
            live_run: LiveRunChange::None,
            listed: None,
            is_for_sink: false,
            ..
        } = append
        else {
            return Ok(None);
        };
        let (Expected::Position { epoch, position }, Some(lease)) = (append.expected, append.lease)
        else {
            return Ok(None);
        };
        let are_frames = entries.iter().all(|entry| entry.kind == EntryKind::Frame);
        if append.only_lost || !are_frames || entries.len() > MAX_FRAMES {
            return Ok(None);
        }
        let user = self.inner.keys.user(&key.owner);
        let chat = key.chat.as_str();
        let lease = millis(lease);
        let channel = user.channel(chat);
        let length = position.saturating_add(entries.len() as u64);
        let mut arguments = Arguments::default();
        arguments
            .key(user.head(chat))
            .key(user.entries(chat))
            .key(user.live())
            .arg(chat)
            .arg(&channel)
            .arg(epoch.0)
            .arg(position)
            .arg(lease)
            .arg(length)
            .arg(entries.len());
        add_entries(&mut arguments, epoch, entries, true);
        let reply = self.append_with_others(arguments).await?;
        let Some((control, run, unread, has_to_end)) = reply else { return Ok(None) };
        self.inner.hints.add(&channel, length);
        let head = LogHead {
            epoch,
            length,
            control,
            live_run: Some(RunId::from(run)),
            is_lost: lease == 0,
            unread: Duration::from_millis(unread),
            has_to_end,
        };
        Ok(Some(AppendResult::Appended { first: position, head }))
    }

    /// Appends in a call with the other appends that are ready. In a cluster, those of several users are in several
    /// slots, and each has a call of its own.
    async fn append_with_others(&self, arguments: Arguments) -> Result<Reply, RedisStoreError> {
        if !self.inner.connection.is_single() {
            let mut replies = self.call_frames(vec![arguments]).await?;
            return replies.pop().ok_or(RedisStoreError::Unreadable("reply"));
        }
        let (result, received) = oneshot::channel();
        let is_first = {
            let mut waiting = self.inner.frames.lock();
            waiting.push(Waiting { arguments, result });
            waiting.len() == 1
        };
        if is_first {
            // A task of its own: this run may be dropped, and the others not.
            let mut next = NextCall(Some(self.clone()));
            tokio::spawn(async move {
                // The runs that are woken at the same tick are in the queue before it.
                yield_now().await;
                if let Some(store) = next.0.take() {
                    store.append_waiting().await;
                }
            });
        }
        let dropped = || RedisStoreError::Redis("the runtime of the call has ended".into());
        received.await.unwrap_or_else(|_| Err(dropped()))
    }

    async fn append_waiting(&self) {
        let mut waiting = self.inner.frames.take().into_iter();
        let mut calls = Vec::new();
        while waiting.len() > 0 {
            let call = waiting.by_ref().take(MAX_APPENDS);
            let (arguments, results): (Vec<_>, Vec<_>) =
                call.map(|waiting| (waiting.arguments, waiting.result)).unzip();
            calls.push(async move {
                let mut replies = self.call_frames(arguments).await.map(Vec::into_iter);
                for result in results {
                    let reply = match &mut replies {
                        Ok(replies) => replies.next().ok_or(RedisStoreError::Unreadable("reply")),
                        Err(error) => Err(error.of_another()),
                    };
                    // The run may have been dropped.
                    let _ = result.send(reply);
                }
            });
        }
        join_all(calls).await;
    }

    async fn call_frames(&self, appends: Vec<Arguments>) -> Result<Vec<Reply>, RedisStoreError> {
        let mut invocation = self.publishing(&scripts::LOG_FRAMES).prepare_invoke();
        appends.into_iter().for_each(|append| invocation.arguments.extend(append));
        self.run(&invocation).await
    }
}

/// The maximum number of frames in an append of this kind. Lua passes a limited number of arguments to a function.
const MAX_FRAMES: usize = 1000;

/// The maximum number of appends in a call, for which all others wait: about a millisecond.
const MAX_APPENDS: usize = 64;
