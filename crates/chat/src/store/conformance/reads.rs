//! Loads, reads and snapshots.

use super::case::{Log, Store, control, frame, note};
use super::report::{Case, CaseFailure, expect_equal};
use crate::store::{Epoch, LoadLog, StoredEntry, Unchanged};

pub(super) fn cases() -> Vec<Case> {
    [loads(), reads(), snapshots(), messages()].into_iter().flatten().collect()
}

/// A log of a control entry, a frame, a note and a frame.
async fn mixed(store: Store) -> Result<Log, CaseFailure> {
    let log = Log::none(store);
    log.appended(log.create(&mixed_entries())).await?;
    Ok(log)
}

fn mixed_entries() -> [StoredEntry; 4] {
    [control("a"), frame("bb"), note("ccc"), frame("dddd")]
}

fn loads() -> Vec<Case> {
    vec![
        Case::new("a load returns positions", |store: Store| async move {
            let log = mixed(store).await?;
            let positions = log.loaded().await?.entries.into_iter().map(|(position, _)| position);
            expect_equal("the positions", positions.collect::<Vec<_>>(), vec![0, 1, 2, 3])
        }),
        Case::new("a load without frames returns the other entries", |store: Store| async move {
            let log = mixed(store).await?;
            let load = LoadLog { key: &log.key, has_frames: false, has_messages: true };
            let Some(loaded) = log.store.load(load).await? else {
                return Err(CaseFailure("there is no log".to_owned()));
            };
            let expected = vec![(0, control("a")), (2, note("ccc"))];
            expect_equal("the entries", loaded.entries, expected)?;
            expect_equal("the length", loaded.head.length, 4)
        }),
        Case::new("a load returns the entries after the snapshot", |store: Store| async move {
            let log = mixed(store).await?;
            log.put(3, None, &[]).await?;
            expect_equal("the entries", log.loaded().await?.entries, vec![(3, frame("dddd"))])
        }),
        Case::new(
            "a load without messages returns the head of the snapshot",
            |store: Store| async move {
                let log = mixed(store).await?;
                log.put(1, None, &["m"]).await?;
                let load = LoadLog { key: &log.key, has_frames: true, has_messages: false };
                let snapshot = log.store.load(load).await?.and_then(|loaded| loaded.snapshot);
                let Some(snapshot) = snapshot else {
                    return Err(CaseFailure("there is no snapshot".to_owned()));
                };
                expect_equal("the head", &*snapshot.head, "{\"n\":1}")?;
                expect_equal("the position", snapshot.position, 1)?;
                expect_equal("the messages", snapshot.messages.len(), 0)
            },
        ),
    ]
}

fn reads() -> Vec<Case> {
    vec![
        Case::new("a read begins at a position", |store: Store| async move {
            let log = mixed(store).await?;
            let page = log.read(2, usize::MAX).await?.map(|page| page.entries);
            expect_equal("the page", page, Some(vec![note("ccc"), frame("dddd")]))
        }),
        Case::new("a page has at least one entry", |store: Store| async move {
            let log = mixed(store).await?;
            for position in 0..4 {
                let page = log.read(position, 0).await?.map(|page| page.entries.len());
                expect_equal("the entries", page, Some(1))?;
            }
            Ok(())
        }),
        Case::new("a page has no more bytes than asked for", |store: Store| async move {
            let log = mixed(store).await?;
            for (max_bytes, entries) in [(1, 1), (2, 1), (3, 2), (5, 2), (6, 3), (9, 3), (10, 4)] {
                let page = log.read(0, max_bytes).await?.map(|page| page.entries.len());
                expect_equal(&format!("the entries in {max_bytes} bytes"), page, Some(entries))?;
            }
            Ok(())
        }),
        Case::new("a read at the end has no entry", |store: Store| async move {
            let log = mixed(store).await?;
            let page = log.read(4, 9).await?.map(|page| (page.entries.len(), page.head.length));
            expect_equal("the page", page, Some((0, 4)))
        }),
        Case::new("a read beyond the end finds nothing", |store: Store| async move {
            let log = mixed(store).await?;
            expect_equal("the page", log.read(5, 9).await?, None)
        }),
        Case::new("a read compares the epoch", |store: Store| async move {
            let log = Log { epoch: Epoch(8), ..mixed(store).await? };
            expect_equal("the page", log.read(0, 9).await?, None)
        }),
        Case::new(
            "entries before a snapshot are read until they are swept",
            |store: Store| async move {
                let log = mixed(store).await?;
                log.put(4, None, &[]).await?;
                let page = log.read(0, usize::MAX).await?.map(|page| page.entries);
                expect_equal("the page", page, Some(mixed_entries().to_vec()))
            },
        ),
        Case::new("a change wakes those who wait", |store: Store| async move {
            let log = mixed(store).await?;
            let changed = log.store.changed(&log.key, 4);
            let append = log.appended(log.at(4, &[frame("e")]));
            let ((), head) = futures_util::future::join(changed, append).await;
            head.map(drop)
        }),
        Case::new("a log that has changed already wakes at once", |store: Store| async move {
            let log = mixed(store).await?;
            log.store.changed(&log.key, 3).await;
            Ok(())
        }),
    ]
}

