//! `serve`: what clients can hold open, and for how long. The clients are plain sockets.

use std::io::Write;
use std::net::{SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::routing::{get, post};
use futures::StreamExt;
use test_support::external_processes::{number, say};
use test_support::sockets::{is_closed, post_head, read_to_end, read_until};
use test_support::within_patience;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, interval, sleep};
use tokio_stream::wrappers::UnboundedReceiverStream;
use ui_message_stream::ChatRequest;
use ui_message_stream::approval::Principal;
use ui_message_stream::axum::{LocalAddress, Serve, serve, without_authentication};

/// A running server.
struct Server {
    address: SocketAddr,
    /// Ends the response to `GET /stream` when it is dropped.
    stream: mpsc::UnboundedSender<Bytes>,
    stop: oneshot::Sender<()>,
    /// Closed when the body of `GET /large` is dropped.
    large_dropped: oneshot::Receiver<()>,
    ended: JoinHandle<()>,
}

impl Server {
    /// Starts a server with these settings.
    ///
    /// `POST /body` responds with the length of the body, `POST /chat` reads a `ChatRequest`,
    /// `GET /stream` streams what a test sends, `GET /address` responds with the local address, and
    /// `GET /large` with more than the system buffers.
    async fn start(settings: impl FnOnce(Serve) -> Serve) -> Self {
        let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], listener.local_addr().unwrap().port()));
        let (stream, chunks) = mpsc::unbounded_channel::<Bytes>();
        let chunks = Arc::new(Mutex::new(Some(chunks)));
        let stream_chunks = async |State(chunks): State<Arc<Mutex<Option<_>>>>| {
            let chunks = UnboundedReceiverStream::new(chunks.lock().unwrap().take().unwrap());
            Body::from_stream(chunks.map(Ok::<Bytes, std::io::Error>))
        };
        let (sent, large_dropped) = oneshot::channel();
        let sent = Arc::new(Mutex::new(Some(sent)));
        let local =
            async |axum::Extension(LocalAddress(at)): axum::Extension<LocalAddress>| at.to_string();
        let app = Router::new()
            .route("/body", post(async |body: Bytes| body.len().to_string()))
            .route("/chat", post(async |_: ChatRequest| "a chat"))
            .route("/stream", get(stream_chunks).with_state(chunks))
            .route("/address", get(local))
            .route("/large", get(large).with_state(sent))
            .route("/who", get(async |user: Principal| user.to_string()))
            .layer(without_authentication());
        let (stop, stopped) = oneshot::channel();
        let server =
            settings(serve(listener, app)).with_graceful_shutdown(async { drop(stopped.await) });
        Server { address, stream, stop, large_dropped, ended: tokio::spawn(async { server.await }) }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// Connects and sends this text.
    async fn send(&self, text: &str) -> TcpStream {
        let mut socket = self.connect().await;
        socket.write_all(text.as_bytes()).await.unwrap();
        socket
    }

    /// Requests the stream, sends its first chunk and waits until the client has it.
    ///
    /// The request is sent before the server can run: so the head timeout cannot pass.
    async fn begin_stream(&self) -> TcpStream {
        let mut socket = std::net::TcpStream::connect(self.address).unwrap();
        socket.write_all(head("GET /stream").as_bytes()).unwrap();
        socket.set_nonblocking(true).unwrap();
        let mut socket = TcpStream::from_std(socket).unwrap();
        self.stream.send("first".into()).unwrap();
        read_until(&mut socket, "first").await;
        socket
    }
}

