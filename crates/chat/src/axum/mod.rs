//! [`chat_routes`] and [`approval_routes`]: the axum routes of a [`ChatServer`].

mod answers;
mod history;
mod user_chats;

use ::axum::Router;
use ::axum::body::Body;
use ::axum::extract::{Path, RawQuery, State};
use ::axum::response::{IntoResponse, Response};
use ::axum::routing::{get, post};
use http::header::{ACCEPT, CACHE_CONTROL};
use http::{HeaderMap, HeaderName, Method, StatusCode};
use serde::{Deserialize, Serialize};

use self::answers::{NOT_CACHED, chat_id, json, large_json};
use self::history::{HistoryPage, query_parameter};
use self::user_chats::{decoded, delete, delete_all, list, rename};
use crate::conversation::model_ids::without_model_ids;
use crate::conversation::{check_decisions, json_len};
use crate::{ChatError, ChatServer, ChatStream, ClientAnswers, DecisionReceipt, StopReason};
use ui_message_stream::approval::{
    ApprovalDecision, EditableInput, InboxQuery, PendingApproval, Principal, UnixMillis,
};
use ui_message_stream::axum::JsonBody;
use ui_message_stream::axum::{ChatRejection, ChatRejectionKind};
use ui_message_stream::id::{ApprovalId, ChatId, ToolCallId};
use ui_message_stream::json::{FieldError, Json, optional_text};
use ui_message_stream::message::UiMessage;
use ui_message_stream::policy::ChatPolicy;
use ui_message_stream::request::ChatRequest;
use ui_message_stream::response::ResponseOutcome;

