//! Delivers what was changed in the chats to the sink of the host.

use std::sync::Weak;
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

/// Delivers what is in the queue of the sink, and what the store has besides, until the server is dropped or
/// closed.
pub(super) async fn deliver_often(chats: &Weak<Inner>) {
    let Some(server) = chats.upgrade() else { return };
    let Some(sink) = server.sink.clone() else { return };
    let closed = server.shutdown.closed();
    drop(server);
    let lanes = (0..AT_ONCE).map(async |_| {
        loop {
            deliver_next(chats, sink.next().await).await;
        }
    });
    let lanes = future::select(Box::pin(closed), future::join_all(lanes));
    future::select(Box::pin(add_undelivered(chats, &sink)), lanes).await;
    sink.close();
}

/// Adds what is undelivered in the store to the queue: what other servers have left, and what has failed. Ends when
/// the server is dropped.
async fn add_undelivered(chats: &Weak<Inner>, sink: &Sink) {
    // A server that gets another setting is replaced, and has to deliver nothing.
    let mut pause = SHORT_PAUSE;
    loop {
        sleep(pause).await;
        let Some(chats) = chats.upgrade() else { return };
        let limit = sink.room().min(PAGE);
        pause = PAUSE;
        if limit == 0 || chats.shutdown.has_begun() {
            continue;
        }
        match chats.logs.undelivered(limit, RETRY_AFTER).await {
            Ok(page) => {
                if page.len() == limit {
                    pause = SHORT_PAUSE;
                }
                page.into_iter().for_each(|next| chats.deliver_later(next));
            }
            Err(error) => {
                tracing::warn!(error = log_causes(&error), "undelivered chats were not read");
            }
        }
    }
}

async fn deliver_next(chats: &Weak<Inner>, delivering: Delivering) {
    let chat_id = delivering.next.key.chat.clone();
    // A panic of the sink ends its task.
    let delivery = tokio::spawn(deliver(Weak::clone(chats), delivering));
    let error = match delivery.await {
        Ok(Ok(())) => return,
        Ok(Err(error)) => log_causes(&*error),
        Err(_) => "the delivery has panicked".to_owned(),
    };
    tracing::warn!(chat_id = chat_id.as_str(), error, "a chat was not delivered, and is later");
}

/// Delivers what is newest of a chat.
async fn deliver(chats: Weak<Inner>, delivering: Delivering) -> Result<(), BoxError> {
    let Some(closed) = chats.upgrade().map(|chats| chats.shutdown.closed()) else { return Ok(()) };
    let deliver = Box::pin(deliver_newest(chats, &delivering));
    match future::select(deliver, Box::pin(closed)).await {
        Either::Left((result, _)) => result,
        Either::Right(_) => Err("the server has shut down".into()),
    }
}

/// Keeps the server only while the store is asked.
async fn deliver_newest(chats: Weak<Inner>, delivering: &Delivering) -> Result<(), BoxError> {
    let Undelivered { key, epoch, .. } = &delivering.next;
    // The chat may have been deleted since, or have begun again.
    let Some(server) = chats.upgrade() else { return Ok(()) };
    let view = in_time(delivering, server.load_state(key)).await??;
    drop(server);
    let (epoch, position) = match &view {
        Some(view) => (view.head.epoch, view.state.length()),
        None => (*epoch, Undelivered::DELETED),
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
    in_time(delivering, delivering.sink.host.deliver(delivery)).await??;

    let Some(server) = chats.upgrade() else { return Ok(()) };
    let delivered = Undelivered { key: key.clone(), epoch, position };
    match in_time(delivering, server.logs.acknowledge(&delivered)).await?? {
        None => delivering.was_taken(epoch, messages.as_ref()),
        // The sink may have got this after something newer.
        Some(newer) if newer > delivering.next => server.deliver_later(newer),
        Some(_) => {}
    }
    Ok(())
}

/// Waits for the store or the sink, for a limited time.
async fn in_time<T>(
    delivering: &Delivering,
    operation: impl Future<Output = T>,
) -> Result<T, String> {
    timeout(MAX_TIME, operation).await.map_err(|_| {
        delivering.was_slow();
        format!("it took longer than {MAX_TIME:?}")
    })
}

/// How many chats are delivered at once.
const AT_ONCE: usize = 16;

/// How long the sink may take, and each operation of the store.
const MAX_TIME: Duration = Duration::from_secs(30);

/// How many undelivered chats are read at once.
const PAGE: usize = 100;

/// For how long no other server reads what was read, if it does not change.
const RETRY_AFTER: Duration = Duration::from_secs(40);

/// How long the server waits before it reads what is undelivered, if it has read all.
const PAUSE: Duration = Duration::from_secs(15);

/// How long the server waits before it reads more.
const SHORT_PAUSE: Duration = Duration::from_millis(250);
