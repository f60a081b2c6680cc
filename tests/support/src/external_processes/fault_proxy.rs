//! A proxy between a store and its Redis or Postgres, whose connections can have faults.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, copy, sink, split};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until};

use super::postgres_server::PostgresServer;
use super::redis_server::RedisServer;
use crate::rng::Dice;

/// A proxy on a port of its own. It has a thread of its own, too.
#[derive(Debug)]
pub struct FaultProxy {
    /// The URL for a store.
    pub url: String,
    port: u16,
    shared: Arc<Shared>,
}

/// What can happen to the connections through a proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// All bytes arrive later, in both directions.
    Delay,
    /// No bytes arrive for a while, in both directions. They arrive afterwards.
    Stall,
    /// All connections are reset (RST).
    Reset,
    /// Replies are lost, each together with its connection. What was asked has taken effect.
    LostReplies,
    /// On all connections no more bytes arrive, and they stay open.
    HalfOpen,
}

impl Fault {
    /// All faults.
    pub const ALL: [Fault; 5] =
        [Fault::Delay, Fault::Stall, Fault::Reset, Fault::LostReplies, Fault::HalfOpen];
}

/// What the connections share.
#[derive(Debug)]
struct Shared {
    upstream: Upstream,
    conditions: watch::Sender<Conditions>,
    replies_to_lose: AtomicUsize,
    /// Whether a connection whose reply is lost stays open.
    delays_losses: AtomicBool,
    request_bytes: AtomicUsize,
    /// What was sent to the store, if it is recorded.
    recorded: Mutex<Option<Vec<u8>>>,
}

#[derive(Debug)]
enum Upstream {
    /// Its port.
    Redis(AtomicU16),
    /// The path of its socket.
    Postgres(String),
}

#[derive(Debug, Clone, Copy, Default)]
struct Conditions {
    delay: Duration,
    is_stalled: bool,
    /// How often the connections were reset, and how often they became half-open.
    resets: usize,
    half_opens: usize,
}

impl FaultProxy {
    /// Starts a proxy in front of a Redis.
    pub fn before_redis(redis: &RedisServer) -> Self {
        let (address, shared) = start(Upstream::Redis(redis.port().into()));
        FaultProxy { url: format!("redis://{address}/"), port: address.port(), shared }
    }

    /// Starts a proxy in front of a Postgres.
    pub fn before_postgres(postgres: &PostgresServer) -> Self {
        let (address, shared) = start(Upstream::Postgres(postgres.socket()));
        let url = format!("postgresql://tests@{address}/postgres");
        FaultProxy { url, port: address.port(), shared }
    }

    /// Returns the port of the proxy.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Connects the clients that connect from now on with another Redis. Open connections stay.
    pub fn point_to(&self, redis: &RedisServer) {
        if let Upstream::Redis(port) = &self.shared.upstream {
            port.store(redis.port(), Ordering::SeqCst);
        }
    }

    /// Returns how many bytes were sent to the store.
    pub fn request_bytes(&self) -> usize {
        self.shared.request_bytes.load(Ordering::SeqCst)
    }

    /// Loses the next `count` replies, each together with its connection. In Postgres only the ends
    /// of commands that are committed count as replies, except those of `LISTEN`, `SHOW` and deletions
    /// of nothing.
    pub fn lose_replies(&self, count: usize) {
        self.shared.replies_to_lose.store(count, Ordering::SeqCst);
    }

    /// Returns whether all replies are lost that were to be lost.
    pub fn has_lost(&self) -> bool {
        self.shared.replies_to_lose.load(Ordering::SeqCst) == 0
    }

    /// Keeps the connections whose replies are lost open until this is called with `false`. Their
    /// clients repeat nothing in the first two seconds.
    pub fn delay_losses(&self, is_delayed: bool) {
        self.shared.delays_losses.store(is_delayed, Ordering::SeqCst);
    }

