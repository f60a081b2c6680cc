//! Requests and responses on plain sockets.

use std::io::ErrorKind;

use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use crate::within_patience;

/// Returns the head of a POST request with a JSON body of this length.
pub fn post_head(path: &str, length: usize) -> String {
    let headers = format!("Content-Type: application/json\r\nContent-Length: {length}");
    format!("POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{headers}\r\n\r\n")
}

/// Reads until the server closes the connection. Returns what it sent.
pub async fn read_to_end(socket: &mut TcpStream) -> String {
    let mut received = Vec::new();
    let read = within_patience(socket.read_to_end(&mut received)).await;
    // A connection with unread bytes is closed with a reset.
    if let Err(error) = read {
        assert!(is_closed(error.kind()), "{error}");
    }
    String::from_utf8(received).unwrap()
}

/// Reads until the server has sent this text.
pub async fn read_until(socket: &mut TcpStream, text: &str) {
    let mut received = Vec::new();
    while !String::from_utf8_lossy(&received).contains(text) {
        let read = within_patience(socket.read_buf(&mut received)).await;
        assert_ne!(read.unwrap(), 0, "{received:?}");
    }
}

/// Whether an error means that the other side has closed the connection.
pub fn is_closed(error: ErrorKind) -> bool {
    matches!(error, ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)
}
