//! [`Messages`]: the messages of a conversation, shared by all copies of it.
//!
//! A conversation is read several times in a turn, and each reader has a version of its own. The
//! versions share the messages, and the pages that list them: to add a message copies one page,
//! and the list of pages. So the cost of a turn hardly depends on the length of the conversation.
//!
//! # The versions of a chat share its messages
//!
//! A turn reads its chat several times: to apply the request, to record results, for the agent, and to store the
//! message. Each time it needs a version that does not change meanwhile. Copying the messages made a tiny turn in a
//! chat of 3 000 turns cost 250 ms of CPU. Now a version is a list of pages, and each page lists up to 64 messages.
//! Two versions share all pages but the changed one. A page also holds what a turn looks for: the hash of each id,
//! the bytes, and whether there are calls without a result. So a turn reads few messages, however long the chat is.

#[cfg(test)]
mod tests;

use std::collections::hash_map::DefaultHasher;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::io::{self, Write};
use std::ops::Index;
use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use ui_message_stream::id::MessageId;
use ui_message_stream::message::{Part, Role, ToolPart, UiMessage};

/// The messages of a conversation, oldest first.
///
/// A clone shares the messages with the original. To change a message, [`update`](Self::update) it:
/// a message that is shared is copied first.
///
/// ```
/// use ui_message_stream::UiMessage;
/// use ui_message_stream_chat::Messages;
/// use ui_message_stream::message::Role;
///
/// let mut messages = Messages::default();
/// messages.push(UiMessage::new("m1", Role::User, Vec::new()));
/// let before = messages.clone();
/// messages.update(0, |message| message.id = "m2".into());
/// assert_eq!(before[0].id.as_str(), "m1");
/// assert_eq!(messages.last().unwrap().id.as_str(), "m2");
/// ```
#[derive(Clone, Default)]
pub struct Messages {
    pages: Arc<Vec<Arc<Page>>>,
    len: usize,
}

/// Some adjacent messages.
#[derive(Clone, Default)]
struct Page {
    /// At least one entry, except while the page is being changed.
    entries: Vec<Entry>,
    bytes: OnceLock<usize>,
    /// How many messages hold tool calls or data.
    with_calls: usize,
    unsettled: usize,
    /// A Bloom filter of the hashes of the ids: most pages that do not hold an id are skipped.
    ids: [u64; FILTER_WORDS],
}

/// A message, and what would take long to find out again.
#[derive(Clone)]
struct Entry {
    message: Arc<UiMessage>,
    id_hash: u64,
    /// The number of bytes as JSON, once it was asked for.
    bytes: OnceLock<usize>,
    /// Whether it holds tool calls or data, which may describe a call.
    has_calls: bool,
    has_unsettled_calls: bool,
}

impl Messages {
    /// Returns the number of messages.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are no messages.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the number of bytes that the messages have as JSON.
    pub fn bytes(&self) -> usize {
        self.pages.iter().map(|page| page.bytes()).sum()
    }

    /// Returns the message at this index.
    pub fn get(&self, at: usize) -> Option<&UiMessage> {
        self.shared(at).map(|message| &**message)
    }

    /// Returns the message at this index, to share it.
    pub fn shared(&self, at: usize) -> Option<&Arc<UiMessage>> {
        let (page, at) = self.locate(at)?;
        Some(&self.pages[page].entries[at].message)
    }

    /// Returns the messages from this index on as JSON. Their bytes need not be counted after that.
    pub(crate) fn json_from(&self, at: usize) -> Result<Vec<String>, serde_json::Error> {
        let entries = self.pages.iter().flat_map(|page| &page.entries).skip(at);
        let json = entries.map(|entry| {
            let json = serde_json::to_string(&entry.message)?;
            entry.bytes.get_or_init(|| json.len());
            Ok(json)
        });
        json.collect()
    }

    /// Returns the oldest message.
    pub fn first(&self) -> Option<&UiMessage> {
        self.get(0)
    }

    /// Returns the newest message.
    pub fn last(&self) -> Option<&UiMessage> {
        self.get(self.len.checked_sub(1)?)
    }

