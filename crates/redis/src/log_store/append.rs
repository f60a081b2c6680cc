//! Appends and snapshots.

use std::time::Duration;

use ui_message_stream_chat::store::{
    AppendLog, AppendResult, Epoch, Expected, KEPT_AFTER_END, LiveRunChange, LogKey, PutSnapshot,
    StoredEntry,
};

use super::{HeadReply, log_head, millis, stored_entry};
use crate::error::RedisStoreError;
use crate::hints::entries_in_hint;
use crate::keys::chat_name;
use crate::scripts::Arguments;
use crate::{RedisStore, scripts};

impl RedisStore {
    pub(super) async fn append_to_log(
        &self,
        append: AppendLog<'_>,
    ) -> Result<AppendResult, RedisStoreError> {
        if let Some(result) = self.append_frames(append).await? {
            return Ok(result);
        }
        let log = self.log_of(append.key);
        let (expected, epoch, number) = match append.expected {
            Expected::NoLog(epoch) => ("none", epoch, 0),
            Expected::Control { epoch, control } => ("control", epoch, control),
            Expected::Position { epoch, position } => ("position", epoch, position),
        };
        let (change, run) = match append.live_run {
            LiveRunChange::None => ("none", ""),
            LiveRunChange::Begins(run) => ("begins", run.as_str()),
            LiveRunChange::Resumes(run) => ("resumes", run.as_str()),
            LiveRunChange::Ends => ("ends", ""),
        };
        let controls = append.controls();
        let after_end = (append.live_run != LiveRunChange::None).then_some(KEPT_AFTER_END);
        let kept = append.keep_for.filter(|_| controls > 0);
        let removed_after = after_end.into_iter().chain(kept).min();
        if let Some(time) = removed_after {
            // The run that ends here, or the chat, is removed after its time, also if this process ends now.
            self.sweep_later(append.key, time).await?;
        }
        if append.is_for_sink {
            let LogKey { owner, chat } = append.key;
            self.deliver_later(&chat_name(owner, chat.as_str())).await?;
        }
        let mut invocation = log.prepare(self.publishing(&scripts::LOG_APPEND));
        invocation
            .arg(&log.channel)
            .arg(expected)
            .arg(epoch.0)
            .arg(number)
            .arg(optional(append.lease.map(millis)))
            .arg(u8::from(append.only_lost))
            .arg(change)
            .arg(run)
            .arg(u8::from(append.listed.is_some()))
            .arg(append.listed.map(|listed| listed.title).unwrap_or_default())
            .arg(u8::from(append.listed.is_some_and(|listed| listed.has_questions)))
            .arg(optional(append.keep_for.map(millis)))
            .arg(append.limits.chats)
            .arg(append.limits.runs)
            .arg(millis(append.limits.unread))
            .arg(controls)
            .arg(u8::from(append.is_for_sink));
        // A command `PUBLISH` in a cluster reaches all nodes, so it carries no entries.
        let is_hinted = self.inner.connection.is_single() || self.inner.follower.is_of_shards();
        add_entries(&mut invocation.arguments, epoch, append.entries, is_hinted);
        let (result, rest): (String, Option<(u64, HeadReply)>) = self.run(&invocation).await?;
        Ok(match (&*result, rest) {
            ("appended", Some((first, head))) => {
                let head = log_head(head);
                if matches!(append.expected, Expected::NoLog(_)) {
                    self.inner.hints.forget(&log.channel);
                }
                self.inner.hints.add(&log.channel, head.length);
                if append.changes_list() {
                    self.forget_list(&append.key.owner);
                }
                AppendResult::Appended { first, head }
            }
            ("conflict", _) => AppendResult::Conflict,
            ("too many chats", _) => AppendResult::TooManyChats,
            ("too many runs", _) => AppendResult::TooManyRuns,
            _ => return Err(RedisStoreError::Unreadable("reply")),
        })
    }

    pub(super) async fn put_log_snapshot(
        &self,
        put: PutSnapshot<'_>,
    ) -> Result<bool, RedisStoreError> {
        let mut invocation = self.log_of(put.key).prepare(&scripts::LOG_SNAPSHOT);
        invocation
            .arg(put.epoch.0)
            .arg(put.position)
            .arg(put.head)
            .arg(optional(put.unchanged.map(|unchanged| unchanged.position)))
            .arg(put.unchanged.map_or(0, |unchanged| unchanged.messages));
        for message in put.changed {
            invocation.arg(message);
        }
        let is_stored = self.run(&invocation).await?;
        if is_stored {
            // What is before the snapshot may go.
            self.sweep_later(put.key, Duration::ZERO).await?;
        }
        Ok(is_stored)
    }
}

/// Adds what the hint of an append says of its entries, if it carries them, and the entries.
pub(super) fn add_entries(
    arguments: &mut Arguments,
    epoch: Epoch,
    entries: &[StoredEntry],
    is_hinted: bool,
) {
    let entries: Vec<Vec<u8>> = entries.iter().map(stored_entry).collect();
    let hint = if is_hinted { entries_in_hint(epoch, &entries) } else { String::new() };
    arguments.arg(hint).arg(entries);
}

/// Returns an argument that is empty without a value.
fn optional(number: Option<u64>) -> String {
    number.map(|number| number.to_string()).unwrap_or_default()
}
