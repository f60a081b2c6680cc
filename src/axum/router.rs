//! [`chat_routes`] and [`approval_routes`]: conversations on the server as axum routes.

use std::convert::Infallible;
use std::sync::Once;

use ::axum::Router;
use ::axum::extract::{FromRequestParts, Path, Request, State};
use ::axum::response::{IntoResponse, Response};
use ::axum::routing::{get, post};
use http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, StatusCode};
use serde::{Deserialize, Serialize};

use super::extract::read_json;
use super::policy::ChatPolicy;
use super::rejection::ChatRejection;
use crate::approval::{PersonsDecision, Principal, UnixMillis};
use crate::approvals::PendingApproval;
use crate::chat::{Chats, Decided};
use crate::history::{Answers, StopReason};
use crate::id::{ApprovalId, ChatId, ToolCallId};
use crate::json::Json;
use crate::message::UiMessage;
use crate::request::ChatRequest;
use crate::stream::Outcome;

/// The routes of a chat, to be nested where `useChat` posts to.
///
/// | route | does |
/// |---|---|
/// | `POST /` | answers what `useChat` posts; to `accept: application/json` in full, as `{"message", "stopReason", "approvals", "toolCalls"}`, with the `output` of an agent that answers in a structure |
/// | `POST /{id}/answers` | goes on with [`Answers`]: `{"toolOutputs": [{"toolCallId", "output", "status"?}, …], "decisions": [{"approvalId", "approved", "reason"?}, …]}`; answers as `POST /` |
/// | `GET /{id}` | the conversation, as `{"messages": […]}`, for a page that is opened again |
/// | `GET /{id}/stream` | `204`: there is no live response to reconnect to |
/// | `DELETE /{id}/stream` | stops what runs in the chat |
///
/// Who asks is the [`Principal`] in the request's extensions, put there by the host's
/// authentication. Without one everybody is the same nobody, who can read all chats and answer all
/// approvals, and a warning says so.
///
/// ```
/// use axum::Router;
/// use futures::stream;
/// use ui_message_stream::AgentEvent;
/// use ui_message_stream::axum::{approval_routes, chat_routes};
/// use ui_message_stream::approvals::{Approvals, NoTools};
/// use ui_message_stream::chat::{Chats, Turn};
///
/// let agent = |turn: Turn| {
///     stream::iter([AgentEvent::text(format!("{} messages so far", turn.chat.messages.len()))])
/// };
/// let chats = Chats::new(agent, Approvals::new(NoTools));
/// let app: Router = Router::new()
///     .nest("/api/chat", chat_routes(chats.clone()))
///     .nest("/api/approvals", approval_routes(chats));
/// ```
pub fn chat_routes<S: Clone + Send + Sync + 'static>(chats: Chats) -> Router<S> {
    Router::new()
        .route("/", post(answer))
        .route("/{id}", get(history))
        .route("/{id}/answers", post(go_on))
        .route("/{id}/stream", get(reconnect).delete(stop))
        .with_state(chats)
}

/// The routes by which approvals are decided from elsewhere: a second screen, a webhook, a bot.
///
/// | route | does |
/// |---|---|
/// | `GET /` | what waits for this person, as `{"approvals": […]}` |
/// | `POST /` | decides: `{"decisions": [{"approvalId", "approved", "reason"?}, …]}`, or all that waits in a chat: `{"chatId", "approved", "reason"?}` |
///
/// An approval's id stands in the body, never in a URL: URLs are logged. What is approved runs on
/// the server, and the agent goes on. The answer is `{"decisions": [{"approvalId", "approved",
/// "counts"}, …]}`; why one does not count is told to nobody.
pub fn approval_routes<S: Clone + Send + Sync + 'static>(chats: Chats) -> Router<S> {
    Router::new().route("/", get(pending).post(decide)).with_state(chats)
}

async fn answer(
    State(chats): State<Chats>,
    Asks(principal): Asks,
    headers: HeaderMap,
    request: ChatRequest,
) -> Result<Response, ChatRejection> {
    say(&chats, &principal, &headers, request).await
}

