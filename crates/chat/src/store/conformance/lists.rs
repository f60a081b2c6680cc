//! Lists, titles, deletions, and how long chats are kept.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::{sleep, timeout};

use super::case::{Append, LONG, Log, SHORT, Store, control, frame};
use super::report::{Case, CaseFailure, CaseResult, expect_equal};
use crate::store::{AppendResult, Epoch, UserLimits};
use ui_message_stream::BoxFuture;

pub(super) fn cases() -> Vec<Case> {
    [lists(), titles(), deletions(), times(), limits()].into_iter().flatten().collect()
}

/// Chats of one owner, created one after another.
pub(super) async fn chats(store: Store, ids: &[&str]) -> Result<Vec<Log>, CaseFailure> {
    let first = Log::none(store);
    let mut chats = Vec::new();
    for id in ids {
        let log = first.other(id);
        log.appended(log.create(&[control("a")])).await?;
        chats.push(log);
        // A store has times in milliseconds.
        sleep(TICK).await;
    }
    Ok(chats)
}

fn lists() -> Vec<Case> {
    vec![
        Case::new("an owner without chats has an empty list", |store: Store| async move {
            Log::none(store).expect_listed(None, &[]).await
        }),
        Case::new("the last updated chat is the first one", |store: Store| async move {
            let chats = chats(store, &["a", "b", "c", "d", "e"]).await?;
            chats[0].expect_listed(None, &["e", "d", "c", "b", "a"]).await?;
            chats[1].appended(chats[1].at(1, &[control("b")])).await?;
            chats[0].expect_listed(None, &["b", "e", "d", "c", "a"]).await
        }),
        Case::new("frames and renewals do not move a chat", |store: Store| async move {
            let chats = chats(store, &["a", "b"]).await?;
            chats[0].appended(chats[0].at(1, &[frame("x")])).await?;
            chats[0].appended(Append { lease: Some(LONG), ..chats[0].at(2, &[]) }).await?;
            chats[0].put(2, None, &["m"]).await?;
            chats[0].expect_listed(None, &["b", "a"]).await
        }),
        Case::new("chats of the same time are each on one page", |store: Store| async move {
            let first = Log::none(store);
            let ids: Vec<String> = (0..9).map(|number| format!("chat {number}")).collect();
            let logs: Vec<Log> = ids.iter().map(|id| first.other(id)).collect();
            let create = |log: Log| async move { log.append(log.create(&[control("a")])).await };
            futures_util::future::join_all(logs.into_iter().map(create)).await;
            let mut listed: Vec<String> =
                first.list(None).await?.into_iter().map(|chat| chat.id.to_string()).collect();
            listed.sort();
            expect_equal("the chats", listed, ids)
        }),
        Case::new("another owner is not listed", |store: Store| async move {
            Log::created(store.clone()).await?;
            let log = Log::created(store).await?;
            expect_equal("the number of chats", log.list(None).await?.len(), 1)
        }),
        Case::new("a chat says whether it is live and has questions", |store: Store| async move {
            let log = Log::with_run(store, LONG).await?;
            let state = async |log: &Log| {
                let chats = log.list(None).await?;
                let state = chats.first().map(|chat| (chat.is_live, chat.has_questions));
                Ok::<_, CaseFailure>(state)
            };
            expect_equal("at first", state(&log).await?, Some((true, false)))?;
            let question = Append { listed: Some(("", true)), ..log.at(1, &[control("call")]) };
            log.appended(question).await?;
            expect_equal("then", state(&log).await?, Some((true, true)))?;
            log.appended(log.at(2, &[control("end")]).ending()).await?;
            expect_equal("at last", state(&log).await?, Some((false, true)))
        }),
        Case::new("a chat has the number of its control entries", |store: Store| async move {
            let log = Log::created(store).await?;
            log.appended(log.at(1, &[frame("x"), control("b"), control("c")])).await?;
            expect_equal(
                "the number",
                log.list(None).await?.pop().map(|entry| entry.control),
                Some(3),
            )
        }),
        Case::new("a change of a list wakes", |store: Store| async move {
            let log = Log::none(store);
            let wakes = async |change: &str, made: BoxFuture<'_, CaseResult>| {
                let mut changed = log.store.changed_list(&log.key.owner);
                // The first poll, after which nothing is missed.
                let is_early = (&mut changed).now_or_never().is_some();
                made.await?;
                if is_early || timeout(SOON, changed).await.is_ok() {
                    Ok(())
                } else {
                    Err(CaseFailure(format!("{change} does not wake")))
                }
            };
            let append = |append| Box::pin(async { log.appended(append).await.map(drop) });
            let begin = log.create(&[control("begin")]).beginning("run", LONG);
            wakes("a new chat", append(begin)).await?;
            let question = Append { listed: Some(("", true)), ..log.at(1, &[control("call")]) };
            wakes("a question", append(question)).await?;
            wakes("an end", append(log.at(2, &[control("end")]).ending())).await?;
            let rename = async { Ok(log.store.rename(&log.key, "Memory").await.map(drop)?) };
            wakes("a title", Box::pin(rename)).await?;
            wakes("a deletion", Box::pin(async { log.delete(3).await.map(drop) })).await?;
            let again = log.create(&[control("created")]);
            wakes("a chat that begins again", append(again)).await?;
            let owner = &log.key.owner;
            let all = async { Ok(log.store.delete_user(owner).await.map(drop)?) };
            wakes("the deletion of a user", Box::pin(all)).await
        }),
        Case::new("a chat whose time has passed wakes", |store: Store| async move {
            let log = Log::none(store);
            let create = log.create(&[control("created")]);
            log.appended(Append { keep_for: Some(SHORT), ..create }).await?;
            let mut changed = log.store.changed_list(&log.key.owner);
            // Hints of the creation arrive before the time has passed.
            while log.load().await?.is_some() {
                if (&mut changed).now_or_never().is_some() {
                    changed = log.store.changed_list(&log.key.owner);
                }
                sleep(TICK).await;
            }
            log.store.sweep().await?;
            match timeout(SOON, changed).await {
                Ok(()) => Ok(()),
                Err(_) => Err(CaseFailure("it does not wake".to_owned())),
            }
        }),
        Case::new("a page ends where the next one begins", |store: Store| async move {
            let chats = chats(store, &["a", "b", "c"]).await?;
            chats[2].delete(1).await?;
            chats[0].expect_listed(None, &["b", "a"]).await
        }),
    ]
}

