//! [`serve`]: an HTTP/1.1 server that limits what clients can hold open.

mod connections;
mod exchange;
mod write_timeout;

use std::fmt;
use std::future::{IntoFuture, pending};
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use ::axum::Router;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

use self::connections::Connections;
use self::exchange::Exchanges;
use self::write_timeout::WriteTimeout;
use super::without_authentication::LocalAddress;
use crate::boxed::BoxFuture;

/// Serves an application on a listener, as `axum::serve` does, with limits on what clients can hold
/// open.
///
/// | limit | default | otherwise |
/// |---|---|---|
/// | time for the head of a request, from the start of the connection or the end of the last response | 30 s | the connection is closed |
/// | time for the body of a request, from the end of its head | 30 s | status 408 |
/// | time in which a client accepts no byte of a response that waits to be sent | 30 s | the connection is closed |
/// | open connections | 4096 | the oldest one without a complete request is closed |
/// | head of a request | 64 KiB | status 431 |
///
/// The times of head and body are totals, so a client that sends one byte after the other does not
/// extend them. A response may stream for as long as it takes, and may be silent as long as the agent
/// is: only a client that does not read what waits for it is closed. If the process or the system has
/// no file descriptors left, the oldest connection without a complete request is closed as well. If all
/// requests are complete, a new connection is closed, or waits for a file descriptor: the readers of one
/// user cannot bring this about, because a chat server
/// limits them.
///
/// A connection without a request is closed after the time for a head, which is 30 seconds. A proxy
/// that keeps its connections to this server open for longer, for example nginx with its 60 seconds,
/// may send a request on a connection that is being closed, and answers its client with 502. Set the
/// proxy's time below this one, or raise this one with
/// [`with_head_timeout`](Serve::with_head_timeout).
///
/// The server also
/// - sets `TCP_NODELAY`. Without it, the last frame of a turn can wait 40 ms for an acknowledgement of
///   the client;
/// - inserts the [`LocalAddress`] of the connection into each request, for
///   [`without_authentication`](super::without_authentication).
///
/// It is only for HTTP/1.1 over TCP. A proxy in front of it adds TLS and HTTP/2.
///
/// ```no_run
/// use axum::{Router, routing::post};
/// use futures::stream;
/// use tokio::net::TcpListener;
/// use ui_message_stream::axum::serve;
/// use ui_message_stream::{AgentEvent, ChatRequest, UiMessageStream};
///
/// async fn chat(chat: ChatRequest) -> UiMessageStream {
///     UiMessageStream::reply(&chat, stream::iter([AgentEvent::text("Hello")]))
/// }
///
/// # async fn run() -> std::io::Result<()> {
/// let app = Router::new().route("/api/chat", post(chat));
/// let listener = TcpListener::bind("127.0.0.1:3000").await?;
/// let stop = async { drop(tokio::signal::ctrl_c().await) };
/// serve(listener, app).with_graceful_shutdown(stop).await;
/// # Ok(())
/// # }
/// ```
#[must_use = "a server does nothing until it is awaited"]
pub fn serve(listener: TcpListener, app: Router) -> Serve {
    Serve {
        listener,
        app,
        head_timeout: TIMEOUT,
        body_timeout: TIMEOUT,
        write_timeout: TIMEOUT,
        max_connections: MAX_CONNECTIONS,
        stop: Box::pin(pending()),
    }
}

/// A server that [`serve`] creates. It runs when it is awaited.
///
/// # Cancel safety
/// If the future is dropped, all connections are closed.
#[must_use = "a server does nothing until it is awaited"]
pub struct Serve {
    listener: TcpListener,
    app: Router,
    head_timeout: Duration,
    body_timeout: Duration,
    write_timeout: Duration,
    max_connections: usize,
    stop: BoxFuture<'static, ()>,
}

impl Serve {
    /// Sets the time for the head of a request. A connection without a request is closed after this
    /// time too. The default is 30 seconds.
    pub fn with_head_timeout(mut self, timeout: Duration) -> Self {
        self.head_timeout = timeout;
        self
    }

    /// Sets the time for the body of a request. The default is 30 seconds.
    pub fn with_body_timeout(mut self, timeout: Duration) -> Self {
        self.body_timeout = timeout;
        self
    }

    /// Sets the time after which a connection is closed whose client reads nothing although a part
    /// of a response waits to be sent. A client that reads slowly is not closed. The default is 30
    /// seconds.
    pub fn with_write_timeout(mut self, timeout: Duration) -> Self {
        self.write_timeout = timeout;
        self
    }

    /// Sets the maximum number of open connections. The default is 4096.
    ///
    /// For each connection over the maximum, the oldest one without a complete request is closed. It
    /// is the new one if the requests of all others are complete.
    pub fn with_max_connections(mut self, max: usize) -> Self {
        self.max_connections = max;
        self
    }

