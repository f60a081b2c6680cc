//! Entries: each is stored once, unchanged and in order, and read by every reader.

use bytes::Bytes;

use super::case::{Case, LONG_LEASE, Run, Store, expect_appended, frames, new_key};
use crate::approval::Principal;
use crate::chat::log::{
    AppendEntries, AppendRefusal, AppendResult, BeginResult, Fence, LogEntry, ReadLog, RunKey,
    RunState, TakeCondition, TakeRefusal, TakeResult, TakeRun,
};
use crate::chat::store::conformance_case::{CaseFailure, expect_equal};
use crate::chat::store::run_conformance::case::holder_id;

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new("a new log is empty and leased", |store: Store| async move {
            let run = Run::begin(store).await?;
            let page = run.read(0, usize::MAX).await?;
            expect_equal("the entries", page.entries, Vec::new())?;
            expect_equal("the length", page.length, 0)?;
            expect_equal("the fence", page.fence, Fence(1))?;
            expect_equal("the state", page.state, RunState::Leased)
        }),
        Case::new("entries are read in the order of the appends", |store: Store| async move {
            let run = Run::begin(store).await?;
            expect_appended(run.append(1, 0, &frames(["a", "b"])).await?)?;
            expect_appended(run.append(1, 2, &frames(["c"])).await?)?;
            run.expect_log(&frames(["a", "b", "c"])).await
        }),
        Case::new("frames and notes keep their kind and their bytes", |store: Store| async move {
            let run = Run::begin(store).await?;
            let bytes: Vec<u8> = (0..=255).collect();
            let entries = [
                LogEntry::Frame("data: é\n\n".into()),
                LogEntry::Note(Bytes::from(bytes)),
                LogEntry::Frame(Bytes::new()),
            ];
            expect_appended(run.append(1, 0, &entries).await?)?;
            run.expect_log(&entries).await
        }),
        Case::new("an entry of a megabyte is kept", |store: Store| async move {
            let run = Run::begin(store).await?;
            let entries = [LogEntry::Frame(Bytes::from(vec![b'x'; 1 << 20]))];
            expect_appended(run.append(1, 0, &entries).await?)?;
            run.expect_log(&entries).await
        }),
        Case::new("a reader continues after the entries that it has read", |store| async move {
            let run = Run::begin(store).await?;
            expect_appended(run.append(1, 0, &frames(["a", "b", "c"])).await?)?;
            let page = run.read(2, usize::MAX).await?;
            expect_equal("the entries", &*page.entries, &frames(["c"])[..])?;
            expect_equal("the length", page.length, 3)?;
            for after in [3, 4, u64::MAX] {
                let page = run.read(after, usize::MAX).await?;
                expect_equal("the entries", page.entries, Vec::new())?;
                expect_equal("the length", page.length, 3)?;
            }
            Ok(())
        }),
        Case::new("a page has at most the requested bytes", |store: Store| async move {
            let run = Run::begin(store).await?;
            expect_appended(run.append(1, 0, &frames(["aaaa", "bbbb", "cccc"])).await?)?;
            let page = run.read(0, 9).await?;
            expect_equal("the entries", &*page.entries, &frames(["aaaa", "bbbb"])[..])?;
            expect_equal("the length", page.length, 3)
        }),
        Case::new("a page has at least one entry", |store: Store| async move {
            let run = Run::begin(store).await?;
            expect_appended(run.append(1, 0, &frames(["aaaa", "bbbb"])).await?)?;
            for max_bytes in [0, 1, 4] {
                let page = run.read(1, max_bytes).await?;
                expect_equal("the entries", &*page.entries, &frames(["bbbb"])[..])?;
            }
            Ok(())
        }),
        Case::new("the end is read with the last entries", |store: Store| async move {
            let run = Run::begin(store).await?;
            expect_appended(run.end(1, 0, &frames(["a"])).await?)?;
            let page = run.read(0, usize::MAX).await?;
            expect_equal("the entries", &*page.entries, &frames(["a"])[..])?;
            expect_equal("the state", page.state, RunState::Ended)
        }),
        Case::new("a log can end without entries", |store: Store| async move {
            let run = Run::begin(store).await?;
            expect_appended(run.end(1, 0, &[]).await?)?;
            expect_equal("the state", run.read(0, 1).await?.state, RunState::Ended)
        }),
        Case::new("nothing is appended after the end", |store: Store| async move {
            let run = Run::begin(store).await?;
            expect_appended(run.end(1, 0, &frames(["a"])).await?)?;
            let ended = AppendResult::Refused(AppendRefusal::Ended);
            expect_equal("an append", run.append(1, 1, &frames(["b"])).await?, ended)?;
            expect_equal("a renewal", run.append(1, 1, &[]).await?, ended)?;
            expect_equal("another end", run.end(1, 1, &frames(["b"])).await?, ended)?;
            run.expect_log(&frames(["a"])).await
        }),
        Case::new("an append that leaves a gap is refused", |store: Store| async move {
            let run = Run::begin(store).await?;
            let gap = AppendResult::Refused(AppendRefusal::Gap);
            for position in [1, u64::MAX] {
                expect_equal("the append", run.append(1, position, &frames(["a"])).await?, gap)?;
                expect_equal("the end", run.end(1, position, &[]).await?, gap)?;
            }
            run.expect_log(&[]).await
        }),
        Case::new("an unknown run is not found", |store: Store| async move {
            let key = new_key();
            let read = ReadLog { key: &key, after: 0, max_bytes: 1, is_reader: true };
            expect_equal("the page", store.read(read).await?, None)?;
            let append =
                AppendEntries { key: &key, fence: Fence(1), position: 0, entries: &[], end: false };
            expect_equal(
                "the append",
                store.append(append).await?,
                AppendResult::Refused(AppendRefusal::NotFound),
            )?;
            let (fence, holder, lease) = (Fence(1), holder_id(1), LONG_LEASE);
            let condition = TakeCondition::Any;
            expect_equal(
                "the take",
                store.take(TakeRun { key: &key, fence, holder, condition, lease }).await?,
                TakeResult::Refused(TakeRefusal::NotFound),
            )
        }),
        Case::new("a run is found by its whole key only", |store: Store| async move {
            let run = Run::begin(store.clone()).await?;
            let owner = run.key.owner.clone();
            let others = [
                RunKey { owner: Principal::anonymous(), ..run.key.clone() },
                RunKey { owner: owner.with_tenant("tenant"), ..run.key.clone() },
                RunKey { chat: "chat2".into(), ..run.key.clone() },
                RunKey { run: "other".into(), ..run.key.clone() },
            ];
            for key in &others {
                let read = ReadLog { key, after: 0, max_bytes: 1, is_reader: false };
                expect_equal("the page", store.read(read).await?, None)?;
            }
            Ok(())
        }),
        Case::new("two chats may have runs with the same id", |store: Store| async move {
            let run = Run::begin(store.clone()).await?;
            let key = RunKey { chat: "chat2".into(), ..run.key.clone() };
            let other = Run { store, key, lease: run.lease };
            let begun = other.begin_again(2, LONG_LEASE).await?;
            expect_equal("begin", begun, BeginResult::Begun(Fence(1)))?;
            expect_appended(run.append(1, 0, &frames(["a"])).await?)?;
            expect_appended(other.append(1, 0, &frames(["b"])).await?)?;
            run.expect_log(&frames(["a"])).await?;
            other.expect_log(&frames(["b"])).await
        }),
        Case::new("of concurrent appends at a position one is accepted", |store| async move {
            let run = Run::begin(store).await?;
            let texts: Vec<String> = (0..16).map(|number| number.to_string()).collect();
            let appends = texts.iter().map(|text| {
                let entries = frames([text]);
                let run = &run;
                async move { run.append(1, 0, &entries).await }
            });
            let mut accepted = 0;
            for result in futures_util::future::join_all(appends).await {
                accepted += usize::from(matches!(result?, AppendResult::Appended(_)));
            }
            expect_equal("the number of accepted appends", accepted, 1)?;
            expect_equal("the length", run.read(0, 1).await?.length, 1)
        }),
        Case::new("readers at all positions read the same entries", |store: Store| async move {
            let run = Run::begin(store).await?;
            let all: Vec<LogEntry> =
                (0..50).flat_map(|number: u32| frames([&*number.to_string()])).collect();
            for (at, entries) in all.chunks(7).enumerate() {
                let position = u64::try_from(at * 7).map_err(|_| CaseFailure("x".into()))?;
                expect_appended(run.append(1, position, entries).await?)?;
            }
            for after in 0..50_u64 {
                let rest: Vec<LogEntry> =
                    all.iter().skip(usize::try_from(after).unwrap_or(0)).cloned().collect();
                let page = run.read(after, usize::MAX).await?;
                expect_equal("the entries", page.entries, rest)?;
            }
            Ok(())
        }),
        Case::new("a hint follows an append, or comes early", |store: Store| async move {
            let run = Run::begin(store).await?;
            let waiting = run.store.changed(&run.key, 0);
            let entries = frames(["a"]);
            let appending = run.append(1, 0, &entries);
            // Both have to be ready; the suite fails a case that waits forever.
            let (_, appended) = futures_util::future::join(waiting, appending).await;
            expect_appended(appended?)?;
            run.store.changed(&run.key, 0).await;
            Ok(())
        }),
    ]
}
