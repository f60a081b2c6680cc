//! [`Conversation`]: plays the browser's side of a chat against a handler.

mod answers;
mod exchange;
mod named;
mod route;

use std::collections::BTreeMap;
use std::fmt;

use http::{Request, Response};
use http_body::Body;
use serde::Serialize;

use self::named::is_named;
use self::route::Route;
use super::send_automatically::{
    last_assistant_message_is_complete_with_approval_responses,
    last_assistant_message_is_complete_with_tool_calls,
};
use crate::chunk::{Chunk, Version};
use crate::id::{ChatId, MessageId};
use crate::json::Json;
use crate::message::{Part, Role, ToolPart, ToolState, UiMessage};
use crate::request::{ChatRequest, Trigger};
use crate::stream::BoxError;

/// The browser's side of a chat, in the thread of the test and without a socket.
///
/// It holds the messages as `Chat` of `ai@6.0.326` does, sends what that sends, and sends again by
/// itself where `sendAutomaticallyWhen` says so. Every method returns when the response has been
/// read to its end, or as far as [`stop_after`](Self::stop_after) says; under tokio's paused time
/// nothing waits. The chat is `chat-1`, and the ids that the client makes are `client-1`,
/// `client-2`, …
///
/// Every response is held against the [`Checker`](crate::checker::Checker), for clients from
/// `ai@6.0.0` on.
///
/// ```
/// use ui_message_stream::approval::{DeferredOutcome, OpenCall, ResumePlan};
/// use ui_message_stream::event::ToolCall;
/// use ui_message_stream::testing::{Conversation, ScriptedAgent};
/// use ui_message_stream::{AgentEvent, ChatRequest, Json, UiMessageStream};
///
/// /// Asks before it deletes.
/// async fn handler(chat: ChatRequest) -> UiMessageStream {
///     let path = Json::string("notes.txt");
///     let asked = OpenCall::awaiting_approval("ap_1", "call_1", "delete_file", path.clone());
///     let deferred = ResumePlan::new(chat.messages(), chat.continued()).settle(&[asked]);
///     let events = match deferred.results().first().map(|result| &result.outcome) {
///         Some(DeferredOutcome::Denied { reason }) => vec![
///             AgentEvent::tool_denied("call_1"),
///             AgentEvent::text(format!("I leave it: {}.", reason.as_deref().unwrap_or("no"))),
///         ],
///         _ => vec![
///             AgentEvent::tool_input(ToolCall::new("call_1", "delete_file"), path),
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
/// - If a response is not conformant, with the rules that are broken; see
///   [`with_oldest_client`](Self::with_oldest_client) and [`unchecked`](Self::unchecked).
/// - If the client would send by itself for ever: after the 5th request without a word of the
///   person.
/// - If nothing, or more than one thing, is meant by the name of a call.
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
    /// How many ids the client has made.
    made_ids: usize,
    /// The message in which an answer was given that has not been sent.
    answered: Option<MessageId>,
    requests: Vec<String>,
    last_chunks: Vec<Chunk<'static>>,
    error: Option<String>,
    /// After how many chunks the next response is stopped.
    stops_after: Option<usize>,
    /// The message of the last response, if the connection broke.
    disconnected: Option<UiMessage>,
}

/// The front end's `sendAutomaticallyWhen`.
type SendsWhen<'h> = Box<dyn Fn(&[UiMessage]) -> bool + 'h>;

/// The front end's `onToolCall`: a tool's name and input in, its output or error out.
type OnToolCall<'h> = Box<dyn Fn(&str, &Json) -> Option<Result<Json, String>> + 'h>;

impl<'h> Conversation<'h> {
    /// Talks to a handler: `async fn(ChatRequest) -> UiMessageStream`, or whatever body it returns.
    ///
    /// A request that cannot be parsed under the default limits is refused as the axum extractor
    /// refuses it; see [`error`](Self::error).
    pub fn new<H, B>(handler: H) -> Self
    where
        H: AsyncFn(ChatRequest) -> B + 'h,
        B: Body<Error: Into<BoxError>> + 'h,
    {
        Self::over(Route::handler(handler))
    }

