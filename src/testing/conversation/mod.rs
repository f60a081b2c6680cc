//! [`Conversation`]: acts as the browser of a chat and talks to a handler.

mod answers;
mod exchange;
mod lookup;

use std::collections::BTreeMap;
use std::fmt;

use http::{Request, Response};
use http_body::Body;
use serde::Serialize;

use self::lookup::Page;
use super::route::Route;
use super::send_automatically::{
    last_assistant_message_is_complete_with_approval_responses,
    last_assistant_message_is_complete_with_tool_calls,
};
use crate::boxed::BoxError;
use crate::chunk::{Chunk, Version};
use crate::id::{ChatId, MessageId};
use crate::json::Json;
use crate::message::{Part, Role, ToolPart, ToolState, UiMessage};
use crate::request::{ChatRequest, Trigger};

/// A simulated `useChat` client for tests. It calls your handler in the thread of the test, without
/// a socket.
///
/// It holds the messages as `Chat` of `ai@6.0.326` does and sends the same requests. It also sends
/// requests automatically where `sendAutomaticallyWhen` returns true. Each method that sends a
/// request returns after the response was read to its end, or to the place that
/// [`stop_after`](Self::stop_after) sets. With tokio's paused clock, timers in the handler do not
/// delay the test. The id of the chat is `chat-1`. The ids that the client generates are
/// `client-1`, `client-2`, …
///
/// The [`Checker`](crate::checker::Checker) checks every response for all clients since `ai@6.0.0`.
///
/// ```
/// use ui_message_stream::approval::{DeferredOutcome, PendingToolCall, ResumePlan};
/// use ui_message_stream::event::ToolCall;
/// use ui_message_stream::testing::{Conversation, ScriptedAgent};
/// use ui_message_stream::{AgentEvent, ChatRequest, Json, UiMessageStream};
///
/// /// Requests an approval before it deletes.
/// async fn handler(chat: ChatRequest) -> UiMessageStream {
///     let input = Json::parse(r#"{"path": "notes.txt"}"#).unwrap();
///     let asked = PendingToolCall::awaiting_approval("ap_1", "call_1", "delete_file", input.clone());
///     let deferred = ResumePlan::new(chat.messages(), chat.continued_message()).settle(&[asked]);
///     let events = match deferred.results().first().map(|result| &result.outcome) {
///         Some(DeferredOutcome::Denied { reason }) => vec![
///             AgentEvent::tool_denied("call_1"),
///             AgentEvent::text(format!("I leave it: {}.", reason.as_deref().unwrap_or("no"))),
///         ],
///         _ => vec![
///             AgentEvent::tool_input(ToolCall::new("call_1", "delete_file"), input),
///             AgentEvent::approval_requested("call_1", "ap_1"),
///         ],
///     };
///     UiMessageStream::reply(&chat, ScriptedAgent::new(events))
/// }
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// let mut chat = Conversation::new(handler);
/// chat.send("Delete my notes").await;
/// chat.deny("delete_file", "I need it").await;
/// assert_eq!(chat.tool_call("delete_file").state.as_str(), "output-denied");
/// assert_eq!(chat.last_text(), "I leave it: I need it.");
/// # });
/// ```
///
/// # Panics
/// - If a response is not conformant. The panic message names the broken rules. See
///   [`with_oldest_client`](Self::with_oldest_client) and
///   [`without_conformance_checks`](Self::without_conformance_checks).
/// - If the client would send automatic requests without end: after the 5th request without an
///   action of the user.
/// - If the id or the tool name that is passed matches no tool call, or more than one.
#[doc(alias = "useChat")]
#[must_use]
pub struct Conversation<'h> {
    route: Route<'h>,
    sends_automatically_when: SendsWhen<'h>,
    on_tool_call: OnToolCall<'h>,
    /// `None`: responses are not checked.
    oldest_client: Option<Version>,
    id: ChatId,
    custom: BTreeMap<String, Json>,
    messages: Vec<UiMessage>,
    /// How many ids the client has generated.
    generated_ids: usize,
    /// The message that holds an approval response that was not sent yet.
    unsent_response: Option<MessageId>,
    requests: Vec<String>,
    last_chunks: Vec<Chunk<'static>>,
    error: Option<String>,
    /// After how many chunks the next response is stopped.
    max_chunks: Option<usize>,
    /// The message of the last response, if the connection broke.
    disconnected: Option<UiMessage>,
}

