//! Appends and snapshots.

use std::time::Duration;

use ui_message_stream::chat::chat_log::{
    AppendLog, AppendResult, EntryKind, Expected, KEPT_AFTER_END, LiveRunChange, PutSnapshot,
    StoredEntry,
};

use super::{HeadReply, log_head, stored_entry};
use crate::chats::millis;
use crate::error::RedisStoreError;
use crate::hints::Progress;
use crate::{RedisStore, scripts};

impl RedisStore {
    pub(super) async fn append_to_log(
        &self,
        append: AppendLog<'_>,
    ) -> Result<AppendResult, RedisStoreError> {
        let log = self.log_of(append.key);
        let (expected, epoch, number) = match append.expected {
            Expected::NoLog(epoch) => ("none", epoch, 0),
            Expected::Control { epoch, control } => ("control", epoch, control),
            Expected::Position { epoch, position } => ("position", epoch, position),
        };
        let (change, run) = match append.live_run {
            LiveRunChange::None => ("none", ""),
            LiveRunChange::Begins(run) => ("begins", run.as_str()),
            LiveRunChange::Ends => ("ends", ""),
        };
        if append.live_run != LiveRunChange::None {
            // A run that ends here is removed after its time, also if this process ends now.
            self.sweep_later(append.key, KEPT_AFTER_END).await?;
        }
        let is_control = |entry: &&StoredEntry| entry.kind == EntryKind::Control;
        let controls = append.entries.iter().filter(is_control).count();
        let mut invocation = log.prepare(&scripts::LOG_APPEND);
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
            .arg(controls);
        for entry in append.entries {
            invocation.arg(stored_entry(entry));
        }
        let (result, rest): (String, Option<(u64, HeadReply)>) = self.run(&invocation).await?;
        Ok(match (&*result, rest) {
            ("appended", Some((first, head))) => {
                let head = log_head(head);
                if matches!(append.expected, Expected::NoLog(_)) {
                    self.inner.hints.forget(&log.channel);
                }
                let progress = Progress { length: head.length, ..Progress::default() };
                self.inner.hints.add(&log.channel, progress);
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

/// Returns an argument that is empty without a value.
fn optional(number: Option<u64>) -> String {
    number.map(|number| number.to_string()).unwrap_or_default()
}
