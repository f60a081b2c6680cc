//! [`Run`]: a run and its state.

use std::sync::Arc;

use super::live::LiveRun;
use super::reader::Reader;
use crate::approval::{MessageDecisions, Principal, ResumePlan};
use crate::chat::agent::Event;
use crate::chat::client::Client;
use crate::chat::inner::Inner;
use crate::chat::{Chat, ChatError};
use crate::id::MessageId;
use crate::message::Part;
use crate::request::ChatRequest;

/// A run and its state.
pub(in crate::chat) struct Run {
    pub(in crate::chat) chats: Arc<Inner>,
    /// The principal who decides on the approvals.
    pub(in crate::chat) principal: Principal,
    pub(in crate::chat) chat: Chat,
    /// The message that the run continues or creates.
    pub(in crate::chat) message_id: MessageId,
    /// The number of [content](is_content) parts of the message that the client holds.
    pub(in crate::chat) shown: usize,
    pub(in crate::chat) plan: ResumePlan,
    /// Whether the user sent a new message or requested another response to an earlier one.
    pub(in crate::chat) has_question: bool,
    /// Whether the agent may request approvals.
    pub(in crate::chat) can_request_approvals: bool,
    pub(in crate::chat) request: Option<Arc<ChatRequest>>,
    pub(in crate::chat) reader: Option<Reader>,
    /// The registration of this run, if it was registered before it was created.
    live: Option<LiveRun>,
}

impl Run {
    /// Creates the run of a chat request.
    pub(in crate::chat) fn from_request(
        chats: &Arc<Inner>,
        principal: Principal,
        chat: Chat,
        message_id: MessageId,
        request: ChatRequest,
        client: Client,
        live: Option<LiveRun>,
    ) -> Self {
        Run {
            chats: Arc::clone(chats),
            principal,
            chat,
            message_id,
            shown: request
                .unsanitized_continued_message()
                .map_or(0, |message| message.parts.iter().filter(|part| is_content(part)).count()),
            plan: ResumePlan::new(request.messages(), request.continued_message()),
            has_question: request.continued_message().is_none(),
            can_request_approvals: client.answers_approvals(),
            request: Some(Arc::new(request)),
            reader: None,
            live,
        }
    }

    /// Creates the run of decisions that did not come in a chat request.
    pub(in crate::chat) fn from_decisions(
        chats: &Arc<Inner>,
        principal: Principal,
        chat: Chat,
        decisions: &MessageDecisions,
    ) -> Self {
        Run {
            chats: Arc::clone(chats),
            principal,
            chat,
            message_id: decisions.message_id.clone(),
            shown: usize::MAX,
            plan: decisions.plan(),
            has_question: false,
            can_request_approvals: chats.clients.has_approvals(),
            request: None,
            reader: None,
            live: None,
        }
    }

    /// Removes the pending response that this run registered, if it registered one.
    pub(in crate::chat) async fn cancel_response(&self) -> Result<(), ChatError> {
        match &self.request {
            Some(_) => self.chats.cancel_response(&self.chat, &self.message_id).await,
            None => Ok(()),
        }
    }

    /// Sends an event to the response. Does nothing if the client has disconnected.
    pub(in crate::chat) async fn say(&mut self, event: Event) {
        if let Some(reader) = self.reader.take() {
            self.reader = reader.hears(event).await;
        }
    }

    /// Registers this run, so that other runs can stop it and wait for its end.
    pub(in crate::chat) fn register(&mut self) -> LiveRun {
        let register = || {
            let live = &self.chats.live;
            live.register(&self.chat.owner, &self.chat.id, &self.message_id)
        };
        self.live.take().unwrap_or_else(register)
    }
}

/// Whether a part is content. Step starts are not, and neither are `data-run-end` parts: the client
/// may hold one at the end of a response that the server does not hold.
pub(in crate::chat) fn is_content(part: &Part) -> bool {
    match part {
        Part::Data(data) => &*data.name != "run-end",
        part => !is_step_start(part),
    }
}

pub(in crate::chat) fn is_step_start(part: &Part) -> bool {
    matches!(part, Part::StepStart { .. })
}