/// The front end's `sendAutomaticallyWhen`.
type SendsWhen<'h> = Box<dyn Fn(&[UiMessage]) -> bool + 'h>;

/// The front end's `onToolCall`: takes a tool's name and input, returns its output or error.
type OnToolCall<'h> = Box<dyn Fn(&str, &Json) -> Option<Result<Json, String>> + 'h>;

impl<'h> Conversation<'h> {
    /// Creates a conversation with a handler: `async fn(ChatRequest) -> UiMessageStream`, or a
    /// handler that returns another body.
    ///
    /// If a request cannot be parsed under the default limits, the client receives the same error
    /// as from the axum extractor; see [`error`](Self::error).
    pub fn new<H, B>(handler: H) -> Self
    where
        H: AsyncFn(ChatRequest) -> B + 'h,
        B: Body<Error: Into<BoxError>> + 'h,
    {
        Self::over(Route::handler(handler))
    }

    /// Creates a conversation with an HTTP service, for example an axum `Router`. The requests go
    /// to `uri`, through all layers and extractors of the service.
    ///
    /// ```
    /// # #[cfg(feature = "axum")] {
    /// # use axum::{Router, routing::post};
    /// # use futures::stream;
    /// use tower::ServiceExt;
    /// use ui_message_stream::testing::Conversation;
    /// # use ui_message_stream::{AgentEvent, ChatRequest, UiMessageStream};
    /// # async fn handler(chat: ChatRequest) -> UiMessageStream {
    /// #     UiMessageStream::reply(&chat, stream::iter([AgentEvent::text("Hello!")]))
    /// # }
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
    /// let app: Router = Router::new().route("/api/chat", post(handler));
    /// let mut chat =
    ///     Conversation::with_service("/api/chat", async |request| app.clone().oneshot(request).await);
    /// chat.send("Hi").await;
    /// assert_eq!(chat.last_text(), "Hello!");
    /// # });
    /// # }
    /// ```
    ///
    /// # Panics
    /// When the first request is sent: if `uri` is not a URI, or if the service fails without a
    /// response.
    pub fn with_service<H, B, E>(uri: &str, service: H) -> Self
    where
        H: AsyncFn(Request<String>) -> Result<Response<B>, E> + 'h,
        B: Body<Error: Into<BoxError>> + 'h,
        E: fmt::Debug + 'h,
    {
        Self::over(Route::http(uri, service))
    }

    fn over(route: Route<'h>) -> Self {
        Conversation {
            route,
            sends_automatically_when: Box::new(|messages| {
                last_assistant_message_is_complete_with_approval_responses(messages)
                    || last_assistant_message_is_complete_with_tool_calls(messages)
            }),
            oldest_client: Some(Version::V6),
            on_tool_call: Box::new(|_, _| None),
            id: "chat-1".into(),
            custom: BTreeMap::new(),
            messages: Vec::new(),
            generated_ids: 0,
            unsent_response: None,
            requests: Vec::new(),
            last_chunks: Vec::new(),
            error: None,
            max_chunks: None,
            disconnected: None,
        }
    }

    /// Sets the id of the chat. The default is `chat-1`.
    pub fn with_id(mut self, id: impl Into<ChatId>) -> Self {
        self.id = id.into();
        self
    }

    /// Sets the messages with which the conversation begins: for example, a stored history.
    pub fn with_messages(mut self, messages: impl Into<Vec<UiMessage>>) -> Self {
        self.messages = messages.into();
        self
    }

