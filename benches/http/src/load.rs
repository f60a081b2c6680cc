//! The client: sends requests and reads the responses to their end. It only counts.

use std::cell::{Cell, RefCell};
use std::io::{Error, ErrorKind, Result};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::{JoinHandle, LocalSet, spawn_local};

/// What a load has read.
#[derive(Default)]
pub(crate) struct Read {
    pub(crate) responses: u64,
    pub(crate) bytes: u64,
    /// How long each response took.
    pub(crate) times: Vec<Duration>,
}

/// A client on one thread. All connections share a buffer, so that they do not displace each other in the cache.
#[derive(Clone, Default)]
pub(crate) struct Client {
    pub(crate) read: Rc<RefCell<Read>>,
    buffer: Rc<RefCell<Vec<u8>>>,
    requests: Rc<Cell<u64>>,
}

impl Client {
    pub(crate) fn new() -> Self {
        let client = Client::default();
        client.buffer.borrow_mut().resize(256 * 1024, 0);
        client
    }

    /// Sends requests on so many connections for this time, and reads the last responses to their end. Each connection
    /// sends its next request when it has read a response. Calls `begin` when all connections are open.
    ///
    /// # Errors
    /// If a connection fails, or a response has another status than 200.
    pub(crate) async fn burst(
        &self,
        (address, path): (SocketAddr, &str),
        streams: usize,
        time: Duration,
        begin: impl FnOnce(),
    ) -> Result<()> {
        let mut connections = Vec::with_capacity(streams);
        for _ in 0..streams {
            connections.push(connect(address).await?);
        }
        begin();
        let end = Instant::now() + time;
        let run = |mut connection: TcpStream| {
            let (client, path) = (self.clone(), path.to_owned());
            spawn_local(async move {
                loop {
                    client.send(&mut connection, &path).await?;
                    client.read(&connection, &mut |_| {}).await?;
                    if Instant::now() >= end {
                        return Ok::<_, Error>(());
                    }
                }
            })
        };
        let tasks: Vec<_> = connections.into_iter().map(run).collect();
        join(tasks).await
    }

    /// Sends a request for a chat of its own.
    pub(crate) async fn send(&self, connection: &mut TcpStream, path: &str) -> Result<()> {
        let number = self.requests.get();
        self.requests.set(number + 1);
        let body = format!(
            r#"{{"id":"{number:016}","trigger":"submit-message","messages":[{{"id":"m1","role":"user","parts":[{{"type":"text","text":"Go on"}}]}}]}}"#
        );
        let length = body.len();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\naccept: text/event-stream\r\n\
             content-type: application/json\r\ncontent-length: {length}\r\n\r\n"
        );
        connection.write_all((head + &body).as_bytes()).await
    }

    /// Reads a response to its end, and passes on what it reads.
    pub(crate) async fn read(
        &self,
        connection: &TcpStream,
        take: &mut impl FnMut(&[u8]),
    ) -> Result<()> {
        let begun = Instant::now();
        let (mut end, mut is_first) = ([0; END.len()], true);
        while &end != END {
            connection.readable().await?;
            let mut buffer = self.buffer.borrow_mut();
            let length = match connection.try_read(&mut buffer) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
                read => read?,
            };
            let bytes = &buffer[..length];
            if length == 0 || is_first && !bytes.starts_with(b"HTTP/1.1 200") {
                let line =
                    String::from_utf8_lossy(bytes).lines().next().unwrap_or_default().to_owned();
                return Err(Error::other(format!("unexpected in a response: `{line}`")));
            }
            is_first = false;
            take(bytes);
            self.read.borrow_mut().bytes += length as u64;
            match bytes.last_chunk() {
                Some(last) => end = *last,
                None => {
                    end.copy_within(length.., 0);
                    end[END.len() - length..].copy_from_slice(bytes);
                }
            }
        }
        let mut read = self.read.borrow_mut();
        read.responses += 1;
        read.times.push(begun.elapsed());
        Ok(())
    }
}

/// The end of a chunked body.
const END: &[u8; 7] = b"\r\n0\r\n\r\n";

pub(crate) async fn connect(address: SocketAddr) -> Result<TcpStream> {
    let connection = TcpStream::connect(address).await?;
    connection.set_nodelay(true)?;
    Ok(connection)
}

/// Waits for all tasks, and returns the first error.
pub(crate) async fn join(tasks: Vec<JoinHandle<Result<()>>>) -> Result<()> {
    for task in tasks {
        task.await.map_err(Error::other)??;
    }
    Ok(())
}

/// Runs a client on this thread.
///
/// # Errors
/// If it fails, or takes longer than three minutes.
pub(crate) fn block_on<T>(run: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let limit = Duration::from_secs(180);
    LocalSet::new().block_on(&runtime, async {
        tokio::time::timeout(limit, run).await.map_err(|_| Error::from(ErrorKind::TimedOut))?
    })
}
