//! What time has passed for, and what a sink has to get.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::Instant;
use ui_message_stream::id::log_causes;

use super::changes::{delete_expired, place_due, run};
use super::database::Rows;
use super::known_logs::lock;
use super::log_rows::{
    DUE, ENTRIES, UNDELIVERED, delivery_row, first_place, key_of, place_at, row_of, time_of,
};
use super::rules::head::MAX_SET_BACK;
use super::rules::{self, Retained, millis};
use super::step::{Read, Step, Write};
use crate::store::{
    ChatStoreError, KEPT_AFTER_END, KEPT_UNDELIVERED, LeftToServer, LogKey, MAX_SWEPT, Undelivered,
};

/// Visits the logs that are due, for at most half a minute. Returns what is left to the server, and the first error.
pub(super) async fn sweep(rows: &impl Rows) -> (LeftToServer, Result<(), ChatStoreError>) {
    let mut left = LeftToServer::default();
    let forgotten = forget_too_many(rows).await;
    let deletions = forget_deletions(rows).await;
    let mut result = forgotten.and(deletions);
    // A log that has to be visited again has a place at the end.
    let mut visited = BTreeSet::new();
    let mut after = None;
    let mut is_far = false;
    let began = Instant::now();
    loop {
        let (members, now) = match list(rows, DUE, after.take(), 2 * MAX_SWEPT).await {
            Ok(page) => page,
            Err(error) => return (left, result.and(Err(error))),
        };
        let is_due = |(at, _): &(u64, _)| is_far || time_of(*at) <= now;
        let members: Vec<_> = members.into_iter().take_while(is_due).collect();
        after = members.last().cloned();
        if after.is_none() {
            if is_far {
                return (left, result);
            }
            // What has a later place than any log gets has it from before the clock was set back.
            is_far = true;
            after = Some(after_time(now + rules::MAX_PLACED + MAX_SET_BACK));
        }
        for (place, member) in members {
            if visited.contains(&member) {
                continue;
            }
            let is_full = left.lost_runs.len().max(left.old_snapshots.len()) >= MAX_SWEPT;
            if is_full || began.elapsed() >= SWEEP_TIME {
                return (left, result);
            }
            let key = match key_of(&member) {
                Ok(key) => key,
                Err(error) => {
                    result = result.and(Err(error));
                    continue;
                }
            };
            match visit(rows, &key, Some(place), None).await {
                Ok(Some(retained)) => {
                    left.lost_runs.extend(retained.lost_run.map(|run| (key.clone(), run)));
                    left.old_snapshots.extend(retained.has_old_snapshot.then_some(key));
                }
                Ok(None) => {}
                // It does not keep the others waiting.
                Err(error) => result = result.and(Err(error)),
            }
            visited.insert(member);
        }
    }
}

/// Removes what is not needed of a log that has this place in the list.
async fn visit(
    rows: &impl Rows,
    key: &LogKey,
    place: Option<u64>,
    forgotten: Option<(u64, u64)>,
) -> Result<Option<Retained>, ChatStoreError> {
    let row = row_of(&key.chat);
    loop {
        let mut reply = run(rows, Step::of(&key.owner).read_log(&key.chat)).await?;
        let (stored, now) = (reply.log()?, reply.now.0);
        let abandoned = place.filter(|place| rules::is_abandoned(time_of(*place), now));
        let Some(before) = &stored.head else {
            leave(rows, key, abandoned).await?;
            return Ok(None);
        };
        if before.is_expired(now) {
            delete_expired(rows, key).await?;
            leave(rows, key, abandoned).await?;
            return Ok(None);
        }
        let forgotten = forgotten.filter(|(epoch, _)| *epoch == before.epoch);
        let forgotten = forgotten.map(|(_, begin)| begin);
        let mut retained = rules::retain(before, stored.length, forgotten, now);
        // First entries are removed, which also a full database permits, and then the log gets its next place.
        let is_complete = retained.head.first == before.first;
        retained.head.first = retained.head.first.min(before.first + MAX_TRIMMED);
        let mut head = retained.head.clone();
        let mut steps = Vec::new();
        if is_complete {
            if place.is_some() && head.due <= place {
                head.due = retained.due.map(place_at);
            } else {
                steps.extend(place_due(rows, key, &mut head, stored.length, now));
            }
            // The row may have a place that the log has lost: see `place_due`.
            steps.extend(head.due.map(|due| Step::moving(rows, DUE, key, None, Some(due))));
        }
        if head != *before {
            let mut step = Step::of(&key.owner).expect(&row, stored.version);
            step.can_wait = true;
            step.put(&row, &head);
            if head.first > before.first {
                let (row, sequence, from) = (row.clone(), ENTRIES, head.first);
                step = step.write(Write::Keep { row, sequence, from, until: u64::MAX });
            }
            steps.push(step);
        }
        if !rows.run(steps).await?.last().is_none_or(|reply| reply.is_applied) {
            continue;
        }
        if is_complete {
            // The row had it until now.
            let had = place.filter(|_| before.due == place && head.due != place);
            leave(rows, key, had.or(abandoned.filter(|_| head.due != place))).await?;
            return Ok(Some(retained));
        }
    }
}

