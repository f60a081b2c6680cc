//! [`Users`]: a server, and the users who chat with it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::future::join_all;
use futures::{FutureExt, StreamExt};
use serde_json::json;
use test_support::kills::Role as ProcessRole;
use test_support::patience;
use test_support::requests::request;
use tokio::time::{Instant, sleep};
use ui_message_stream::approval::ApprovalDecision;
use ui_message_stream::id::{ApprovalId, ChatId};
use ui_message_stream::message::{Part, Role, ToolPart, UiMessage};
use ui_message_stream_chat::{Chat, ChatError, ChatLimits, ChatServer, ChatStream, ClientAnswers};

use super::agent::World;
use super::{Store, ada};
use crate::kill_trials::approvals;

/// A server with its users.
pub(super) struct Users {
    pub(super) chats: ChatServer,
    world: World,
    turns: AtomicU64,
}

/// A question that a user reads in a chat.
#[derive(Debug, Clone)]
struct Question {
    call: String,
    approval: ApprovalId,
}

impl Users {
    pub(super) fn new(role: ProcessRole, store: Arc<impl Store>) -> Self {
        let world = World::new(role.clone());
        let agent = world.agent();
        let approvals = approvals(&role, store.clone(), agent.clone()).with_lease(LEASE);
        let chats = ChatServer::new(agent, approvals).with_store(store).with_run_lease(LEASE);
        // Those of killed servers count until they are ended.
        let chats = chats.with_limits(ChatLimits::default().with_max_user_runs(super::chats()));
        Users { chats, world, turns: AtomicU64::new(0) }
    }

    /// Chats until the process is killed.
    pub(super) async fn act(&self) {
        join_all((0..AT_ONCE).map(|_| self.act_alone())).await;
    }

    async fn act_alone(&self) {
        loop {
            self.world.pause(60).await;
            let id = format!("chat{}", self.world.below(super::chats()));
            let Some(chat) = self.chat(&id).await else {
                self.send(&id, 1).await;
                continue;
            };
            let sent = chat.messages.iter().filter(|message| message.role == Role::User).count();
            let questions = questions(&chat);
            match self.world.below(20) {
                // It may also interrupt an answer.
                0 if sent < MAX_SENT => self.send(&id, sent + 1).await,
                1..5 if sent < MAX_SENT && is_quiet(&chat) && questions.is_empty() => {
                    self.send(&id, sent + 1).await;
                }
                _ if !questions.is_empty() => self.answer(&id, &chat, questions).await,
                _ => {}
            }
        }
    }

    /// Answers all questions of a chat, until there are no more. Returns the chat, or `None` if it does not exist.
    pub(super) async fn finish(&self, id: &str) -> Option<Chat> {
        for _ in 0..MAX_ROUNDS {
            let chat = self.quiet(id, &[]).await?;
            let questions = questions(&chat);
            if questions.is_empty() {
                return Some(chat);
            }
            self.answer(id, &chat, questions).await;
        }
        panic!("{id} asks again and again:\n{}", self.world.about(id));
    }

    async fn chat(&self, id: &str) -> Option<Chat> {
        match self.chats.chat(&ada(), &id.into()).await {
            Err(ChatError::NotFound) => None,
            chat => Some(chat.unwrap()),
        }
    }

    /// Sends the message with this number. If it was sent before, it is delivered again.
    async fn send(&self, id: &str, number: usize) {
        let message = UiMessage::new(format!("u{number}"), Role::User, vec![Part::text("Tidy up")]);
        self.turn(id, Vec::new(), self.post(id, &message)).await;
    }

