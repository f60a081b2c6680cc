//! A chat whose messages are in a table of the host, without a chat server. The programs `sqlite` and
//! `postgres` serve it: `cargo run -p own-table --bin sqlite`, then post to it as `useChat` does.

mod agent;
mod postgres;
mod sqlite;

use std::collections::BTreeMap;
use std::future::Future;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use ui_message_stream::approval::store::RedeemError;
use ui_message_stream::approval::{Approvals, Principal};
use ui_message_stream::axum::{LocalAddress, without_authentication};
use ui_message_stream::id::ChatId;
use ui_message_stream::policy::ChatPolicy;
use ui_message_stream::response::FinishedMessage;
use ui_message_stream::{BoxError, ChatRequest, UiMessage, UiMessageStream};
use ui_message_stream_chat::{Chat, Messages, PostedHistory, RequestEffect};

pub use self::agent::{approvals, effects};
pub use self::postgres::PostgresTable;
pub use self::sqlite::SqliteTable;

/// A chat of a user.
#[derive(Debug, Clone)]
pub struct ChatKey {
    /// The user.
    pub user: Principal,
    /// The id of the chat.
    pub chat: ChatId,
}

impl ChatKey {
    /// The user as the tables name it: without authentication, all are one user without a name.
    fn owner(&self) -> &str {
        self.user.id().unwrap_or_default()
    }
}

/// The messages of all chats, in a database.
pub trait MessageTable: Clone + Send + Sync + 'static {
    /// Returns the messages of a chat, and its version. A chat that does not exist has version 0.
    fn load(
        &self,
        key: ChatKey,
    ) -> impl Future<Output = Result<(Vec<UiMessage>, i64), BoxError>> + Send;

    /// Replaces the messages from the place `kept` on, if the chat still has this version. Returns the
    /// next version, or `None` if another request has changed the chat.
    fn replace(
        &self,
        key: ChatKey,
        version: i64,
        kept: usize,
        messages: Vec<UiMessage>,
    ) -> impl Future<Output = Result<Option<i64>, BoxError>> + Send;
}

/// Serves the chat to the pages of this machine.
///
/// # Errors
/// The address is in use.
pub async fn serve<T: MessageTable>(table: T) -> std::io::Result<()> {
    let address = format!("127.0.0.1:{}", std::env::var("PORT").unwrap_or("3000".to_owned()));
    let listener = TcpListener::bind(address).await?;
    println!("useChat can post to http://{}/api/chat", listener.local_addr()?);
    let app = app(table, approvals()).layer(without_authentication());
    axum::serve(listener, app.into_make_service_with_connect_info::<LocalAddress>()).await
}

type Rejection = (StatusCode, String);

fn conflicts(text: &str) -> Rejection {
    (StatusCode::CONFLICT, text.to_owned())
}

fn unavailable(error: BoxError) -> Rejection {
    tracing::error!(error, "the database fails");
    (StatusCode::SERVICE_UNAVAILABLE, "the chat cannot be reached; try again later".to_owned())
}

/// Returns the routes of the chat.
pub fn app<T: MessageTable>(table: T, approvals: Approvals) -> Router {
    Router::new()
        .route("/api/chat", post(chat::<T>))
        .route("/api/chat/{id}", get(history::<T>))
        // `useChat` with `resume: true` asks for an answer that is still written. Here it is never continued.
        .route("/api/chat/{id}/stream", get(async || StatusCode::NO_CONTENT))
        // Only pages of this server may read the history. Under a domain name, call `allow_host` on this policy: a layer
        // around it does not replace it.
        .layer(ChatPolicy::default())
        .with_state((table, approvals))
}