/// Removes a place of the list of what is to sweep.
async fn leave(rows: &impl Rows, key: &LogKey, place: Option<u64>) -> Result<(), ChatStoreError> {
    if place.is_some() {
        run(rows, Step::moving(rows, DUE, key, place, None)).await?;
    }
    Ok(())
}

/// Forgets the oldest of the runs that this process has ended, if they have too many bytes.
async fn forget_too_many(rows: &impl Rows) -> Result<(), ChatStoreError> {
    let mut too_many = Vec::new();
    {
        let mut ended = lock(&rows.known().ended);
        let now = rows.now().unwrap_or_default();
        let mut bytes: usize = ended.iter().map(|ended| ended.bytes).sum();
        while let Some(first) = ended.front()
            && (bytes > rows.max_ended_bytes() || first.at.after(KEPT_AFTER_END) <= now)
        {
            let is_over = bytes > rows.max_ended_bytes();
            bytes -= first.bytes;
            too_many.extend(ended.pop_front().filter(|_| is_over));
        }
    }
    let mut result = Ok(());
    for ended in too_many {
        let forgotten = Some((ended.epoch, ended.begin));
        result = result.and(visit(rows, &ended.key, None, forgotten).await.map(drop));
    }
    result
}

/// Forgets deletions that no server has taken for a long time. Returns the first error.
async fn forget_deletions(rows: &impl Rows) -> Result<(), ChatStoreError> {
    let mut after = None;
    let mut result = Ok(());
    loop {
        let (members, now) = list(rows, UNDELIVERED, after.take(), 2 * MAX_SWEPT).await?;
        let is_old = |(at, _): &(u64, _)| time_of(*at) + millis(KEPT_UNDELIVERED) <= now;
        after = members.last().filter(|last| is_old(last)).cloned();
        for (place, member) in members.into_iter().take_while(is_old) {
            result = result.and(forget_deletion(rows, place, &member).await);
        }
        if after.is_none() {
            return result;
        }
    }
}

async fn forget_deletion(rows: &impl Rows, place: u64, member: &str) -> Result<(), ChatStoreError> {
    let key = key_of(member)?;
    let row = delivery_row(&key.chat);
    let step = Step::of(&key.owner).read(Read::Row(row.clone()));
    let (version, delivery) = run(rows, step).await?.delivery()?;
    // Otherwise the chat has another place.
    if let Some(delivery) = delivery.filter(|it| it.due.is_some_and(|due| due <= place)) {
        let step = Step::of(&key.owner).expect(&row, version).write(Write::Delete(row));
        let is_deletion = delivery.position == Undelivered::DELETED;
        if !is_deletion || !run(rows, step).await?.is_applied {
            return Ok(());
        }
    }
    run(rows, Step::moving(rows, UNDELIVERED, &key, Some(place), None)).await.map(drop)
}

/// Takes what a sink has to get, so that it is taken again only after this time. Fails if there is only what cannot be
/// read, which also waits for this time.
pub(super) async fn take_undelivered(
    rows: &impl Rows,
    limit: usize,
    retry_after: u64,
) -> Result<Vec<Undelivered>, ChatStoreError> {
    let mut taken = Vec::new();
    let mut unreadable = Ok(());
    let mut after = None;
    loop {
        let (mut members, now) = list(rows, UNDELIVERED, after.take(), limit - taken.len()).await?;
        members.retain(|(at, _)| time_of(*at) <= now);
        if members.is_empty() {
            // What is due in more than an hour was taken before the clock was set back.
            let far = Some(after_time(now + MAX_RETRY_AFTER));
            (members, _) = list(rows, UNDELIVERED, far, limit - taken.len()).await?;
        }
        if members.is_empty() {
            break;
        }
        after = members.last().cloned();
        let keys: Vec<_> = members.iter().map(|(_, member)| key_of(member)).collect();
        let read = |key: &LogKey| Step::of(&key.owner).read(Read::Row(delivery_row(&key.chat)));
        let mut replies = rows.run(keys.iter().flatten().map(read).collect()).await?.into_iter();
        let retry_at = now + retry_after.min(MAX_RETRY_AFTER);
        let is_last = members.len() < limit - taken.len();
        let mut steps = Vec::new();
        let mut found = Vec::new();
        for ((place, member), key) in members.into_iter().zip(keys) {
            let next = place_at(retry_at);
            let delivery = key.and_then(|key| {
                let reply = replies.next().map(|mut reply| reply.delivery());
                Ok((key, reply.unwrap_or_else(|| Ok(Default::default()))?))
            });
            let (key, (version, delivery)) = match delivery {
                Ok(delivery) => delivery,
                // It does not keep the others waiting.
                Err(error) => {
                    unreadable = Err(error);
                    let (from, to) = (Some(place), Some(next));
                    steps.push(Step::moving_member(rows, UNDELIVERED, member, from, to));
                    continue;
                }
            };
            // Otherwise the chat has another place.
            let delivery = delivery.filter(|it| it.due.is_some_and(|due| due <= place));
            let to = delivery.as_ref().map(|_| next);
            if to.is_some() || rules::is_abandoned(time_of(place), now) {
                steps.push(Step::moving(rows, UNDELIVERED, &key, Some(place), to));
            }
            if let Some(mut delivery) = delivery {
                delivery.due = Some(next);
                let row = delivery_row(&key.chat);
                let mut step =
                    Step { can_wait: true, ..Step::of(&key.owner) }.expect(&row, version);
                step.put(&row, &delivery);
                found.push((steps.len(), rules::undelivered(&key, &delivery)));
                steps.push(step);
            }
        }
        let replies = rows.run(steps).await?;
        let is_applied = |at: usize| replies.get(at).is_some_and(|reply| reply.is_applied);
        taken.extend(found.into_iter().filter(|(at, _)| is_applied(*at)).map(|(_, it)| it));
        if is_last || taken.len() >= limit || retry_after == 0 {
            break;
        }
    }
    if taken.is_empty() { unreadable.map(|()| taken) } else { Ok(taken) }
}

