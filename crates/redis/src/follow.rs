//! [`Follower`]: the connection that receives the changes of all logs that readers wait for.
//!
//! Each script that changes a log publishes the change on the channel of the log. One connection of
//! each server subscribes the channels of the logs that its readers wait for. The message of an append has the
//! length of the log, and short entries. A message may be lost: a reader that misses entries reads them, and while
//! the connection is away, the readers look twice a second.
//!
//! In Redis Cluster, the channels are those of shards, so the connection is one to each node. A node
//! before Redis 7 sends its messages to all others, and then a connection to one of them is enough.

mod subscriptions;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redis::ConnectionInfo;
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{interval, sleep, timeout};

use self::subscriptions::{Endpoint, Received, Subscriptions};
use crate::error::RedisStoreError;
use crate::hints::Hints;

/// Starts the connection when the first reader waits, and ends it when the store is dropped.
#[derive(Debug)]
pub(crate) struct Follower {
    hints: Arc<Hints>,
    endpoints: Vec<Endpoint>,
    is_of_shards: bool,
    /// Notified when the Redis that is followed has become a replica.
    demoted: Arc<Notify>,
    /// The channels to subscribe. `None` before the first reader waits.
    requests: Mutex<Option<UnboundedSender<String>>>,
}

impl Follower {
    /// Creates a follower, which subscribes the channels of the shards of a cluster with these nodes, or those of
    /// the first of these nodes that can be reached. It connects again when it is notified.
    pub(crate) fn new(
        hints: Arc<Hints>,
        nodes: Vec<ConnectionInfo>,
        is_of_shards: bool,
        demoted: Arc<Notify>,
    ) -> Result<Self, RedisStoreError> {
        let endpoints = Endpoint::all(nodes, is_of_shards)?;
        Ok(Follower { hints, endpoints, is_of_shards, demoted, requests: Mutex::default() })
    }

    /// Whether the channels are those of shards.
    pub(crate) fn is_of_shards(&self) -> bool {
        self.is_of_shards
    }

    /// Waits until a log has more than `after` entries, or may be another one, at most for some seconds.
    pub(crate) async fn changed(&self, channel: String, after: u64) {
        let Some(wait) = self.hints.waiters.wait(channel.clone(), after) else { return };
        self.start();
        if wait.is_first {
            self.subscribe(channel);
        }
        let patience = if self.hints.is_connected() { LONGEST_WAIT } else { POLL_INTERVAL };
        // Either way the caller looks again.
        let _ = timeout(patience, wait.changed()).await;
    }

    /// Starts the task, unless it runs. It ends with the runtime of the reader that started it.
    fn start(&self) {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        if requests.as_ref().is_some_and(|requests| !requests.is_closed()) {
            return;
        }
        let (sender, receiver) = unbounded_channel();
        *requests = Some(sender);
        let hints = Arc::clone(&self.hints);
        let demoted = Arc::clone(&self.demoted);
        tokio::spawn(follow(hints, self.endpoints.clone(), demoted, receiver));
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
    endpoints: Vec<Endpoint>,
    demoted: Arc<Notify>,
    mut requests: UnboundedReceiver<String>,
) {
    for endpoint in endpoints.iter().cycle() {
        match follow_endpoint(&hints, endpoint, &demoted, &mut requests).await {
            Ok(()) => return,
            Err(error) => tracing::debug!(%error, "the connection that follows logs is lost"),
        }
        if requests.is_closed() {
            return;
        }
        // Without a subscription there are no ticks. If the user of Redis may not use the channels,
        // there never is one.
        hints.waiters.forget_idle();
        sleep(POLL_INTERVAL).await;
    }
}

/// Follows the changes over a connection to this endpoint until the store is dropped.
async fn follow_endpoint(
    hints: &Hints,
    endpoint: &Endpoint,
    demoted: &Notify,
    requests: &mut UnboundedReceiver<String>,
) -> Result<(), RedisStoreError> {
    // These channels are among the known ones. They are removed before each attempt to connect, so
    // that they do not pile up while all attempts fail.
    while requests.try_recv().is_ok() {}
    let (mut subscriptions, mut messages) = endpoint.connect().await?;
    subscribe(&mut subscriptions, hints, hints.channels()).await?;
    let _connected = Connected::new(hints);
    let mut ticks = interval(TICK);
    loop {
        tokio::select! {
            received = messages.next() => match received {
                Received::Message(channel, message) => hints.receive(&channel, &message),
                #[cfg(feature = "cluster")]
                Received::Other => {}
                #[cfg(feature = "cluster")]
                Received::NodeLost => {
                    hints.forget_all();
                    subscribe(&mut subscriptions, hints, hints.channels()).await?;
                }
                Received::Ended(why) => return Err(RedisStoreError::Redis(why.into())),
            },
            request = requests.recv() => {
                let Some(request) = request else { return Ok(()) };
                let mut channels = vec![request];
                while let Ok(request) = requests.try_recv() {
                    channels.push(request);
                }
                subscribe(&mut subscriptions, hints, channels).await?;
            }
            () = demoted.notified() => {
                return Err(RedisStoreError::Redis("Redis has become a replica".into()));
            }
            _ = ticks.tick() => {
                // A Redis that hangs does not close the connection.
                subscriptions.ping().await?;
                let idle = hints.waiters.forget_idle();
                if !idle.is_empty() {
                    messages.expect_ends(&idle);
                    subscriptions.remove(&idle).await?;
                }
            }
        }
    }
}

/// Subscribes channels, and wakes their readers: what was published before is not received.
async fn subscribe(
    subscriptions: &mut Subscriptions,
    hints: &Hints,
    channels: Vec<String>,
) -> Result<(), RedisStoreError> {
    if !channels.is_empty() {
        subscriptions.add(&channels).await?;
        channels.iter().for_each(|channel| hints.waiters.with(channel, |log| log.wake()));
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
