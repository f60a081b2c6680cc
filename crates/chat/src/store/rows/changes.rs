//! Changes of logs that no turn makes, and what all changes do.

use super::database::Rows;
use super::known_logs::lock;
use super::log_rows::{
    CHATS, DUE, UNDELIVERED, USER, delivery_row, place_at, replies, row_of, time_of,
};
use super::rules;
use super::rules::head::{Head, Loaded};
use super::step::{Read, Reply, Step, Write};
use crate::store::{ChatStoreError, LogKey};
use ui_message_stream::approval::Principal;
use ui_message_stream::id::{ChatId, log_causes};

/// Changes the row of a log as a function of what is stored. The function returns `None` to change nothing.
pub(super) async fn change(
    rows: &impl Rows,
    key: &LogKey,
    decide: impl Fn(&Loaded, u64) -> Option<(Head, Step)>,
) -> Result<bool, ChatStoreError> {
    let row = row_of(&key.chat);
    loop {
        let mut reply = run(rows, Step::of(&key.owner).read_log(&key.chat)).await?;
        let (stored, now) = (reply.log()?, reply.now.0);
        let Some((mut head, step)) = decide(&stored, now) else { return Ok(false) };
        let due = place_due(rows, key, &mut head, stored.length, now);
        let mut step = step.expect(&row, stored.version);
        let version = step.put(&row, &head);
        let replies = rows.run(due.into_iter().chain([step]).collect()).await?;
        if replies.last().is_some_and(|reply| reply.is_applied) {
            let mut live = lock(&rows.known().live);
            let known = live.get_mut(key).filter(|(known, _)| known.version == stored.version);
            if let Some((known, _)) = known {
                (known.version, known.head) = (version, Some(head));
            }
            return Ok(true);
        }
    }
}

/// Deletes those of the logs of a user that are expected. Returns the number of those whose time has not passed. Fails
/// if one cannot be read, after it has deleted the others.
pub(super) async fn delete_logs(
    rows: &impl Rows,
    owner: &Principal,
    chats: &[ChatId],
    is_expected: impl Fn(&Loaded, u64) -> bool,
) -> Result<usize, ChatStoreError> {
    loop {
        let mut read = Step::of(owner).read(Read::Row(USER.to_owned()));
        for chat in chats {
            read = read.read_log(chat).read(Read::Row(delivery_row(chat)));
        }
        let mut reply = run(rows, read).await?;
        let now = reply.now.0;
        let (user_version, mut user) = reply.user()?;
        let (mut steps, mut step, mut deleted) = (Vec::new(), Step::of(owner), 0);
        let mut places = Vec::new();
        let mut unreadable = Ok(());
        for chat in chats {
            let (stored, delivery) = (reply.log(), reply.delivery());
            let (stored, (delivery_version, delivery)) = match (stored, delivery) {
                (Ok(stored), Ok(delivery)) => (stored, delivery),
                (Err(error), _) | (_, Err(error)) => {
                    unreadable = Err(error);
                    continue;
                }
            };
            let Some(head) = stored.head.as_ref().filter(|_| is_expected(&stored, now)) else {
                continue;
            };
            deleted += usize::from(!head.is_expired(now));
            user.chats = user.chats.saturating_sub(1);
            user.live.retain(|live| live != chat.as_str());
            let (key, row) = (LogKey { owner: owner.clone(), chat: chat.clone() }, row_of(chat));
            let (list, member) = (CHATS, chat.as_str().to_owned());
            step = step.expect(&row, stored.version).write(Write::Delete(row));
            step = step.expect(&delivery_row(chat), delivery_version);
            step = step.write(Write::Move { list, member, from: Some(head.updated_at), to: None });
            let place = place_at(now);
            let deletion = delivery.and_then(|it| rules::deletion(&it, head.epoch, place));
            if let Some(deletion) = deletion {
                steps.push(Step::moving(rows, UNDELIVERED, &key, None, Some(place)));
                step.put(&delivery_row(chat), &deletion);
            }
            places.extend(head.due.map(|due| Step::moving(rows, DUE, &key, Some(due), None)));
            lock(&rows.known().live).remove(&key);
            step = step.with_hint(&key, None);
        }
        if step.writes.is_empty() {
            return unreadable.map(|()| 0);
        }
        step.put_user(user_version, &user);
        // The next sweep deletes again what is not there any more for its users.
        step.can_wait = deleted == 0;
        steps.push(step);
        if rows.run(steps).await?.last().is_some_and(|reply| reply.is_applied) {
            rows.run(places).await?;
            return unreadable.map(|()| deleted);
        }
    }
}