async fn chat<T: MessageTable>(
    State((table, approvals)): State<(T, Approvals)>,
    user: Principal,
    request: ChatRequest,
) -> Result<UiMessageStream, Rejection> {
    // 1. Load, and let `Chat` tell a new message from an edit, a regeneration and answers.
    let key = ChatKey { user: user.clone(), chat: request.id().clone() };
    let (mut chat, rows) = load(&table, &approvals, key).await.map_err(unavailable)?;
    let continued = match chat.apply_request(&request, PostedHistory::Keep) {
        RequestEffect::NewResponse if request.continued_message().is_none() => None,
        RequestEffect::Continues(id) => chat.message(&id).cloned(),
        // It was stored before, and not answered: the ledger or the server had failed.
        RequestEffect::NotAnswered if chat.awaits_answer_to(&request) => None,
        RequestEffect::Refused(conflict) => return Err(conflicts(&conflict.to_string())),
        // It was answered before, or its message is one that the client has invented.
        _ => return Err(conflicts("reload the page: it does not hold the current chat")),
    };

    // 2. Write the rows that changed, if the chat still has this version.
    let rows = save(&table, rows, &chat).await.map_err(unavailable)?;
    let rows = rows.ok_or_else(|| conflicts("another request has changed the chat"))?;

    // 3. Run what the user approved: from now on, even if the client disconnects before it reads.
    let running = approvals.run(&user, &request, |call, _| agent::delete_file(call)).await;
    let running = running.map_err(|error| match error {
        RedeemError::Input(error) => (StatusCode::BAD_REQUEST, error.to_string()),
        other => unavailable(other.into()),
    })?;

    // 4. Answer. A response that continues a message adds to the stored one, and not to the posted one.
    let events = agent::respond(approvals.clone(), chat.clone(), running);
    let mut response = UiMessageStream::reply(&request, events);
    if let Some(stored) = continued {
        response = response.continuing(stored);
    }

    // 5. Store the answer, and the outcomes as the ledger has them, if the chat has not changed meanwhile.
    let runtime = Handle::current();
    Ok(response.on_finish(move |end| {
        let Some(message) = end.message.and_then(FinishedMessage::whole) else { return };
        runtime.spawn(async move {
            chat.upsert_response(message);
            if let Err(error) = chat.record_outcomes(&approvals).await {
                tracing::warn!(%error, "the next request stores the outcomes of the calls");
            }
            match save(&table, rows, &chat).await {
                Ok(Some(_)) => {}
                Ok(None) => tracing::warn!("an answer is not stored: its chat has changed"),
                Err(error) => tracing::error!(error, "an answer is not stored"),
            }
        });
    }))
}

/// Returns the stored messages, for a page that is opened again.
async fn history<T: MessageTable>(
    State((table, approvals)): State<(T, Approvals)>,
    user: Principal,
    Path(id): Path<String>,
) -> Result<Json<BTreeMap<&'static str, Messages>>, Rejection> {
    let key = ChatKey { user, chat: id.into() };
    let (chat, _) = load(&table, &approvals, key).await.map_err(unavailable)?;
    Ok(Json(BTreeMap::from([("messages", chat.messages)])))
}

/// What the table holds of a chat.
struct Rows {
    key: ChatKey,
    version: i64,
    messages: Messages,
}

/// Loads a chat. It has the outcomes that the ledger knows and the rows do not: a call runs to its end also
/// when its reader leaves.
async fn load<T: MessageTable>(
    table: &T,
    approvals: &Approvals,
    key: ChatKey,
) -> Result<(Chat, Rows), BoxError> {
    let (messages, version) = table.load(key.clone()).await?;
    let mut chat = Chat::new(key.chat.clone(), key.user.clone());
    chat.messages = messages.into();
    let rows = Rows { key, version, messages: chat.messages.clone() };
    chat.record_outcomes(approvals).await?;
    Ok((chat, rows))
}

/// Writes what differs from the rows. Returns `None` if another request has changed them.
async fn save<T: MessageTable>(
    table: &T,
    rows: Rows,
    chat: &Chat,
) -> Result<Option<Rows>, BoxError> {
    let both = rows.messages.iter().zip(&chat.messages);
    let kept = both.take_while(|(row, message)| row == message).count();
    let changed = chat.messages.iter().skip(kept).cloned().collect();
    let version = table.replace(rows.key.clone(), rows.version, kept, changed).await?;
    Ok(version.map(|version| Rows { version, messages: chat.messages.clone(), ..rows }))
}