async fn go_on(
    State(chats): State<Chats>,
    Asks(principal): Asks,
    Path(id): Path<String>,
    headers: HeaderMap,
    request: Request,
) -> Result<Response, ChatRejection> {
    let (body, limits) = read_json(request, &()).await?;
    let answers = Answers::parse(&body, &limits).map_err(ChatRejection::parse)?;
    let request = chats.request_of(&principal, &id.into(), &answers).await;
    say(&chats, &principal, &headers, request.map_err(ChatRejection::chat)?).await
}

/// Answers a request, in the form that the client wants.
async fn say(
    chats: &Chats,
    principal: &Principal,
    headers: &HeaderMap,
    request: ChatRequest,
) -> Result<Response, ChatRejection> {
    if wants_json(headers) {
        let answer = chats.answer_in_full(principal, request).await;
        let answer = answer.map_err(ChatRejection::chat)?;
        return Ok(json(&Answer {
            message: answer.message.as_ref(),
            output: answer.output.as_ref(),
            stop_reason: match answer.outcome {
                Outcome::Finished => answer.stop_reason.into(),
                Outcome::Aborted => Ended::Aborted,
                _ => Ended::Error,
            },
            approvals: answer.approvals.iter().map(PendingAnswer::of).collect(),
            tool_calls: answer
                .left_to_client
                .iter()
                .map(|call| LeftToClient {
                    tool_call_id: &call.tool_call_id,
                    tool_name: &call.tool_name,
                    input: &call.input,
                })
                .collect(),
        }));
    }
    let response = chats.answer(principal, request).await.map_err(ChatRejection::chat)?;
    Ok(response.into_response())
}

async fn history(
    State(chats): State<Chats>,
    _: ChatPolicy,
    Asks(principal): Asks,
    Path(id): Path<String>,
) -> Result<Response, ChatRejection> {
    let chat = chats.chat(&principal, &id.into()).await.map_err(ChatRejection::chat)?;
    Ok(json(&History { messages: &chat.messages }))
}

/// Nothing to reconnect to looks the same in a chat of somebody else.
async fn reconnect(_: ChatPolicy, Path(_): Path<String>) -> StatusCode {
    StatusCode::NO_CONTENT
}

async fn stop(
    State(chats): State<Chats>,
    _: ChatPolicy,
    Asks(principal): Asks,
    Path(id): Path<String>,
) -> Result<StatusCode, ChatRejection> {
    chats.stop(&principal, &id.into()).await.map_err(ChatRejection::chat)?;
    Ok(StatusCode::NO_CONTENT)
}

async fn pending(
    State(chats): State<Chats>,
    _: ChatPolicy,
    Asks(principal): Asks,
) -> Result<Response, ChatRejection> {
    let pending = chats.approvals().pending(&principal).await;
    let pending = pending.map_err(|error| ChatRejection::chat(error.into()))?;
    Ok(json(&Pending { approvals: pending.iter().map(PendingAnswer::of).collect() }))
}

async fn decide(
    State(chats): State<Chats>,
    Asks(principal): Asks,
    request: Request,
) -> Result<Response, ChatRejection> {
    let (body, limits) = read_json(request, &()).await?;
    let decisions = match serde_json::from_slice(&body) {
        Ok(Decisions { decisions: Some(decisions), chat_id: None, .. }) => {
            limits.take_answers(decisions.len()).map_err(ChatRejection::parse)?;
            decisions
        }
        Ok(Decisions {
            decisions: None,
            chat_id: Some(chat),
            approved: Some(approved),
            reason,
        }) => {
            let waiting = chats.approvals().of_chat(&principal, &chat).pending().await;
            let waiting = waiting.map_err(|error| ChatRejection::chat(error.into()))?;
            let own = waiting.into_iter().filter(|pending| pending.record.requester == principal);
            let decided = own.map(|PendingApproval { approval_id, .. }| PersonsDecision {
                approval_id,
                approved,
                reason: reason.clone(),
            });
            decided.collect()
        }
        Ok(_) => return Err(ChatRejection::no_decisions()),
        Err(error) => return Err(ChatRejection::body(error.into())),
    };
    let decided = chats.decide(&principal, decisions).await.map_err(ChatRejection::chat)?;
    let decisions = decided.iter().map(|Decided { decision, counts, .. }| DecidedAnswer {
        approval_id: &decision.approval_id,
        approved: decision.approved,
        counts: *counts,
    });
    Ok(json(&DecidedAnswers { decisions: decisions.collect() }))
}

