//! [`Smooth`]: text at the pace of reading, where a model sends it in bursts.
//!
//! It is a transform over events, as anybody can write one: a stream in, a stream out. An
//! [`Agent`](crate::agent::Agent) takes one with `with_transform`.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_core::Stream;
use tokio::time::{Sleep, sleep};

use crate::event::AgentEvent;
use crate::id::PartId;
use crate::stream::{BoxError, EventItem};

/// How text is to be paced. Everything else passes as it comes.
///
/// ```
/// use std::time::Duration;
///
/// use futures::{StreamExt, stream};
/// use ui_message_stream::AgentEvent;
/// use ui_message_stream::smooth::Smooth;
///
/// # let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
/// # runtime.block_on(async {
/// let burst = stream::iter([AgentEvent::text("All at "), AgentEvent::text("once, no?")]);
/// let paced = Smooth::by_words(Duration::from_millis(1)).pace(burst);
/// assert_eq!(paced.count().await, 4);
/// # });
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Smooth {
    unit: Unit,
    every: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unit {
    Words,
    Lines,
}

impl Smooth {
    /// A word with the space behind it, each this much after the one before.
    pub fn by_words(every: Duration) -> Self {
        Smooth { unit: Unit::Words, every }
    }

    /// A line, each this much after the one before.
    pub fn by_lines(every: Duration) -> Self {
        Smooth { unit: Unit::Lines, every }
    }

    /// The same events with their text paced. Nothing is lost: what is no whole word or line yet
    /// goes out with what follows, before any other event.
    pub fn pace<S: Stream<Item: EventItem>>(self, events: S) -> Smoothed<S> {
        Smoothed { smooth: self, events: Some(Box::pin(events)), held: None, next: None, due: None }
    }
}

/// Events whose text is paced: made by [`Smooth::pace`].
#[derive(Debug)]
pub struct Smoothed<S> {
    smooth: Smooth,
    /// `None` once they have ended.
    events: Option<Pin<Box<S>>>,
    held: Option<Held>,
    /// What came behind the text that is held.
    next: Option<Result<AgentEvent, BoxError>>,
    /// When the next piece may leave.
    due: Option<Pin<Box<Sleep>>>,
}

/// Text of one part, of which some has left.
#[derive(Debug)]
struct Held {
    part: Option<PartId>,
    text: String,
    left_to: usize,
}

impl Held {
    /// Takes a whole word or line off the beginning.
    fn take(&mut self, unit: Unit) -> Option<String> {
        let text = &self.text[self.left_to..];
        let end = match unit {
            Unit::Lines => text.find('\n')? + 1,
            Unit::Words => end_of_word(text)?,
        };
        let piece = text[..end].to_owned();
        self.left_to += end;
        Some(piece)
    }

    /// What has not left.
    fn rest(&self) -> Option<String> {
        let rest = &self.text[self.left_to..];
        (!rest.is_empty()).then(|| rest.to_owned())
    }

    fn push(&mut self, delta: &str) {
        // What has left is let go of together, so that a burst is not copied for each of its words.
        self.text.drain(..std::mem::take(&mut self.left_to));
        self.text.push_str(delta);
    }
}

/// Where the first word ends, with the space behind it. Where words have no space between them a
/// letter is one, as it is to whoever reads it.
fn end_of_word(text: &str) -> Option<usize> {
    let word = text.find(|c: char| !c.is_whitespace())?;
    let ends = |c: char| c.is_whitespace() || is_written_without_spaces(c);
    let end = word + text[word..].find(ends)?;
    if let Some(letter) = text[end..].chars().next().filter(|_| end == word) {
        return Some(end + letter.len_utf8());
    }
    if text[end..].starts_with(is_written_without_spaces) {
        return Some(end);
    }
    // The space may go on.
    Some(end + text[end..].find(|c: char| !c.is_whitespace())?)
}

/// Thai to Khmer, and the scripts and signs of China and Japan.
fn is_written_without_spaces(c: char) -> bool {
    matches!(
        u32::from(c),
        0x0E00..=0x0EFF | 0x1000..=0x109F | 0x1780..=0x17FF | 0x2E80..=0x9FFF | 0xF900..=0xFAFF
            | 0xFF00..=0xFF60 | 0x2_0000..=0x3_FFFF
    )
}

impl<S: Stream<Item: EventItem>> Stream for Smoothed<S> {
    type Item = Result<AgentEvent, BoxError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        let text = |part: &Option<PartId>, text: String| {
            Poll::Ready(Some(Ok(AgentEvent::TextDelta { id: part.clone(), delta: text.into() })))
        };
        loop {
            if let Some(due) = &mut this.due {
                ready!(due.as_mut().poll(cx));
                this.due = None;
            }
            if let Some(held) = &mut this.held
                && let Some(piece) = held.take(this.smooth.unit)
            {
                this.due = Some(Box::pin(sleep(this.smooth.every)));
                return text(&held.part, piece);
            }
            let has_ended = this.events.is_none();
            if (this.next.is_some() || has_ended)
                && let Some(held) = this.held.take()
                && let Some(rest) = held.rest()
            {
                return text(&held.part, rest);
            }
            if let Some(next) = this.next.take() {
                return Poll::Ready(Some(next));
            }
            let Some(events) = &mut this.events else {
                return Poll::Ready(None);
            };
            match ready!(events.as_mut().poll_next(cx)).map(EventItem::into_event) {
                None => this.events = None,
                Some(Ok(AgentEvent::TextDelta { id, delta }))
                    if this.held.as_ref().is_none_or(|held| held.part == id) =>
                {
                    let new = || Held { part: id, text: String::new(), left_to: 0 };
                    this.held.get_or_insert_with(new).push(&delta);
                }
                Some(event) => this.next = Some(event),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::{StreamExt, stream};
    use tokio::time::Instant;

    async fn paced(smooth: Smooth, events: Vec<AgentEvent>) -> Vec<AgentEvent> {
        let events = smooth.pace(stream::iter(events));
        events.map(|event| event.unwrap()).collect().await
    }

    fn texts(texts: &[&'static str]) -> Vec<AgentEvent> {
        texts.iter().map(|text| AgentEvent::text(*text)).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn words_leave_one_by_one_with_the_space_behind_them() {
        let begun = Instant::now();
        let every = Duration::from_millis(10);
        let said = texts(&["  Two wo", "rds,\n", "\nand", " more"]);
        let paced = paced(Smooth::by_words(every), said).await;
        assert_eq!(paced, texts(&["  Two ", "words,\n\n", "and ", "more"]));
        assert_eq!(begun.elapsed(), 3 * every);
    }

    #[tokio::test(start_paused = true)]
    async fn where_words_have_no_space_between_them_each_letter_leaves() {
        let said = texts(&["Es ist 東京", "タワー。 สวัส", "ดี!"]);
        let paced = paced(Smooth::by_words(Duration::from_millis(10)), said).await;
        let letters =
            ["Es ", "ist ", "東", "京", "タ", "ワ", "ー", "。", " ส", "ว", "ั", "ส", "ด", "ี", "!"];
        assert_eq!(paced, texts(&letters));
    }

    #[tokio::test(start_paused = true)]
    async fn lines_leave_one_by_one() {
        let said = texts(&["a b\nc", "\n\nd"]);
        let paced = paced(Smooth::by_lines(Duration::from_millis(10)), said).await;
        assert_eq!(paced, texts(&["a b\n", "c\n", "\n", "d"]));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_held_goes_out_before_any_other_event_and_before_other_text() {
        let named = |id: &'static str, text: &'static str| AgentEvent::TextDelta {
            id: Some(id.into()),
            delta: text.into(),
        };
        let said = vec![named("a", "one tw"), named("b", "three"), AgentEvent::StepFinish];
        let paced = paced(Smooth::by_words(Duration::from_millis(10)), said).await;
        let expected =
            vec![named("a", "one "), named("a", "tw"), named("b", "three"), AgentEvent::StepFinish];
        assert_eq!(paced, expected);
    }
}
