//! [`Endpoint`]: where channels are subscribed, and [`Subscriptions`]: a connection that does it.

#[cfg(feature = "cluster")]
use std::collections::HashSet;

use futures_util::StreamExt;
#[cfg(feature = "cluster")]
use futures_util::future::try_join_all;
use redis::aio::{PubSubSink, PubSubStream};
#[cfg(feature = "cluster")]
use redis::cluster_async::ClusterConnection;
use redis::{Client, ConnectionInfo, ProtocolVersion, Value};
#[cfg(feature = "cluster")]
use redis::{FromRedisValue, PushInfo, PushKind};
#[cfg(feature = "cluster")]
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

#[cfg(feature = "cluster")]
use crate::connection::cluster_client;
use crate::connection::with_timeout;
use crate::error::RedisStoreError;

/// Where channels are subscribed.
#[derive(Debug, Clone)]
pub(super) enum Endpoint {
    /// The channels of one node. In a cluster, they are those of all nodes.
    Node(Box<Client>),
    /// The channels of the shards of the cluster with these nodes.
    #[cfg(feature = "cluster")]
    Shards(Vec<ConnectionInfo>),
}

/// Subscribes channels over an open connection.
pub(super) enum Subscriptions {
    Node(PubSubSink),
    #[cfg(feature = "cluster")]
    Shards(ClusterConnection),
}

/// Receives what is published on the subscribed channels.
pub(super) enum Messages {
    Node(PubSubStream),
    #[cfg(feature = "cluster")]
    Shards {
        pushes: UnboundedReceiver<PushInfo>,
        /// The channels that were given up, and whose subscriptions end.
        ending: HashSet<Vec<u8>>,
    },
}

/// What was received.
pub(super) enum Received {
    /// A message, with its channel.
    Message(String, Vec<u8>),
    /// Something without a meaning here.
    #[cfg(feature = "cluster")]
    Other,
    /// The connection to one of the nodes of a cluster is lost. Its channels have to be subscribed again.
    #[cfg(feature = "cluster")]
    NodeLost,
    /// The connection, or a subscription, has ended for this reason.
    Ended(&'static str),
}

impl Endpoint {
    /// Returns the endpoint of the shards of a cluster with these nodes, or each of the nodes.
    pub(super) fn all(
        nodes: Vec<ConnectionInfo>,
        #[cfg_attr(not(feature = "cluster"), allow(unused_variables))] is_of_shards: bool,
    ) -> Result<Vec<Self>, RedisStoreError> {
        #[cfg(feature = "cluster")]
        if is_of_shards {
            return Ok(vec![Endpoint::Shards(nodes)]);
        }
        nodes.into_iter().map(Endpoint::node).collect()
    }

    fn node(node: ConnectionInfo) -> Result<Self, RedisStoreError> {
        // The connection only subscribes, for which it uses the older protocol.
        let settings = node.redis_settings().clone().set_protocol(ProtocolVersion::RESP2);
        let client = Client::open(node.set_redis_settings(settings));
        client.map(Box::new).map(Endpoint::Node).map_err(RedisStoreError::redis)
    }

    pub(super) async fn connect(&self) -> Result<(Subscriptions, Messages), RedisStoreError> {
        match self {
            Endpoint::Node(client) => {
                let (sink, stream) = with_timeout(client.get_async_pubsub()).await?.split();
                Ok((Subscriptions::Node(sink), Messages::Node(stream)))
            }
            #[cfg(feature = "cluster")]
            Endpoint::Shards(nodes) => {
                let (sender, pushes) = unbounded_channel();
                let client = cluster_client(nodes.clone())
                    .use_protocol(ProtocolVersion::RESP3)
                    .push_sender(sender)
                    .build()
                    .map_err(RedisStoreError::redis)?;
                let connection = with_timeout(client.get_async_connection()).await?;
                let messages = Messages::Shards { pushes, ending: HashSet::new() };
                Ok((Subscriptions::Shards(connection), messages))
            }
        }
    }
}

impl Subscriptions {
    pub(super) async fn add(&mut self, channels: &[String]) -> Result<(), RedisStoreError> {
        match self {
            Subscriptions::Node(sink) => with_timeout(sink.subscribe(channels)).await,
            // All channels of a command have to be in one slot.
            #[cfg(feature = "cluster")]
            Subscriptions::Shards(connection) => {
                let each = channels.iter().map(|channel| {
                    let mut connection = connection.clone();
                    async move { connection.ssubscribe(channel).await }
                });
                with_timeout(try_join_all(each)).await.map(drop)
            }
        }
    }