/// Whether a client asks for JSON, and not for a stream of events. What `useChat` sends says
/// neither.
fn wants_json(headers: &HeaderMap) -> bool {
    let accepts = |media_type: &str| {
        headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok()).any(|value| {
            let mut types = value.split(',').map(|item| item.split(';').next().unwrap_or_default());
            types.any(|item| item.trim().eq_ignore_ascii_case(media_type))
        })
    };
    accepts("application/json") && !accepts("text/event-stream")
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Answer<'a> {
    message: Option<&'a UiMessage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<&'a Json>,
    stop_reason: Ended,
    approvals: Vec<PendingAnswer<'a>>,
    tool_calls: Vec<LeftToClient<'a>>,
}

/// A call that the client is to run.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct LeftToClient<'a> {
    tool_call_id: &'a ToolCallId,
    tool_name: &'a str,
    input: &'a Json,
}

#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum Ended {
    Aborted,
    Error,
    #[serde(untagged)]
    Because(StopReason),
}

impl From<StopReason> for Ended {
    fn from(reason: StopReason) -> Self {
        Ended::Because(reason)
    }
}

#[derive(Serialize)]
struct History<'a> {
    messages: &'a [UiMessage],
}

#[derive(Serialize)]
struct Pending<'a> {
    approvals: Vec<PendingAnswer<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PendingAnswer<'a> {
    approval_id: &'a ApprovalId,
    chat_id: &'a ChatId,
    tool_call_id: &'a ToolCallId,
    tool_name: &'a str,
    input: &'a Json,
    description: &'a str,
    requested_at: UnixMillis,
    expires_at: UnixMillis,
}

impl<'a> PendingAnswer<'a> {
    fn of(PendingApproval { approval_id, record, .. }: &'a PendingApproval) -> Self {
        PendingAnswer {
            approval_id,
            chat_id: &record.chat_id,
            tool_call_id: &record.tool_call_id,
            tool_name: &record.tool_name,
            input: &record.input,
            description: &record.description,
            requested_at: record.requested_at,
            expires_at: record.expires_at,
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Decisions {
    decisions: Option<Vec<PersonsDecision>>,
    chat_id: Option<ChatId>,
    approved: Option<bool>,
    reason: Option<String>,
}

#[derive(Serialize)]
struct DecidedAnswers<'a> {
    decisions: Vec<DecidedAnswer<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct DecidedAnswer<'a> {
    approval_id: &'a ApprovalId,
    approved: bool,
    counts: bool,
}

fn json(value: &impl Serialize) -> Response {
    match serde_json::to_vec(value) {
        Ok(body) => {
            let json = HeaderValue::from_static("application/json");
            // What it holds is for one person, and an approval's id is as good as a key.
            let no_store = HeaderValue::from_static("no-store");
            ([(CONTENT_TYPE, json), (CACHE_CONTROL, no_store)], body).into_response()
        }
        Err(error) => {
            tracing::error!(%error, "an answer does not serialize");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

/// Who asks, as the host's authentication says.
struct Asks(Principal);

impl<S: Send + Sync> FromRequestParts<S> for Asks {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        static WARNED: Once = Once::new();
        Ok(Asks(parts.extensions.get::<Principal>().cloned().unwrap_or_else(|| {
            WARNED.call_once(|| {
                tracing::warn!(
                    "requests come without a `Principal` in their extensions: everybody is the \
                     same anonymous person, who can read all chats and answer all approvals"
                );
            });
            Principal::anonymous()
        })))
    }
}