    /// Talks to a service at the path of its route: an axum `Router` by `oneshot`, with its layers,
    /// extractors and rejections.
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
    ///     Conversation::over_http("/api/chat", async |request| app.clone().oneshot(request).await);
    /// chat.send("Hi").await;
    /// assert_eq!(chat.last_text(), "Hello!");
    /// # });
    /// # }
    /// ```
    ///
    /// # Panics
    /// Once it is used, if `uri` is none, or the service fails without a response.
    pub fn over_http<H, B, E>(uri: &str, service: H) -> Self
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
            made_ids: 0,
            answered: None,
            requests: Vec::new(),
            last_chunks: Vec::new(),
            error: None,
            stops_after: None,
            disconnected: None,
        }
    }

    /// Names the chat; `chat-1` unless set.
    pub fn with_id(mut self, id: impl Into<ChatId>) -> Self {
        self.id = id.into();
        self
    }

    /// Begins with these messages, a stored history for instance.
    pub fn with_messages(mut self, messages: impl Into<Vec<UiMessage>>) -> Self {
        self.messages = messages.into();
        self
    }

    /// The application's own fields, sent with every request. As in the client, they cannot replace
    /// `id`, `messages`, `trigger` or `messageId`.
    ///
    /// # Panics
    /// If this is not an object, or not a [`Json`].
    pub fn with_body(mut self, fields: &(impl Serialize + ?Sized)) -> Self {
        let json = Json::of(fields).unwrap_or_else(|error| panic!("the fields of a body: {error}"));
        let fields = json.to::<BTreeMap<String, Json>>();
        self.custom = fields.unwrap_or_else(|error| panic!("the fields of a body: {error}"));
        for own in ["id", "messages", "trigger", "messageId"] {
            self.custom.remove(own);
        }
        self
    }

    /// The front end's `sendAutomaticallyWhen`; `|_| false` is a front end without one, which sends
    /// answers by [`submit`](Self::submit).
    ///
    /// Unless set, both helpers of the client hold: when either of
    /// [`last_assistant_message_is_complete_with_approval_responses`] and
    /// [`last_assistant_message_is_complete_with_tool_calls`] says so.
    pub fn send_automatically_when(mut self, when: impl Fn(&[UiMessage]) -> bool + 'h) -> Self {
        self.sends_automatically_when = Box::new(when);
        self
    }

    /// The front end's `onToolCall`, which runs the page's own tools while the response is read:
    /// the tool's name and input in, its output or an error text out, or `None` for a tool that it
    /// leaves alone. It is not asked about provider-executed calls.
    ///
    /// Unless set it leaves all of them alone, to [`tool_output`](Self::tool_output).
    pub fn on_tool_call(
        mut self,
        run: impl Fn(&str, &Json) -> Option<Result<Json, String>> + 'h,
    ) -> Self {
        self.on_tool_call = Box::new(run);
        self
    }

    /// Where [`reconnect`](Self::reconnect) asks a conversation with a handler: the chat's id in,
    /// the response that is still live out, from its beginning. `None` is a status of 204.
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
    /// [`over_http`](Self::over_http) needs none: it sends the client's GET to the service.
    pub fn with_reconnect<H, B>(mut self, handler: H) -> Self
    where
        H: AsyncFn(ChatId) -> Option<B> + 'h,
        B: Body<Error: Into<BoxError>> + 'h,
    {
        self.route = self.route.with_reconnect(handler);
        self
    }

    /// The oldest client that the responses are held against; `ai@6.0.0` unless set.
    pub fn with_oldest_client(mut self, version: Version) -> Self {
        self.oldest_client = Some(version);
        self
    }

    /// Takes every response as the client takes it, right or wrong.
    pub fn unchecked(mut self) -> Self {
        self.oldest_client = None;
        self
    }

    /// Writes a message, whatever is still open, and reads the answer.
    pub async fn send(&mut self, text: impl Into<String>) {
        self.send_parts(vec![Part::text(text)]).await;
    }

    /// Writes a message of these parts, files for instance, and reads the answer.
    pub async fn send_parts(&mut self, parts: Vec<Part>) {
        let id = self.make_id();
        self.messages.push(UiMessage::new(id, Role::User, parts));
        self.request(Trigger::SubmitMessage, None).await;
    }

    /// Writes a message of the person anew: what follows it is gone.
    ///
    /// # Panics
    /// If no message of the person has this id.
    pub async fn edit(&mut self, message_id: &str, text: impl Into<String>) {
        let is_it = |message: &UiMessage| &*message.id == message_id;
        let at = self.messages.iter().position(is_it);
        let Some(at) = at.filter(|at| self.messages[*at].role == Role::User) else {
            panic!("no message of the person has the id {message_id:?}");
        };
        self.messages.truncate(at);
        self.messages.push(UiMessage::new(message_id, Role::User, vec![Part::text(text)]));
        self.request(Trigger::SubmitMessage, Some(message_id.into())).await;
    }

    /// Asks for the last answer anew.
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

    /// Asks for this answer anew: it and what follows it is gone.
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

    /// Says yes to a question, named by its approval id, its tool call id, or the tool's name.
    ///
    /// The answer is sent when the last question is answered, as `sendAutomaticallyWhen` has it.
    ///
    /// # Panics
    /// If no question, or more than one, is named so.
    pub async fn approve(&mut self, question: &str) {
        self.answer(question, true, None).await;
    }

    /// Says no to a question, named as in [`approve`](Self::approve), with a reason or `None`.
    ///
    /// # Panics
    /// If no question, or more than one, is named so.
    pub async fn deny<'r>(&mut self, question: &str, reason: impl Into<Option<&'r str>>) {
        self.answer(question, false, reason.into()).await;
    }

    /// Gives a client-executed call its output; the call is named by its id or the tool's name.
    ///
    /// As in the client, any call can be given one: by its id even where it has a result.
    ///
    /// # Panics
    /// If no call without a result, or more than one, is named so; if the output is not a [`Json`].
    pub async fn tool_output(&mut self, call: &str, output: &(impl Serialize + ?Sized)) {
        let json = Json::of(output).unwrap_or_else(|error| panic!("the output: {error}"));
        let raw = serde_json::value::to_raw_value(&json).expect("checked JSON serializes");
        self.settle(call, Ok(raw)).await;
    }

    /// Says that a client-executed call, named as in [`tool_output`](Self::tool_output), failed.
    ///
    /// # Panics
    /// If no call without a result, or more than one, is named so.
    pub async fn tool_error(&mut self, call: &str, error_text: &str) {
        self.settle(call, Err(error_text.to_owned())).await;
    }

    /// Sends what was answered, as `sendMessage()` without a message does: for front ends that do
    /// not send automatically.
    pub async fn submit(&mut self) {
        let is_answered =
            |part: &ToolPart| matches!(part.state, ToolState::ApprovalResponded { .. });
        let holds_answer = |message: &&UiMessage| {
            message.role == Role::Assistant && message.tool_parts().any(is_answered)
        };
        let message_id = self.answered.clone().or_else(|| {
            let holder = self.messages.iter().rfind(holds_answer).or(self.messages.last());
            holder.map(|message| message.id.clone())
        });
        self.request_for_answer(message_id).await;
    }

    /// Stops the next response when so many of its chunks have been read, as `stop()` does: the
    /// client hangs up, keeps what it has, and sends nothing by itself.
    ///
    /// The handler's body is dropped there. A response that has fewer chunks ends as ever.
    pub fn stop_after(&mut self, chunks: usize) -> &mut Self {
        self.stops_after = Some(chunks);
        self
    }

    /// Rejoins a live response, as `resumeStream()` does and `useChat({ resume: true })` when the
    /// page is loaded: by `GET {api}/{chat id}/stream`. If there is none, nothing happens.
    ///
    /// The response is read as a replay from its beginning. To load the page anew, begin another
    /// conversation [`with_messages`](Self::with_messages) of what the server has stored.
    ///
    /// # Panics
    /// If this conversation has a handler and no [`with_reconnect`](Self::with_reconnect).
    pub async fn reconnect(&mut self) {
        self.rejoin().await;
    }

    /// The messages, as the client holds them.
    #[must_use]
    pub fn messages(&self) -> &[UiMessage] {
        &self.messages
    }

    /// The chunks of the last response that are chunks of this version of the protocol.
    #[must_use]
    pub fn last_chunks(&self) -> &[Chunk<'static>] {
        &self.last_chunks
    }

    /// The last text of the last message; empty if it has none.
    #[must_use]
    pub fn last_text(&self) -> &str {
        let parts = self.messages.last().map_or(&[][..], |message| &message.parts);
        let mut texts = parts.iter().rev().filter_map(|part| match part {
            Part::Text(part) => Some(part.text.as_str()),
            _ => None,
        });
        texts.next().unwrap_or_default()
    }

    /// The last tool call with this id, or of the tool with this name.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn tool_call(&self, call: &str) -> &ToolPart {
        let found = self.calls().filter(|part| is_named(part, call)).last();
        found.unwrap_or_else(|| panic!("no tool call {call:?}; {}", self.describe()))
    }

    /// What the client shows where the last response failed: the text of an `error` chunk or of a
    /// refused request, or why it could not be read.
    #[must_use]
    pub fn error(&self) -> Option<&str> {
        self.error.as_deref()
    }

    /// The bodies of all requests, as they were sent.
    #[must_use]
    pub fn requests(&self) -> &[String] {
        &self.requests
    }

    async fn answer(&mut self, question: &str, approved: bool, reason: Option<&str>) {
        let id = self.question(question);
        let asks = |message: &&mut UiMessage| message.tool_parts().any(|p| answers::asks(p, &id));
        let message = self.messages.iter_mut().find(asks).expect("the question was just found");
        answers::answer(message, &id, approved, reason);
        let message_id = message.id.clone();
        self.answered = Some(message_id.clone());
        if (self.sends_automatically_when)(&self.messages) {
            self.request_for_answer(Some(message_id)).await;
        }
    }

    async fn settle(
        &mut self,
        call: &str,
        result: Result<Box<serde_json::value::RawValue>, String>,
    ) {
        let id = self.open_call(call);
        let holds = |message: &&mut UiMessage| message.tool_parts().any(|p| p.tool_call_id == id);
        let message = self.messages.iter_mut().find(holds).expect("the call was just found");
        *message = answers::settle(message, &id, &result);
        let message_id = message.id.clone();
        if (self.sends_automatically_when)(&self.messages) {
            self.request(Trigger::SubmitMessage, Some(message_id)).await;
        }
    }

    fn make_id(&mut self) -> MessageId {
        self.made_ids += 1;
        format!("client-{}", self.made_ids).into()
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