/// Creates the routes of a [`ChatServer`]. Nest them under the path to which `useChat` posts.
///
/// | route | does |
/// |---|---|
/// | `POST /` | Answers the request of `useChat` with a stream. `approvalInputs` holds [changed inputs](ChatRequest::approval_inputs). With `Accept: application/json` the response is the complete `{"message", "stopReason", "approvals", "toolCalls"}`, and has the field `output` if the agent produces structured output. |
/// | `POST /{id}/answers` | Continues the conversation with [`ClientAnswers`]: `{"toolOutputs": [{"toolCallId", "output", "status"?}, …], "decisions": [{"approvalId", "approved", "reason"?, "input"?}, …]}`, or one output, or a list of outputs. `input` is as of [`approval_routes`]. The response is as of `POST /`. |
/// | `GET /` | Returns the newest 20 conversations of the user as `{"chats": [{"id", "title", "updatedAt", "isLive", "hasQuestions", "version"}, …], "after"?}`, the last changed first. `limit` sets another number, up to 100. A response has `after` if there are more: `GET /?after=…` returns the next page. `search` selects those whose title contains a text; upper and lower case of ASCII letters are the same. |
/// | `GET /?events` | Follows these conversations with server-sent events, as [`ChatServer::follow`] does: `chats` with what `GET /` returns, then `chat` for each one that has changed, and `deleted` with `{"id"}`. `limit` is as of `GET /`. |
/// | `GET /{id}` | Returns the newest 100 messages of the conversation as `{"messages": […], "before"?, "after"?, "version", "ended"?}`, oldest first, for a page that is opened again. `ended` is how the last answer has ended: `finished`, `stopped`, `failed`, `interrupted` or `limit`; it is absent while one is written, and on pages of older messages. A response has `before` if there are older messages: `GET /{id}?before=…` returns up to 100 of them. It has `after` if there are newer ones: `GET /{id}?after=…` returns up to 100 of them. |
/// | `PATCH /{id}` | Renames the conversation to the `title` of `{"title"}`, up to 200 characters, and returns `204`. |
/// | `DELETE /` | Deletes all conversations of the user, as `DELETE /{id}` does, and returns `204`. |
/// | `DELETE /{id}` | Deletes the conversation with its live run and its pending approval requests, as [`ChatServer::delete`] does, and returns `204`, also if there is none. |
/// | `GET /{id}/stream` | Streams the live run of the conversation from its beginning, for a page that is opened again. With the header `Last-Event-ID`, streams the frames after that one, also of a run that has ended in the last 10 minutes. Otherwise returns `204`. |
/// | `DELETE /{id}/stream` | Stops the live run of the conversation, if it has one, keeps what it has written, and returns `204`. |
///
/// `title` is the beginning of the first text of the user, unless it was renamed, and may be empty. `updatedAt` is the time of
/// the last change in milliseconds, as `Date` takes it. `isLive` is whether a run writes, `hasQuestions`
/// whether an answer of the user is waited for, and `version` grows with each change of the messages. A
/// conversation that changes while the pages are read moves to the first page.
///
/// `{id}` is the id of the conversation: the `id` that the page passes to `useChat`. A conversation
/// belongs to its user, and two users may have conversations with the same id. The routes respond to
/// the id of another user's conversation as to an id that is not in use. A run continues
/// after a disconnect. To stop it, a page calls `stop()` and then `DELETE /{id}/stream`.
///
/// A `POST` that is delivered twice changes nothing. The second one gets the live run that answers
/// it, or the stored message. If there is none, the response is `409`. If the user has too many live
/// runs, the response to a `POST` is `429`, with the header `Retry-After`. A user who reads too many
/// responses gets `429` too, also for `GET /{id}/stream`, `GET /?events` and a large page of `GET /{id}`.
///
/// The version of the clients, and whether they can answer approval requests, are settings of the
/// server: [`ChatServer::with_version`], [`with_version_from`](ChatServer::with_version_from) and
/// [`without_approvals`](ChatServer::without_approvals).
///
/// The user is the [`Principal`] in the extensions of the request, which the host's authentication
/// has to insert. A request without a `Principal` is rejected with status 401. For a demo, or a tool
/// with a single user, [`without_authentication`](ui_message_stream::axum::without_authentication) makes every request
/// that of one anonymous user.
///
/// ```
/// use axum::Router;
/// use axum::extract::Request;
/// use axum::middleware::{Next, from_fn};
/// use axum::response::Response;
/// use futures::stream;
/// use ui_message_stream::AgentEvent;
/// use ui_message_stream_chat::axum::{approval_routes, chat_routes};
/// use ui_message_stream::approval::{Approvals, EmptyToolbox, Principal};
/// use ui_message_stream_chat::{ChatServer, Turn};
///
/// # fn user_of(_: &Request) -> Option<String> { None }
/// /// Your authentication.
/// async fn authenticate(mut request: Request, next: Next) -> Response {
///     if let Some(user) = user_of(&request) {
///         request.extensions_mut().insert(Principal::new(user));
///     }
///     next.run(request).await
/// }
///
/// let agent = |turn: Turn| {
///     stream::iter([AgentEvent::text(format!("{} messages so far", turn.chat.messages.len()))])
/// };
/// let chats = ChatServer::new(agent, Approvals::new(EmptyToolbox));
/// let app: Router = Router::new()
///     .nest("/api/chat", chat_routes(chats.clone()))
///     .nest("/api/approvals", approval_routes(chats))
///     .layer(from_fn(authenticate));
/// ```
#[doc(alias = "useChat")]
#[doc(alias = "resume")]
#[doc(alias = "resumeStream")]
#[doc(alias = "reconnect")]
pub fn chat_routes<S: Clone + Send + Sync + 'static>(chats: ChatServer) -> Router<S> {
    let routes = Router::new()
        .route("/", get(list).post(post_message).delete(delete_all))
        .route("/{id}", get(history).patch(rename).delete(delete))
        .route("/{id}/answers", post(submit_answers))
        .route("/{id}/stream", get(reconnect).delete(stop));
    finished(routes).with_state(chats)
}

/// Creates the routes for decisions on approvals that do not come in a chat request, for example
/// from a second screen, a webhook or a bot.
///
/// | route | does |
/// |---|---|
/// | `GET /` | Returns the first 100 pending approval requests that the user has made, or may decide as one of an [audience](ui_message_stream::approval::Approvals::with_audiences), and that have not expired, in the order in which they expire, as `{"approvals": [{"approvalId", "chatId", "toolCallId", "toolName", "input", "description", "requestedAt", "expiresAt"?, "editable"?, "requestedBy"?, "decidedByOthers"?, "agents"?}, …], "after"?}`. `requestedBy` is another user. A response has `after` if there are more: `GET /?after=…` returns the next page. `chat` and `tool` select those of a chat and of a tool. |
/// | `POST /` | Decides the named approvals with `{"decisions": [{"approvalId", "approved", "reason"?, "input"?}, …]}`, or denies all pending approvals that the user has in one chat with `{"chatId", "approved": false, "reason"?}`. |
///
/// An approval always names ids, because a new request may have appeared in the chat since the user
/// read the list. `{"chatId", "approved": true}` is rejected with status 400.
///
/// The id of an approval is in the body and never in a URL, because URLs are logged. Approved calls
/// are executed on the server, and the agent continues. The response of `POST /` is `{"decisions":
/// [{"approvalId", "approved", "accepted"}, …]}`. `accepted` is whether the decision was accepted. The
/// reason of a rejection is not disclosed.
///
/// `input` is the whole input of the call, changed by the user, for a tool that is `editable`. If the tool
/// does not accept it, the response is `400` with the reason, and no decision of the request counts.
///
/// The user is determined as in [`chat_routes`].
pub fn approval_routes<S: Clone + Send + Sync + 'static>(chats: ChatServer) -> Router<S> {
    finished(Router::new().route("/", get(pending).post(decide))).with_state(chats)
}

