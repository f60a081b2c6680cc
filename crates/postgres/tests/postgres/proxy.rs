//! A proxy between a store and Postgres that can lose the replies, and hold them back.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use test_support::external_processes::postgres_server::PostgresServer;

/// Forwards the bytes of both sides until it loses a reply.
pub(crate) struct Proxy {
    pub(crate) url: String,
    losses: Arc<Losses>,
}

#[derive(Default)]
struct Losses {
    /// The command whose next reply is lost, as Postgres names it at its end.
    command: Mutex<Option<&'static str>>,
    has_lost: AtomicBool,
    is_hanging: AtomicBool,
}

impl Proxy {
    pub(crate) fn before(postgres: &PostgresServer) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("postgresql://tests@{}/postgres", listener.local_addr().unwrap());
        let losses = Arc::new(Losses::default());
        let (to_lose, socket) = (Arc::clone(&losses), postgres.socket());
        thread::spawn(move || {
            for client in listener.incoming() {
                let (client, to_lose) = (client.unwrap(), Arc::clone(&to_lose));
                let Ok(postgres) = UnixStream::connect(&socket) else { continue };
                let (from_client, mut to_postgres) =
                    (client.try_clone().unwrap(), postgres.try_clone().unwrap());
                thread::spawn(move || {
                    let _ = std::io::copy(&mut { from_client }, &mut to_postgres);
                    let _ = to_postgres.shutdown(Shutdown::Both);
                });
                thread::spawn(move || forward_replies(postgres, client, &to_lose));
            }
        });
        Proxy { url, losses }
    }

    /// Loses the next reply that ends a command with this name, with its connection. At that moment
    /// Postgres has committed.
    pub(crate) fn lose_reply_to(&self, command: &'static str) {
        self.losses.has_lost.store(false, Ordering::SeqCst);
        *self.losses.command.lock().unwrap() = Some(command);
    }

    /// Holds all replies back, or forwards them.
    pub(crate) fn hang(&self, hangs: bool) {
        self.losses.is_hanging.store(hangs, Ordering::SeqCst);
    }

    /// Returns whether the reply was lost.
    pub(crate) fn has_lost(&self) -> bool {
        self.losses.has_lost.load(Ordering::SeqCst)
    }
}

fn forward_replies(mut from: UnixStream, mut to: TcpStream, losses: &Losses) {
    let mut bytes = [0; 1 << 16];
    while let Ok(read @ 1..) = from.read(&mut bytes) {
        let reply = &bytes[..read];
        while losses.is_hanging.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_millis(5));
        }
        // `CommandComplete`, and `ReadyForQuery` outside of a transaction, which follows the commit.
        let is_complete = reply.ends_with(b"Z\0\0\0\x05I");
        let mut command = losses.command.lock().unwrap();
        let is_lost = command.is_some_and(|command| {
            is_complete && reply.windows(command.len()).any(|part| part == command.as_bytes())
        });
        if is_lost {
            *command = None;
            losses.has_lost.store(true, Ordering::SeqCst);
        }
        drop(command);
        if is_lost || to.write_all(reply).is_err() {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