    pub(super) async fn remove(&mut self, channels: &[String]) -> Result<(), RedisStoreError> {
        match self {
            Subscriptions::Node(sink) => with_timeout(sink.unsubscribe(channels)).await,
            #[cfg(feature = "cluster")]
            Subscriptions::Shards(connection) => {
                let each = channels.iter().map(|channel| {
                    let mut connection = connection.clone();
                    async move { connection.sunsubscribe(channel).await }
                });
                with_timeout(try_join_all(each)).await.map(drop)
            }
        }
    }

    /// Checks that Redis answers. In a cluster, each node has to.
    pub(super) async fn ping(&mut self) -> Result<(), RedisStoreError> {
        match self {
            Subscriptions::Node(sink) => with_timeout(sink.ping::<Value>()).await.map(drop),
            #[cfg(feature = "cluster")]
            Subscriptions::Shards(connection) => {
                with_timeout(redis::cmd("PING").query_async::<Value>(connection)).await.map(drop)
            }
        }
    }
}

impl Messages {
    /// Notes channels that are given up now.
    pub(super) fn expect_ends(
        &mut self,
        #[cfg_attr(not(feature = "cluster"), allow(unused_variables))] channels: &[String],
    ) {
        match self {
            Messages::Node(_) => {}
            #[cfg(feature = "cluster")]
            Messages::Shards { ending, .. } => {
                ending.extend(channels.iter().map(|channel| channel.as_bytes().to_vec()));
            }
        }
    }

    /// Receives the next message.
    pub(super) async fn next(&mut self) -> Received {
        match self {
            Messages::Node(stream) => match stream.next().await {
                Some(message) => Received::Message(
                    message.get_channel_name().to_owned(),
                    message.get_payload_bytes().to_vec(),
                ),
                None => Received::Ended(CLOSED),
            },
            #[cfg(feature = "cluster")]
            Messages::Shards { pushes, ending } => match pushes.recv().await {
                Some(push) => received(push, ending),
                None => Received::Ended(CLOSED),
            },
        }
    }
}

/// Returns what a push of a node means.
///
/// If a slot has moved to another node, the connection is given up: the client may have taken the end of the
/// subscription for the reply to a command. If a node is lost, the client subscribes its channels again with one
/// command, which Redis refuses if they are of several slots.
#[cfg(feature = "cluster")]
fn received(push: PushInfo, ending: &mut HashSet<Vec<u8>>) -> Received {
    let mut data = push.data.into_iter();
    match push.kind {
        PushKind::SMessage => {
            let channel = data.next();
            let message = data.next();
            let channel = channel.and_then(|channel| String::from_redis_value(channel).ok());
            match (channel, message) {
                (Some(channel), Some(Value::BulkString(message))) => {
                    Received::Message(channel, message)
                }
                _ => Received::Other,
            }
        }
        PushKind::SUnsubscribe => match data.next() {
            Some(Value::BulkString(channel)) if !ending.remove(&channel) => {
                Received::Ended("the slot of a log has moved to another node")
            }
            _ => Received::Other,
        },
        PushKind::Disconnection => {
            // The confirmations of the node are lost.
            ending.clear();
            Received::NodeLost
        }
        _ => Received::Other,
    }
}

const CLOSED: &str = "the connection is closed";
