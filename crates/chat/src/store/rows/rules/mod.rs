//! The rules of logs: pure functions of rows and a time.

pub(super) mod head;

use std::cmp::Reverse;

use self::head::{Delivery, FENCE, Head, Live, Loaded, MAX_SET_BACK, User};
use crate::store::{
    AppendLog, Epoch, Expected, KEPT_AFTER_END, KEPT_AFTER_LOSS, LiveRunChange, LogKey,
    PutSnapshot, Undelivered, UserLimits,
};
use ui_message_stream::id::RunId;

/// Another chat of the user, which has a live run.
#[derive(Debug, Clone)]
pub(super) struct Other {
    pub(super) chat: String,
    pub(super) log: Loaded,
}

/// What an append writes.
#[derive(Debug)]
pub(super) struct After {
    pub(super) head: Head,
    /// Whether the row of the log is written.
    pub(super) is_put: bool,
    /// Where the log has to end. `None` if the entries may follow others that were appended meanwhile.
    pub(super) at: Option<u64>,
    /// The row of the user, if it is written.
    pub(super) user: Option<User>,
    /// Another log, whose run has to end.
    pub(super) has_to_end: Option<(String, Head)>,
    /// Where the run begins that has ended.
    pub(super) ended: Option<u64>,
}

/// Why an append writes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refused {
    Conflict,
    TooManyChats,
    TooManyRuns,
    /// The log of a chat whose time has passed has to be deleted first.
    Expired,
    /// The other chats with a live run decide.
    NeedsOthers,
    /// Frames wait until another turn has appended.
    Fenced,
}

/// Decides what an append writes.
pub(super) fn append(
    stored: &Loaded,
    user: &User,
    others: Option<&[Other]>,
    append: &AppendLog<'_>,
    now: u64,
) -> Result<After, Refused> {
    let before = stored.log(now);
    let live = before.and_then(|head| head.live.as_ref());
    let numbers = before.map(|head| (Epoch(head.epoch), stored.length, head.control));
    let is_lost = live.is_some_and(|live| live.is_lost(now));
    if !append.expected.is_met(numbers) || append.only_lost && !is_lost {
        return Err(Refused::Conflict);
    }
    let controls = append.controls();
    let is_text = controls == 0 && append.live_run == LiveRunChange::None;
    if is_text && before.is_some_and(|head| head.is_fenced(now)) {
        return Err(Refused::Fenced);
    }
    let mut user_after = user.clone();
    let mut head = match (before, append.expected) {
        (Some(head), _) => head.clone(),
        (None, Expected::NoLog(_)) if stored.head.is_some() => return Err(Refused::Expired),
        (None, Expected::NoLog(epoch)) => {
            user_after.chats += 1;
            Head::new(epoch, now)
        }
        (None, _) => return Err(Refused::Conflict),
    };
    let chat = append.key.chat.as_str();
    let mut has_to_end = None;
    if append.live_run.new_run().is_some() && live.is_none() {
        has_to_end = take_place(chat, user, others, append.limits, now)?;
    }
    // After the places: a chat that is refused displaces no other.
    if before.is_none() && user.chats >= append.limits.chats as u64 {
        return Err(Refused::TooManyChats);
    }
    let length = stored.length;
    let mut ended = None;
    if append.live_run != LiveRunChange::None {
        let begin = live.map(|live| live.begin);
        ended = append.live_run.ended_begin(begin, length);
        head.ended.extend(ended.map(|begin| (begin, now)));
        head.live = append.live_run.new_run().map(|run| Live {
            run: run.clone(),
            begin: append.live_run.new_begin(begin, length),
            lease: 0,
            leased_at: now,
            began_at: now,
            has_to_end: false,
        });
        user_after.live.retain(|live| live != chat || head.live.is_some());
        if head.live.is_some() && !user.live.iter().any(|live| live == chat) {
            user_after.live.push(chat.to_owned());
        }
    }
    if let (Some(lease), Some(live)) = (append.lease, &mut head.live) {
        live.renew(millis(lease), now);
    }
    if let Some(listed) = append.listed {
        head.has_questions = listed.has_questions;
        if !head.is_renamed {
            listed.title.clone_into(&mut head.title);
        }
    }
    if !is_text {
        head.fenced_until = None;
    }
    head.control += controls;
    if controls > 0 {
        head.updated_at = now;
        head.expires_at = append.keep_for.map(|time| now.saturating_add(millis(time)));
    }
    let is_anywhere = matches!(append.expected, Expected::Control { .. })
        && append.live_run == LiveRunChange::None
        && !append.is_for_sink;
    Ok(After {
        is_put: before != Some(&head),
        at: (before.is_some() && !is_anywhere).then_some(length),
        user: (user_after != *user).then_some(user_after),
        head,
        has_to_end,
        ended,
    })
}