/// Counts the requests to these routes, and says in words what is not one of them: `useChat` shows the body.
fn finished(routes: Router<ChatServer>) -> Router<ChatServer> {
    // First, because a request with a wrong method is counted, too.
    let routes = routes.method_not_allowed_fallback(async |method: Method| {
        (StatusCode::METHOD_NOT_ALLOWED, format!("this route does not take {method}"))
    });
    #[cfg(feature = "metrics")]
    let routes = routes.route_layer(::axum::middleware::from_fn(ui_message_stream::axum::measure));
    routes.fallback(async || ChatRejection::new(ChatRejectionKind::NotFound, NO_ROUTE))
}

async fn post_message(
    State(chats): State<ChatServer>,
    principal: Principal,
    headers: HeaderMap,
    request: ChatRequest,
) -> Result<Response, ChatRejection> {
    let chats = for_client(chats, &headers);
    respond(&chats, &principal, &headers, request).await
}

async fn submit_answers(
    State(chats): State<ChatServer>,
    principal: Principal,
    Path(id): Path<String>,
    headers: HeaderMap,
    request: JsonBody,
) -> Result<Response, ChatRejection> {
    let JsonBody { bytes: body, limits, .. } = request;
    let id = chat_id(id, &limits)?;
    let answers = ClientAnswers::parse(&body, &limits)?;
    let chats = for_client(chats, &headers);
    let request = chats.request_from_answers(&principal, &id, &answers).await;
    respond(&chats, &principal, &headers, request?).await
}

/// Returns the server for the client that has sent these headers.
fn for_client(chats: ChatServer, headers: &HeaderMap) -> ChatServer {
    let header = chats.0.clients.version_header().and_then(|name| headers.get(name));
    match header.and_then(|version| version.to_str().ok()?.parse().ok()) {
        Some(version) => chats.for_version(version),
        None => chats,
    }
}

/// Answers a request with a stream or, if the client requests it, with the complete response as
/// JSON.
async fn respond(
    chats: &ChatServer,
    principal: &Principal,
    headers: &HeaderMap,
    request: ChatRequest,
) -> Result<Response, ChatRejection> {
    if is_json_requested(headers) {
        let reader = chats.reader(principal)?;
        let response = chats.complete(&reader, principal, request).await;
        let response = response?;
        let client = chats.client();
        let message = response.message.as_ref().map(|message| client.shown(message));
        let message = message.as_deref();
        let without_ids = message.and_then(without_model_ids);
        let body = ResponseBody {
            message: without_ids.as_ref().or(message),
            output: response.output.as_ref(),
            stop_reason: match response.outcome {
                ResponseOutcome::Finished => response.stop_reason.into(),
                ResponseOutcome::Aborted => StopReasonBody::Aborted,
                _ => StopReasonBody::Error,
            },
            approvals: response
                .approvals
                .iter()
                .map(|pending| PendingApprovalBody::new(pending, principal))
                .collect(),
            tool_calls: response
                .client_executed
                .iter()
                .map(|call| ClientToolCallBody {
                    tool_call_id: &call.tool_call_id,
                    tool_name: &call.tool_name,
                    input: &call.input,
                })
                .collect(),
        };
        return large_json(reader, &body);
    }
    let response = chats.stream_response(principal, request).await?;
    Ok(response.into_response())
}

async fn history(
    State(chats): State<ChatServer>,
    policy: ChatPolicy,
    principal: Principal,
    Path(id): Path<String>,
    headers: HeaderMap,
    RawQuery(query): RawQuery,
) -> Result<Response, ChatRejection> {
    let id = chat_id(id, policy.limits())?;
    let chats = for_client(chats, &headers);
    let (chat, version) = chats.chat_and_version(&principal, &id).await?;
    let page = HistoryPage::new(&chat.messages, query.as_deref().unwrap_or_default());
    let page = page?.of_chat(version, chat.answer_end()).for_client_of(&chats);
    if json_len(&page) <= MAX_UNCOUNTED_BYTES {
        Ok(json(&page))
    } else {
        large_json(chats.reader(&principal)?, &page)
    }
}