/// A body that closes the channel when it is dropped.
struct Large(Vec<u8>, #[expect(dead_code)] Option<oneshot::Sender<()>>);

impl AsRef<[u8]> for Large {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

async fn large(State(sent): State<Arc<Mutex<Option<oneshot::Sender<()>>>>>) -> Bytes {
    let sent = sent.lock().unwrap().take();
    Bytes::from_owner(Large(vec![b'x'; LARGE], sent))
}

fn head(target: &str) -> String {
    format!("{target} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
}

/// Sends one byte after the other until the server closes the connection. Returns what it sent.
async fn trickle(mut socket: TcpStream, byte: u8, pause: Duration) -> String {
    let (mut received, mut ticks) = (Vec::new(), interval(pause));
    loop {
        tokio::select! {
            read = socket.read_buf(&mut received) => match read {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) => break assert!(is_closed(error.kind()), "{error}"),
            },
            _ = ticks.tick() => drop(socket.write_all(&[byte]).await),
        }
    }
    String::from_utf8(received).unwrap()
}

/// With `HALF_SENT=900 SLOW_CLIENTS=50 CLIENT_TIMEOUT_MS=30000` it takes half a minute.
#[tokio::test]
async fn half_sent_requests_are_closed_after_their_timeout_and_slow_ones_too() {
    let half_sent = number("HALF_SENT", 40);
    let slow = number("SLOW_CLIENTS", 10);
    let limit = Duration::from_millis(number("CLIENT_TIMEOUT_MS", 300) as u64);
    let pause = limit / 15;
    let server =
        Server::start(|server| server.with_head_timeout(limit).with_body_timeout(limit)).await;
    let mut streaming = server.begin_stream().await;
    let start = Instant::now();
    let mut clients = JoinSet::new();
    for number in 0..half_sent {
        let is_head = number % 2 == 0;
        let text = if is_head { "GET /stream HTTP/1.1\r\nHo" } else { &post_head("/body", 10) };
        let mut socket = server.send(text).await;
        clients.spawn(async move { (is_head, read_to_end(&mut socket).await) });
    }
    for number in 0..slow {
        let is_head = number % 2 == 0;
        let text =
            if is_head { "GET /stream HTTP/1.1\r\nX: " } else { &post_head("/body", 99_999) };
        let socket = server.send(text).await;
        clients.spawn(async move { (is_head, trickle(socket, b'x', pause).await) });
    }
    while let Some(client) = within_patience(clients.join_next()).await {
        let (is_head, response) = client.unwrap();
        // A client that still sends may lose the response to the reset of the connection.
        assert!(
            is_head || response.is_empty() || response.starts_with("HTTP/1.1 408 "),
            "{response}"
        );
    }
    say(&format!(
        "{half_sent} half-sent requests and {slow} slow ones are closed {:.1} s after the first one \
         was sent, with timeouts of {:.1} s",
        start.elapsed().as_secs_f64(),
        limit.as_secs_f64()
    ));

    // A response may take longer.
    server.stream.send("last".into()).unwrap();
    read_until(&mut streaming, "last").await;
}

#[tokio::test]
async fn a_body_that_does_not_arrive_in_time_is_answered_with_408() {
    let limit = Duration::from_millis(50);
    let server = Server::start(|server| server.with_body_timeout(limit)).await;
    let response = read_to_end(&mut server.send(&post_head("/body", 10)).await).await;
    assert!(response.starts_with("HTTP/1.1 408 "), "{response}");
    let text = "the request body did not arrive in 0.05 seconds; `Serve::with_body_timeout` allows \
                more";
    assert!(response.ends_with(text), "{response}");
}

#[tokio::test]
async fn a_client_that_reads_nothing_of_a_response_is_closed_and_a_silent_stream_is_not() {
    let limit = Duration::from_millis(200);
    let server = Server::start(|server| server.with_write_timeout(limit)).await;
    let mut reader = server.begin_stream().await;
    let mut blocked = server.send(&head("GET /large")).await;
    within_patience(server.large_dropped).await.unwrap_err();
    // What the system has buffered arrives. The rest was not sent.
    let received = within_patience(tokio::io::copy(&mut blocked, &mut tokio::io::sink())).await;
    if let Ok(length) = received {
        assert!(length < LARGE as u64, "{length}");
    }
    server.stream.send("last".into()).unwrap();
    read_until(&mut reader, "last").await;
}

#[tokio::test]
async fn a_client_that_reads_slowly_gets_the_whole_response() {
    // Much longer than a busy machine delays a read, and shorter than the whole response takes.
    let limit = Duration::from_secs(2);
    let server = Server::start(|server| server.with_write_timeout(limit)).await;
    let mut socket = server.send(&head("GET /large")).await;
    let (mut buffer, mut length, start) = (vec![0; 1 << 20], 0, Instant::now());
    while length < LARGE {
        let read = within_patience(socket.read(&mut buffer)).await.unwrap();
        assert_ne!(read, 0, "{length} bytes after {:?}", start.elapsed());
        length += read;
        if start.elapsed() < limit * 2 {
            sleep(limit / 20).await;
        }
    }
}

#[tokio::test]
async fn a_head_that_is_too_long_is_answered_with_431() {
    let server = Server::start(|server| server).await;
    let long = format!("GET /address HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(256 << 10));
    let response = read_to_end(&mut server.send(&long).await).await;
    assert!(response.starts_with("HTTP/1.1 431 "), "{response}");
}

#[tokio::test]
async fn over_the_maximum_the_oldest_connection_without_a_complete_request_is_closed() {
    let server = Server::start(|server| server.with_max_connections(4)).await;
    let mut streaming = server.begin_stream().await;
    let mut half_head = server.send("GET /stre").await;
    let mut half_body = server.send(&post_head("/body", 10)).await;
    let mut silent = server.connect().await;
    // Each new client is served and replaces the oldest one. Afterwards it is idle.
    let mut idle = Vec::new();
    for oldest in [&mut half_head, &mut half_body, &mut silent] {
        let mut new = server.send(&head("GET /address")).await;
        assert_eq!(read_to_end(oldest).await, "");
        read_until(&mut new, &server.address.to_string()).await;
        idle.push(new);
    }
    server.stream.send("last".into()).unwrap();
    read_until(&mut streaming, "last").await;
}

#[tokio::test]
async fn if_all_requests_are_complete_a_new_connection_is_closed() {
    let mut server = Server::start(|server| server.with_max_connections(1)).await;
    let mut streaming = server.begin_stream().await;
    assert_eq!(read_to_end(&mut server.connect().await).await, "");
    server.stream = mpsc::unbounded_channel().0;
    assert!(read_to_end_of_response(&mut streaming).await.ends_with("0\r\n\r\n"));
    // The connection is idle now.
    let mut new = server.send(&head("GET /address")).await;
    read_until(&mut new, &server.address.to_string()).await;
    assert_eq!(read_to_end(&mut streaming).await, "");
}

async fn read_to_end_of_response(socket: &mut TcpStream) -> String {
    let mut received = Vec::new();
    while !received.ends_with(b"0\r\n\r\n") {
        assert_ne!(within_patience(socket.read_buf(&mut received)).await.unwrap(), 0);
    }
    String::from_utf8(received).unwrap()
}

#[tokio::test]
async fn a_body_that_declares_too_many_bytes_is_rejected_before_it_arrives() {
    let server = Server::start(|server| server).await;
    let response = read_to_end(&mut server.send(&post_head("/chat", 1 << 30)).await).await;
    assert!(response.starts_with("HTTP/1.1 413 "), "{response}");
    assert!(response.contains("Limits::with_max_bytes"), "{response}");
}

#[tokio::test]
async fn a_client_that_still_sends_a_body_that_is_too_long_gets_the_response() {
    let server = Server::start(|server| server).await;
    let mut socket = server.send(&post_head("/chat", 3 << 20)).await;
    for _ in 0..3 {
        // The server has read all of it, and could have responded.
        sleep(Duration::from_millis(100)).await;
        socket.write_all(&vec![b' '; 1 << 20]).await.unwrap();
    }
    let (mut response, wanted) = (Vec::new(), "Limits::with_max_bytes");
    while !String::from_utf8_lossy(&response).contains(wanted) {
        assert_ne!(within_patience(socket.read_buf(&mut response)).await.unwrap(), 0);
    }
    assert!(response.starts_with(b"HTTP/1.1 413 "));
}

#[tokio::test]
async fn a_client_that_asks_before_it_sends_a_body_that_is_too_long_is_not_told_to_send_it() {
    let server = Server::start(|server| server).await;
    let head = post_head("/chat", 3 << 20).replace("\r\n\r\n", "\r\nExpect: 100-continue\r\n\r\n");
    let response = read_to_end(&mut server.send(&head).await).await;
    assert!(response.starts_with("HTTP/1.1 413 "), "{response}");
}

#[tokio::test]
async fn a_graceful_stop_closes_idle_connections_and_waits_for_responses() {
    let server = Server::start(|server| server).await;
    let mut streaming = server.begin_stream().await;
    let mut silent = server.connect().await;
    let mut idle = server.send(&head("GET /address")).await;
    read_until(&mut idle, &server.address.to_string()).await;
    server.stop.send(()).unwrap();
    assert_eq!(read_to_end(&mut silent).await, "");
    assert_eq!(read_to_end(&mut idle).await, "");
    assert!(TcpStream::connect(server.address).await.is_err());
    sleep(Duration::from_millis(20)).await;
    assert!(!server.ended.is_finished());

    server.stream.send("last".into()).unwrap();
    drop(server.stream);
    let rest = read_to_end(&mut streaming).await;
    assert!(rest.contains("last") && rest.ends_with("0\r\n\r\n"), "{rest}");
    within_patience(server.ended).await.unwrap();
}

#[tokio::test]
async fn the_layer_without_authentication_learns_the_local_address() {
    let server = Server::start(|server| server).await;
    let mut socket = server.send(&head("GET /who")).await;
    read_until(&mut socket, "anonymous").await;
    // The address of this machine in its network, if it has one.
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    if socket.connect("192.0.2.1:9").is_ok() {
        let own = SocketAddr::new(socket.local_addr().unwrap().ip(), server.address.port());
        let mut socket = TcpStream::connect(own).await.unwrap();
        socket.write_all(head("GET /who").as_bytes()).await.unwrap();
        read_until(&mut socket, "HTTP/1.1 403 ").await;
    }
}

/// The bytes of a response that does not fit into the buffers of the system.
const LARGE: usize = 64 << 20;
