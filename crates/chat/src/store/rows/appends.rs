//! Appends: the rows are loaded, the rule decides, and one step writes.

use std::time::Duration;

use tokio::time::sleep;

use super::changes::{LISTED_AT_ONCE, change, delete_expired, delete_logs, heads, place_due, run};
use super::database::Rows;
use super::known_logs::{Ended, lock};
use super::log_rows::{
    CHATS, ENTRIES, READS, UNDELIVERED, USER, all, delivery_row, item, place_at, row_of,
};
use super::rules::head::{Head, Loaded, User};
use super::rules::{self, After, Other, Refused};
use super::step::{Hint, Read, Step, Version, Write};
use crate::store::{
    AppendLog, AppendResult, ChatStoreError, Epoch, Expected, LiveRunChange, LogKey,
};
use ui_message_stream::approval::{Principal, UnixMillis};

/// Asks the rule what to write, and writes it, until no row has changed meanwhile.
pub(super) async fn append_log(
    rows: &impl Rows,
    append: AppendLog<'_>,
) -> Result<AppendResult, ChatStoreError> {
    let LogKey { owner, chat } = append.key;
    let is_creation = matches!(append.expected, Expected::NoLog(_));
    let needs_user = is_creation || append.live_run != LiveRunChange::None;
    let known = lock(&rows.known().live).get(append.key).cloned();
    let written = known.as_ref().map_or(0, |(_, written)| *written);
    let mut known = known.map(|(stored, _)| stored).zip(rows.now()).filter(|_| !needs_user);
    let mut others = None;
    let mut has_swept = false;
    for attempt in 1..=MAX_ATTEMPTS {
        let is_known = known.is_some();
        let (stored, now, user_version, user) = match known.take() {
            Some((stored, now)) => (stored, now.0, 0, User::default()),
            None => {
                let step = Step::of(owner).read_log(chat).read(Read::Row(USER.to_owned()));
                let mut reply = run(rows, step).await?;
                let (stored, (version, user)) = (reply.log()?, reply.user()?);
                (stored, reply.now.0, version, user)
            }
        };
        let after = match rules::append(&stored, &user, others.as_deref(), &append, now) {
            Ok(after) => after,
            Err(_) if is_known => continue,
            Err(Refused::Conflict) => {
                lock(&rows.known().live).remove(append.key);
                return Ok(AppendResult::Conflict);
            }
            Err(Refused::TooManyRuns) => return Ok(AppendResult::TooManyRuns),
            Err(Refused::TooManyChats) if rows.make_place(owner).await? => continue,
            Err(Refused::TooManyChats) if has_swept => return Ok(AppendResult::TooManyChats),
            Err(Refused::TooManyChats) => {
                delete_all_expired(rows, owner).await?;
                has_swept = true;
                continue;
            }
            Err(Refused::Expired) => {
                delete_expired(rows, append.key).await?;
                continue;
            }
            Err(Refused::Fenced) => {
                sleep(FENCE_PAUSE).await;
                continue;
            }
            Err(Refused::NeedsOthers) => {
                others = Some(load_others(rows, append.key, &user).await?);
                continue;
            }
        };
        // Frames of others move the end. An append that names the end itself is a conflict then.
        let is_behind_frames =
            after.at.is_some() && matches!(append.expected, Expected::Control { .. });
        let ended = after.ended.map(|begin| (begin, now));
        let mut steps = Vec::new();
        let (mut step, loaded) =
            step_of(rows, &append, &stored, (user_version, after), now, &mut steps);
        for other in others.iter().flatten() {
            step = step.expect(&row_of(&other.chat.as_str().into()), other.log.version);
        }
        let head = loaded.head.clone().unwrap_or_default();
        let undo: Vec<_> = steps.iter().map(Step::undo).collect();
        steps.push(step);
        let replies = rows.run(steps).await?;
        let Some(mut reply) = replies.into_iter().last().filter(|reply| reply.is_applied) else {
            others = None;
            rows.run(undo).await?;
            // The first one may have been decided by what this process knows.
            if is_behind_frames && attempt > 1 {
                let fence =
                    |stored: &Loaded, now| Some((rules::fence(stored, now)?, Step::of(owner)));
                change(rows, append.key, fence).await?;
            }
            continue;
        };
        let end = reply.end()?.unwrap_or(head.first);
        let loaded = Loaded { length: end, read_at: reply.read_at()?, ..loaded };
        keep_known(rows, &append, &loaded, written, ended);
        let first = end.saturating_sub(append.entries.len() as u64);
        return Ok(AppendResult::Appended { first, head: loaded.log_head(&head, now) });
    }
    Ok(AppendResult::Conflict)
}

