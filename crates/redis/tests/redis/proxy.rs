//! A proxy between a client and a Redis that can lose the replies, and that counts the bytes of the
//! requests.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

/// Forwards the bytes of both sides until it loses a reply.
pub(crate) struct Proxy {
    pub(crate) url: String,
    losses: Arc<Losses>,
    request_bytes: Arc<AtomicUsize>,
}

#[derive(Default)]
struct Losses {
    replies_to_lose: AtomicUsize,
    /// Whether a connection whose reply is lost stays open.
    is_delayed: AtomicBool,
}

impl Proxy {
    /// Starts a proxy in front of the Redis on this port.
    pub(crate) fn before(redis: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("redis://{}/", listener.local_addr().unwrap());
        let losses = Arc::new(Losses::default());
        let to_lose = Arc::clone(&losses);
        let request_bytes = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&request_bytes);
        thread::spawn(move || {
            for client in listener.incoming() {
                let (client, to_lose) = (client.unwrap(), Arc::clone(&to_lose));
                let counted = Arc::clone(&counted);
                let Ok(redis) = TcpStream::connect(("127.0.0.1", redis)) else { continue };
                let (to_redis, to_client) =
                    (redis.try_clone().unwrap(), client.try_clone().unwrap());
                thread::spawn(move || forward(client, to_redis, None, Some(&counted)));
                thread::spawn(move || forward(redis, to_client, Some(&to_lose), None));
            }
        });
        Proxy { url, losses, request_bytes }
    }

    /// Returns how many bytes were sent to Redis.
    pub(crate) fn request_bytes(&self) -> usize {
        self.request_bytes.load(Ordering::SeqCst)
    }

    /// Loses the next `count` replies, each together with its connection.
    pub(crate) fn lose_replies(&self, count: usize) {
        self.losses.replies_to_lose.store(count, Ordering::SeqCst);
    }

    /// Keeps the connections whose replies are lost open until this is called with `false`. Their
    /// clients repeat nothing in this time.
    pub(crate) fn delay_losses(&self, is_delayed: bool) {
        self.losses.is_delayed.store(is_delayed, Ordering::SeqCst);
    }
}

fn forward(
    mut from: TcpStream,
    mut to: TcpStream,
    losses: Option<&Losses>,
    counted: Option<&AtomicUsize>,
) {
    let mut bytes = [0; 4096];
    while let Ok(read @ 1..) = from.read(&mut bytes) {
        if let Some(counted) = counted {
            counted.fetch_add(read, Ordering::SeqCst);
        }
        let is_lost = losses.is_some_and(|losses| {
            losses
                .replies_to_lose
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1))
                .is_ok()
        });
        while is_lost && losses.is_some_and(|losses| losses.is_delayed.load(Ordering::SeqCst)) {
            thread::sleep(Duration::from_millis(1));
        }
        if is_lost || to.write_all(&bytes[..read]).is_err() {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
