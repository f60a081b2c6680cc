//! What a sink of messages gets: at least once, in order, and after a failure of the sink or of its server.

use std::future::pending;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use chat_test_support::answers::server_of;
use chat_test_support::log_double::{Answer, Intercepts, LogDouble};
use futures::{StreamExt, stream};
use test_support::eventually;
use test_support::requests::{self, ada};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};
use ui_message_stream::AgentEvent;
use ui_message_stream_chat::store::{InMemoryLogStore, LeftToServer, LogStore, Undelivered};
use ui_message_stream_chat::{ChatServer, MessageChange, MessageDelivery, Turn};

/// A table of messages, as a host keeps it, and the deliveries.
#[derive(Debug, Default)]
struct Table {
    /// The chat, and the texts of its messages.
    rows: Mutex<Vec<(String, Vec<String>)>>,
    deliveries: Mutex<Vec<MessageDelivery>>,
    /// How many deliveries fail: each odd one by a panic.
    failures: AtomicUsize,
}

impl Table {
    fn take(&self, delivery: MessageDelivery) {
        let chat = delivery.key.chat.to_string();
        let mut rows = self.rows.lock().unwrap();
        self.deliveries.lock().unwrap().push(delivery.clone());
        match delivery.change {
            MessageChange::Messages { first, messages } => {
                if !rows.iter().any(|(id, _)| *id == chat) {
                    rows.push((chat.clone(), Vec::new()));
                }
                let (_, texts) = rows.iter_mut().find(|(id, _)| *id == chat).unwrap();
                assert!(first <= texts.len(), "{first} of {texts:?}");
                texts.truncate(first);
                texts.extend(messages.iter().map(|message| message.text()));
            }
            MessageChange::Deleted => rows.retain(|(id, _)| *id != chat),
        }
    }

    fn rows(&self) -> Vec<(String, Vec<String>)> {
        self.rows.lock().unwrap().clone()
    }

    async fn becomes(&self, expected: &[(&str, &[&str])]) {
        let own = |texts: &[&str]| texts.iter().map(ToString::to_string).collect::<Vec<_>>();
        let expected: Vec<_> =
            expected.iter().map(|(chat, texts)| (chat.to_string(), own(texts))).collect();
        for _ in 0..400 {
            if self.rows() == expected {
                return;
            }
            sleep(Duration::from_millis(500)).await;
        }
        panic!("{:?}, expected {expected:?}", self.rows());
    }

    fn count(&self) -> usize {
        self.deliveries.lock().unwrap().len()
    }
}

/// Returns a server that repeats what the user says, and delivers to this table.
fn server(store: &Arc<InMemoryLogStore>, table: &Arc<Table>) -> ChatServer {
    let table = Arc::clone(table);
    plain_server(store).with_message_sink(move |delivery| {
        let table = Arc::clone(&table);
        async move {
            let failures = table.failures.load(Ordering::SeqCst);
            if failures > 0 {
                table.failures.store(failures - 1, Ordering::SeqCst);
                assert!(failures.is_multiple_of(2), "the sink of this test panics");
                return Err("the database is away".into());
            }
            table.take(delivery);
            Ok(())
        }
    })
}

fn plain_server(store: &Arc<InMemoryLogStore>) -> ChatServer {
    let agent = |turn: Turn| {
        let text = turn.chat.messages.last().map(|it| it.text()).unwrap_or_default();
        let events = [AgentEvent::text("You said: "), AgentEvent::text(text)];
        stream::iter(events).then(async |event| {
            sleep(Duration::from_millis(5)).await;
            event
        })
    };
    server_of(agent).with_store(store.clone())
}

/// A server whose sink never takes anything.
fn hanging_server(store: &Arc<InMemoryLogStore>) -> ChatServer {
    plain_server(store).with_message_sink(async |_: MessageDelivery| pending().await)
}

async fn say(chats: &ChatServer, chat: &str, id: &str, text: &str) {
    chats.complete_response(&ada(), requests::say(chat, id, text)).await.unwrap();
}