    /// Sets the application's own fields, which are sent with every request. As in the client, they
    /// cannot replace `id`, `messages`, `trigger` or `messageId`.
    ///
    /// # Panics
    /// If `fields` is not an object, or is not valid as [`Json`].
    pub fn with_body(mut self, fields: &(impl Serialize + ?Sized)) -> Self {
        let json = Json::from_serialize(fields)
            .unwrap_or_else(|error| panic!("the fields of a body: {error}"));
        let fields = json.decode::<BTreeMap<String, Json>>();
        self.custom = fields.unwrap_or_else(|error| panic!("the fields of a body: {error}"));
        for own in ["id", "messages", "trigger", "messageId"] {
            self.custom.remove(own);
        }
        self
    }

    /// Sets the front end's `sendAutomaticallyWhen`. To simulate a front end without this setting,
    /// pass `|_| false` and send approval responses with [`submit`](Self::submit).
    ///
    /// By default the client sends when either of its two helpers returns true:
    /// [`last_assistant_message_is_complete_with_approval_responses`] or
    /// [`last_assistant_message_is_complete_with_tool_calls`].
    pub fn send_automatically_when(mut self, when: impl Fn(&[UiMessage]) -> bool + 'h) -> Self {
        self.sends_automatically_when = Box::new(when);
        self
    }

    /// Sets the front end's `onToolCall`, which executes the page's own tools while the response is
    /// read. The function takes the tool's name and input. It returns the tool's output or an error
    /// text, or `None` for a tool that it does not execute. It is not called for provider-executed
    /// calls.
    ///
    /// By default it executes no tool. Such calls get their output from
    /// [`tool_output`](Self::tool_output).
    pub fn on_tool_call(
        mut self,
        run: impl Fn(&str, &Json) -> Option<Result<Json, String>> + 'h,
    ) -> Self {
        self.on_tool_call = Box::new(run);
        self
    }

    /// Sets how [`reconnect`](Self::reconnect) works in a conversation with a handler: the function
    /// takes the id of the chat and returns the live response, from its beginning. `None` means the
    /// status 204.
    ///
    /// ```
    /// # use futures::stream;
    /// # use ui_message_stream::testing::Conversation;
    /// # use ui_message_stream::{AgentEvent, ChatRequest, UiMessageStream};
    /// # async fn handler(chat: ChatRequest) -> UiMessageStream {
    /// #     UiMessageStream::reply(&chat, stream::iter([AgentEvent::text("Hello!")]))
    /// # }
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
    /// const LIVE: &str = "data: {\"type\":\"start\",\"messageId\":\"msg_1\"}\n\n\
    ///                     data: {\"type\":\"data-progress\",\"data\":7}\n\n\
    ///                     data: {\"type\":\"finish\"}\n\n";
    /// let mut page = Conversation::new(handler)
    ///     .with_reconnect(async |chat_id| (&*chat_id == "chat-1").then(|| LIVE.to_owned()));
    /// page.reconnect().await;
    /// assert_eq!(&*page.messages()[0].id, "msg_1");
    /// # });
    /// ```
    ///
    /// A conversation created with [`with_service`](Self::with_service) does not need this: it
    /// sends the client's GET to the service.
    pub fn with_reconnect<H, B>(mut self, handler: H) -> Self
    where
        H: AsyncFn(ChatId) -> Option<B> + 'h,
        B: Body<Error: Into<BoxError>> + 'h,
    {
        self.route = self.route.with_reconnect(handler);
        self
    }

    /// Sets the oldest client for which the responses are checked. The default is `ai@6.0.0`.
    pub fn with_oldest_client(mut self, version: Version) -> Self {
        self.oldest_client = Some(version);
        self
    }

    /// Accepts every response that the client accepts, without checking it.
    pub fn without_conformance_checks(mut self) -> Self {
        self.oldest_client = None;
        self
    }

    /// Sends a message of the user, even if approval requests or tool calls are open, and reads the
    /// response.
    pub async fn send(&mut self, text: impl Into<String>) {
        self.send_parts(vec![Part::text(text)]).await;
    }

    /// Sends a message of the user with these parts (files, for example) and reads the response.
    pub async fn send_parts(&mut self, parts: Vec<Part>) {
        let id = self.generate_id();
        self.messages.push(UiMessage::new(id, Role::User, parts));
        self.request(Trigger::SubmitMessage, None).await;
    }

