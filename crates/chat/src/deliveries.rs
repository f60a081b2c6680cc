//! Delivers what is undelivered in the store to the sink of the host.

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::{self, Either};
use tokio::time::{sleep, timeout};

use super::inner::Inner;
use super::log::decision::View;
use super::message_sink::{MessageChange, MessageDelivery};
use super::sink::{Delivering, Sink};
use super::store::Undelivered;
use ui_message_stream::BoxError;
use ui_message_stream::id::log_causes;

/// Delivers what is undelivered, by whichever server it was changed, until the server is dropped or closed. Each of
/// [`AT_ONCE`] lanes delivers the chat that waits longest, when it gets a hint. If there was one, it gives
/// the next lane a hint.
pub(super) async fn deliver_often(chats: &Weak<Inner>) {
    let Some(sink) = chats.upgrade().and_then(|chats| chats.sink.clone()) else { return };
    let lanes = (0..AT_ONCE).map(async |_| {
        loop {
            let hinted = sink.hint().await;
            if let Some(chats) = chats.upgrade().filter(|chats| !chats.shutdown.is_closed()) {
                deliver_next(&chats, &sink).await;
            }
            drop(hinted);
        }
    });
    // What other servers have left, and what has failed.
    let hints = async {
        while let Some(chats) = chats.upgrade().filter(|chats| !chats.shutdown.is_closed()) {
            if !chats.shutdown.has_begun() {
                sink.give_hint(&chats.shutdown);
            }
            drop(chats);
            sleep(HINT_INTERVAL).await;
        }
    };
    future::select(Box::pin(hints), future::join_all(lanes)).await;
}

async fn deliver_next(chats: &Arc<Inner>, sink: &Arc<Sink>) {
    let mut page = match timeout(MAX_TIME, chats.logs.undelivered(1, RETRY_AFTER)).await {
        Ok(Ok(page)) => page,
        Ok(Err(error)) => {
            tracing::warn!(error = log_causes(&error), "undelivered chats were not read");
            return;
        }
        Err(_) => {
            tracing::warn!("undelivered chats were not read in {MAX_TIME:?}");
            return;
        }
    };
    let Some(next) = page.pop() else { return };
    sink.give_hint(&chats.shutdown);
    let Some(delivering) = sink.begin(next.key.clone()) else { return };
    let chat_id = next.key.chat.clone();
    // A panic of the sink ends its task.
    let delivery = tokio::spawn(deliver_all(Arc::clone(chats), delivering, next));
    let error = match delivery.await {
        Ok(Ok(())) => return,
        Ok(Err(error)) => log_causes(&*error),
        Err(_) => "the sink has panicked".to_owned(),
    };
    tracing::warn!(chat_id = chat_id.as_str(), error, "a chat was not delivered, and is later");
}

/// Delivers a chat until there is nothing newer.
async fn deliver_all(
    chats: Arc<Inner>,
    mut delivering: Delivering,
    first: Undelivered,
) -> Result<(), BoxError> {
    let deliver = async {
        let mut next = Some(first);
        while let Some(undelivered) = next {
            let delivered = timeout(MAX_TIME, deliver(&chats, &mut delivering, undelivered)).await;
            next = delivered.map_err(|_| format!("it took longer than {MAX_TIME:?}"))??;
        }
        Ok(())
    };
    let closed = Box::pin(chats.shutdown.closed());
    match future::select(Box::pin(deliver), closed).await {
        Either::Left((result, _)) => result,
        Either::Right(_) => Err("the server has shut down".into()),
    }
}

/// Delivers what is newest of a chat. Returns what has to follow.
async fn deliver(
    chats: &Inner,
    delivering: &mut Delivering,
    next: Undelivered,
) -> Result<Option<Undelivered>, BoxError> {
    let key = &next.key;
    // The chat may have been deleted since, or have begun again.
    let view = chats.load_state(key).await?;
    let (epoch, position) = match &view {
        Some(view) => (view.head.epoch, view.state.length()),
        None => (next.epoch, Undelivered::DELETED),
    };
    let messages = view.map(|View { state, .. }| state.into_settled_messages());
    let change = match &messages {
        Some(messages) => {
            let first = delivering.take_prefix(epoch, messages);
            let changed = (first..messages.len()).filter_map(|at| messages.shared(at).cloned());
            MessageChange::Messages { first, messages: changed.collect() }
        }
        None => MessageChange::Deleted,
    };
    let delivery = MessageDelivery { key: key.clone(), epoch, position, change };
    delivering.sink.sink.deliver(delivery).await?;
    // What was undelivered was there before the chat was loaded.
    let delivered = Undelivered { key: key.clone(), epoch, position }.max(next);
    let newer = chats.logs.acknowledge(&delivered).await?;
    if newer.is_none() {
        delivering.end(epoch, messages.as_ref());
    }
    Ok(newer)
}

/// How many chats are delivered at once.
const AT_ONCE: usize = 16;

/// After this time a delivery has failed.
const MAX_TIME: Duration = Duration::from_secs(30);

/// For how long no other server delivers what was read, if nothing changes.
const RETRY_AFTER: Duration = Duration::from_secs(40);

/// How often it is looked for what is undelivered, if no hint comes.
const HINT_INTERVAL: Duration = Duration::from_secs(15);