/// Notes what a sink has got. Returns what it has to get next.
pub(super) async fn acknowledge(
    rows: &impl Rows,
    delivered: &Undelivered,
) -> Result<Option<Undelivered>, ChatStoreError> {
    let LogKey { owner, chat } = &delivered.key;
    let row = delivery_row(chat);
    loop {
        let step = Step::of(owner).read_log(chat).read(Read::Row(row.clone()));
        let mut reply = run(rows, step).await?;
        let (log, (version, stored)) = (reply.log()?, reply.delivery()?);
        let after = match rules::acknowledge(stored.as_ref(), log.head.as_ref(), delivered) {
            Ok(after) => after,
            Err(next) => return Ok(Some(next)),
        };
        let Some(stored) = stored else { return Ok(None) };
        let mut step = Step { can_wait: true, ..Step::of(owner) }.expect(&row, version);
        // A deletion of the log leaves the row of an earlier one as it is.
        if after.is_some() && stored.epoch != delivered.epoch.0 {
            step = step.expect(&row_of(chat), log.version);
        }
        match after {
            Some(after) => drop(step.put(&row, &after)),
            None => step.writes.push(Write::Delete(row.clone())),
        }
        if run(rows, step).await?.is_applied {
            let leave = |due| Step::moving(rows, UNDELIVERED, &delivered.key, Some(due), None);
            rows.run(stored.due.map(leave).into_iter().collect()).await?;
            return Ok(None);
        }
    }
}

/// Returns what is before the places for later times, and after all others.
fn after_time(millis: u64) -> (u64, String) {
    (first_place(millis + 1), String::new())
}

/// Reads the first members of a list of the chats of all users, after a place.
async fn list(
    rows: &impl Rows,
    list: &'static str,
    after: Option<(u64, String)>,
    limit: usize,
) -> Result<(Vec<(u64, String)>, u64), ChatStoreError> {
    let read = Read::Members { list, after, is_descending: false, limit };
    let step = |number| Step::of_list(list, number).read(read.clone());
    let steps: Vec<_> = (0..rows.list_partitions().max(1)).map(step).collect();
    let replies = match rows.run(steps.clone()).await {
        Ok(replies) => replies,
        Err(error) if steps.len() == 1 => return Err(error),
        // Of several machines, one that is away does not keep what the others list.
        Err(error) => {
            let mut replies = Vec::new();
            for step in steps {
                replies.extend(run(rows, step).await.ok());
            }
            if replies.is_empty() {
                return Err(error);
            }
            tracing::warn!(list, error = log_causes(&error), "a part of a list was not read");
            replies
        }
    };
    let (mut members, mut now) = (Vec::new(), u64::MAX);
    for mut reply in replies {
        now = now.min(reply.now.0);
        members.extend(reply.members()?);
    }
    members.sort();
    members.truncate(limit);
    Ok((members, now))
}

/// For how long logs are visited. Then the server gets what is left to it; the next sweep goes on.
const SWEEP_TIME: Duration = Duration::from_secs(30);

/// How many entries are removed in one step.
const MAX_TRIMMED: u64 = 500;

/// The longest time after which something is taken again, in milliseconds.
const MAX_RETRY_AFTER: u64 = 60 * 60 * 1000;