/// Returns the step of an append, and the log after it. Those before it go to `before`.
fn step_of(
    rows: &impl Rows,
    append: &AppendLog<'_>,
    stored: &Loaded,
    (user_version, mut after): (Version, After),
    now: u64,
    before: &mut Vec<Step>,
) -> (Step, Loaded) {
    let AppendLog { key, entries, .. } = *append;
    let row = row_of(&key.chat);
    let length = stored.length + entries.len() as u64;
    if after.is_put {
        before.extend(place_due(rows, key, &mut after.head, length, now));
    }
    let mut step = Step::of(&key.owner).expect(&row, stored.version);
    // What other servers decide on has to be on the disk.
    step.can_wait = append.controls() == 0
        && !matches!(append.expected, Expected::NoLog(_))
        && append.listed.is_none()
        && append.live_run == LiveRunChange::None
        && !append.is_for_sink;
    let version = if after.is_put { step.put(&row, &after.head) } else { stored.version };
    if let Some(user) = &after.user {
        step.put_user(user_version, user);
    }
    if let Some((chat, head)) = &after.has_to_end {
        step.put(&row_of(&chat.as_str().into()), head);
    }
    let placed = stored.head.as_ref().map(|head| head.updated_at);
    if placed != Some(after.head.updated_at) {
        let (list, member, to) = (CHATS, key.chat.as_str().to_owned(), after.head.updated_at);
        step = step.write(Write::Move { list, member, from: placed, to: Some(to) });
    }
    if append.is_for_sink {
        let place = place_at(now);
        before.push(Step::moving(rows, UNDELIVERED, key, None, Some(place)));
        let delivery = rules::delivery(&after.head, length, place);
        step.put(&delivery_row(&key.chat), &delivery);
    }
    if !entries.is_empty() || after.at.is_some() {
        let items = entries.iter().map(item).collect();
        let first = after.head.first;
        step = step.write(Write::Push {
            row: row.clone(),
            sequence: ENTRIES,
            first,
            at: after.at,
            items,
        });
    }
    let log = Some((Epoch(after.head.epoch), length));
    let is_list = append.changes_list();
    step.hints.push(Hint { key: key.clone(), log, is_list });
    let reads = all(&row, READS, 0, 0);
    let step = step.read(Read::End(row, ENTRIES)).read(reads);
    (step, Loaded { version, head: Some(after.head), length, read_at: None })
}

/// Keeps what this process has written of a live run, and the bytes of one that has ended: where it begins, and when
/// it has ended.
fn keep_known(
    rows: &impl Rows,
    append: &AppendLog<'_>,
    loaded: &Loaded,
    written: usize,
    ended: Option<(u64, u64)>,
) {
    let key = append.key.clone();
    let added = append.entries.iter().map(|entry| entry.bytes.len()).sum::<usize>();
    let bytes = written + added;
    if loaded.head.as_ref().is_some_and(|head| head.live.is_some()) {
        let is_new = append.live_run != LiveRunChange::None;
        let written = if is_new { added } else { bytes };
        let mut live = lock(&rows.known().live);
        // Runs that other servers have taken over stay here.
        if live.len() >= MAX_KNOWN && !live.contains_key(&key) {
            live.clear();
        }
        live.insert(key.clone(), (loaded.clone(), written));
    } else {
        lock(&rows.known().live).remove(&key);
    }
    if let Some((begin, at)) = ended.filter(|_| rows.max_ended_bytes() < usize::MAX) {
        let epoch = loaded.head.as_ref().map_or(0, |head| head.epoch);
        let ended = Ended { key, at: UnixMillis(at), epoch, begin, bytes };
        lock(&rows.known().ended).push_back(ended);
    }
}

async fn load_others(
    rows: &impl Rows,
    key: &LogKey,
    user: &User,
) -> Result<Vec<Other>, ChatStoreError> {
    let others = user.live.iter().filter(|chat| *chat != key.chat.as_str());
    let steps = others.clone().map(|chat| Step::of(&key.owner).read_log(&chat.as_str().into()));
    let replies = rows.run(steps.collect()).await?;
    let others = others.zip(replies);
    others.map(|(chat, mut reply)| Ok(Other { chat: chat.clone(), log: reply.log()? })).collect()
}

/// Deletes the logs of a user whose time has passed.
async fn delete_all_expired(rows: &impl Rows, owner: &Principal) -> Result<(), ChatStoreError> {
    let mut after = None;
    loop {
        let (chats, now) = heads(rows, owner, after.take(), LISTED_AT_ONCE).await?;
        after = chats.last().map(|(at, chat, _)| (*at, chat.clone()));
        if after.is_none() {
            return Ok(());
        }
        let is_expired = |head: &Head| head.is_expired(now);
        let expired = chats.into_iter().filter(|(.., head)| head.as_ref().is_some_and(is_expired));
        let expired: Vec<_> = expired.map(|(_, chat, _)| chat.into()).collect();
        if !expired.is_empty() {
            delete_logs(rows, owner, &expired, |stored, now| stored.log(now).is_none()).await?;
        }
    }
}

/// How many logs with a live run a process knows.
const MAX_KNOWN: usize = 10_000;

/// How long frames wait until they are decided again. All attempts are longer than a fence.
const FENCE_PAUSE: Duration = Duration::from_millis(20);

/// How often an append is decided again. Then its caller decides again.
const MAX_ATTEMPTS: usize = 100;
