//! Appends: what they compare, and what they store.

use futures_util::future::join_all;

use super::case::{Append, LONG, Log, Store, control, frame, note};
use super::report::{Case, CaseFailure, expect_equal, new_owner};
use crate::store::{AppendResult, EntryKind, Epoch, Expected, StoredEntry};
use ui_message_stream::approval::Principal;

pub(super) fn cases() -> Vec<Case> {
    [what_is_compared(), what_is_stored(), at_the_same_time()].into_iter().flatten().collect()
}

fn what_is_compared() -> Vec<Case> {
    vec![
        Case::new("a chat has no log before the first append", |store: Store| async move {
            let log = Log::none(store);
            log.expect_none().await?;
            expect_equal("the read", log.read(0, 9).await?, None)
        }),
        Case::new("an append creates a log with its epoch", |store: Store| async move {
            let log = Log::none(store);
            let head = log.appended(log.create(&[control("a"), frame("b")])).await?;
            expect_equal("the head", (head.epoch, head.length, head.control), (Epoch(7), 2, 1))
        }),
        Case::new("the head of a new log has no live run", |store: Store| async move {
            let head = Log::created(store).await?.loaded().await?.head;
            expect_equal("the run", head.live_run, None)?;
            expect_equal("the rest", (head.is_lost, head.has_to_end), (false, false))?;
            expect_equal("the time without a reader", head.unread.as_nanos(), 0)
        }),
        Case::new("a log is not created twice", |store: Store| async move {
            let log = Log::created(store).await?;
            for epoch in [log.epoch, Epoch(8)] {
                log.expect_conflict(Append::new(Expected::NoLog(epoch), &[control("b")])).await?;
            }
            log.expect_entries(&[control("created")]).await
        }),
        Case::new("an append at the position is accepted", |store: Store| async move {
            let log = Log::created(store).await?;
            let first = match log.append(log.at(1, &[frame("a"), frame("b")])).await? {
                AppendResult::Appended { first, head } => (first, head.length),
                refused => return Err(CaseFailure(format!("{refused:?}"))),
            };
            expect_equal("the position and the length", first, (1, 3))
        }),
        Case::new("an append at another position is a conflict", |store: Store| async move {
            let log = Log::created(store).await?;
            for position in [0, 2, u64::from(u32::MAX)] {
                log.expect_conflict(log.at(position, &[frame("a")])).await?;
            }
            log.expect_entries(&[control("created")]).await
        }),
        Case::new("control entries are compared and counted", |store: Store| async move {
            let log = Log::created(store).await?;
            let head = log.appended(log.after_control(1, &[control("a"), control("b")])).await?;
            expect_equal("the numbers", (head.length, head.control), (3, 3))?;
            for number in [0, 1, 2, 4] {
                log.expect_conflict(log.after_control(number, &[control("c")])).await?;
            }
            log.appended(log.after_control(3, &[control("c")])).await.map(drop)
        }),
        Case::new("frames and notes are no control entries", |store: Store| async move {
            let log = Log::created(store).await?;
            let head = log.appended(log.at(1, &[frame("a"), note("b")])).await?;
            expect_equal("the numbers", (head.length, head.control), (3, 1))?;
            log.appended(log.after_control(1, &[control("c")])).await.map(drop)
        }),
        Case::new("a control entry changes the position", |store: Store| async move {
            let log = Log::created(store).await?;
            log.appended(log.after_control(1, &[control("a")])).await?;
            log.expect_conflict(log.at(1, &[frame("b")])).await
        }),
        Case::new("an append compares the epoch", |store: Store| async move {
            let log = Log::created(store).await?;
            let other = Log { epoch: Epoch(8), ..log.clone() };
            other.expect_conflict(other.at(1, &[frame("a")])).await?;
            other.expect_conflict(other.after_control(1, &[control("a")])).await?;
            log.expect_entries(&[control("created")]).await
        }),
        Case::new("an append to a chat without a log is a conflict", |store: Store| async move {
            let log = Log::none(store);
            log.expect_conflict(log.at(0, &[frame("a")])).await?;
            log.expect_conflict(log.after_control(0, &[control("a")])).await?;
            log.expect_none().await
        }),
        Case::new("chats of one owner have logs of their own", |store: Store| async move {
            let log = Log::created(store).await?;
            let other = log.other("other");
            other.expect_none().await?;
            other.appended(other.create(&[control("x"), frame("y")])).await?;
            log.expect_entries(&[control("created")]).await?;
            other.expect_entries(&[control("x"), frame("y")]).await
        }),
        Case::new(
            "owners with the same chat id have logs of their own",
            |store: Store| async move {
                let log = Log::created(store.clone()).await?;
                let id = log.key.owner.id().unwrap_or_default().to_owned();
                for owner in [new_owner(), Principal::new(id).with_tenant("t")] {
                    let other = Log::of(store.clone(), owner, "chat");
                    other.expect_none().await?;
                    other.appended(other.create(&[control("x")])).await?;
                }
                log.expect_entries(&[control("created")]).await
            },
        ),
        Case::new("ids that differ in case or in their form differ", |store: Store| async move {
            let log = Log::created(store).await?;
            for id in ["Chat", "chat ", "chät", "cha\u{308}t", ""] {
                let other = log.other(id);
                other.expect_none().await?;
                other.appended(other.create(&[control(id)])).await?;
                other.expect_entries(&[control(id)]).await?;
            }
            log.expect_entries(&[control("created")]).await
        }),
        Case::new("ids may hold any text", |store: Store| async move {
            let log = Log::created(store).await?;
            for id in ["\0", "a:b*{c}", "'; --", "\u{1F600}", &"x".repeat(1024)] {
                let other = log.other(id);
                other.appended(other.create(&[control("x")])).await?;
                other.expect_entries(&[control("x")]).await?;
            }
            Ok(())
        }),
        Case::new("an epoch may have 53 bits", |store: Store| async move {
            let log = Log { epoch: Epoch((1 << 53) - 1), ..Log::none(store) };
            log.appended(log.create(&[control("a")])).await?;
            expect_equal("the epoch", log.loaded().await?.head.epoch, log.epoch)?;
            let other = Log { epoch: Epoch((1 << 53) - 2), ..log.clone() };
            other.expect_conflict(other.at(1, &[frame("b")])).await?;
            log.appended(log.at(1, &[frame("b")])).await.map(drop)
        }),
    ]
}