fn titles() -> Vec<Case> {
    vec![
        Case::new("a title is listed and changed", |store: Store| async move {
            let log = Log::created(store).await?;
            for (position, title) in [(1, "First"), (1, "Zweiter \0 Titel")] {
                log.appended(Append { listed: Some((title, false)), ..log.at(position, &[]) })
                    .await?;
                expect_equal("the title", &*log.list(None).await?[0].title, title)?;
            }
            log.appended(log.at(1, &[control("b")])).await?;
            expect_equal("the title", &*log.list(None).await?[0].title, "Zweiter \0 Titel")
        }),
        Case::new("a renamed chat keeps its title", |store: Store| async move {
            let log = Log::created(store).await?;
            expect_equal("whether", log.store.rename(&log.key, "Memory").await?, true)?;
            log.appended(Append { listed: Some(("Theirs", false)), ..log.at(1, &[control("b")]) })
                .await?;
            expect_equal("the title", &*log.list(None).await?[0].title, "Memory")
        }),
        Case::new("a new title changes neither the order nor the log", |store: Store| async move {
            let chats = chats(store, &["a", "b"]).await?;
            let before = chats[0].loaded().await?;
            chats[0].store.rename(&chats[0].key, "Memory").await?;
            chats[0].expect_listed(None, &["b", "a"]).await?;
            expect_equal("the log", chats[0].loaded().await?, before)
        }),
        Case::new("a chat that does not exist is not renamed", |store: Store| async move {
            let log = Log::none(store);
            expect_equal("whether", log.store.rename(&log.key, "Memory").await?, false)
        }),
        Case::new("titles are searched", |store: Store| async move {
            let chats = chats(store, &["a", "b", "c", "d", "e"]).await?;
            let titles = ["A Tale of two", "tales", "Über 100%_", "Ärger\0\\Äpfel", "\\303 ZEBRA"];
            for (log, title) in chats.iter().zip(titles) {
                log.store.rename(&log.key, title).await?;
            }
            for (search, ids) in [
                ("tale", &["b", "a"][..]),
                ("TALE", &["b", "a"]),
                ("le of", &["a"]),
                ("Über", &["c"]),
                ("0%_", &["c"]),
                ("%", &["c"]),
                ("_", &["c"]),
                ("\0\\Äpfel", &["d"]),
                ("ÄPFEL", &["d"]),
                // The case counts of letters that are not ASCII.
                ("äpfel", &[]),
                ("\\303 zebrA", &["e"]),
                ("303", &["e"]),
                ("none", &[]),
                ("", &["e", "d", "c", "b", "a"]),
            ] {
                let found = chats[0].expect_listed(Some(search), ids).await;
                found.map_err(|CaseFailure(why)| CaseFailure(format!("{search:?}: {why}")))?;
            }
            Ok(())
        }),
    ]
}

