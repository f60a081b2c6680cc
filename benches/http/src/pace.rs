//! Responses at the pace of a model: how late a delta arrives, and what it costs the server.

use std::cell::RefCell;
use std::io::Result;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use bench_work::{MARK, unix_nanoseconds};
use tokio::task::spawn_local;
use tokio::time::{Instant, sleep_until};

use crate::load::{Client, connect, join};

/// What arrived in the time that was measured.
#[derive(Default)]
pub(crate) struct Arrived {
    is_measuring: bool,
    /// For each delta, the time from its writing to its arrival, in nanoseconds.
    pub(crate) delays: Vec<u64>,
}

/// Reads so many paced responses. They begin within one second. Measures for `time` after that: calls `begin`, and `end`.
///
/// # Errors
/// If a connection fails, or a response has another status than 200.
pub(crate) async fn read_paced(
    address: SocketAddr,
    streams: usize,
    time: Duration,
    begin: impl FnOnce(),
    end: impl FnOnce(),
) -> Result<Arrived> {
    let (client, arrived) = (Client::new(), Rc::new(RefCell::new(Arrived::default())));
    let begun = Instant::now();
    let mut tasks = Vec::with_capacity(streams);
    for number in 0..streams {
        let (client, arrived) = (client.clone(), arrived.clone());
        let at = begun + RAMP.mul_f64(number as f64 / streams as f64);
        tasks.push(spawn_local(async move {
            sleep_until(at).await;
            let mut connection = connect(address).await?;
            client.send(&mut connection, "/paced").await?;
            client.read(&connection, &mut |bytes| arrived.borrow_mut().take(bytes)).await
        }));
    }
    sleep_until(begun + RAMP + Duration::from_millis(200)).await;
    begin();
    arrived.borrow_mut().is_measuring = true;
    sleep_until(Instant::now() + time).await;
    arrived.borrow_mut().is_measuring = false;
    end();
    join(tasks).await?;
    Ok(arrived.take())
}

const RAMP: Duration = Duration::from_secs(1);

impl Arrived {
    /// Finds the times in what was read. One that is cut by the end of a read is left out.
    fn take(&mut self, bytes: &[u8]) {
        if !self.is_measuring {
            return;
        }
        let now = unix_nanoseconds();
        let mut rest = bytes;
        while let Some(at) = rest.windows(MARK.len()).position(|some| some == MARK.as_bytes()) {
            rest = &rest[at + MARK.len()..];
            let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
            if digits < rest.len() {
                let time = rest[..digits]
                    .iter()
                    .fold(0, |time, digit| time * 10 + u64::from(digit - b'0'));
                self.delays.push(now.saturating_sub(time));
            }
        }
    }
}