    /// Delays all bytes from now on by this time, in each direction.
    pub fn delay(&self, delay: Duration) {
        self.change(|conditions| conditions.delay = delay);
    }

    /// Takes all bytes and holds them back, or forwards them.
    pub fn stall(&self, is_stalled: bool) {
        self.change(|conditions| conditions.is_stalled = is_stalled);
    }

    /// Resets all connections.
    pub fn reset(&self) {
        self.change(|conditions| conditions.resets += 1);
    }

    /// Takes all bytes of the connections that are open now, forwards none of them, and leaves the
    /// connections open.
    pub fn half_open(&self) {
        self.change(|conditions| conditions.half_opens += 1);
    }

    /// Records from now on what is sent to the store, over one connection at a time.
    pub fn record_requests(&self) {
        *self.shared.recorded.lock().unwrap() = Some(Vec::new());
    }

    /// Sends all recorded requests to a Redis again, and returns the replies. So all of them are
    /// late: they arrive after those that followed.
    pub async fn repeat_requests(&self, redis: &RedisServer) -> String {
        let requests = self.shared.recorded.lock().unwrap().take().unwrap();
        let mut redis = TcpStream::connect(("127.0.0.1", redis.port())).await.unwrap();
        redis.write_all(&requests).await.unwrap();
        redis.write_all(b"*1\r\n$4\r\nQUIT\r\n").await.unwrap();
        let mut replies = Vec::new();
        redis.read_to_end(&mut replies).await.unwrap();
        String::from_utf8_lossy(&replies).into_owned()
    }

    /// Lets a fault happen at a random moment of the next milliseconds. Returns when it is over.
    pub async fn occur(&self, fault: Fault, random: &mut Dice) {
        let mut millis = |end| Duration::from_millis(random.below(end) as u64);
        sleep(millis(20)).await;
        match fault {
            Fault::Delay => {
                self.delay(millis(20));
                sleep(millis(50)).await;
                self.delay(Duration::ZERO);
            }
            Fault::Stall => {
                self.stall(true);
                sleep(millis(200)).await;
                self.stall(false);
            }
            Fault::Reset => self.reset(),
            Fault::HalfOpen => self.half_open(),
            Fault::LostReplies => self.lose_replies(1),
        }
    }

    /// Ends the faults. Half-open connections stay as they are.
    pub fn heal(&self) {
        self.delay(Duration::ZERO);
        self.stall(false);
        self.lose_replies(0);
    }

    fn change(&self, change: impl FnOnce(&mut Conditions)) {
        self.shared.conditions.send_modify(change);
    }
}

fn start(upstream: Upstream) -> (SocketAddr, Arc<Shared>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    let shared = Arc::new(Shared {
        upstream,
        conditions: watch::Sender::default(),
        replies_to_lose: AtomicUsize::default(),
        delays_losses: AtomicBool::default(),
        request_bytes: AtomicUsize::default(),
        recorded: Mutex::default(),
    });
    let of_thread = Arc::clone(&shared);
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::from_std(listener).unwrap();
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(serve(client, Arc::clone(&of_thread)));
            }
        });
    });
    (address, shared)
}

async fn serve(client: TcpStream, shared: Arc<Shared>) {
    match &shared.upstream {
        Upstream::Redis(port) => {
            let port = port.load(Ordering::SeqCst);
            match TcpStream::connect(("127.0.0.1", port)).await {
                Ok(redis) => {
                    let _ = redis.set_nodelay(true);
                    connect(client, redis, &shared).await;
                }
                Err(_) => drop(client),
            }
        }
        Upstream::Postgres(socket) => match UnixStream::connect(socket).await {
            Ok(postgres) => connect(client, postgres, &shared).await,
            Err(_) => drop(client),
        },
    }
}

