//! A real Redis Cluster of three nodes.

use super::fault_proxy::FaultProxy;
use super::redis_server::RedisServer;

/// A running Redis Cluster without replicas. When it is dropped, its processes are killed.
#[derive(Debug)]
pub struct RedisCluster {
    nodes: Vec<RedisServer>,
}

impl RedisCluster {
    /// Starts a cluster that writes every change to its disks before it replies. Returns `None` if
    /// `redis-server` is not installed.
    pub fn start() -> Option<Self> {
        Some(Self::join(start_nodes()?))
    }

    /// Starts a cluster behind a proxy in front of each node. The nodes give their clients the
    /// addresses of the proxies.
    pub fn start_behind_proxies() -> Option<(Self, Vec<FaultProxy>)> {
        let nodes = start_nodes()?;
        let proxies: Vec<FaultProxy> = nodes.iter().map(FaultProxy::before_redis).collect();
        for (node, proxy) in nodes.iter().zip(&proxies) {
            node.command(&format!("CONFIG SET cluster-announce-port {}", proxy.port()));
        }
        Some((Self::join(nodes), proxies))
    }

    fn join(nodes: Vec<RedisServer>) -> Self {
        let cluster = RedisCluster { nodes };
        for (number, node) in cluster.nodes.iter().enumerate() {
            let (first, last) = (SLOTS * number / NODES, SLOTS * (number + 1) / NODES - 1);
            node.command(&format!("CLUSTER SET-CONFIG-EPOCH {}", number + 1));
            node.command(&format!("CLUSTER ADDSLOTSRANGE {first} {last}"));
            node.command(&format!("CLUSTER MEET 127.0.0.1 {}", cluster.nodes[0].port()));
        }
        cluster.wait_until_complete();
        cluster
    }

    /// Returns the URLs of all nodes.
    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(RedisServer::url).collect()
    }

    /// Returns the nodes.
    pub fn nodes(&self) -> &[RedisServer] {
        &self.nodes
    }

    /// Returns a node, to kill it and to start it again.
    pub fn node_mut(&mut self, number: usize) -> &mut RedisServer {
        &mut self.nodes[number]
    }

    /// Moves the slot of the keys with this hash tag to another node, key by key, as a resharding does.
    pub fn move_slot(&self, tag: &str) {
        let slot = self.nodes[0].command(&format!("CLUSTER KEYSLOT {{{tag}}}"));
        let slot = slot.trim_start_matches(':');
        let is_empty =
            |node: &RedisServer| node.command(&format!("CLUSTER COUNTKEYSINSLOT {slot}")) == ":0";
        let from = self.nodes.iter().position(|node| !is_empty(node)).expect("there are keys");
        let (from, to) = (&self.nodes[from], &self.nodes[(from + 1) % NODES]);
        let [from_id, to_id] = [from, to].map(|node| node.command("CLUSTER MYID"));
        to.command(&format!("CLUSTER SETSLOT {slot} IMPORTING {from_id}"));
        from.command(&format!("CLUSTER SETSLOT {slot} MIGRATING {to_id}"));
        while !is_empty(from) {
            let list = format!("return table.concat(redis.call('KEYS', '*{tag}*'), ' ')");
            for key in from.command(&format!("EVAL \"{list}\" 0")).split_whitespace() {
                from.command(&format!("MIGRATE 127.0.0.1 {} {key} 0 5000", to.port()));
            }
        }
        for node in [to, from].into_iter().chain(&self.nodes) {
            node.command(&format!("CLUSTER SETSLOT {slot} NODE {to_id}"));
        }
    }

    /// Waits until all nodes know each other and are up, as after the start of one.
    pub fn wait_until_complete(&self) {
        let is_complete = |node: &RedisServer| {
            let info = node.command("CLUSTER INFO");
            let nodes = format!("cluster_known_nodes:{NODES}\r");
            info.contains("cluster_state:ok\r") && info.contains(&nodes)
        };
        crate::eventually_blocking(|| self.nodes.iter().all(is_complete));
    }
}

fn start_nodes() -> Option<Vec<RedisServer>> {
    let settings = ["--appendonly", "yes", "--appendfsync", "always", "--cluster-enabled", "yes"];
    (0..NODES).map(|_| RedisServer::start_with(&settings)).collect()
}

const NODES: usize = 3;

/// The number of slots of a cluster.
const SLOTS: usize = 16384;