/// Deletes a log that cannot be read, or whose row has been lost, from this place in the list of its user. Returns the
/// number of logs. What it has in the lists of all users is removed when its time comes.
pub(super) async fn delete_unreadable(
    rows: &impl Rows,
    owner: &Principal,
    at: u64,
    chat: &ChatId,
) -> Result<usize, ChatStoreError> {
    let (row, delivery) = (row_of(chat), delivery_row(chat));
    loop {
        let read = Step::of(owner).read(Read::Row(USER.to_owned())).read(Read::Row(row.clone()));
        let read = read.read_log(chat).read(Read::Row(delivery.clone()));
        let mut reply = run(rows, read).await?;
        let ((user_version, mut user), version) = (reply.user()?, reply.version()?);
        let (list, member) = (CHATS, chat.as_str().to_owned());
        let mut step = Step::of(owner).expect(&row, version);
        let is_deleted = match (reply.log(), reply.delivery()) {
            // It can be deleted as others.
            (Ok(Loaded { head: Some(head), .. }), Ok(_)) if head.updated_at == at => return Ok(0),
            (Ok(Loaded { head: Some(_), .. }), Ok(_)) => false,
            // A sink may still have to get its deletion.
            (Ok(Loaded { head: None, .. }), Ok(_)) => {
                step = step.write(Write::Delete(row.clone()));
                false
            }
            _ => {
                step = step.write(Write::Delete(row.clone()));
                step = step.write(Write::Delete(delivery.clone()));
                user.chats = user.chats.saturating_sub(u64::from(version != 0));
                user.live.retain(|live| live != chat.as_str());
                step.put_user(user_version, &user);
                version != 0
            }
        };
        step = step.write(Write::Move { list, member, from: Some(at), to: None });
        let key = LogKey { owner: owner.clone(), chat: chat.clone() };
        if run(rows, step.with_hint(&key, None)).await?.is_applied {
            return Ok(usize::from(is_deleted));
        }
    }
}

/// Deletes a log whose time has passed.
pub(super) async fn delete_expired(rows: &impl Rows, key: &LogKey) -> Result<(), ChatStoreError> {
    let chats = std::slice::from_ref(&key.chat);
    delete_logs(rows, &key.owner, chats, |stored, now| stored.log(now).is_none()).await.map(drop)
}

/// Moves a log in the list of what is to sweep, if there is something to do before its place, or if its place was long
/// ago.
///
/// The row has the place only after that. If it never gets it, the log is visited too early, and then has the place of
/// the row again.
pub(super) fn place_due(
    rows: &impl Rows,
    key: &LogKey,
    head: &mut Head,
    length: u64,
    now: u64,
) -> Option<Step> {
    let due = rules::due(head, length, now)?;
    let is_placed = |placed| time_of(placed) <= due && time_of(placed) + MAX_LATE > now;
    if head.due.is_some_and(is_placed) {
        return None;
    }
    // An earlier place stays until it is visited.
    let later = head.due.replace(place_at(due)).filter(|placed| time_of(*placed) > due);
    Some(Step::moving(rows, DUE, key, later, head.due))
}

pub(super) type Listed = Vec<(u64, String, Option<Head>)>;

/// Reads chats of a user, the last updated first, with the time of the store. One that cannot be read has no row.
pub(super) async fn heads(
    rows: &impl Rows,
    owner: &Principal,
    after: Option<(u64, String)>,
    limit: usize,
) -> Result<(Listed, u64), ChatStoreError> {
    let (members, now) = members(rows, owner, after, limit).await?;
    if members.is_empty() {
        return Ok((Vec::new(), now));
    }
    let rows_of = members.iter().map(|(_, chat)| Read::Row(row_of(&chat.as_str().into())));
    let mut reply = run(rows, Step { reads: rows_of.collect(), ..Step::of(owner) }).await?;
    let now = reply.now.0;
    let listed = members.into_iter().map(|(at, chat)| {
        let head = reply.head().unwrap_or_else(|error| {
            tracing::warn!(chat_id = chat, error = log_causes(&error), "a chat is not listed");
            None
        });
        (at, chat, head)
    });
    Ok((listed.collect(), now))
}

pub(super) async fn members(
    rows: &impl Rows,
    owner: &Principal,
    after: Option<(u64, String)>,
    limit: usize,
) -> Result<(Vec<(u64, String)>, u64), ChatStoreError> {
    let read = Read::Members { list: CHATS, after, is_descending: true, limit };
    let mut reply = run(rows, Step::of(owner).read(read)).await?;
    Ok((reply.members()?, reply.now.0))
}

/// Runs one step.
pub(super) async fn run(rows: &impl Rows, step: Step) -> Result<Reply, ChatStoreError> {
    let [reply] = replies(rows.run(vec![step]).await?)?;
    Ok(reply)
}

/// After this time, in milliseconds, a log is placed again that no sweep has visited.
const MAX_LATE: u64 = 60 * 60 * 1000;

/// How many chats are read together.
pub(super) const LISTED_AT_ONCE: usize = 100;