/// Connects a client with its store until one of them closes its connection, or a fault ends it.
async fn connect(
    mut client: TcpStream,
    mut upstream: impl AsyncRead + AsyncWrite + Unpin,
    shared: &Shared,
) {
    let _ = client.set_nodelay(true);
    let mut conditions = shared.conditions.subscribe();
    let begun = *conditions.borrow();
    let is_reset = |now: &Conditions| now.resets > begun.resets;
    let is_half_open = {
        let (from_client, to_client) = split(&mut client);
        let (from_upstream, to_upstream) = split(&mut upstream);
        tokio::select! {
            () = forward(from_client, to_upstream, shared, false) => false,
            () = forward(from_upstream, to_client, shared, true) => false,
            now = conditions.wait_for(|now| is_reset(now) || now.half_opens > begun.half_opens) => {
                now.is_ok_and(|now| !is_reset(&now))
            }
        }
    };
    if is_half_open {
        let (mut client, mut upstream) = (&mut client, &mut upstream);
        let (mut from_client, mut from_upstream) = (sink(), sink());
        tokio::select! {
            _ = async {
                let requests = copy(&mut client, &mut from_client);
                let replies = copy(&mut upstream, &mut from_upstream);
                let _ = tokio::join!(requests, replies);
            } => {}
            _ = conditions.wait_for(is_reset) => {}
        }
    }
    if is_reset(&conditions.borrow()) {
        let _ = client.set_zero_linger();
    }
}

/// Forwards one direction until its sender closes it, or a reply is lost.
async fn forward(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    shared: &Shared,
    are_replies: bool,
) {
    let (sender, mut queue) = mpsc::unbounded_channel();
    let read = async move {
        let mut bytes = vec![0; 1 << 16];
        while let Ok(length @ 1..) = from.read(&mut bytes).await {
            let arrives_at = Instant::now() + shared.conditions.borrow().delay;
            let _ = sender.send((arrives_at, bytes[..length].to_vec()));
        }
        // The write ends when the queue is empty.
        drop(sender);
        std::future::pending::<()>().await;
    };
    let write = async {
        let mut conditions = shared.conditions.subscribe();
        while let Some((arrives_at, bytes)) = queue.recv().await {
            sleep_until(arrives_at).await;
            let _ = conditions.wait_for(|now| !now.is_stalled).await;
            if !are_replies {
                shared.request_bytes.fetch_add(bytes.len(), Ordering::SeqCst);
                if let Some(recorded) = &mut *shared.recorded.lock().unwrap() {
                    recorded.extend_from_slice(&bytes);
                }
            } else if shared.loses(&bytes) {
                while shared.delays_losses.load(Ordering::SeqCst) {
                    sleep(Duration::from_millis(1)).await;
                }
                return;
            }
            if to.write_all(&bytes).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = read => {}
        () = write => {}
    }
}

impl Shared {
    /// Returns whether this reply is lost now.
    fn loses(&self, reply: &[u8]) -> bool {
        let is_reply = match self.upstream {
            Upstream::Redis(_) => true,
            Upstream::Postgres(_) => ends_committed_command(reply),
        };
        let count_down = |left: usize| left.checked_sub(1);
        let lost = &self.replies_to_lose;
        is_reply && lost.fetch_update(Ordering::SeqCst, Ordering::SeqCst, count_down).is_ok()
    }
}

/// Returns whether these messages of Postgres end a command, and end with a `ReadyForQuery` outside of
/// a transaction. Then Postgres has committed.
fn ends_committed_command(mut messages: &[u8]) -> bool {
    let is_ready = messages.ends_with(b"Z\0\0\0\x05I");
    while let Some((header, body)) = messages.split_first_chunk::<5>() {
        let [kind, length @ ..] = *header;
        if kind == b'C' {
            // What the tasks of a store execute, if there is nothing to delete, and what a client asks
            // when it connects.
            let others: [&[u8]; 3] = [b"LISTEN", b"DELETE 0", b"SHOW"];
            return is_ready && !others.iter().any(|other| body.starts_with(other));
        }
        let rest = (u32::from_be_bytes(length) as usize).saturating_sub(4);
        messages = body.get(rest..).unwrap_or_default();
    }
    false
}
