//! [`WriteTimeout`]: a connection that fails if its peer does not read what is written to it, and
//! whose last response is not lost if the peer is still sending.

use std::io::{self, ErrorKind, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::future::FutureExt;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};

/// A connection whose writes fail if no byte can be written for some time. The time runs only while
/// bytes wait to be written.
pub(super) struct WriteTimeout {
    stream: TcpStream,
    timeout: Duration,
    /// Runs while a write waits.
    blocked: Option<Pin<Box<Sleep>>>,
    /// How many bytes were read since the last write.
    read: usize,
    /// Whether much was read before the last response began. The peer may be sending more.
    may_be_sending: bool,
    /// Runs while what the peer still sends is dropped.
    draining: Option<Pin<Box<Sleep>>>,
}

impl WriteTimeout {
    pub(super) fn new(stream: TcpStream, timeout: Duration) -> Self {
        WriteTimeout {
            stream,
            timeout,
            blocked: None,
            read: 0,
            may_be_sending: false,
            draining: None,
        }
    }

    /// Records that a response is written.
    fn begin_write(&mut self) {
        if self.read > 0 {
            self.may_be_sending = std::mem::take(&mut self.read) >= MANY_BYTES;
        }
    }

    fn limit(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if written.is_ready() {
            self.blocked = None;
            return written;
        }
        let timeout = self.timeout;
        let blocked = self.blocked.get_or_insert_with(|| Box::pin(sleep(timeout)));
        blocked.poll_unpin(cx).map(|()| {
            Err(io::Error::new(ErrorKind::TimedOut, "the client does not read the response"))
        })
    }
}

impl AsyncWrite for WriteTimeout {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.begin_write();
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.limit(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.begin_write();
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.limit(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    // A TCP stream has no buffer to flush, and its shutdown does not wait.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    /// Drops what a peer still sends that gets its response before it has sent its request. A
    /// connection that is closed with unread bytes is reset, and the peer may lose the response.
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_shutdown(cx))?;
        if !self.may_be_sending {
            return Poll::Ready(Ok(()));
        }
        let mut bytes = [0; 4096];
        // The number of reads of one poll is limited, so that other connections are served.
        for _ in 0..16 {
            let draining = self.draining.get_or_insert_with(|| Box::pin(sleep(DRAIN_TIME)));
            if draining.poll_unpin(cx).is_ready() {
                return Poll::Ready(Ok(()));
            }
            let mut buffer = ReadBuf::new(&mut bytes);
            let is_read = Pin::new(&mut self.stream).poll_read(cx, &mut buffer);
            if ready!(is_read).is_err() || buffer.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl AsyncRead for WriteTimeout {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let is_read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        self.read = self.read.saturating_add(buffer.filled().len().saturating_sub(before));
        is_read
    }
}

/// After how many bytes of a request the peer may still be sending when its response is written.
/// The server usually has a shorter request as a whole.
const MANY_BYTES: usize = 16 * 1024;

/// How long the server drops what a peer still sends.
const DRAIN_TIME: Duration = Duration::from_secs(1);
