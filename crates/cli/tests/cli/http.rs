//! A minimal HTTP client and server, with which a test sees every byte and when it arrives.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::Duration;

use test_support::patience;

/// One end of a connection.
pub(crate) struct Connection {
    stream: TcpStream,
    read: Vec<u8>,
}

/// A request or a response. The body is without the framing of HTTP chunks.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct HttpMessage {
    pub(crate) first_line: String,
    /// The header lines, with lower-case names, sorted.
    pub(crate) headers: Vec<String>,
    pub(crate) body: Vec<u8>,
}

impl Connection {
    pub(crate) fn open(url: &str) -> Self {
        let address = url.strip_prefix("http://").unwrap().split('/').next().unwrap();
        Self::over(TcpStream::connect(address).unwrap())
    }

    pub(crate) fn over(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(patience())).unwrap();
        stream.set_write_timeout(Some(patience())).unwrap();
        stream.set_nodelay(true).unwrap();
        Connection { stream, read: Vec::new() }
    }

    pub(crate) fn write(&mut self, text: &str) {
        self.stream.write_all(text.as_bytes()).unwrap();
    }

    /// Writes a chunk of a chunked body. An empty chunk ends the body.
    pub(crate) fn write_chunk(&mut self, text: &str) {
        self.write(&format!("{:x}\r\n{text}\r\n", text.len()));
    }

    /// Reads until this text was received.
    pub(crate) fn read_until(&mut self, text: &str) {
        while !contains(&self.read, text) {
            assert!(self.read_more(), "closed before {text:?}: {:?}", self.text());
        }
    }

    /// Waits for this time, in which nothing may be received and the other side may not close.
    #[track_caller]
    pub(crate) fn assert_silent_for(&mut self, time: Duration) {
        self.stream.set_read_timeout(Some(time)).unwrap();
        let result = uninterrupted(|| self.stream.peek(&mut [0]));
        self.stream.set_read_timeout(Some(patience())).unwrap();
        let is_silent = matches!(&result, Err(error)
            if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut));
        assert!(is_silent, "{result:?} after {:?}", self.text());
    }

    /// Reads until the other side closes the connection.
    pub(crate) fn read_to_end(&mut self) -> String {
        while self.read_more() {}
        self.text()
    }

    /// Reads a whole request or response.
    pub(crate) fn read_message(&mut self) -> HttpMessage {
        self.read_until("\r\n\r\n");
        let head = self.text().split("\r\n\r\n").next().unwrap().to_owned();
        let start = head.len() + 4;
        let mut lines = head.lines().map(str::to_owned);
        let first_line = lines.next().unwrap();
        let mut headers: Vec<String> = lines
            .map(|line| {
                let (name, value) = line.split_once(':').unwrap();
                format!("{}: {}", name.to_lowercase(), value.trim())
            })
            .collect();
        headers.sort();
        let header = |name: &str| headers.iter().find_map(|line| line.strip_prefix(name));
        let body = if header("transfer-encoding: ") == Some("chunked") {
            self.read_until("0\r\n\r\n");
            dechunked(&self.read[start..])
        } else {
            let length = header("content-length: ").map_or(0, |length| length.parse().unwrap());
            while self.read.len() < start + length {
                assert!(self.read_more(), "closed within a body");
            }
            self.read[start..start + length].to_vec()
        };
        HttpMessage { first_line, headers, body }
    }

    fn read_more(&mut self) -> bool {
        let mut bytes = [0; 65536];
        let length = match uninterrupted(|| self.stream.read(&mut bytes)) {
            Ok(length) => length,
            Err(error) if error.kind() == ErrorKind::ConnectionReset => 0,
            Err(error) => panic!("{error}, after {:?}", self.text()),
        };
        self.read.extend_from_slice(&bytes[..length]);
        length > 0
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.read).into_owned()
    }
}

/// Repeats a system call that a signal has interrupted. A call with a time limit is also interrupted
/// if the process is stopped and continued.
fn uninterrupted(mut call: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match call() {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// Sends a request and reads the whole response.
pub(crate) fn exchange(url: &str, request: &str) -> HttpMessage {
    let mut connection = Connection::open(url);
    connection.write(request);
    connection.read_message()
}

/// Returns a POST request with this body, after which the connection is closed.
pub(crate) fn post(path: &str, body: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}

/// Returns the requests that pages of other machines cause: of another site, of a name that leads
/// to this machine (DNS rebinding), of a frame without an origin. The last one is a CORS preflight.
pub(crate) fn hostile_requests(path: &str) -> Vec<String> {
    let body = "Content-Length: 2\r\nConnection: close\r\n\r\n{}";
    let preflight = "Access-Control-Request-Method: POST\r\nConnection: close\r\n\r\n";
    [
        format!("POST {path} HTTP/1.1\r\nHost: evil.test\r\nOrigin: http://evil.test\r\n{body}"),
        format!("POST {path} HTTP/1.1\r\nHost: evil.test\r\n{body}"),
        format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil.test\r\n{body}"),
        format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nOrigin: http://10.0.0.7\r\n{body}"),
        format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nOrigin: null\r\n{body}"),
        format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nSec-Fetch-Site: cross-site\r\n{body}"),
        format!(
            "OPTIONS {path} HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil.test\r\n{preflight}"
        ),
    ]
    .into()
}

/// Starts a server that handles this number of connections, one after the other.
pub(crate) fn backend<T: Send + 'static>(
    connections: usize,
    handle: impl Fn(Connection) -> T + Send + 'static,
) -> (String, JoinHandle<Vec<T>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let accept = move |_| handle(Connection::over(listener.accept().unwrap().0));
    (url, std::thread::spawn(move || (0..connections).map(accept).collect()))
}

fn dechunked(mut bytes: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    loop {
        let line_end = bytes.windows(2).position(|pair| pair == b"\r\n").unwrap();
        let size = str::from_utf8(&bytes[..line_end]).unwrap();
        let size = usize::from_str_radix(size, 16).unwrap();
        if size == 0 {
            return body;
        }
        body.extend_from_slice(&bytes[line_end + 2..][..size]);
        bytes = &bytes[line_end + 2 + size + 2..];
    }
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}
