//! A hint brings the entries of an append to readers of other servers, which read the log if one is lost.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use chat_test_support::log_double::{Answer, Intercepts, LogDouble};
use chat_test_support::log_hints::{changed, woken_at};
use chat_test_support::store_requests::{
    EPOCH, append_after, append_at, appended, begin, control, creation, frame, key, note, read_from,
};
use futures::{Stream, StreamExt};
use test_support::external_processes::redis_cluster::RedisCluster;
use test_support::external_processes::redis_server::RedisServer;
use test_support::requests::{ada, say};
use test_support::responses::chunks_of;
use test_support::thread_subscriber::subscribe;
use test_support::{eventually, within_patience};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use ui_message_stream::AgentEvent;
use ui_message_stream::approval::{Approvals, EmptyToolbox, Principal};
use ui_message_stream_chat::store::{
    AppendLog, EntryKind, Epoch, Expected, LoadLog, LogKey, LogPage, LogStore, ReadLogEntries,
    StoredEntry,
};
use ui_message_stream_chat::{ChatServer, ChatStream, Turn};
use ui_message_stream_redis::{RedisOptions, RedisStore};

use crate::backend::Backend;
use crate::hints::{COUNT_CHANNELS, COUNT_SHARD_CHANNELS};
use crate::warnings::log;

#[tokio::test]
async fn short_entries_of_each_kind_come_with_hints() {
    for backend in Backend::all() {
        let (writer, reader) = (backend.connect().await, backend.connect().await);
        let key = key(&ada(), "chat\0é");
        begin(&writer, &key).await;
        let first = follow(&writer, &reader, &key).await;

        let bytes = Bytes::from_static(b"7 \n\0\xff");
        let bytes = StoredEntry { kind: EntryKind::Frame, bytes };
        let appends = [
            (vec![frame("a")], Some(LEASE)),
            (vec![bytes.clone(), frame(""), frame("c\n")], Some(LEASE)),
            (vec![note("n"), frame("d")], None),
            (vec![control("x"), bytes], None),
        ];
        let mut position = first;
        for (entries, lease) in appends {
            appended(&writer, AppendLog { lease, ..append_at(&key, position, &entries) }).await;
            hinted(&reader, &key, position, &entries).await;
            let later = &entries[1..];
            assert_eq!(reader.hinted_entries(&key, EPOCH, position + 1), later);
            position += entries.len() as u64;
        }
        // This append does not know its position.
        let entries = [control("y")];
        appended(&writer, append_after(&key, 2, &entries)).await;
        hinted(&reader, &key, position, &entries).await;
        assert_eq!(
            reader.hinted_entries(&key, EPOCH, first),
            read_from(&reader, &key, first).await.unwrap().entries
        );
        // The first entry came before the reader followed the log, and there is no newer one.
        assert_eq!(reader.hinted_entries(&key, EPOCH, 0), []);
        assert_eq!(reader.hinted_entries(&key, EPOCH, position + 1), []);
        assert_eq!(reader.hinted_entries(&key, EPOCH, position + 2), []);
    }
}

#[tokio::test]
async fn long_entries_and_those_before_a_gap_are_not_among_the_hinted_ones() {
    for backend in Backend::all() {
        let (writer, reader) = (backend.connect().await, backend.connect().await);
        let key = key(&ada(), "chat");
        begin(&writer, &key).await;
        let first = follow(&writer, &reader, &key).await;

        let long = [frame(&"x".repeat(5000))];
        let wait = woken_at(&reader, &key, first, |page| page.head.length > first);
        let append = AppendLog { lease: Some(LEASE), ..append_at(&key, first, &long) };
        tokio::join!(wait, appended(&writer, append));
        assert_eq!(reader.hinted_entries(&key, EPOCH, first), []);

        let short = [frame("y")];
        appended(&writer, append_at(&key, first + 1, &short)).await;
        hinted(&reader, &key, first + 1, &short).await;
        assert_eq!(reader.hinted_entries(&key, EPOCH, first), []);
        // Only the newest bytes are kept.
        let last = first + 8;
        for position in first + 2..last {
            let entries = [frame(&"y".repeat(3000))];
            appended(&writer, append_at(&key, position, &entries)).await;
            hinted(&reader, &key, position, &entries).await;
        }
        assert_eq!(reader.hinted_entries(&key, EPOCH, last - 3), []);
        let newest = read_from(&reader, &key, last - 2).await.unwrap().entries;
        assert_eq!(reader.hinted_entries(&key, EPOCH, last - 2), newest);
    }
}

