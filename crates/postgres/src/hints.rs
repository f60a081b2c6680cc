//! [`Hints`]: wakes the readers of logs that have changed.
//!
//! Each call that changes logs notifies the channel of the schema. One connection of each
//! server listens. A notification only tells a reader to read: it may be lost.

use std::fmt::Write as _;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sha2::{Digest, Sha256};
use tokio::time::sleep;
use tokio_postgres::{AsyncMessage, Config, NoTls, SimpleQueryMessage};
use ui_message_stream::approval::Principal;
use ui_message_stream_chat::store::LogKey;
use ui_message_stream_chat::store::rows::{Known, Waiters};

use crate::error::DbResult;
use crate::{STATEMENT_TIMEOUT, owner_key, within_time};

/// The logs that readers of this process wait for, by the digests of their keys, and the lists, by those of
/// their owners.
#[derive(Debug, Default)]
pub(crate) struct Hints {
    waiters: Waiters<String>,
    is_connected: AtomicBool,
}

impl Hints {
    /// Waits until a log has more than `after` entries or was deleted.
    ///
    /// The first wait for a log ends at once: what has changed before is not known, and the caller
    /// looks again.
    pub(crate) async fn changed(&self, digest: String, after: u64) {
        let wait = self.waiters.wait(digest, after);
        if !self.is_connected.load(Ordering::Acquire) {
            sleep(POLL_INTERVAL).await;
        } else if let Some(wait) = wait.filter(|wait| !wait.is_first) {
            wait.changed().await;
        }
    }

    /// Handles a notification, which names the logs that one transaction has changed.
    fn add(&self, notification: &str) {
        notification.split(',').for_each(|hint| self.add_one(hint));
    }

    /// Handles the part of a notification about one log: its length, whether it was deleted, the digest of its key, and
    /// that of its owner if the list of the owner has changed.
    fn add_one(&self, hint: &str) {
        let mut words = hint.split(' ');
        let length = words.next().and_then(|word| word.parse().ok());
        let is_deleted = words.next() == Some("1");
        let digest = words.next();
        let (Some(length), Some(digest)) = (length, digest) else { return };
        self.waiters.with(digest, |log| {
            if is_deleted {
                return log.deleted();
            }
            // They come in the order of the commits. The length may be of another log than what was known.
            log.reset();
            log.appended(length);
        });
        if let Some(owner) = words.next() {
            self.waiters.with(owner, Known::reset);
        }
    }

    /// Sets whether the notifications of all changes arrive from now on. Forgets what is known and
    /// wakes all readers, so that they look for themselves.
    fn set_connected(&self, is_connected: bool) {
        self.is_connected.store(is_connected, Ordering::Release);
        self.waiters.clear();
    }
}

/// Listens until the store is dropped.
pub(crate) async fn listen(hints: Arc<Hints>, config: Config, channel: Box<str>) {
    loop {
        if let Err(failure) = listen_once(&hints, &config, &channel).await {
            tracing::debug!(error = %failure.0, "the connection that listens to changes of logs is lost");
        }
        hints.set_connected(false);
        sleep(POLL_INTERVAL).await;
    }
}

/// Listens until the connection is lost.
async fn listen_once(hints: &Hints, config: &Config, channel: &str) -> DbResult<()> {
    let (client, mut connection) = within_time(async { Ok(config.connect(NoTls).await?) }).await?;
    let listen = format!("LISTEN \"{channel}\"");
    // PgBouncer shares sessions, and ignores what `PostgresOptions` sets: then no notifications arrive.
    let own = format!("{}ms", STATEMENT_TIMEOUT.as_millis());
    let is_own = |message: &SimpleQueryMessage| matches!(message, SimpleQueryMessage::Row(row) if row.get(0) == Some(&own));
    let listens = async {
        let show = async { Ok(client.simple_query("SHOW statement_timeout").await?) };
        let is_session = within_time(show).await?.iter().any(is_own);
        let mut is_listening = false;
        loop {
            // Repeated, because a Postgres that hangs does not close the connection.
            within_time(async { Ok(client.batch_execute(&listen).await?) }).await?;
            if !is_listening {
                is_listening = true;
                hints.set_connected(is_session);
            }
            sleep(TICK).await;
            hints.waiters.forget_idle();
        }
    };
    let notifications = async {
        while let Some(message) = poll_fn(|context| connection.poll_message(context)).await {
            if let AsyncMessage::Notification(notification) = message? {
                hints.add(notification.payload());
            }
        }
        Ok(())
    };
    tokio::select! {
        ended = listens => ended,
        ended = notifications => ended,
    }
}

/// Returns the digest of the key of a log, as notifications name it.
pub(crate) fn log_digest(key: &LogKey) -> String {
    let owner = owner_key(&key.owner);
    digest(&[owner.as_bytes(), b"\0", key.chat.as_bytes()].concat())
}

/// Returns the digest of an owner, as notifications name it.
pub(crate) fn list_digest(owner: &Principal) -> String {
    digest(owner_key(owner).as_bytes())
}

fn digest(bytes: &[u8]) -> String {
    // Two logs with the same digest wake each other's readers.
    Sha256::digest(bytes).iter().take(8).fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// How often a reader looks while no notifications arrive, and how often they are tried.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// How often the connection is tested, and logs without a reader are forgotten.
const TICK: Duration = Duration::from_secs(5);
