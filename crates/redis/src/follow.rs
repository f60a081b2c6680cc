//! [`Follower`]: the connection that receives the changes of all logs that readers wait for.
//!
//! Each script that changes a log publishes the change on the channel of the log. One connection of
//! each server subscribes the channels of the logs that its readers wait for. The message of an append has the
//! length of the log, and short entries. A message may be lost: a reader that misses entries reads them, and while
//! the connection is away, the readers look twice a second. In Redis Cluster, a node receives the messages of all nodes, so one connection is enough
//! there, too.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use redis::aio::PubSubSink;
use redis::{Client, ConnectionInfo, ProtocolVersion, Value};
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{interval, sleep, timeout};

use crate::connection::with_timeout;
use crate::error::RedisStoreError;
use crate::hints::Hints;

/// Starts the connection when the first reader waits, and ends it when the store is dropped.
#[derive(Debug)]
pub(crate) struct Follower {
    hints: Arc<Hints>,
    nodes: Vec<Client>,
    /// Notified when the Redis that is followed has become a replica.
    demoted: Arc<Notify>,
    /// The channels to subscribe. `None` before the first reader waits.
    requests: Mutex<Option<UnboundedSender<String>>>,
}

impl Follower {
    /// Creates a follower, which connects to the first of these nodes that can be reached, and
    /// connects again when it is notified.
    pub(crate) fn new(
        hints: Arc<Hints>,
        nodes: Vec<ConnectionInfo>,
        demoted: Arc<Notify>,
    ) -> Result<Self, RedisStoreError> {
        let nodes = nodes.into_iter().map(|node| {
            // The connection only subscribes, for which it uses the older protocol.
            let settings = node.redis_settings().clone().set_protocol(ProtocolVersion::RESP2);
            Client::open(node.set_redis_settings(settings))
        });
        let nodes = nodes.collect::<Result<_, _>>().map_err(RedisStoreError::redis)?;
        Ok(Follower { hints, nodes, demoted, requests: Mutex::default() })
    }

    /// Waits until a log has more than `after` entries, or may be another one, at most for some seconds.
    pub(crate) async fn changed(&self, channel: String, after: u64) {
        let Some(mut waiting) = self.hints.wait(&channel, after) else { return };
        self.start();
        if waiting.is_first {
            self.subscribe(channel);
        }
        let patience = if waiting.is_connected { LONGEST_WAIT } else { POLL_INTERVAL };
        // Either way the caller looks again.
        let _ = timeout(patience, waiting.changed.changed()).await;
    }

    /// Starts the task, unless it runs. It ends with the runtime of the reader that started it.
    fn start(&self) {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        if requests.as_ref().is_some_and(|requests| !requests.is_closed()) {
            return;
        }
        let (sender, receiver) = unbounded_channel();
        *requests = Some(sender);
        let (hints, demoted) = (Arc::clone(&self.hints), Arc::clone(&self.demoted));
        tokio::spawn(follow(hints, self.nodes.clone(), demoted, receiver));
    }

    fn subscribe(&self, channel: String) {
        let requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(requests) = &*requests {
            // A task that has ended is started by the next reader, and subscribes all channels.
            let _ = requests.send(channel);
        }
    }
}

/// Follows the changes until the store is dropped.
async fn follow(
    hints: Arc<Hints>,
    nodes: Vec<Client>,
    demoted: Arc<Notify>,
    mut requests: UnboundedReceiver<String>,
) {
    for node in nodes.iter().cycle() {
        match follow_node(&hints, node, &demoted, &mut requests).await {
            Ok(()) => return,
            Err(error) => tracing::debug!(%error, "the connection that follows logs is lost"),
        }
        if requests.is_closed() {
            return;
        }
        // Without a subscription there are no ticks. If the user of Redis may not use the channels,
        // there never is one.
        hints.forget_idle();
        sleep(POLL_INTERVAL).await;
    }
}

/// Follows the changes over a connection to this node until the store is dropped.
async fn follow_node(
    hints: &Hints,
    node: &Client,
    demoted: &Notify,
    requests: &mut UnboundedReceiver<String>,
) -> Result<(), RedisStoreError> {
    // These channels are among the known ones. They are removed before each attempt to connect, so
    // that they do not pile up while all attempts fail.
    while requests.try_recv().is_ok() {}
    let (mut sink, mut messages) = with_timeout(node.get_async_pubsub()).await?.split();
    subscribe(&mut sink, hints, hints.channels()).await?;
    let _connected = Connected::new(hints);
    let mut ticks = interval(TICK);
    loop {
        tokio::select! {
            message = messages.next() => {
                let Some(message) = message else {
                    return Err(RedisStoreError::Redis("the connection is closed".into()));
                };
                hints.receive(message.get_channel_name(), message.get_payload_bytes());
            }
            request = requests.recv() => {
                let Some(request) = request else { return Ok(()) };
                let mut channels = vec![request];
                while let Ok(request) = requests.try_recv() {
                    channels.push(request);
                }
                subscribe(&mut sink, hints, channels).await?;
            }
            () = demoted.notified() => {
                return Err(RedisStoreError::Redis("Redis has become a replica".into()));
            }
            _ = ticks.tick() => {
                // A Redis that hangs does not close the connection.
                with_timeout(sink.ping::<Value>()).await?;
                let idle = hints.forget_idle();
                if !idle.is_empty() {
                    with_timeout(sink.unsubscribe(&idle)).await?;
                }
            }
        }
    }
}

/// Subscribes channels, and wakes their readers: what was published before is not received.
async fn subscribe(
    sink: &mut PubSubSink,
    hints: &Hints,
    channels: Vec<String>,
) -> Result<(), RedisStoreError> {
    if !channels.is_empty() {
        with_timeout(sink.subscribe(&channels)).await?;
        hints.subscribed(&channels);
    }
    Ok(())
}

/// While it exists, the readers rely on the follower.
struct Connected<'a>(&'a Hints);

impl<'a> Connected<'a> {
    fn new(hints: &'a Hints) -> Self {
        hints.set_connected(true);
        Connected(hints)
    }
}

impl Drop for Connected<'_> {
    fn drop(&mut self) {
        self.0.set_connected(false);
    }
}

/// How often a reader looks while there are no hints.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// How long a reader waits at most. A message may be lost without a trace.
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// How often the connection is tested, and channels without a reader are given up.
const TICK: Duration = Duration::from_secs(5);