fn what_is_stored() -> Vec<Case> {
    vec![
        Case::new(
            "entries are returned in their order with their kinds",
            |store: Store| async move {
                let log = Log::created(store).await?;
                let entries = [frame("a"), control("b"), note("c"), frame("d")];
                log.appended(log.at(1, &entries)).await?;
                let all = [&[control("created")][..], &entries].concat();
                log.expect_entries(&all).await?;
                let page = log.read(0, usize::MAX).await?.map(|page| page.entries);
                expect_equal("the read", page, Some(all))
            },
        ),
        Case::new("entries may hold any bytes", |store: Store| async move {
            let log = Log::created(store).await?;
            let bytes = [b"\n\r\0".to_vec(), (0..=255).collect(), vec![0xff; 9], Vec::new()];
            let entries =
                bytes.map(|bytes| StoredEntry { kind: EntryKind::Frame, bytes: bytes.into() });
            log.appended(log.at(1, &entries)).await?;
            let all = [&[control("created")][..], &entries].concat();
            log.expect_entries(&all).await
        }),
        Case::new("an entry may have a megabyte", |store: Store| async move {
            let log = Log::created(store).await?;
            let large = frame(&"x".repeat(1 << 20));
            log.appended(log.at(1, std::slice::from_ref(&large))).await?;
            log.expect_entries(&[control("created"), large]).await
        }),
        Case::new("an append may have a thousand entries", |store: Store| async move {
            let log = Log::created(store).await?;
            let many: Vec<_> = (0..1000).map(|number| frame(&number.to_string())).collect();
            let head = log.appended(log.at(1, &many)).await?;
            expect_equal("the length", head.length, 1001)?;
            let all = [&[control("created")][..], &many].concat();
            log.expect_entries(&all).await
        }),
        Case::new("an append without entries changes no number", |store: Store| async move {
            let log = Log::created(store).await?;
            let head = log.appended(log.at(1, &[])).await?;
            expect_equal("the numbers", (head.length, head.control), (1, 1))
        }),
        Case::new("a log may be created without entries", |store: Store| async move {
            let log = Log::none(store);
            let head = log.appended(log.create(&[])).await?;
            expect_equal("the numbers", (head.length, head.control), (0, 0))?;
            log.appended(log.at(0, &[control("a")])).await?;
            log.expect_entries(&[control("a")]).await
        }),
        Case::new("a conflict changes nothing", |store: Store| async move {
            let log = Log::with_run(store, LONG).await?;
            let before = log.loaded().await?;
            let mut append = log.at(9, &[control("x")]).ending();
            append.listed = Some(("Other", true));
            log.expect_conflict(append).await?;
            let mut after = log.loaded().await?;
            after.head.unread = before.head.unread;
            expect_equal("the log", after, before)?;
            expect_equal("the title", log.list(None).await?[0].title.clone(), String::new())
        }),
    ]
}

fn at_the_same_time() -> Vec<Case> {
    vec![
        Case::new("of concurrent creations one wins", |store: Store| async move {
            let log = Log::none(store);
            let create = |number: u64| Append::new(Expected::NoLog(Epoch(number)), &[control("a")]);
            let results = join_all((0..16).map(|number| log.append(create(number)))).await;
            expect_equal("the number of winners", won(results)?, 1)?;
            log.expect_entries(&[control("a")]).await
        }),
        Case::new("of concurrent appends at a position one wins", |store: Store| async move {
            let log = Log::created(store).await?;
            let append = |number: u64| log.append(log.at(1, &[frame(&number.to_string())]));
            let results = join_all((0..16).map(append)).await;
            expect_equal("the number of winners", won(results)?, 1)?;
            expect_equal("the length", log.loaded().await?.head.length, 2)
        }),
        Case::new(
            "of concurrent appends after a control entry one wins",
            |store: Store| async move {
                let log = Log::created(store).await?;
                let append = |_| log.append(log.after_control(1, &[control("a")]));
                let results = join_all((0..16).map(append)).await;
                expect_equal("the number of winners", won(results)?, 1)
            },
        ),
        Case::new(
            "a decision and frames at the same time are both stored",
            |store: Store| async move {
                let log = Log::created(store).await?;
                for round in 0..10 {
                    let head = log.loaded().await?.head;
                    let decision = log.after_control(head.control, &[control("decision")]);
                    let frames = log.at(head.length, &[frame("a")]);
                    let results = join_all([log.append(decision), log.append(frames)]).await;
                    let mut results = results.into_iter();
                    let decided = results.next().is_some_and(|result| is_appended(&result));
                    expect_equal(&format!("the decision of round {round}"), decided, true)?;
                }
                expect_equal("the control entries", log.loaded().await?.head.control, 11)
            },
        ),
    ]
}

fn is_appended(result: &Result<AppendResult, CaseFailure>) -> bool {
    matches!(result, Ok(AppendResult::Appended { .. }))
}

fn won(results: Vec<Result<AppendResult, CaseFailure>>) -> Result<usize, CaseFailure> {
    let mut won = 0;
    for result in results {
        won += usize::from(is_appended(&Ok(result?)));
    }
    Ok(won)
}