    /// Iterates over the messages, oldest first.
    pub fn iter(&self) -> MessagesIter<'_> {
        let last = self.pages.last();
        MessagesIter {
            pages: &self.pages,
            front: (0, 0),
            back: (self.pages.len().saturating_sub(1), last.map_or(0, |page| page.entries.len())),
            remaining: self.len,
        }
    }

    /// Returns the index of the last message with this id.
    pub fn position(&self, id: &MessageId) -> Option<usize> {
        self.rfind(id, |_| true).map(|(at, _)| at)
    }

    /// Returns the index of the last message with this role and id.
    pub(super) fn position_of(&self, id: &MessageId, role: Role) -> Option<usize> {
        self.rfind(id, |message| message.role == role).map(|(at, _)| at)
    }

    /// Returns the last message with this id.
    pub fn find(&self, id: &MessageId) -> Option<&UiMessage> {
        self.rfind(id, |_| true).map(|(_, message)| message)
    }

    fn rfind(
        &self,
        id: &MessageId,
        is_match: impl Fn(&UiMessage) -> bool,
    ) -> Option<(usize, &UiMessage)> {
        let hash = hash_of(id);
        let mut found = self.entries_from_back(|page| page.may_hold(hash)).filter(|(_, entry)| {
            entry.id_hash == hash && entry.message.id == *id && is_match(&entry.message)
        });
        found.next().map(|(at, entry)| (at, &*entry.message))
    }

    /// Iterates over the messages that hold tool calls or data, newest first, with their indexes.
    pub(super) fn with_calls(&self) -> impl Iterator<Item = (usize, &UiMessage)> {
        let entries = self.entries_from_back(|page| page.with_calls > 0);
        let with_calls = entries.filter(|(_, entry)| entry.has_calls);
        with_calls.map(|(at, entry)| (at, &*entry.message))
    }

    /// Iterates over the messages that hold tool calls without a final result, oldest first.
    pub(super) fn with_unsettled_calls(&self) -> impl Iterator<Item = &UiMessage> {
        let pages = self.pages.iter().filter(|page| page.unsettled > 0);
        let entries = pages.flat_map(|page| &page.entries);
        entries.filter(|entry| entry.has_unsettled_calls).map(|entry| &*entry.message)
    }

    /// Appends a message.
    pub fn push(&mut self, message: impl Into<Arc<UiMessage>>) {
        self.insert(self.len, message);
    }

    /// Inserts a message before the one at this index, or at the end if there is none.
    pub fn insert(&mut self, at: usize, message: impl Into<Arc<UiMessage>>) {
        let pages = Arc::make_mut(&mut self.pages);
        let mut rest = at.min(self.len);
        let mut place = 0;
        // The end of a page that has room is better than the start of the next one.
        while let Some(page) = pages.get(place)
            && (rest > page.entries.len()
                || rest == page.entries.len() && page.entries.len() >= PAGE_MESSAGES)
        {
            rest -= page.entries.len();
            place += 1;
        }
        if pages.get(place).is_none_or(|page| rest == 0 && page.entries.len() >= PAGE_MESSAGES) {
            pages.insert(place, Arc::default());
        }
        let page = Arc::make_mut(&mut pages[place]);
        page.entries.insert(rest, Entry::new(message.into()));
        let second = if page.entries.len() > PAGE_MESSAGES {
            Some(Page::of(page.entries.split_off(PAGE_MESSAGES / 2)))
        } else {
            None
        };
        page.count();
        if let Some(second) = second {
            pages.insert(place + 1, Arc::new(second));
        }
        self.len += 1;
    }

    /// Replaces the message at this index, and returns the replaced one. Does nothing if there is
    /// none.
    pub fn replace(
        &mut self,
        at: usize,
        message: impl Into<Arc<UiMessage>>,
    ) -> Option<Arc<UiMessage>> {
        let (page, at) = self.locate(at)?;
        let page = Arc::make_mut(&mut Arc::make_mut(&mut self.pages)[page]);
        let replaced = std::mem::replace(&mut page.entries[at], Entry::new(message.into()));
        page.count();
        Some(replaced.message)
    }

    /// Changes the message at this index. A shared message is copied first. Returns the result of
    /// `change`, or `None` if there is no such message.
    pub fn update<T>(&mut self, at: usize, change: impl FnOnce(&mut UiMessage) -> T) -> Option<T> {
        let (page, at) = self.locate(at)?;
        let page = Arc::make_mut(&mut Arc::make_mut(&mut self.pages)[page]);
        let entry = &mut page.entries[at];
        let result = change(Arc::make_mut(&mut entry.message));
        *entry = Entry::new(Arc::clone(&entry.message));
        page.count();
        Some(result)
    }

    /// Removes the messages from this index on.
    pub fn truncate(&mut self, len: usize) {
        if len >= self.len {
            return;
        }
        let pages = Arc::make_mut(&mut self.pages);
        let mut kept = 0;
        let mut rest = len;
        while let Some(page) = pages.get(kept)
            && page.entries.len() <= rest
        {
            rest -= page.entries.len();
            kept += 1;
        }
        pages.truncate(kept + usize::from(rest > 0));
        if let Some(page) = pages.get_mut(kept) {
            let page = Arc::make_mut(page);
            page.entries.truncate(rest);
            page.count();
        }
        self.len = len;
    }

    /// Returns how many of the first messages both versions share, so that a snapshot writes only the others. A turn does not
    /// count what it changes, so no change can be forgotten. Contents are not compared: a message that was replaced by an
    /// equal one is not shared.
    pub(crate) fn shared_prefix(&self, other: &Self) -> usize {
        let pairs = self.pages.iter().zip(other.pages.iter());
        let same = pairs.take_while(|(one, other)| Arc::ptr_eq(one, other)).count();
        let [rest, other] = [self, other]
            .map(|messages| messages.pages[same..].iter().flat_map(|page| &page.entries));
        let rest = rest.zip(other);
        let rest = rest.take_while(|(one, other)| Arc::ptr_eq(&one.message, &other.message));
        self.pages[..same].iter().map(|page| page.entries.len()).sum::<usize>() + rest.count()
    }

    /// Returns the page and the place in it of the message at this index.
    fn locate(&self, at: usize) -> Option<(usize, usize)> {
        if at >= self.len {
            return None;
        }
        // Most readers want one of the newest messages.
        let mut start = self.len;
        self.pages.iter().enumerate().rev().find_map(|(number, page)| {
            start -= page.entries.len();
            (at >= start).then(|| (number, at - start))
        })
    }

    /// Iterates over the entries of the matching pages, newest first, with their indexes.
    fn entries_from_back(
        &self,
        is_match: impl Fn(&Page) -> bool,
    ) -> impl Iterator<Item = (usize, &Entry)> {
        let mut start = self.len;
        let pages = self.pages.iter().rev().map(move |page| {
            start -= page.entries.len();
            (start, page)
        });
        let pages = pages.filter(move |(_, page)| is_match(page));
        pages.flat_map(|(start, page)| {
            #[cfg(test)]
            VISITS.set(VISITS.get() + page.entries.len());
            let entries = page.entries.iter().enumerate().rev();
            entries.map(move |(at, entry)| (start + at, entry))
        })
    }
}