/// Makes the frames of a run wait, so that another turn can append at the end of the log. `None` if they do.
pub(super) fn fence(stored: &Loaded, now: u64) -> Option<Head> {
    let head = stored.log(now).filter(|head| !head.is_fenced(now))?.clone();
    Some(Head { fenced_until: Some(now + FENCE), ..head })
}

/// Takes a place of the user for a run. Returns the log whose run has to end for it.
fn take_place(
    chat: &str,
    user: &User,
    others: Option<&[Other]>,
    limits: UserLimits,
    now: u64,
) -> Result<Option<(String, Head)>, Refused> {
    if user.live.iter().filter(|other| *other != chat).count() < limits.runs {
        return Ok(None);
    }
    let others = others.ok_or(Refused::NeedsOthers)?;
    let is_loaded = |live: &String| live == chat || others.iter().any(|other| other.chat == *live);
    // The row of the user may be a newer one.
    if !user.live.iter().all(is_loaded) {
        return Err(Refused::NeedsOthers);
    }
    let others = others.iter().filter_map(|other| {
        let head = other.log.log(now)?;
        let live = head.live.as_ref();
        // A run whose lease has passed, or that has to end, takes no place.
        let live = live.filter(|live| !live.is_lost(now) && !live.has_to_end)?;
        Some((other, head, other.log.unread(live, now)))
    });
    let mut others: Vec<_> = others.filter(|(other, ..)| other.chat != chat).collect();
    if others.len() < limits.runs {
        return Ok(None);
    }
    others.sort_by(|(a, ..), (b, ..)| a.chat.cmp(&b.chat));
    let oldest = others.into_iter().min_by_key(|(.., unread)| Reverse(*unread));
    let oldest = oldest.filter(|(.., unread)| *unread >= millis(limits.unread));
    let Some((other, head, _)) = oldest else { return Err(Refused::TooManyRuns) };
    let mut head = head.clone();
    head.live.iter_mut().for_each(|live| live.has_to_end = true);
    Ok(Some((other.chat.clone(), head)))
}

/// Decides whether a snapshot is stored. Returns the row, and how many messages of the stored one stay.
pub(super) fn put_snapshot(
    stored: &Loaded,
    put: &PutSnapshot<'_>,
    now: u64,
) -> Option<(Head, u64)> {
    let head = stored.log(now).filter(|head| head.epoch == put.epoch.0)?;
    let is_newer = head.folded.is_none_or(|folded| folded < put.position);
    let kept = put.unchanged.map_or(0, |base| base.messages as u64);
    let is_base = |position| head.folded == Some(position) && kept <= head.messages;
    if !is_newer
        || put.position > stored.length
        || !put.unchanged.is_none_or(|base| is_base(base.position))
    {
        return None;
    }
    let messages = kept + put.changed.len() as u64;
    Some((Head { folded: Some(put.position), messages, ..head.clone() }, kept))
}

/// What is kept of a log, and what is left to do.
#[derive(Debug, PartialEq)]
pub(super) struct Retained {
    /// The row without what is not needed any more.
    pub(super) head: Head,
    /// A run whose lease has passed long ago. The server ends it.
    pub(super) lost_run: Option<RunId>,
    /// The server stores a snapshot.
    pub(super) has_old_snapshot: bool,
    /// When there may be more to do.
    pub(super) due: Option<u64>,
}