/// Streams the live run, or the rest of the run that `Last-Event-ID` names. Otherwise responds `204`,
/// the same for a chat of this user, of another user, and for none.
async fn reconnect(
    State(chats): State<ChatServer>,
    policy: ChatPolicy,
    principal: Principal,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Response, ChatRejection> {
    let id = chat_id(id, policy.limits())?;
    let last = headers.get(LAST_EVENT_ID).map(|last| last.to_str().unwrap_or_default());
    let chats = for_client(chats, &headers);
    let stream = chats.resume_stream(&principal, &id, last).await?;
    Ok(match stream {
        Some(stream) => (NOT_CACHED, stream).into_response(),
        None => (StatusCode::NO_CONTENT, [(CACHE_CONTROL, "no-store")]).into_response(),
    })
}

async fn stop(
    State(chats): State<ChatServer>,
    policy: ChatPolicy,
    principal: Principal,
    Path(id): Path<String>,
) -> Result<StatusCode, ChatRejection> {
    let id = chat_id(id, policy.limits())?;
    chats.stop(&principal, &id).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn pending(
    State(chats): State<ChatServer>,
    _: ChatPolicy,
    principal: Principal,
    RawQuery(query): RawQuery,
) -> Result<Response, ChatRejection> {
    let query = query.as_deref().unwrap_or_default();
    let text = |name| query_parameter(query, name).map(|text| decoded(name, text)).transpose();
    let chat = text("chat")?.map(ChatId::from);
    let tool = text("tool")?;
    let after = query_parameter(query, "after").map(str::parse).transpose();
    let query = InboxQuery {
        chat: chat.as_ref(),
        tool: tool.as_deref(),
        after: after.map_err(|_| FieldError::new("after", NO_PLACE))?,
        limit: PAGE_APPROVALS,
    };
    let page = chats.approvals().inbox(&principal, query).await?;
    Ok(json(&PendingApprovalsBody {
        approvals: page
            .approvals
            .iter()
            .map(|pending| PendingApprovalBody::new(pending, &principal))
            .collect(),
        after: page.next.map(|next| next.to_string()),
    }))
}

async fn decide(
    State(chats): State<ChatServer>,
    principal: Principal,
    request: JsonBody,
) -> Result<Response, ChatRejection> {
    let JsonBody { bytes: body, limits, .. } = request;
    let decisions = match serde_json::from_slice(&body) {
        Ok(DecisionsBody {
            decisions: Some(decisions),
            chat_id: None,
            approved: None,
            reason: None,
        }) => {
            limits.check_answer_count(decisions.len())?;
            check_decisions(&decisions, &limits)?;
            decisions
        }
        Ok(DecisionsBody {
            decisions: None,
            chat_id: Some(chat),
            approved: Some(false),
            reason,
        }) => {
            limits.check_chat_id("chatId", &chat)?;
            limits.check_reason("reason", reason.as_deref())?;
            let waiting = chats.approvals().for_chat(&principal, &chat).pending().await;
            let waiting = waiting?;
            let denied = waiting.into_iter().map(|pending| ApprovalDecision {
                approval_id: pending.approval_id,
                approved: false,
                reason: reason.clone(),
                input: None,
            });
            denied.collect()
        }
        Ok(DecisionsBody { decisions: None, chat_id: Some(_), approved: Some(true), .. }) => {
            return Err(ChatRejection::new(ChatRejectionKind::BadRequest, BLANKET_APPROVAL));
        }
        // The error may hold a value of the body, and would be logged.
        Ok(_) | Err(_) => {
            return Err(ChatRejection::new(ChatRejectionKind::BadRequest, NO_DECISIONS));
        }
    };
    let decided = chats.decide(&principal, decisions).await?;
    let decisions = decided.iter().map(|DecisionReceipt { decision, accepted, .. }| ReceiptBody {
        approval_id: &decision.approval_id,
        approved: decision.approved,
        accepted: *accepted,
    });
    Ok(json(&ReceiptsBody { decisions: decisions.collect() }))
}

/// A request that cannot be answered: 400, 404, 409, 413, 429 or 503.
impl From<ChatError> for ChatRejection {
    #[track_caller]
    fn from(error: ChatError) -> Self {
        let kind = match error {
            ChatError::Request(error) => return ChatRejection::from(error),
            ChatError::Input(_) => ChatRejectionKind::BadRequest,
            ChatError::NotFound => ChatRejectionKind::NotFound,
            ChatError::AlreadyReceived { site } | ChatError::Conflict { site, .. } => {
                let conflict = ChatRejection::new(ChatRejectionKind::Conflict, error.to_string());
                return conflict.with_site(site);
            }
            ChatError::TooManyReaders => ChatRejectionKind::TooManyReaders,
            ChatError::TooManyRuns => ChatRejectionKind::TooManyRuns,
            ChatError::Limit(_) => ChatRejectionKind::TooLarge,
            other => {
                return ChatRejection::new(ChatRejectionKind::Unavailable, UNAVAILABLE)
                    .with_source(other);
            }
        };
        ChatRejection::new(kind, error.to_string())
    }
}

/// Whether the client accepts JSON and does not accept a stream of events. `useChat` names neither
/// in its `Accept` header.
fn is_json_requested(headers: &HeaderMap) -> bool {
    let accepts = |media_type: &str| {
        headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok()).any(|value| {
            let mut types = value.split(',').map(|item| item.split(';').next().unwrap_or_default());
            types.any(|item| item.trim().eq_ignore_ascii_case(media_type))
        })
    };
    accepts("application/json") && !accepts("text/event-stream")
}

/// Streams the run, with the HTTP headers of the protocol.
impl IntoResponse for ChatStream {
    fn into_response(self) -> Response {
        self.into_http_response().map(Body::new)
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ResponseBody<'a> {
    message: Option<&'a UiMessage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<&'a Json>,
    stop_reason: StopReasonBody,
    approvals: Vec<PendingApprovalBody<'a>>,
    tool_calls: Vec<ClientToolCallBody<'a>>,
}

/// A call that the client has to execute.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ClientToolCallBody<'a> {
    tool_call_id: &'a ToolCallId,
    tool_name: &'a str,
    input: &'a Json,
}

#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum StopReasonBody {
    Aborted,
    Error,
    #[serde(untagged)]
    Reason(StopReason),
}