    /// Replaces a message of the user, removes the messages after it, and sends the request.
    ///
    /// # Panics
    /// If no user message has this id.
    pub async fn edit(&mut self, message_id: &str, text: impl Into<String>) {
        let has_id = |message: &UiMessage| &*message.id == message_id;
        let at = self.messages.iter().position(has_id);
        let Some(at) = at.filter(|at| self.messages[*at].role == Role::User) else {
            panic!("no message of the person has the id {message_id:?}");
        };
        self.messages.truncate(at);
        self.messages.push(UiMessage::new(message_id, Role::User, vec![Part::text(text)]));
        self.request(Trigger::SubmitMessage, Some(message_id.into())).await;
    }

    /// Requests the last response again.
    ///
    /// # Panics
    /// If there is no message.
    pub async fn regenerate(&mut self) {
        let last = self.messages.last().expect("there is a message to regenerate");
        if last.role == Role::Assistant {
            self.messages.pop();
        }
        self.request(Trigger::RegenerateMessage, None).await;
    }

    /// Requests this response again. The response and all messages after it are removed.
    ///
    /// # Panics
    /// If no message has this id.
    pub async fn regenerate_message(&mut self, message_id: &str) {
        let at = self.messages.iter().position(|message| &*message.id == message_id);
        let at = at.unwrap_or_else(|| panic!("no message has the id {message_id:?}"));
        let is_answer = self.messages[at].role == Role::Assistant;
        self.messages.truncate(if is_answer { at } else { at + 1 });
        self.request(Trigger::RegenerateMessage, Some(message_id.into())).await;
    }

    /// Approves an approval request. `question` is its approval id, its tool call id, or the name
    /// of the tool.
    ///
    /// The approval response is sent when `sendAutomaticallyWhen` returns true: by default, when
    /// the last open request has a response.
    ///
    /// # Panics
    /// If `question` fits no approval request, or more than one.
    pub async fn approve(&mut self, question: &str) {
        self.respond(question, true, None).await;
    }