/// Waits until the sink has taken everything.
async fn all_is_taken(store: &InMemoryLogStore) {
    while !store.undelivered(9, Duration::ZERO).await.unwrap().is_empty() {
        sleep(Duration::from_secs(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_sink_gets_messages_edits_and_deletions_of_two_chats_in_order() {
    let (store, table) = (Arc::default(), Arc::new(Table::default()));
    let chats = server(&store, &table);
    say(&chats, "one", "m1", "a").await;
    say(&chats, "one", "m2", "b").await;
    say(&chats, "two", "m1", "c").await;
    let one: &[&str] = &["a", "You said: a", "b", "You said: b"];
    table.becomes(&[("one", one), ("two", &["c", "You said: c"])]).await;
    let edit = requests::edit("one", "m1", "edited");
    chats.complete_response(&ada(), edit).await.unwrap();
    table
        .becomes(&[("one", &["edited", "You said: edited"]), ("two", &["c", "You said: c"])])
        .await;
    chats.delete(&ada(), &"one".into()).await.unwrap();
    table.becomes(&[("two", &["c", "You said: c"])]).await;
    let deliveries = table.deliveries.lock().unwrap();
    for chat in ["one", "two"] {
        let of_chat = deliveries.iter().filter(|it| it.key.chat.as_str() == chat);
        let positions: Vec<_> = of_chat.map(|it| it.position).collect();
        assert!(positions.is_sorted(), "{chat}: {positions:?}");
    }
    assert!(matches!(deliveries.last().unwrap().change, MessageChange::Deleted));
}

#[tokio::test(start_paused = true)]
async fn a_later_delivery_begins_with_the_first_message_that_has_changed() {
    let (store, table) = (Arc::default(), Arc::new(Table::default()));
    let chats = server(&store, &table);
    say(&chats, "one", "m1", "a").await;
    table.becomes(&[("one", &["a", "You said: a"])]).await;
    say(&chats, "one", "m2", "b").await;
    table.becomes(&[("one", &["a", "You said: a", "b", "You said: b"])]).await;
    let last = table.deliveries.lock().unwrap().last().unwrap().clone();
    let MessageChange::Messages { first, .. } = last.change else { panic!("{last:?}") };
    assert!(first >= 2, "{first}");
}

#[tokio::test(start_paused = true)]
async fn a_sink_that_fails_and_panics_gets_everything_later_and_no_request_waits() {
    let (store, table) = (Arc::default(), Arc::new(Table::default()));
    table.failures.store(5, Ordering::SeqCst);
    let chats = server(&store, &table);
    say(&chats, "one", "m1", "a").await;
    say(&chats, "two", "m1", "b").await;
    let gone = "gone";
    say(&chats, gone, "m1", "c").await;
    chats.delete(&ada(), &gone.into()).await.unwrap();
    table.becomes(&[("one", &["a", "You said: a"]), ("two", &["b", "You said: b"])]).await;
    all_is_taken(&store).await;
    assert_eq!(table.failures.load(Ordering::SeqCst), 0);
}

/// A store that counts its sweeps.
#[derive(Debug, Default)]
struct CountedSweeps {
    store: InMemoryLogStore,
    sweeps: AtomicUsize,
}

impl Intercepts for CountedSweeps {
    fn store(&self) -> &dyn LogStore {
        &self.store
    }

    fn sweep(&self) -> Answer<'_, LeftToServer> {
        self.sweeps.fetch_add(1, Ordering::SeqCst);
        self.store.sweep()
    }
}

#[tokio::test(start_paused = true)]
async fn a_sink_that_hangs_does_not_delay_the_sweeps_of_the_store() {
    let store = Arc::<LogDouble<CountedSweeps>>::default();
    let agent = |_: Turn| stream::iter([AgentEvent::text("Hello")]);
    let chats = server_of(agent).with_store(store.clone());
    let chats = chats.with_message_sink(async |_: MessageDelivery| pending().await);
    for chat in 0..100 {
        say(&chats, &format!("chat-{chat}"), "m1", "a").await;
    }
    let before = store.sweeps.load(Ordering::SeqCst);
    sleep(Duration::from_secs(10 * 60)).await;
    let sweeps = store.sweeps.load(Ordering::SeqCst) - before;
    assert!(sweeps >= 9, "{sweeps} sweeps in ten minutes");
}

/// A store that holds the first deletion back that it returns as undelivered.
#[derive(Debug, Default)]
struct HeldDeletion {
    store: Arc<InMemoryLogStore>,
    is_held: AtomicBool,
    released: Notify,
}

impl Intercepts for HeldDeletion {
    fn store(&self) -> &dyn LogStore {
        &*self.store
    }

    fn undelivered(&self, limit: usize, retry_after: Duration) -> Answer<'_, Vec<Undelivered>> {
        Box::pin(async move {
            let page = self.store.undelivered(limit, retry_after).await?;
            let has_deletion = page.iter().any(|it| it.position == Undelivered::DELETED);
            if has_deletion && !self.is_held.swap(true, Ordering::SeqCst) {
                self.released.notified().await;
            }
            Ok(page)
        })
    }
}

#[tokio::test(start_paused = true)]
async fn a_deletion_that_is_late_does_not_remove_the_chat_that_has_begun_again() {
    let store = Arc::<LogDouble<HeldDeletion>>::default();
    let table = Arc::new(Table::default());
    let chats = server(&store.store, &table).with_store(store.clone());
    say(&chats, "one", "m1", "a").await;
    table.becomes(&[("one", &["a", "You said: a"])]).await;
    // Another server deletes it.
    plain_server(&store.store).delete(&ada(), &"one".into()).await.unwrap();
    eventually(async || store.is_held.load(Ordering::SeqCst)).await;
    say(&chats, "one", "m1", "b").await;
    table.becomes(&[("one", &["b", "You said: b"])]).await;
    store.released.notify_one();
    sleep(Duration::from_secs(120)).await;
    assert_eq!(table.rows(), [("one".to_owned(), vec!["b".to_owned(), "You said: b".to_owned()])]);
    let deliveries = table.deliveries.lock().unwrap();
    let places: Vec<_> = deliveries.iter().map(|it| (it.epoch, it.position)).collect();
    assert!(places.is_sorted(), "{places:?}");
}

#[tokio::test(start_paused = true)]
async fn chats_that_a_sink_never_takes_do_not_delay_the_others() {
    let (store, table) = (Arc::default(), Arc::new(Table::default()));
    let own = Arc::clone(&table);
    let chats = plain_server(&store).with_message_sink(move |delivery: MessageDelivery| {
        let table = Arc::clone(&own);
        async move {
            if delivery.key.chat.as_str().starts_with("hangs") {
                pending::<()>().await;
            }
            table.take(delivery);
            Ok(())
        }
    });
    for chat in 0..50 {
        say(&chats, &format!("hangs-{chat}"), "m1", "a").await;
    }
    // Each of them has failed once.
    sleep(Duration::from_secs(5 * 60)).await;
    for chat in 0..20 {
        let before = Instant::now();
        say(&chats, &format!("chat-{chat}"), "m1", "a").await;
        eventually(async || table.count() > chat).await;
        // On the clock of the test.
        assert!(before.elapsed() < Duration::from_secs(1), "{:?}", before.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_dropped_leaves_no_task_behind() {
    let store = Arc::<InMemoryLogStore>::default();
    let chats = hanging_server(&store);
    for chat in 0..100 {
        say(&chats, &format!("chat-{chat}"), "m1", "a").await;
    }
    drop(chats);
    sleep(Duration::from_secs(60)).await;
    assert_eq!(Arc::strong_count(&store), 1);
    assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_server_delivers_what_another_one_has_left() {
    let (store, table) = (Arc::default(), Arc::new(Table::default()));
    let first = hanging_server(&store);
    say(&first, "one", "m1", "a").await;
    say(&first, "gone", "m1", "b").await;
    first.delete(&ada(), &"gone".into()).await.unwrap();
    // It is shut down while its sink hangs, which is no turn.
    assert_eq!(first.shut_down(Duration::from_secs(1)).await, 0);
    let _second = server(&store, &table);
    table.becomes(&[("one", &["a", "You said: a"])]).await;
    all_is_taken(&store).await;
    assert!(table.deliveries.lock().unwrap().iter().any(|it| it.position == Undelivered::DELETED));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_shuts_down_waits_for_a_delivery() {
    let (store, table) = (Arc::default(), Arc::new(Table::default()));
    let slow = Arc::clone(&table);
    let chats = plain_server(&store).with_message_sink(move |delivery| {
        let table = Arc::clone(&slow);
        async move {
            sleep(Duration::from_secs(3)).await;
            table.take(delivery);
            Ok(())
        }
    });
    say(&chats, "one", "m1", "a").await;
    say(&chats, "two", "m1", "b").await;
    assert_eq!(table.count(), 0);
    chats.shut_down(Duration::from_secs(20)).await;
    let delivered = table.rows();
    table.becomes(&[("one", &["a", "You said: a"]), ("two", &["b", "You said: b"])]).await;
    assert_eq!(table.rows(), delivered);
}