fn deletions() -> Vec<Case> {
    vec![
        Case::new("a deleted chat is gone", |store: Store| async move {
            let log = Log::with_run(store, LONG).await?;
            log.put(1, None, &["m"]).await?;
            expect_equal("whether", log.delete(1).await?, true)?;
            log.expect_none().await?;
            log.expect_listed(None, &[]).await?;
            expect_equal("the read", log.read(0, 9).await?, None)?;
            log.expect_conflict(log.at(1, &[frame("a")])).await
        }),
        Case::new("a deletion compares the number of control entries", |store: Store| async move {
            let log = Log::created(store).await?;
            for number in [0, 2] {
                expect_equal("whether", log.delete(number).await?, false)?;
            }
            log.appended(log.at(1, &[frame("a")])).await?;
            expect_equal("whether", log.delete(1).await?, true)
        }),
        Case::new("a deletion compares the epoch", |store: Store| async move {
            let log = Log::created(store).await?;
            let other = Log { epoch: Epoch(8), ..log.clone() };
            expect_equal("whether", other.delete(1).await?, false)?;
            log.expect_entries(&[control("created")]).await
        }),
        Case::new("a chat is deleted once", |store: Store| async move {
            let log = Log::created(store).await?;
            let deleted = (log.delete(1).await?, log.delete(1).await?);
            expect_equal("whether", deleted, (true, false))
        }),
        Case::new(
            "a chat that begins again holds nothing of the old one",
            |store: Store| async move {
                let log = Log::with_run(store, LONG).await?;
                log.put(1, None, &["m"]).await?;
                log.store.rename(&log.key, "Old").await?;
                log.delete(1).await?;
                let next = Log { epoch: Epoch(8), ..log.clone() };
                next.appended(next.create(&[control("new")])).await?;
                next.expect_entries(&[control("new")]).await?;
                let loaded = next.loaded().await?;
                expect_equal("the snapshot", loaded.snapshot, None)?;
                expect_equal("the run", loaded.head.live_run, None)?;
                expect_equal("the title", &*next.list(None).await?[0].title, "")?;
                expect_equal("the old read", log.read(0, 9).await?, None)?;
                log.expect_conflict(log.at(1, &[frame("late")])).await
            },
        ),
        Case::new("all chats of a user are deleted", |store: Store| async move {
            let other = Log::created(store.clone()).await?;
            let chats = chats(store, &["a", "b", "c"]).await?;
            let owner = &chats[0].key.owner;
            expect_equal("the number", chats[0].store.delete_user(owner).await?, 3)?;
            chats[0].expect_listed(None, &[]).await?;
            chats[1].expect_none().await?;
            expect_equal("the number", chats[0].store.delete_user(owner).await?, 0)?;
            other.expect_entries(&[control("created")]).await
        }),
    ]
}