    /// Denies an approval request, with a reason or `None`. `question` is as for
    /// [`approve`](Self::approve).
    ///
    /// # Panics
    /// If `question` fits no approval request, or more than one.
    pub async fn deny<'r>(&mut self, question: &str, reason: impl Into<Option<&'r str>>) {
        self.respond(question, false, reason.into()).await;
    }

    /// Sets the output of a client-executed call. `call` is the id of the call or the name of its
    /// tool.
    ///
    /// As in the client, the result of a settled call can be replaced. Such a call is named by its
    /// id and not by its tool.
    ///
    /// # Panics
    /// If `call` fits no call without a result, or more than one, or if the output is not valid as
    /// [`Json`].
    pub async fn tool_output(&mut self, call: &str, output: &(impl Serialize + ?Sized)) {
        let json =
            Json::from_serialize(output).unwrap_or_else(|error| panic!("the output: {error}"));
        let raw = serde_json::value::to_raw_value(&json).expect("checked JSON serializes");
        self.set_result(call, Ok(raw)).await;
    }

    /// Sets the error of a client-executed call. `call` is as for
    /// [`tool_output`](Self::tool_output).
    ///
    /// # Panics
    /// If `call` fits no call without a result, or more than one.
    pub async fn tool_error(&mut self, call: &str, error_text: &str) {
        self.set_result(call, Err(error_text.to_owned())).await;
    }

    /// Sends the approval responses, as `sendMessage()` without a message does. For front ends that
    /// do not send automatically.
    pub async fn submit(&mut self) {
        let is_answered =
            |part: &ToolPart| matches!(part.state, ToolState::ApprovalResponded { .. });
        let holds_response = |message: &&UiMessage| {
            message.role == Role::Assistant && message.tool_parts().any(is_answered)
        };
        let message_id = self.unsent_response.clone().or_else(|| {
            let message = self.messages.iter().rfind(holds_response).or(self.messages.last());
            message.map(|message| message.id.clone())
        });
        self.send_approval_response(message_id).await;
    }

    /// Stops the next response after this many of its chunks were read, as `stop()` does: the
    /// client disconnects, keeps what it has, and sends no automatic request.
    ///
    /// The handler's body is dropped at that point. A response with fewer chunks ends as usual.
    pub fn stop_after(&mut self, chunks: usize) -> &mut Self {
        self.max_chunks = Some(chunks);
        self
    }

    /// Reconnects to a live response with `GET {api}/{chat id}/stream`. The client does this in
    /// `resumeStream()`, and with `useChat({ resume: true })` when the page is loaded. If there is
    /// no live response, nothing happens.
    ///
    /// The response is read as a replay from its beginning. To simulate a reload of the page,
    /// create another conversation [`with_messages`](Self::with_messages) that the server has
    /// stored.
    ///
    /// # Panics
    /// If this conversation has a handler and no [`with_reconnect`](Self::with_reconnect).
    pub async fn reconnect(&mut self) {
        self.rejoin().await;
    }

    /// Returns the messages as the client holds them.
    #[must_use]
    pub fn messages(&self) -> &[UiMessage] {
        &self.messages
    }

    /// Returns the chunks of the last response, without those of an unknown type.
    #[must_use]
    pub fn last_chunks(&self) -> &[Chunk<'static>] {
        &self.last_chunks
    }

    /// Returns the last text of the last message, or an empty string if it has none.
    #[must_use]
    pub fn last_text(&self) -> &str {
        let parts = self.messages.last().map_or(&[][..], |message| &message.parts);
        let mut texts = parts.iter().rev().filter_map(|part| match part {
            Part::Text(part) => Some(part.text.as_str()),
            _ => None,
        });
        texts.next().unwrap_or_default()
    }

    /// Returns the last tool call with this id or with this tool name.
    ///
    /// # Panics
    /// If there is no such call.
    #[must_use]
    pub fn tool_call(&self, call: &str) -> &ToolPart {
        self.page().last_call(call)
    }

    /// Returns the error that the client shows if the last response failed: the text of an `error`
    /// chunk, the body of an error response, or the reason why the response could not be read.
    #[must_use]
    pub fn error(&self) -> Option<&str> {
        self.error.as_deref()
    }

    /// Returns the bodies of all requests, as they were sent.
    #[must_use]
    pub fn requests(&self) -> &[String] {
        &self.requests
    }

    /// Returns what a call is found in.
    fn page(&self) -> Page<'_> {
        Page { messages: &self.messages, error: self.error.as_deref() }
    }

    async fn respond(&mut self, question: &str, approved: bool, reason: Option<&str>) {
        let id = self.page().open_approval(question);
        let requests = |message: &&mut UiMessage| {
            message.tool_parts().any(|p| answers::requests_approval(p, &id))
        };
        let message = self.messages.iter_mut().find(requests).expect("the question was just found");
        answers::respond(message, &id, approved, reason);
        let message_id = message.id.clone();
        self.unsent_response = Some(message_id.clone());
        if (self.sends_automatically_when)(&self.messages) {
            self.send_approval_response(Some(message_id)).await;
        }
    }

    async fn set_result(
        &mut self,
        call: &str,
        result: Result<Box<serde_json::value::RawValue>, String>,
    ) {
        let id = self.page().open_call(call);
        let holds = |message: &&mut UiMessage| message.tool_parts().any(|p| p.tool_call_id == id);
        let message = self.messages.iter_mut().find(holds).expect("the call was just found");
        *message = answers::set_result(message, &id, &result);
        let message_id = message.id.clone();
        if (self.sends_automatically_when)(&self.messages) {
            self.request(Trigger::SubmitMessage, Some(message_id)).await;
        }
    }

    fn generate_id(&mut self) -> MessageId {
        self.generated_ids += 1;
        format!("client-{}", self.generated_ids).into()
    }
}

impl fmt::Debug for Conversation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Conversation")
            .field("id", &self.id)
            .field("messages", &self.messages)
            .field("error", &self.error)
            .finish_non_exhaustive()
    }
}
