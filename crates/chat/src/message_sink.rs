//! [`MessageSink`]: gets the messages of chats, for a host that keeps tables of its own.

use std::sync::Arc;

use super::store::{Epoch, LogKey};
use ui_message_stream::message::UiMessage;
use ui_message_stream::{BoxError, BoxFuture};

/// Gets the messages of each chat of a [`ChatServer`](super::ChatServer).
///
/// Each change is delivered at least once: when a run has ended, when a user has sent or edited a message, when
/// a call got its result between two runs, and when the chat was deleted or its time has passed. Changes that
/// follow each other quickly can be one delivery, with what is newest. What a live run has written is delivered
/// when the run has ended. No request waits for a delivery, and an error of the sink changes no chat.
///
/// One server delivers the changes of a chat one after another. A sink that fails, panics, or takes longer than
/// 30 seconds, gets the newest messages of the chat again within a minute, or with the next change. Several servers can
/// deliver changes of one chat at the same time, so the sink compares: of two deliveries of a chat, the one with the
/// higher [epoch](MessageDelivery::epoch) is newer, with one epoch that with the higher
/// [position](MessageDelivery::position), and the sink ignores the older one.
///
/// ```
/// use ui_message_stream_chat::{ChatServer, MessageChange, MessageDelivery};
///
/// fn with_log(chats: ChatServer) -> ChatServer {
///     chats.with_message_sink(async |delivery: MessageDelivery| {
///         match delivery.change {
///             MessageChange::Messages { first, messages } => {
///                 println!("{}: {} messages from {first} on", delivery.key.chat, messages.len());
///             }
///             MessageChange::Deleted => println!("{}: deleted", delivery.key.chat),
///         }
///         Ok(())
///     })
/// }
/// # let _ = with_log;
/// ```
pub trait MessageSink: Send + Sync + 'static {
    /// Takes a change. The future is dropped after 30 seconds, and when the server has shut down.
    ///
    /// # Errors
    /// Any error: it is logged, and the chat is delivered again.
    fn deliver(&self, delivery: MessageDelivery) -> BoxFuture<'_, Result<(), BoxError>>;
}

/// A change of the messages of a chat.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct MessageDelivery {
    /// The chat.
    pub key: LogKey,
    /// Which of the logs that the chat had. A chat that was deleted and begun again has a higher epoch: its
    /// messages replace all earlier ones.
    pub epoch: Epoch,
    /// How much of the log these messages are the result of. Of two deliveries of one epoch, the one with the
    /// higher position is newer. A deletion has the highest one.
    pub position: u64,
    /// What has changed.
    pub change: MessageChange,
}

/// What has changed in a chat.
#[derive(Clone)]
pub enum MessageChange {
    /// The messages from the index `first` on are these, and there are no further ones. Those before are as in
    /// the delivery that this server has made before, and that the sink has taken. In the first delivery of a
    /// server, after an error, and in that of another epoch, `first` is 0. A sink that lacks one of the messages
    /// before returns an error, and gets all of them.
    Messages {
        /// The index of the first of these messages.
        first: usize,
        /// The messages.
        messages: Vec<Arc<UiMessage>>,
    },
    /// The chat was deleted, or its time has passed.
    Deleted,
}

impl std::fmt::Debug for MessageChange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            MessageChange::Messages { first, messages } => {
                let mut debug = f.debug_struct("Messages");
                debug.field("first", first).field("messages", &messages.len()).finish()
            }
            MessageChange::Deleted => f.write_str("Deleted"),
        }
    }
}

impl<F, Fut> MessageSink for F
where
    F: Fn(MessageDelivery) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), BoxError>> + Send + 'static,
{
    fn deliver(&self, delivery: MessageDelivery) -> BoxFuture<'_, Result<(), BoxError>> {
        Box::pin(self(delivery))
    }
}