    /// Stops the server when `stop` completes.
    ///
    /// The server then accepts no connections, closes those without a request, and completes when
    /// the current responses have ended. To stop earlier, drop the server.
    pub fn with_graceful_shutdown(
        mut self,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> Self {
        self.stop = Box::pin(stop);
        self
    }

    async fn run(self) {
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new())
            .header_read_timeout(self.head_timeout)
            .max_buf_size(MAX_HEAD_BYTES);
        let connections = Arc::new(Connections::new(self.max_connections));
        let (stopping, is_stopping) = watch::channel(false);
        // If this function is cancelled, the tasks are aborted.
        let mut tasks = JoinSet::new();
        let mut stop = pin!(self.stop);
        loop {
            let accepted = tokio::select! {
                () = &mut stop => break,
                accepted = self.listener.accept() => accepted,
                // Removes a task that has ended.
                Some(_) = tasks.join_next() => continue,
            };
            let stream = match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    if is_out_of_file_descriptors(&error) {
                        connections.close_oldest();
                    }
                    if !is_of_client(&error) {
                        // The end of a connection frees a file descriptor.
                        tokio::select! {
                            Some(_) = tasks.join_next() => {}
                            () = sleep(PAUSE_AFTER_ERROR) => {}
                        }
                    }
                    continue;
                }
            };
            let (connection, closed) = connections.add();
            let exchanges = Exchanges {
                app: self.app.clone(),
                local_address: local_address(&stream),
                connection,
                body_timeout: self.body_timeout,
            };
            let service = service_fn(move |request| exchanges.clone().respond(request));
            if let Err(error) = stream.set_nodelay(true) {
                tracing::debug!(%error, "no TCP_NODELAY");
            }
            let stream = TokioIo::new(WriteTimeout::new(stream, self.write_timeout));
            let served = http.serve_connection(stream, service).with_upgrades();
            let mut is_stopping = is_stopping.clone();
            let stopping = async move { drop(is_stopping.wait_for(|stops| *stops).await) };
            tasks.spawn(async move {
                let mut served = pin!(served);
                let mut closed = pin!(closed);
                let result = tokio::select! {
                    result = &mut served => result,
                    () = &mut closed => Ok(()),
                    () = stopping => {
                        served.as_mut().graceful_shutdown();
                        tokio::select! {
                            result = served => result,
                            () = closed => Ok(()),
                        }
                    }
                };
                if let Err(error) = result {
                    tracing::debug!(%error, "a connection has failed");
                }
            });
        }
        drop(self.listener);
        connections.close_idle();
        stopping.send_replace(true);
        while tasks.join_next().await.is_some() {}
    }
}

impl fmt::Debug for Serve {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Serve")
            .field("listener", &self.listener)
            .field("head_timeout", &self.head_timeout)
            .field("body_timeout", &self.body_timeout)
            .field("write_timeout", &self.write_timeout)
            .field("max_connections", &self.max_connections)
            .finish_non_exhaustive()
    }
}

impl IntoFuture for Serve {
    type Output = ();
    type IntoFuture = BoxFuture<'static, ()>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}

fn local_address(stream: &TcpStream) -> LocalAddress {
    // Without an address the connection counts as one that is not a loopback connection.
    LocalAddress(stream.local_addr().unwrap_or(SocketAddr::from(([0, 0, 0, 0], 0))))
}

/// Whether an error of `accept` concerns only the connection that was to be accepted.
fn is_of_client(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::ConnectionAborted | ErrorKind::ConnectionRefused | ErrorKind::ConnectionReset
    )
}

/// Whether the process (`EMFILE`) or the system (`ENFILE`) has no file descriptors left.
fn is_out_of_file_descriptors(error: &io::Error) -> bool {
    // The codes are the same on Linux, macOS and the BSDs. Windows has `WSAEMFILE`.
    match error.raw_os_error() {
        Some(code) if cfg!(windows) => code == 10024,
        code => matches!(code, Some(23 | 24)),
    }
}

/// The default time for a head, for a body, and for a write.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The default maximum number of connections.
const MAX_CONNECTIONS: usize = 4096;

/// The maximum size of the head of a request, and of what is read or written at once.
const MAX_HEAD_BYTES: usize = 64 * 1024;

/// The longest pause after a connection could not be accepted.
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_closed_only_if_file_descriptors_are_missing() {
        let cases = if cfg!(windows) { [10024, 10024] } else { [23, 24] };
        for code in cases {
            let error = io::Error::from_raw_os_error(code);
            assert!(is_out_of_file_descriptors(&error) && !is_of_client(&error), "{error}");
        }
        for kind in [ErrorKind::ConnectionAborted, ErrorKind::PermissionDenied] {
            assert!(!is_out_of_file_descriptors(&kind.into()), "{kind}");
        }
        assert!(is_of_client(&ErrorKind::ConnectionAborted.into()));
    }
}