    /// Answers one question, or all of them, as a page does or as another screen does.
    async fn answer(&self, id: &str, chat: &Chat, mut questions: Vec<Question>) {
        let way = self.world.below(3);
        // A page sends the answers of a message together.
        if way > 0 && self.world.below(2) == 0 {
            questions = vec![questions.swap_remove(self.world.below(questions.len()))];
        }
        let answers: Vec<(Question, bool)> = questions
            .into_iter()
            .map(|question| {
                let approves = self.world.below(5) > 0;
                self.world.write("answers", format!("{id} {} {approves}", question.call));
                (question, approves)
            })
            .collect();
        let answered: Vec<String> = answers.iter().map(|(asked, _)| asked.call.clone()).collect();
        let decisions = answers.iter().map(|(question, approves)| {
            let mut decision = ApprovalDecision::new(question.approval.clone(), *approves);
            decision.reason = (!approves).then(|| "Keep it.".to_owned());
            decision
        });
        let decisions: Vec<ApprovalDecision> = decisions.collect();
        let answering = match way {
            0 => {
                let mut message = chat.messages.iter().next_back().unwrap().clone();
                for part in message.tool_parts_mut() {
                    let mut decisions = decisions.iter();
                    let decision = decisions.find(|it| part.approval_id() == Some(&it.approval_id));
                    if let Some(decision) = decision {
                        part.respond(decision.approved, decision.reason.as_deref()).unwrap();
                    }
                }
                async move { self.post(id, &message).await }.boxed()
            }
            1 => async move {
                let mut answers = ClientAnswers::default();
                answers.decisions = decisions;
                let id = ChatId::new(id);
                let request = self.chats.request_from_answers(&ada(), &id, &answers).await?;
                read(self.chats.stream_response(&ada(), request).await?).await;
                Ok(())
            }
            .boxed(),
            _ => async move { self.chats.decide(&ada(), decisions).await.map(drop) }.boxed(),
        };
        self.turn(id, answered, answering).await;
    }

    /// Sends something in a chat, and waits until nothing is executed there any more, and until the calls that it
    /// answers have results: a chat shows the question while another server executes its call.
    async fn turn(
        &self,
        id: &str,
        mut answered: Vec<String>,
        send: impl Future<Output = Result<(), ChatError>>,
    ) {
        let number = self.turns.fetch_add(1, Ordering::Relaxed);
        self.world.write("begins", format!("{number} {id}"));
        match send.await {
            Ok(()) => {}
            // Others have answered, or have sent a message, meanwhile.
            Err(
                ChatError::Request(_)
                | ChatError::AlreadyReceived { .. }
                | ChatError::Conflict { .. },
            ) => {
                answered.clear();
            }
            Err(error) => panic!("{error:?}"),
        }
        self.quiet(id, &answered).await;
        self.world.write("ended", number);
    }

    async fn post(&self, id: &str, message: &UiMessage) -> Result<(), ChatError> {
        let body = json!({ "id": id, "trigger": "submit-message", "messages": [message] });
        let request = request(&body);
        read(self.chats.stream_response(&ada(), request).await?).await;
        Ok(())
    }

    /// Waits until nothing is executed in a chat and these calls ask no more, as a page does that shows it.
    async fn quiet(&self, id: &str, answered: &[String]) -> Option<Chat> {
        let begin = Instant::now();
        loop {
            if let Some(live) = self.chats.resume_stream(&ada(), &id.into(), None).await.unwrap() {
                read(live).await;
            }
            let chat = self.chat(id).await?;
            let is_answered = |id: &str| answered.iter().any(|answered| answered == id);
            let asks = questions(&chat).iter().any(|question| is_answered(&question.call));
            if is_quiet(&chat) && !asks {
                return Some(chat);
            }
            assert!(
                begin.elapsed() < patience(),
                "{id} does not go on: {:#?}\n{}",
                chat.messages,
                self.world.about(id)
            );
            sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Reads a response to its end.
async fn read(mut response: ChatStream) {
    while let Some(frames) = response.next().await {
        frames.unwrap();
    }
}

/// Returns the questions of the last message.
fn questions(chat: &Chat) -> Vec<Question> {
    let last = chat.messages.iter().next_back().into_iter();
    let asks = last.flat_map(UiMessage::tool_parts).filter(|part| part.awaits_approval());
    let questions = asks.filter_map(|part| {
        let call = part.tool_call_id.as_str().to_owned();
        Some(Question { call, approval: part.approval_id()?.clone() })
    });
    questions.collect()
}

/// Whether all calls of a chat have a result, or wait for the user.
fn is_quiet(chat: &Chat) -> bool {
    let parts = || chat.messages.iter().flat_map(UiMessage::tool_parts);
    let asks_inside = |outer: &ToolPart| {
        let outer = Some(&outer.tool_call_id);
        parts().any(|part| part.awaits_approval() && part.outer_call().as_ref() == outer)
    };
    parts().all(|part| part.is_settled() || part.awaits_approval() || asks_inside(part))
}

/// The number of users of a server who chat at once.
const AT_ONCE: usize = 4;

/// The most messages that users send in a chat.
const MAX_SENT: usize = 3;

/// More rounds of answers than a chat needs.
const MAX_ROUNDS: usize = 10;

/// The lease of runs and of approved calls. A server that stands still for longer counts as lost.
pub(super) const LEASE: Duration = Duration::from_secs(5);
