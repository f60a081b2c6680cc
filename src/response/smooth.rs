//! [`Smooth`]: paces the text of a model that sends it in bursts.
//!
//! It is a transform of events: a stream in, a stream out. An `Agent`
//! accepts it, or any function of that form, in `with_transform`.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_core::Stream;
use tokio::time::{Sleep, sleep};

use crate::boxed::BoxError;
use crate::event::AgentEvent;
use crate::id::PartId;
use crate::response::IntoEvent;

/// Splits text into words or lines and paces them. All other events pass unchanged.
///
/// ```
/// use std::time::Duration;
///
/// use futures::{StreamExt, stream};
/// use ui_message_stream::AgentEvent;
/// use ui_message_stream::response::Smooth;
///
/// # let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
/// # runtime.block_on(async {
/// let burst = stream::iter([AgentEvent::text("All at "), AgentEvent::text("once, no?")]);
/// let paced = Smooth::by_words(Duration::from_millis(1)).apply(burst);
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
    /// Sends one word with the space after it at a time, with this delay between them.
    pub fn by_words(every: Duration) -> Self {
        Smooth { unit: Unit::Words, every }
    }

    /// Sends one line at a time, with this delay between them.
    pub fn by_lines(every: Duration) -> Self {
        Smooth { unit: Unit::Lines, every }
    }

    /// Returns the same events with paced text. No text is lost: an incomplete word or line is sent
    /// when it is complete, or before the next event that is not text of the same part.
    pub fn apply<S: Stream<Item: IntoEvent>>(self, events: S) -> SmoothStream<S> {
        SmoothStream {
            smooth: self,
            events: Some(Box::pin(events)),
            pending: None,
            next: None,
            due: None,
        }
    }
}

/// A stream of events with paced text, created by [`Smooth::apply`].
pub struct SmoothStream<S> {
    smooth: Smooth,
    /// `None` after the end of the stream.
    events: Option<Pin<Box<S>>>,
    pending: Option<PendingText>,
    /// The event that follows the pending text.
    next: Option<Result<AgentEvent, BoxError>>,
    /// The timer until the next piece may be sent.
    due: Option<Pin<Box<Sleep>>>,
}

/// Leaves out the events.
impl<S> fmt::Debug for SmoothStream<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SmoothStream").field("smooth", &self.smooth).finish_non_exhaustive()
    }
}

/// Text of one part that is not completely sent.
#[derive(Debug)]
struct PendingText {
    part: Option<PartId>,
    text: String,
    /// How many bytes of `text` were sent.
    sent: usize,
}

impl PendingText {
    /// Removes the first whole word or line and returns it, if there is one.
    fn take_piece(&mut self, unit: Unit) -> Option<String> {
        let text = &self.text[self.sent..];
        let end = match unit {
            Unit::Lines => text.find('\n')? + 1,
            Unit::Words => end_of_word(text)?,
        };
        let piece = text[..end].to_owned();
        self.sent += end;
        Some(piece)
    }

    /// Returns the text that was not sent.
    fn rest(&self) -> Option<String> {
        let rest = &self.text[self.sent..];
        (!rest.is_empty()).then(|| rest.to_owned())
    }

    fn push(&mut self, delta: &str) {
        // All sent text is removed at once, so that a burst is not copied once for each word.
        self.text.drain(..std::mem::take(&mut self.sent));
        self.text.push_str(delta);
    }
}

/// Returns the end of the first word with the space after it, if the word is complete. In scripts
/// without spaces between words, each letter counts as a word.
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
    // More space may follow in the next delta.
    Some(end + text[end..].find(|c: char| !c.is_whitespace())?)
}

/// Returns whether a script is written without spaces: Thai to Khmer, and the characters and
/// punctuation of Chinese and Japanese.
fn is_written_without_spaces(c: char) -> bool {
    matches!(
        u32::from(c),
        0x0E00..=0x0EFF | 0x1000..=0x109F | 0x1780..=0x17FF | 0x2E80..=0x9FFF | 0xF900..=0xFAFF
            | 0xFF00..=0xFF60 | 0x2_0000..=0x3_FFFF
    )
}

impl<S: Stream<Item: IntoEvent>> Stream for SmoothStream<S> {
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
            if let Some(pending) = &mut this.pending
                && let Some(piece) = pending.take_piece(this.smooth.unit)
            {
                this.due = Some(Box::pin(sleep(this.smooth.every)));
                return text(&pending.part, piece);
            }
            let has_ended = this.events.is_none();
            if (this.next.is_some() || has_ended)
                && let Some(pending) = this.pending.take()
                && let Some(rest) = pending.rest()
            {
                return text(&pending.part, rest);
            }
            if let Some(next) = this.next.take() {
                return Poll::Ready(Some(next));
            }
            let Some(events) = &mut this.events else {
                return Poll::Ready(None);
            };
            match ready!(events.as_mut().poll_next(cx)).map(IntoEvent::into_event) {
                None => this.events = None,
                Some(Ok(AgentEvent::TextDelta { id, delta }))
                    if this.pending.as_ref().is_none_or(|pending| pending.part == id) =>
                {
                    let new = || PendingText { part: id, text: String::new(), sent: 0 };
                    this.pending.get_or_insert_with(new).push(&delta);
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
        let events = smooth.apply(stream::iter(events));
        events.map(|event| event.unwrap()).collect().await
    }

    fn texts(texts: &[&'static str]) -> Vec<AgentEvent> {
        texts.iter().map(|text| AgentEvent::text(*text)).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn words_are_sent_one_by_one_with_the_space_after_them() {
        let started = Instant::now();
        let every = Duration::from_millis(10);
        let events_in = texts(&["  Two wo", "rds,\n", "\nand", " more"]);
        let paced = paced(Smooth::by_words(every), events_in).await;
        assert_eq!(paced, texts(&["  Two ", "words,\n\n", "and ", "more"]));
        assert_eq!(started.elapsed(), 3 * every);
    }

    #[tokio::test(start_paused = true)]
    async fn in_scripts_without_spaces_each_character_is_sent() {
        let events_in = texts(&["Es ist 東京", "タワー。 สวัส", "ดี!"]);
        let paced = paced(Smooth::by_words(Duration::from_millis(10)), events_in).await;
        let letters =
            ["Es ", "ist ", "東", "京", "タ", "ワ", "ー", "。", " ส", "ว", "ั", "ส", "ด", "ี", "!"];
        assert_eq!(paced, texts(&letters));
    }

    #[tokio::test(start_paused = true)]
    async fn lines_are_sent_one_by_one() {
        let events_in = texts(&["a b\nc", "\n\nd"]);
        let paced = paced(Smooth::by_lines(Duration::from_millis(10)), events_in).await;
        assert_eq!(paced, texts(&["a b\n", "c\n", "\n", "d"]));
    }

    #[tokio::test(start_paused = true)]
    async fn buffered_text_is_sent_before_any_other_event_and_other_text() {
        let named = |id: &'static str, text: &'static str| AgentEvent::TextDelta {
            id: Some(id.into()),
            delta: text.into(),
        };
        let events_in = vec![named("a", "one tw"), named("b", "three"), AgentEvent::StepFinish];
        let paced = paced(Smooth::by_words(Duration::from_millis(10)), events_in).await;
        let expected =
            vec![named("a", "one "), named("a", "tw"), named("b", "three"), AgentEvent::StepFinish];
        assert_eq!(paced, expected);
    }
}