#[tokio::test]
async fn entries_of_another_user_of_a_deleted_log_or_of_another_epoch_are_not_hinted() {
    for backend in Backend::all() {
        let (writer, reader) = (backend.connect().await, backend.connect().await);
        let owners = [ada(), Principal::new("bob"), ada().with_tenant("shop")];
        let [of_ada, of_bob, of_shop] = owners.map(|owner| key(&owner, "chat"));
        let mut lengths = Vec::new();
        for key in [&of_ada, &of_bob, &of_shop] {
            begin(&writer, key).await;
            lengths.push(follow(&writer, &reader, key).await);
        }
        let (length, secret) = (lengths[0], [frame("secret")]);
        appended(&writer, append_at(&of_ada, length, &secret)).await;
        hinted(&reader, &of_ada, length, &secret).await;
        for (other, length) in [(&of_bob, lengths[1]), (&of_shop, lengths[2])] {
            assert_eq!(reader.hinted_entries(other, EPOCH, length), []);
            assert_eq!(reader.hinted_entries(other, EPOCH, length - 1), [frame("followed")]);
        }
        let epoch = Epoch(EPOCH.0 + 1);
        assert_eq!(reader.hinted_entries(&of_ada, epoch, length), []);

        assert!(writer.delete(&of_ada, EPOCH, 1).await.unwrap());
        eventually(async || reader.hinted_entries(&of_ada, EPOCH, length).is_empty()).await;
        // The next log of the chat has another epoch, and as many entries.
        let mut entries = vec![frame("new"); length as usize + 1];
        entries.push(control("new"));
        let new = AppendLog { expected: Expected::NoLog(epoch), ..creation(&of_ada, &entries) };
        appended(&writer, new).await;
        eventually(async || reader.hinted_entries(&of_ada, epoch, 0) == entries).await;
        assert_eq!(reader.hinted_entries(&of_ada, EPOCH, length), []);

        // Nothing is left of a user who was deleted.
        appended(&writer, append_at(&of_bob, lengths[1], &secret)).await;
        hinted(&reader, &of_bob, lengths[1], &secret).await;
        writer.delete_user(&of_bob.owner).await.unwrap();
        eventually(async || reader.hinted_entries(&of_bob, EPOCH, lengths[1]).is_empty()).await;
    }
}

#[tokio::test]
async fn messages_that_no_append_has_published_bring_no_entries() {
    let Some(redis) = RedisServer::start() else { return };
    let store = async || RedisStore::connect(&redis.url()).await.unwrap();
    let (writer, reader) = (store().await, store().await);
    let key = key(&ada(), "chat");
    begin(&writer, &key).await;
    let length = follow(&writer, &reader, &key).await;
    let list = "return redis.call('PUBSUB', 'CHANNELS')[1]";
    let channel = redis.command(&format!("EVAL \"{list}\" 0"));
    let next = length + 1;
    let messages = ["7 1\n", "7 2\nFab", "7 1\nZ", "x 1\nF", "7 9\nF", "7 -1\nF", "7 x\nF", "7"];
    let messages = messages.map(|rest| format!("{next} {rest}"));
    for message in messages.into_iter().chain(["0 7 1\nF".into(), "\n".into()]) {
        let message = message.replace('\n', "\\\\n");
        let publish = format!("EVAL \"redis.call('PUBLISH', KEYS[1], '{message}')\" 1 {channel}");
        let publish = async { redis.command(&publish) };
        // The reader looks, and finds nothing.
        tokio::join!(changed(&reader, &key, length), publish);
        assert_eq!(reader.hinted_entries(&key, EPOCH, length), [], "{message}");
    }
    let entries = [frame("b")];
    appended(&writer, append_at(&key, length, &entries)).await;
    hinted(&reader, &key, length, &entries).await;
}

#[tokio::test]
async fn a_reader_on_another_server_reads_the_log_only_for_what_no_hint_has_brought() {
    let Some(redis) = RedisServer::start() else { return };
    redis.command(&format!("ACL SETUSER writer on >w {RULES}"));
    let url = redis.url().replace("redis://", "redis://writer:w@");
    let stores = [url, redis.url()].map(async |url| RedisStore::connect(&url).await.unwrap());
    let mut run = Run::start(stores).await;
    for _ in 0..5 {
        run.word().await;
    }
    let before = run.reads();
    for _ in 0..40 {
        run.word().await;
    }
    // A reader reads at the latest after five seconds, and after a second without a hint.
    let reads = run.reads() - before;
    assert!(reads <= 20, "{reads} reads of 40 words");

    // A hint that is lost, and the next one, which leaves a gap.
    redis.command("ACL SETUSER writer resetchannels");
    let stored = run.length().await;
    run.write("lost");
    eventually(async || run.length().await > stored).await;
    redis.command(&format!("ACL SETUSER writer {RULES}"));
    run.word().await;
    // A lost hint that none follows.
    redis.command("ACL SETUSER writer resetchannels");
    run.word().await;
    redis.command(&format!("ACL SETUSER writer {RULES}"));
    // A hint without the entries.
    run.write(&"long ".repeat(1000));
    run.word().await;
    redis.command("CLIENT KILL TYPE pubsub");
    run.word().await;
    run.end().await;
}

