//! A reader of a log whose store gives no hint: it asks the store a second after the last frame, and
//! keeps the connection open.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use chat_test_support::answers::{follow, post, server_of};
use chat_test_support::log_double::{Intercepts, LogDouble};
use futures::StreamExt;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep_until};
use ui_message_stream::{AgentEvent, BoxFuture};
use ui_message_stream_chat::Turn;
use ui_message_stream_chat::store::{InMemoryLogStore, LogKey, LogStore};

/// A store that may give no hints.
#[derive(Debug)]
struct Quiet {
    store: InMemoryLogStore,
    gives_hints: AtomicBool,
}

impl Intercepts for Quiet {
    fn store(&self) -> &dyn LogStore {
        &self.store
    }

    fn changed<'a>(&'a self, key: &'a LogKey, length: u64) -> BoxFuture<'a, ()> {
        match self.gives_hints.load(Ordering::SeqCst) {
            true => self.store.changed(key, length),
            false => Box::pin(pending()),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_hint_a_reader_asks_a_second_after_the_last_frame_and_sends_a_comment_after_15() {
    let store = Quiet { store: InMemoryLogStore::new(), gives_hints: true.into() };
    let store = Arc::new(LogDouble(store));
    let permits = Arc::new(Semaphore::new(0));
    let server = || {
        let permits = Arc::clone(&permits);
        let agent = move |_: Turn| {
            let permits = Arc::clone(&permits);
            async_stream::stream! {
                for word in ["one ", "two "] {
                    permits.acquire().await.unwrap().forget();
                    yield AgentEvent::text(word);
                }
                pending::<()>().await;
            }
        };
        server_of(agent).with_store(store.clone())
    };
    let _response = post(&server(), "m1", "Hi").await;

    // A reader on another server.
    let reader = follow(&server()).await;
    let begun = Instant::now();
    let pages = reader.map(move |page| (begun.elapsed(), page.unwrap()));
    let pages = pages.take_until(sleep_until(begun + Duration::from_secs(20)));
    let pages = tokio::spawn(pages.collect::<Vec<_>>());
    // The reader has asked after a second, and waits for a hint of the first word only.
    sleep_until(begun + Duration::from_millis(1200)).await;
    store.gives_hints.store(false, Ordering::SeqCst);
    for at in [1400, 1500] {
        sleep_until(begun + Duration::from_millis(at)).await;
        permits.add_permits(1);
    }

    let pages = pages.await.unwrap();
    let times_of = |text: &str| {
        let with = pages.iter().filter(|(_, page)| String::from_utf8_lossy(page).contains(text));
        with.map(|(at, _)| at.as_millis()).collect::<Vec<_>>()
    };
    // The clock is paused. A timer may fire a few milliseconds late.
    for (text, expected) in [("one ", 1400), ("two ", 2400), (": keep-alive", 17_400)] {
        let times = times_of(text);
        let is_expected = matches!(*times, [at] if (expected..expected + 20).contains(&at));
        assert!(is_expected, "{text:?} after {times:?} ms");
    }
}
