//! Delivers what has changed in the chats to the sink of the host.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::Either;
use futures_util::{FutureExt, StreamExt, future, stream};
use tokio::time::timeout;

use super::inner::Inner;
use super::log::decision::View;
use super::message_sink::{MessageChange, MessageDelivery};
use super::shutdown::Counted;
use super::sink::{AT_ONCE, Delivering, Sink, Taken};
use super::store::Undelivered;
use ui_message_stream::BoxError;
use ui_message_stream::id::log_causes;

impl Sink {
    /// Delivers what is undelivered, by whichever server it was changed.
    pub(super) async fn sweep(chats: &Arc<Inner>) {
        loop {
            let page = match chats.logs.undelivered(PAGE, RETRY_AFTER).await {
                Ok(page) => page,
                Err(error) => {
                    tracing::warn!(error = log_causes(&error), "undelivered chats were not read");
                    return;
                }
            };
            let is_last = page.len() < PAGE;
            let begun = page.into_iter().filter_map(|next| Self::begun(chats, next));
            stream::iter(begun).for_each_concurrent(AT_ONCE, |begun| begun).await;
            if is_last || chats.shutdown.has_begun() {
                return;
            }
        }
    }

    /// Delivers a change on a task of its own.
    pub(super) fn deliver_later(chats: &Arc<Inner>, next: Undelivered) {
        if let Some(begun) = Self::begun(chats, next) {
            tokio::spawn(begun);
        }
    }

    /// Begins to deliver a change. Returns `None` if it follows a delivery of its chat that is under way, and
    /// if the server has no sink or has shut down.
    fn begun(
        chats: &Arc<Inner>,
        next: Undelivered,
    ) -> Option<impl Future<Output = ()> + Send + use<>> {
        let sink = chats.sink.as_ref()?;
        let counted = chats.shutdown.count_delivery()?;
        Some(deliver_all(Arc::clone(chats), sink.begin(next)?, counted))
    }

    /// Delivers a change with what is newest. Returns what has to follow.
    async fn deliver(
        &self,
        chats: &Inner,
        next: Undelivered,
    ) -> Result<Option<Undelivered>, BoxError> {
        let Undelivered { key, epoch, position } = next;
        let view = match position {
            Undelivered::DELETED => None,
            _ => chats.load_state(&key).await?.filter(|view| view.head.epoch == epoch),
        };
        let taken = self.take_taken(&key);
        let (position, messages) = match view {
            Some(View { state, .. }) => (state.length(), Some(state.into_settled_messages())),
            None => (Undelivered::DELETED, None),
        };
        let change = match &messages {
            Some(messages) => {
                let first = taken.map_or(0, |taken| taken.prefix_of(epoch, messages));
                let changed = (first..messages.len()).filter_map(|at| messages.shared(at).cloned());
                MessageChange::Messages { first, messages: changed.collect() }
            }
            None => MessageChange::Deleted,
        };
        let delivery = MessageDelivery { key: key.clone(), epoch, position, change };
        let delivered = AssertUnwindSafe(async { self.sink.deliver(delivery).await });
        match timeout(MAX_TIME, delivered.catch_unwind()).await {
            Ok(Ok(taken)) => taken?,
            Ok(Err(_)) => return Err("the sink panicked".into()),
            Err(_) => return Err(format!("the sink has taken longer than {MAX_TIME:?}").into()),
        }
        let delivered = Undelivered { key, epoch, position };
        let newer = chats.logs.acknowledge(&delivered).await?;
        if let (None, Some(messages)) = (&newer, messages) {
            self.set_taken(delivered.key, Taken::of(epoch, &messages));
        }
        Ok(newer)
    }
}

/// Delivers the changes of a chat one after another, until there are no more, the sink or the store fails, or
/// the server closes. What is left then stays in the store.
async fn deliver_all(chats: Arc<Inner>, mut delivering: Delivering, _counted: Counted) {
    let sink = Arc::clone(&delivering.sink);
    let deliver = async {
        // The semaphore is never closed.
        let _permit = sink.at_once.acquire().await;
        while let Some(next) = delivering.next() {
            match sink.deliver(&chats, next).await {
                Ok(newer) => delivering.add(newer),
                Err(error) => {
                    let (chat_id, error) = (delivering.key.chat.as_str(), log_causes(&*error));
                    tracing::warn!(chat_id, error, "a chat was not delivered, and is later");
                    return;
                }
            }
        }
    };
    let closed = chats.shutdown.closed();
    if let Either::Right(_) = future::select(Box::pin(deliver), Box::pin(closed)).await {
        tracing::warn!("a delivery has not ended, because the server has shut down");
    }
}

/// How many undelivered chats are read at once.
const PAGE: usize = 100;

/// For how long no other server delivers what was read. It ends before the next sweep of this server.
const RETRY_AFTER: Duration = Duration::from_secs(50);

/// How long a sink may take.
const MAX_TIME: Duration = Duration::from_secs(30);