#[tokio::test]
async fn a_reader_on_another_server_reads_each_word_once_while_redis_restarts() {
    for mut backend in Backend::all() {
        let mut run = Run::start([(); 2].map(|()| backend.connect())).await;
        for _ in 0..2 {
            run.word().await;
            backend.kill();
            run.write("waiting ");
            backend.start_again();
            run.word().await;
        }
        run.end().await;
    }
}

#[tokio::test]
async fn a_change_is_published_only_at_the_node_of_its_chat() {
    let Some(cluster) = RedisCluster::start() else { return };
    for node in cluster.nodes() {
        node.command(&format!("ACL SETUSER server on >w {RULES}"));
    }
    let urls = cluster.urls().into_iter().map(|url| url.replace("://", "://server:w@"));
    let urls: Vec<String> = urls.collect();
    let store = async || RedisOptions::new().connect_cluster(&urls).await.unwrap();
    let (writer, reader) = (store().await, store().await);
    let keys = (0..12).map(|number| key(&Principal::new(format!("user {number}")), "chat"));
    for key in keys {
        begin(&writer, &key).await;
        follow(&writer, &reader, &key).await;
    }
    let count = |count: &str| {
        let counts = cluster.nodes().iter().map(|node| node.command(count));
        counts.map(|count| count[1..].parse::<usize>().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(count(COUNT_CHANNELS), [0; 3]);
    let of_shards = count(COUNT_SHARD_CHANNELS);
    assert!(of_shards.iter().sum::<usize>() == 12 && !of_shards.contains(&12), "{of_shards:?}");
}

#[tokio::test]
async fn without_the_permission_for_shard_channels_a_change_is_published_to_all_nodes() {
    let Some(cluster) = RedisCluster::start() else { return };
    for node in cluster.nodes() {
        node.command("ACL SETUSER default -spublish");
    }
    let (log, writer) = log();
    let subscription = subscribe(writer);
    let store = async || RedisOptions::new().connect_cluster(cluster.urls()).await.unwrap();
    let writer = store().await;
    drop(subscription);
    assert!(log.text().contains("+spublish"), "{}", log.text());
    let reader = store().await;
    let key = key(&ada(), "chat");
    begin(&writer, &key).await;
    for position in 1..4 {
        let entries = [frame("published")];
        let wait = woken_at(&reader, &key, position, |page| page.head.length > position);
        tokio::join!(wait, appended(&writer, append_at(&key, position, &entries)));
    }
    // It reaches all nodes, so it says only how long the log is.
    assert_eq!(reader.hinted_entries(&key, EPOCH, 1), []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_on_another_server_reads_each_word_once_while_the_slot_of_the_chat_moves() {
    let Some(cluster) = RedisCluster::start() else { return };
    let options = || RedisOptions::new().connect_cluster(cluster.urls());
    let mut run = Run::start([(); 2].map(async |()| options().await.unwrap())).await;
    run.word().await;
    let list = "return redis.call('KEYS', '*:0:hchat')[1]";
    let keys = cluster.nodes().iter().map(|node| node.command(&format!("EVAL \"{list}\" 0")));
    let key = keys.into_iter().find(|key| key.contains('{')).unwrap();
    let tag = &key[key.find('{').unwrap() + 1..key.find('}').unwrap()];
    for _ in 0..3 {
        std::thread::scope(|scope| {
            let moving = scope.spawn(|| cluster.move_slot(tag));
            while !moving.is_finished() {
                run.write("moving ");
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        // The channel is subscribed at the other node.
        let is_followed = |node: &RedisServer| node.command(COUNT_SHARD_CHANNELS) == ":1";
        let follows_again = async {
            run.word().await;
            while !cluster.nodes().iter().any(is_followed) {
                run.word().await;
            }
        };
        within_patience(follows_again).await;
    }
    run.end().await;
}

/// A run of one server that a client of another one reads.
struct Run {
    words: UnboundedSender<String>,
    written: String,
    response: ChatStream,
    read: Vec<u8>,
    store: Arc<LogDouble<CountedReads>>,
    _servers: [ChatServer; 2],
}

/// A store that counts how often a log is read.
#[derive(Debug)]
struct CountedReads {
    store: RedisStore,
    reads: AtomicUsize,
}

impl Intercepts for CountedReads {
    fn store(&self) -> &dyn LogStore {
        &self.store
    }

    fn read<'a>(&'a self, read: ReadLogEntries<'a>) -> Answer<'a, Option<LogPage>> {
        self.reads.fetch_add(1, Relaxed);
        self.store.read(read)
    }
}

impl Run {
    /// Starts a run on a server with the first store, and reads it on a server with the second one.
    async fn start(stores: [impl Future<Output = RedisStore>; 2]) -> Self {
        let (words, receiver) = unbounded_channel();
        let receiver = Arc::new(Mutex::new(Some(receiver)));
        let server = |store: Arc<dyn LogStore>| {
            let receiver = Arc::clone(&receiver);
            let agent = move |_: Turn| events(receiver.lock().unwrap().take().unwrap());
            ChatServer::new(agent, Approvals::new(EmptyToolbox)).with_store(store)
        };
        let [writer, reader] = stores;
        let (writer, store) = (server(Arc::new(writer.await)), reader.await);
        let store = Arc::new(LogDouble(CountedReads { store, reads: AtomicUsize::new(0) }));
        let reader = server(store.clone());
        drop(writer.stream_response(&ada(), say("chat", "m1", "Hi")).await.unwrap());
        let response = reader.resume_stream(&ada(), &"chat".into(), None).await.unwrap().unwrap();
        let (written, read, _servers) = (String::new(), Vec::new(), [writer, reader]);
        Run { words, written, response, read, store, _servers }
    }

    fn write(&mut self, word: &str) {
        self.written += word;
        self.words.send(word.to_owned()).unwrap();
    }

    /// Writes a word, and reads until it was read.
    async fn word(&mut self) {
        let word = format!("word{} ", self.written.len());
        self.write(&word);
        within_patience(async {
            while !String::from_utf8_lossy(&self.read).contains(&word) {
                self.read.extend(self.response.next().await.unwrap().unwrap());
            }
        })
        .await;
    }

    fn reads(&self) -> usize {
        self.store.reads.load(Relaxed)
    }

    /// Returns the length of the log.
    async fn length(&self) -> u64 {
        let key = key(&ada(), "chat");
        let load = LoadLog { key: &key, has_frames: false, has_messages: false };
        self.store.load(load).await.unwrap().unwrap().head.length
    }

    /// Ends the run. The client has read each word once.
    async fn end(self) {
        let Run { words, written, mut response, mut read, .. } = self;
        drop(words);
        let rest = async {
            while let Some(page) = response.next().await {
                read.extend(page.unwrap());
            }
        };
        within_patience(rest).await;
        let read = String::from_utf8(read).unwrap();
        assert!(read.ends_with("data: [DONE]\n\n"), "{read}");
        let chunks = chunks_of(&read);
        let deltas = chunks.iter().filter_map(|chunk| chunk["delta"].as_str());
        assert_eq!(deltas.collect::<String>(), written);
    }
}

fn events(mut words: UnboundedReceiver<String>) -> impl Stream<Item = AgentEvent> + Send {
    async_stream::stream! {
        while let Some(word) = words.recv().await {
            yield AgentEvent::text(word);
        }
    }
}

/// The rules of `docs/operations.md` for the user of the servers.
const RULES: &str = "resetkeys ~ui-message-stream:* ~{ui-message-stream:}* resetchannels \
                     &ui-message-stream:* +@all -@admin +config|get";

const LEASE: Duration = Duration::from_secs(10);

/// Appends to a log with one entry until its entries come with hints to this reader. Returns the length of the log.
async fn follow(writer: &RedisStore, reader: &RedisStore, key: &LogKey) -> u64 {
    let entries = [frame("followed")];
    let mut position = 1;
    let followed = async {
        while reader.hinted_entries(key, EPOCH, position - 1) != entries {
            appended(writer, append_at(key, position, &entries)).await;
            changed(reader, key, position).await;
            position += 1;
        }
    };
    within_patience(followed).await;
    position
}

/// Waits until the entries from this position on have come with hints.
async fn hinted(reader: &RedisStore, key: &LogKey, position: u64, entries: &[StoredEntry]) {
    changed(reader, key, position).await;
    eventually(async || reader.hinted_entries(key, EPOCH, position) == entries).await;
}