fn times() -> Vec<Case> {
    vec![
        Case::new("a chat is gone after its time", |store: Store| async move {
            let log = Log::none(store);
            let create = Append { keep_for: Some(SHORT), ..log.create(&[control("a")]) };
            log.appended(create).await?;
            log.wait_until_gone().await?;
            log.expect_listed(None, &[]).await?;
            expect_equal("the read", log.read(0, 9).await?, None)?;
            expect_equal("the snapshot", log.put(1, None, &[]).await?, false)?;
            expect_equal("the deletion", log.delete(1).await?, false)?;
            expect_equal("the new title", log.store.rename(&log.key, "x").await?, false)?;
            log.expect_conflict(log.at(1, &[frame("b")])).await
        }),
        Case::new("a chat begins again after its time", |store: Store| async move {
            let log = Log::none(store);
            let create = Append { keep_for: Some(SHORT), ..log.create(&[control("a")]) };
            log.appended(create).await?;
            log.wait_until_gone().await?;
            let next = Log { epoch: Epoch(8), ..log };
            next.appended(next.create(&[control("b")])).await?;
            next.expect_entries(&[control("b")]).await
        }),
        Case::new("a control entry gives a chat its time again", |store: Store| async move {
            let mut time = SHORT;
            loop {
                let log = Log::none(Arc::clone(&store));
                let create = Append { keep_for: Some(time), ..log.create(&[control("a")]) };
                log.appended(create).await?;
                let longer = Append { keep_for: Some(LONG), ..log.at(1, &[control("b")]) };
                if log.append(longer).await? == AppendResult::Conflict {
                    // The time has passed, on a slow machine.
                    time *= 2;
                    continue;
                }
                sleep(2 * time).await;
                log.expect_entries(&[control("a"), control("b")]).await?;
                return log.appended(log.at(2, &[control("c")])).await.map(drop);
            }
        }),
        Case::new("frames do not give a chat its time again", |store: Store| async move {
            let log = Log::none(store);
            let create = Append { keep_for: Some(SHORT), ..log.create(&[control("a")]) };
            log.appended(create).await?;
            // The time may have passed on a slow machine.
            let _ = log.append(Append { keep_for: Some(LONG), ..log.at(1, &[frame("b")]) }).await?;
            log.wait_until_gone().await
        }),
        Case::new("a sweep keeps what is needed", |store: Store| async move {
            let log = Log::with_run(store, LONG).await?;
            log.appended(log.at(1, &[frame("a"), frame("b")])).await?;
            log.put(2, None, &["m"]).await?;
            log.store.sweep().await?;
            expect_equal("the entries", log.loaded().await?.entries, vec![(2, frame("b"))])?;
            let all = log.read(0, usize::MAX).await?.map(|page| page.entries.len());
            expect_equal("the live run", all, Some(3))?;
            log.appended(log.at(3, &[control("end")]).ending()).await?;
            log.put(4, None, &["m"]).await?;
            log.store.sweep().await?;
            let all = log.read(0, usize::MAX).await?.map(|page| page.entries.len());
            expect_equal("the run that has just ended", all, Some(4))
        }),
        Case::new(
            "a sweep keeps the entries of a run that is resumed",
            |store: Store| async move {
                let log = Log::with_run(store, LONG).await?;
                let resume = log.at(1, &[control("end"), control("begin")]);
                log.appended(resume.resuming("next", LONG)).await?;
                log.put(3, None, &["m"]).await?;
                log.store.sweep().await?;
                let all = log.read(0, usize::MAX).await?.map(|page| page.entries.len());
                expect_equal("the entries", all, Some(3))
            },
        ),
        Case::new("a sweep keeps a run that begins and ends in one append", |store| async move {
            let log = Log::created(store).await?;
            log.appended(log.at(1, &[control("begin"), control("end")]).ending()).await?;
            log.put(3, None, &["m"]).await?;
            log.store.sweep().await?;
            let kept = log.read(1, usize::MAX).await?.map(|page| page.entries.len());
            expect_equal("the entries of the run", kept, Some(2))?;
            expect_equal("the entry before", log.read(0, usize::MAX).await?, None)
        }),
        Case::new("a store that works answers a ping", |store: Store| async move {
            Ok(store.ping().await?)
        }),
    ]
}

fn limits() -> Vec<Case> {
    vec![
        Case::new("a user has a maximum number of chats", |store: Store| async move {
            let chats = chats(store, &["a", "b"]).await?;
            let third = chats[0].other("c");
            let limits = UserLimits { chats: 2, runs: 9, unread: Duration::ZERO };
            let create = Append { limits, ..third.create(&[control("c")]) };
            match third.append(create).await? {
                AppendResult::TooManyChats => chats[0].expect_listed(None, &["b", "a"]).await,
                // A store that may lose chats has removed another one.
                AppendResult::Appended { .. } => {
                    expect_equal("the number of chats", chats[0].list(None).await?.len(), 2)
                }
                other => Err(CaseFailure(format!("the append is {other:?}"))),
            }
        }),
        Case::new("a chat whose time has passed takes no place", |store: Store| async move {
            let log = Log::none(store);
            let create = Append { keep_for: Some(SHORT), ..log.create(&[control("a")]) };
            log.appended(create).await?;
            sleep(TICK).await;
            // It is not among those that are read first.
            for number in 0..100 {
                let other = log.other(&number.to_string());
                other.appended(other.create(&[control("a")])).await?;
            }
            log.wait_until_gone().await?;
            let next = log.other("next");
            let limits = UserLimits { chats: 101, runs: 9, unread: Duration::ZERO };
            next.appended(Append { limits, ..next.create(&[control("a")]) }).await?;
            expect_equal("the number of chats", log.list(None).await?.len(), 101)
        }),
        Case::new("the maximum of chats does not limit appends", |store: Store| async move {
            let chats = chats(store, &["a", "b"]).await?;
            let limits = UserLimits { chats: 1, runs: 9, unread: Duration::ZERO };
            let append = Append { limits, ..chats[0].at(1, &[control("c")]) };
            chats[0].appended(append).await.map(drop)
        }),
    ]
}

pub(super) const TICK: Duration = Duration::from_millis(3);

/// A hint arrives before.
const SOON: Duration = Duration::from_secs(10);
