//! [`ScriptedAgent`]: an agent that says what it was told to.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_core::Stream;
use tokio::time::{Sleep, sleep};

use crate::event::AgentEvent;
use crate::stream::BoxError;

/// An agent that says what it was told to, in order, and may pause, fail or panic on the way.
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
/// A pause is a timer of tokio: polled outside of a runtime it panics. Under paused time it takes
/// none.
#[must_use = "an agent does nothing until it is polled"]
pub struct ScriptedAgent {
    acts: VecDeque<Act>,
    sleeping: Option<Pin<Box<Sleep>>>,
}

/// What the agent does next.
#[derive(Debug, Clone)]
enum Act {
    Say(Box<AgentEvent>),
    Pause(Duration),
    Fail(String),
    Panic(String),
    Hang,
}

impl ScriptedAgent {
    /// An agent that says this, and then ends.
    pub fn new(events: impl IntoIterator<Item = AgentEvent>) -> Self {
        ScriptedAgent { acts: VecDeque::new(), sleeping: None }.say(events)
    }

    /// Then says this.
    pub fn say(mut self, events: impl IntoIterator<Item = AgentEvent>) -> Self {
        self.acts.extend(events.into_iter().map(|event| Act::Say(Box::new(event))));
        self
    }

    /// Then is silent for so long.
    pub fn pause(self, pause: Duration) -> Self {
        self.then(Act::Pause(pause))
    }

    /// Then fails: its stream yields an error with this text. Whoever asks it further hears what
    /// comes after.
    pub fn fail(self, error: impl Into<String>) -> Self {
        self.then(Act::Fail(error.into()))
    }

    /// Then panics with this text.
    pub fn panic(self, text: impl Into<String>) -> Self {
        self.then(Act::Panic(text.into()))
    }

    /// Then says nothing any more, and does not end.
    pub fn hang(self) -> Self {
        self.then(Act::Hang)
    }

    fn then(mut self, act: Act) -> Self {
        self.acts.push_back(act);
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
            match self.acts.pop_front() {
                None => return Poll::Ready(None),
                Some(Act::Say(event)) => return Poll::Ready(Some(Ok(*event))),
                Some(Act::Pause(pause)) => self.sleeping = Some(Box::pin(sleep(pause))),
                Some(Act::Fail(error)) => return Poll::Ready(Some(Err(error.into()))),
                Some(Act::Panic(text)) => panic!("{text}"),
                Some(Act::Hang) => {
                    self.acts.push_front(Act::Hang);
                    return Poll::Pending;
                }
            }
        }
    }
}

impl fmt::Debug for ScriptedAgent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScriptedAgent").field("acts", &self.acts).finish_non_exhaustive()
    }
}