impl Page {
    fn of(entries: Vec<Entry>) -> Self {
        let mut page = Page { entries, ..Page::default() };
        page.count();
        page
    }

    fn count(&mut self) {
        self.bytes = OnceLock::new();
        self.with_calls = self.entries.iter().filter(|entry| entry.has_calls).count();
        self.unsettled = self.entries.iter().filter(|entry| entry.has_unsettled_calls).count();
        self.ids = [0; FILTER_WORDS];
        for entry in &self.entries {
            for (word, bit) in filter_bits(entry.id_hash) {
                self.ids[word] |= bit;
            }
        }
    }

    fn bytes(&self) -> usize {
        *self.bytes.get_or_init(|| self.entries.iter().map(Entry::bytes).sum())
    }

    /// Returns whether a message of this page may have an id with this hash.
    fn may_hold(&self, hash: u64) -> bool {
        filter_bits(hash).into_iter().all(|(word, bit)| self.ids[word] & bit != 0)
    }
}

impl Entry {
    fn new(message: Arc<UiMessage>) -> Self {
        let mut calls = message.tool_parts();
        let has_unsettled_calls = !calls.all(ToolPart::is_settled);
        drop(calls);
        Entry {
            id_hash: hash_of(&message.id),
            bytes: OnceLock::new(),
            has_calls: message
                .parts
                .iter()
                .any(|part| matches!(part, Part::Tool(_) | Part::Data(_))),
            has_unsettled_calls,
            message,
        }
    }

    fn bytes(&self) -> usize {
        *self.bytes.get_or_init(|| json_len(&self.message))
    }
}

/// Returns the two bits of a hash in the filter of a page, each with its word.
fn filter_bits(hash: u64) -> [(usize, u64); 2] {
    [hash, hash >> 32].map(|hash| ((hash >> 6) as usize % FILTER_WORDS, 1 << (hash % 64)))
}