impl From<StopReason> for StopReasonBody {
    fn from(reason: StopReason) -> Self {
        StopReasonBody::Reason(reason)
    }
}

#[derive(Serialize)]
struct PendingApprovalsBody<'a> {
    approvals: Vec<PendingApprovalBody<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    after: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PendingApprovalBody<'a> {
    approval_id: &'a ApprovalId,
    chat_id: &'a ChatId,
    tool_call_id: &'a ToolCallId,
    tool_name: &'a str,
    input: &'a Json,
    description: &'a str,
    requested_at: UnixMillis,
    #[serde(skip_serializing_if = "UnixMillis::is_never")]
    expires_at: UnixMillis,
    #[serde(skip_serializing_if = "EditableInput::is_nothing")]
    editable: &'a EditableInput,
    /// Who has requested it, if that is another user.
    #[serde(skip_serializing_if = "Option::is_none")]
    requested_by: Option<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    decided_by_others: bool,
    /// The tools that ask, from the outermost one, if an agent inside a call asks.
    #[serde(skip_serializing_if = "Option::is_none")]
    agents: Option<&'a [Box<str>]>,
}

impl<'a> PendingApprovalBody<'a> {
    fn new(
        PendingApproval { approval_id, record, .. }: &'a PendingApproval,
        principal: &Principal,
    ) -> Self {
        let requester = &record.requester;
        PendingApprovalBody {
            approval_id,
            chat_id: &record.chat_id,
            tool_call_id: &record.tool_call_id,
            tool_name: &record.tool_name,
            input: &record.input,
            description: &record.description,
            requested_at: record.requested_at,
            expires_at: record.expires_at,
            editable: &record.editable,
            requested_by: (requester != principal).then(|| requester.to_string()),
            decided_by_others: record.decided_by_others,
            agents: record.outer.as_ref().map(|outer| &*outer.agents),
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct DecisionsBody {
    decisions: Option<Vec<ApprovalDecision>>,
    chat_id: Option<ChatId>,
    approved: Option<bool>,
    #[serde(default, deserialize_with = "optional_text")]
    reason: Option<String>,
}

#[derive(Serialize)]
struct ReceiptsBody<'a> {
    decisions: Vec<ReceiptBody<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ReceiptBody<'a> {
    approval_id: &'a ApprovalId,
    approved: bool,
    accepted: bool,
}

/// The maximum number of bytes of a page of messages that does not count among the responses that the user
/// reads.
const MAX_UNCOUNTED_BYTES: usize = 32 << 10;

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// The maximum number of approval requests of a page.
const PAGE_APPROVALS: usize = 100;

const NO_PLACE: &str = "not a place in the list of approvals";

const NO_ROUTE: &str = "there is no such route";

const UNAVAILABLE: &str = "the chat cannot be reached; try again later";

const BLANKET_APPROVAL: &str = "an approval names ids: post `decisions`, each with its `approvalId`; a `chatId` \
     can only deny what waits there";

const NO_DECISIONS: &str = "expected either `decisions`, or `chatId` and `approved: false` to deny all that \
     waits there";
