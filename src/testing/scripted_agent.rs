//! [`ScriptedAgent`]: an agent that emits given events.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_core::Stream;
use tokio::time::{Sleep, sleep};

use crate::boxed::BoxError;
use crate::event::AgentEvent;

/// An agent that emits given events in order, and can pause, fail or panic between them.
///
/// ```
/// use std::time::Duration;
/// use ui_message_stream::testing::{ScriptedAgent, collect_chunks};
/// use ui_message_stream::{AgentEvent, Translator, UiMessageStream};
///
/// # let paused = |test| tokio::runtime::Builder::new_current_thread()
/// #     .enable_all().start_paused(true).build().unwrap().block_on(test);
/// # paused(async {
/// let agent = ScriptedAgent::new([AgentEvent::text("Let me think. ")])
///     .pause(Duration::from_secs(40))
///     .say([AgentEvent::text("It is f")])
///     .fail("the model went away");
/// let response = UiMessageStream::with_translator(Translator::new("msg_1"), agent);
/// let chunks = collect_chunks(response).await?;
/// assert!(chunks.iter().any(|chunk| chunk.kind() == "error"));
/// # Ok::<(), ui_message_stream::testing::CollectError>(())
/// # }).unwrap();
/// ```
///
/// # Panics
/// A pause is a tokio timer: polled outside of a tokio runtime, it panics. Under paused time it
/// takes no real time.
#[must_use = "an agent does nothing until it is polled"]
pub struct ScriptedAgent {
    actions: VecDeque<Action>,
    sleeping: Option<Pin<Box<Sleep>>>,
}

/// An action of the agent.
#[derive(Debug, Clone)]
enum Action {
    Emit(Box<AgentEvent>),
    Pause(Duration),
    Fail(String),
    Panic(String),
    Hang,
}

impl ScriptedAgent {
    /// Creates an agent that emits these events and then ends.
    pub fn new(events: impl IntoIterator<Item = AgentEvent>) -> Self {
        ScriptedAgent { actions: VecDeque::new(), sleeping: None }.say(events)
    }

    /// Adds: emit these events.
    pub fn say(mut self, events: impl IntoIterator<Item = AgentEvent>) -> Self {
        self.actions.extend(events.into_iter().map(|event| Action::Emit(Box::new(event))));
        self
    }

    /// Adds: emit nothing for this duration.
    pub fn pause(self, pause: Duration) -> Self {
        self.then(Action::Pause(pause))
    }

    /// Adds: fail. The stream yields an error with this text. If it is polled again, it continues
    /// with the actions after this one.
    pub fn fail(self, error: impl Into<String>) -> Self {
        self.then(Action::Fail(error.into()))
    }

    /// Adds: panic with this text.
    pub fn panic(self, text: impl Into<String>) -> Self {
        self.then(Action::Panic(text.into()))
    }

    /// Adds: stay pending, without an event and without an end.
    pub fn hang(self) -> Self {
        self.then(Action::Hang)
    }

    fn then(mut self, action: Action) -> Self {
        self.actions.push_back(action);
        self
    }
}

impl Stream for ScriptedAgent {
    type Item = Result<AgentEvent, BoxError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(sleeping) = &mut self.sleeping {
                std::task::ready!(sleeping.as_mut().poll(cx));
                self.sleeping = None;
            }
            match self.actions.pop_front() {
                None => return Poll::Ready(None),
                Some(Action::Emit(event)) => return Poll::Ready(Some(Ok(*event))),
                Some(Action::Pause(pause)) => self.sleeping = Some(Box::pin(sleep(pause))),
                Some(Action::Fail(error)) => return Poll::Ready(Some(Err(error.into()))),
                Some(Action::Panic(text)) => panic!("{text}"),
                Some(Action::Hang) => {
                    self.actions.push_front(Action::Hang);
                    return Poll::Pending;
                }
            }
        }
    }
}

impl fmt::Debug for ScriptedAgent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScriptedAgent").field("acts", &self.actions).finish_non_exhaustive()
    }
}