fn snapshots() -> Vec<Case> {
    vec![
        Case::new("a log has no snapshot at first", |store: Store| async move {
            expect_equal("it", mixed(store).await?.loaded().await?.snapshot, None)
        }),
        Case::new("a snapshot is stored", |store: Store| async move {
            let log = mixed(store).await?;
            expect_equal("whether", log.put(2, None, &["{\"a\":1}", "\"\\u0000\""]).await?, true)?;
            let snapshot = log.loaded().await?.snapshot.unwrap_or_default();
            expect_equal("the messages", snapshot.messages, texts(&["{\"a\":1}", "\"\\u0000\""]))?;
            expect_equal("the position", snapshot.position, 2)
        }),
        Case::new("a snapshot changes no number of the log", |store: Store| async move {
            let log = mixed(store).await?;
            log.put(4, None, &["m"]).await?;
            let head = log.loaded().await?.head;
            expect_equal("the numbers", (head.length, head.control), (4, 1))?;
            log.appended(log.at(4, &[frame("e")])).await.map(drop)
        }),
        Case::new("an older snapshot is not stored", |store: Store| async move {
            let log = mixed(store).await?;
            log.put(3, None, &["new"]).await?;
            for position in [0, 2, 3] {
                expect_equal("whether", log.put(position, None, &["old"]).await?, false)?;
            }
            let snapshot = log.loaded().await?.snapshot.unwrap_or_default();
            expect_equal("the messages", snapshot.messages, texts(&["new"]))
        }),
        Case::new("a snapshot beyond the log is not stored", |store: Store| async move {
            let log = mixed(store).await?;
            expect_equal("whether", log.put(5, None, &["m"]).await?, false)?;
            expect_equal("it", log.loaded().await?.snapshot, None)
        }),
        Case::new("a snapshot of another epoch is not stored", |store: Store| async move {
            let log = mixed(store).await?;
            let other = Log { epoch: Epoch(8), ..log.clone() };
            expect_equal("whether", other.put(2, None, &["m"]).await?, false)?;
            expect_equal("it", log.loaded().await?.snapshot, None)
        }),
        Case::new("a snapshot of a chat without a log is not stored", |store: Store| async move {
            let log = Log::none(store);
            expect_equal("whether", log.put(0, None, &["m"]).await?, false)?;
            log.expect_none().await
        }),
        Case::new("unchanged messages stay", |store: Store| async move {
            let log = mixed(store).await?;
            log.put(1, None, &["a", "b", "c"]).await?;
            let unchanged = Some(Unchanged { position: 1, messages: 2 });
            expect_equal("whether", log.put(2, unchanged, &["x"]).await?, true)?;
            let snapshot = log.loaded().await?.snapshot.unwrap_or_default();
            expect_equal("the messages", snapshot.messages, texts(&["a", "b", "x"]))
        }),
        Case::new("messages are removed", |store: Store| async move {
            let log = mixed(store).await?;
            log.put(1, None, &["a", "b", "c"]).await?;
            let unchanged = Some(Unchanged { position: 1, messages: 1 });
            log.put(2, unchanged, &[]).await?;
            let snapshot = log.loaded().await?.snapshot.unwrap_or_default();
            expect_equal("the messages", snapshot.messages, texts(&["a"]))?;
            log.put(3, None, &[]).await?;
            let snapshot = log.loaded().await?.snapshot.unwrap_or_default();
            expect_equal("the messages", snapshot.messages, texts(&[]))
        }),
        Case::new(
            "unchanged messages are those of the stored snapshot",
            |store: Store| async move {
                let log = mixed(store).await?;
                let base = |position, messages| Some(Unchanged { position, messages });
                expect_equal("without one", log.put(1, base(0, 0), &["x"]).await?, false)?;
                log.put(1, None, &["a"]).await?;
                expect_equal("of another", log.put(3, base(2, 1), &["x"]).await?, false)?;
                expect_equal("too many", log.put(3, base(1, 2), &["x"]).await?, false)?;
                let snapshot = log.loaded().await?.snapshot.unwrap_or_default();
                expect_equal("the messages", snapshot.messages, texts(&["a"]))
            },
        ),
        Case::new("of concurrent snapshots the stored one is whole", |store: Store| async move {
            let log = mixed(store).await?;
            let one = ["a", "b"];
            let two = ["c"];
            let puts = futures_util::future::join(log.put(2, None, &one), log.put(3, None, &two));
            let (first, second) = puts.await;
            expect_equal(
                "whether the newer one is stored",
                (first.is_ok(), second?),
                (true, true),
            )?;
            let snapshot = log.loaded().await?.snapshot.unwrap_or_default();
            expect_equal("the messages", snapshot.messages, texts(&["c"]))
        }),
    ]
}

fn messages() -> Vec<Case> {
    vec![
        Case::new("messages are read in pages", |store: Store| async move {
            let log = mixed(store).await?;
            log.put(2, None, &["a", "bb", "ccc", "d"]).await?;
            for (first, max_bytes, expected) in [
                (0, usize::MAX, &["a", "bb", "ccc", "d"][..]),
                (0, 0, &["a"]),
                (0, 3, &["a", "bb"]),
                (1, 4, &["bb"]),
                (2, 4, &["ccc", "d"]),
                (4, 9, &[]),
                (9, 9, &[]),
            ] {
                let page = log.messages(2, first, max_bytes).await?;
                expect_equal(&format!("from {first}"), page, Some(texts(expected)))?;
            }
            Ok(())
        }),
        Case::new("messages of another snapshot are not read", |store: Store| async move {
            let log = mixed(store).await?;
            expect_equal("without one", log.messages(0, 0, 9).await?, None)?;
            log.put(2, None, &["a"]).await?;
            expect_equal("an older one", log.messages(1, 0, 9).await?, None)?;
            log.put(3, None, &["b"]).await?;
            expect_equal("the replaced one", log.messages(2, 0, 9).await?, None)?;
            let other = Log { epoch: Epoch(8), ..log };
            expect_equal("another epoch", other.messages(3, 0, 9).await?, None)
        }),
    ]
}

fn texts(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|&text| text.to_owned()).collect()
}