fn hash_of(id: &MessageId) -> u64 {
    let mut hasher = DefaultHasher::new();
    id.hash(&mut hasher);
    hasher.finish()
}

/// Returns the number of bytes of a value as JSON.
pub(crate) fn json_len(value: &impl Serialize) -> usize {
    struct Count(usize);

    impl Write for Count {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    let mut count = Count(0);
    // A message always serializes, and counting does not fail.
    let _ = serde_json::to_writer(&mut count, value);
    count.0
}

/// The maximum number of messages of a page.
const PAGE_MESSAGES: usize = 64;

/// The size of the filter of a page: 16 bits for each message.
const FILTER_WORDS: usize = 16;

impl Index<usize> for Messages {
    type Output = UiMessage;

    /// # Panics
    /// If there is no such message.
    fn index(&self, at: usize) -> &UiMessage {
        match self.get(at) {
            Some(message) => message,
            None => panic!("there are {} messages and none at index {at}", self.len),
        }
    }
}

impl PartialEq for Messages {
    fn eq(&self, other: &Self) -> bool {
        let pairs = || self.iter().zip(other.iter());
        self.len == other.len
            && (Arc::ptr_eq(&self.pages, &other.pages)
                || pairs().all(|(one, other)| std::ptr::eq(one, other) || one == other))
    }
}

impl fmt::Debug for Messages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self).finish()
    }
}

impl Serialize for Messages {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self)
    }
}

impl<'de> Deserialize<'de> for Messages {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Vec::<UiMessage>::deserialize(deserializer).map(Self::from)
    }
}

impl From<Vec<UiMessage>> for Messages {
    fn from(messages: Vec<UiMessage>) -> Self {
        messages.into_iter().collect()
    }
}

impl<M: Into<Arc<UiMessage>>> FromIterator<M> for Messages {
    fn from_iter<I: IntoIterator<Item = M>>(messages: I) -> Self {
        let mut collected = Messages::default();
        collected.extend(messages);
        collected
    }
}

impl<M: Into<Arc<UiMessage>>> Extend<M> for Messages {
    fn extend<I: IntoIterator<Item = M>>(&mut self, messages: I) {
        messages.into_iter().for_each(|message| self.push(message));
    }
}

impl<'a> IntoIterator for &'a Messages {
    type Item = &'a UiMessage;
    type IntoIter = MessagesIter<'a>;

    fn into_iter(self) -> MessagesIter<'a> {
        self.iter()
    }
}

#[cfg(test)]
thread_local! {
    /// How many messages this thread has looked at.
    pub(super) static VISITS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Iterates over [`Messages`].
#[derive(Clone)]
pub struct MessagesIter<'a> {
    pages: &'a [Arc<Page>],
    /// The page and the place in it of the next message.
    front: (usize, usize),
    /// The page of the message before which the iterator ends, and the place in it.
    back: (usize, usize),
    remaining: usize,
}

impl<'a> Iterator for MessagesIter<'a> {
    type Item = &'a UiMessage;

    fn next(&mut self) -> Option<&'a UiMessage> {
        self.remaining = self.remaining.checked_sub(1)?;
        while self.front.1 >= self.pages[self.front.0].entries.len() {
            self.front = (self.front.0 + 1, 0);
        }
        let entry = &self.pages[self.front.0].entries[self.front.1];
        self.front.1 += 1;
        #[cfg(test)]
        VISITS.set(VISITS.get() + 1);
        Some(&entry.message)
    }

    fn nth(&mut self, n: usize) -> Option<&'a UiMessage> {
        let mut skipped = n.min(self.remaining);
        self.remaining -= skipped;
        while let Some(page) = self.pages.get(self.front.0)
            && skipped >= page.entries.len() - self.front.1
        {
            skipped -= page.entries.len() - self.front.1;
            self.front = (self.front.0 + 1, 0);
        }
        self.front.1 += skipped;
        self.next()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.remaining, Some(self.remaining))
    }
}

impl DoubleEndedIterator for MessagesIter<'_> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.remaining = self.remaining.checked_sub(1)?;
        while self.back.1 == 0 {
            let page = self.back.0 - 1;
            self.back = (page, self.pages[page].entries.len());
        }
        self.back.1 -= 1;
        #[cfg(test)]
        VISITS.set(VISITS.get() + 1);
        Some(&self.pages[self.back.0].entries[self.back.1].message)
    }
}

impl ExactSizeIterator for MessagesIter<'_> {}

impl fmt::Debug for MessagesIter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.clone()).finish()
    }
}
