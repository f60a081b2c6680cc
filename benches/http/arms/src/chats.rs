//! The chat server of this repository, behind an agent of the host. It stores each conversation in memory, and clients
//! can rejoin a response.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use axum::Router;
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use bench_work::said;
use futures::Stream;
use ui_message_stream::AgentEvent;
use ui_message_stream::approval::{Approvals, EmptyToolbox, Principal};
use ui_message_stream_chat::axum::chat_routes;
use ui_message_stream_chat::{ChatServer, Turn};

use crate::events::{answer, text_at_pace};

pub(crate) fn routes(deltas: usize) -> Router {
    let (text, outputs) = (said(bench_work::text()), said(bench_work::outputs()));
    Router::new()
        .nest("/text", chat_routes(server(move || answer(text))))
        .nest("/outputs", chat_routes(server(move || answer(outputs))))
        .nest("/paced", chat_routes(server(move || text_at_pace(deltas))))
        .layer(from_fn(sign_in))
}

fn server<S>(agent: impl Fn() -> S + Send + Sync + 'static) -> ChatServer
where
    S: Stream<Item = AgentEvent> + Send + 'static,
{
    ChatServer::new(move |_: Turn| agent(), Approvals::new(EmptyToolbox))
}

/// Makes each request that of a new user, because the number of live runs of a user is limited.
pub(crate) async fn sign_in(mut request: Request, next: Next) -> Response {
    static USERS: AtomicUsize = AtomicUsize::new(0);
    let user = format!("user-{}", USERS.fetch_add(1, Relaxed));
    request.extensions_mut().insert(Principal::new(user));
    next.run(request).await
}