/// Decides what is kept of a log. The run that begins at `forgotten` is not kept for readers.
pub(super) fn retain(head: &Head, length: u64, forgotten: Option<u64>, now: u64) -> Retained {
    let mut after = head.clone();
    let mut has_old_snapshot = false;
    let mut lost_run = None;
    let mut due = head.expires_at;
    let mut is_due_at = |at: u64| due = Some(due.map_or(at, |due| due.min(at)));
    let mut needed = head.folded.unwrap_or(0).min(length);
    if let Some(live) = &head.live {
        needed = needed.min(live.begin);
        let until =
            live.leased_at.saturating_add(live.lease).saturating_add(millis(KEPT_AFTER_LOSS));
        // A lease far in the future was set before the clock was set back.
        let is_over = until <= now || live.leased_at > now + MAX_SET_BACK;
        lost_run = is_over.then(|| live.run.clone());
        // Now: after all others that wait.
        is_due_at(if is_over { now } else { until });
    }
    let is_folded = head.live.is_some() || head.folded.unwrap_or(0) >= length;
    after.ended.retain(|&(begin, at)| {
        let until = at + millis(KEPT_AFTER_END);
        let is_over = until <= now || at > now + MAX_SET_BACK || forgotten == Some(begin);
        if is_over && is_folded {
            return false;
        }
        has_old_snapshot |= is_over;
        is_due_at(if is_over { now + RETRY_AFTER } else { until });
        needed = needed.min(begin);
        true
    });
    after.first = head.first.max(needed);
    let due = due.map(|due| due.min(now + MAX_PLACED));
    Retained { head: after, lost_run, has_old_snapshot, due }
}

/// Returns when a log has to be swept.
pub(super) fn due(head: &Head, length: u64, now: u64) -> Option<u64> {
    let retained = retain(head, length, None, now);
    if retained.head == *head { retained.due } else { Some(now) }
}

/// Returns what a sink has to get of a log that was changed for it.
pub(super) fn delivery(head: &Head, length: u64, place: u64) -> Delivery {
    Delivery { epoch: head.epoch, position: length, due: Some(place) }
}

/// Returns what a sink has to get of a log that is deleted.
pub(super) fn deletion(delivery: &Delivery, epoch: u64, place: u64) -> Option<Delivery> {
    let deletion = Delivery { epoch, position: Undelivered::DELETED, due: Some(place) };
    (delivery.epoch == epoch && delivery.position != Undelivered::DELETED).then_some(deletion)
}

/// Notes that a sink has got something. Returns the row after it, or what the sink has to get next.
pub(super) fn acknowledge(
    stored: Option<&Delivery>,
    log: Option<&Head>,
    delivered: &Undelivered,
) -> Result<Option<Delivery>, Undelivered> {
    let Undelivered { key, epoch, position } = delivered;
    let is_deletion = *position == Undelivered::DELETED;
    match stored.map(|stored| undelivered(key, stored)) {
        None if is_deletion => Ok(None),
        None => Err(Undelivered::deletion(key.clone(), *epoch)),
        Some(stored) if !stored.is_acknowledged_by(delivered) => Err(stored),
        Some(_) if is_deletion => Ok(None),
        // The log is deleted, and what is stored is the deletion of an earlier one.
        Some(stored) if stored.epoch != *epoch && log.is_none_or(|log| log.epoch != epoch.0) => {
            Err(Undelivered::deletion(key.clone(), *epoch))
        }
        Some(_) => Ok(Some(Delivery { epoch: epoch.0, position: *position, due: None })),
    }
}

pub(super) fn undelivered(key: &LogKey, delivery: &Delivery) -> Undelivered {
    let Delivery { epoch, position, .. } = *delivery;
    Undelivered { key: key.clone(), epoch: Epoch(epoch), position }
}

pub(super) fn millis(time: std::time::Duration) -> u64 {
    time.as_millis().try_into().unwrap_or(u64::MAX)
}

/// Whether no row will ever get a place for this time that it does not have: a step writes the place, and a later one the
/// row. A time far in the future is from before the clock was set back.
pub(super) fn is_abandoned(time: u64, now: u64) -> bool {
    time + MAX_STEP_TIME <= now || time > now + MAX_PLACED + MAX_SET_BACK
}

/// Within this time, in milliseconds, all steps are run that belong together.
const MAX_STEP_TIME: u64 = 60_000;

/// How far in the future the place of a log in the list of what is to sweep is at most, in milliseconds. A later one is
/// from before the clock was set back.
pub(super) const MAX_PLACED: u64 = 8 * 24 * 60 * 60 * 1000;

/// When a log is swept again that lacks a snapshot, in milliseconds.
const RETRY_AFTER: u64 = 60_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_has_ended_before_the_clock_was_set_back_is_not_kept() {
        let now = 1_000_000;
        let head =
            |ended| Head { folded: Some(2), ended: vec![(0, ended)], ..Head::new(Epoch(1), now) };
        for (ended, first) in [(now, 0), (now + MAX_SET_BACK, 0), (now + MAX_SET_BACK + 1, 2)] {
            assert_eq!(retain(&head(ended), 2, None, now).head.first, first, "{ended}");
        }
    }
}
