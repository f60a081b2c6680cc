//! The lists of pending approval requests of a principal, merged in the order in which they expire.

use std::collections::VecDeque;

use futures_util::future::try_join_all;

use super::inner::{Inner, PAGE_RECORDS};
use crate::approval::store::{
    LedgerStoreError, ListRecords, ListedRecords, RecordCursor, RecordList, VersionedRecord,
};
use crate::approval::{ApprovalRecord, Principal, UnixMillis};
use crate::id::{ApprovalId, ChatId};

/// An approval request without an answer.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct PendingApproval {
    /// The approval id that the answer must carry.
    pub approval_id: ApprovalId,
    /// The record of the approval request.
    pub record: ApprovalRecord,
}

/// A page of approval requests without an answer.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct PendingApprovals {
    /// The approval requests that have not expired, in the order in which they expire. A page before the last one
    /// may hold fewer than were asked for.
    pub approvals: Vec<PendingApproval>,
    /// Where the next page begins. `None` after the last page.
    pub next: Option<RecordCursor>,
}

/// Selects a page of the [inbox](super::Approvals::inbox) of a principal.
#[derive(Debug, Clone, Copy)]
pub struct InboxQuery<'a> {
    /// Only requests in the chats with this id.
    pub chat: Option<&'a ChatId>,
    /// Only requests for this tool.
    pub tool: Option<&'a str>,
    /// The [`next`](PendingApprovals::next) of the page before. `None` for the first page.
    pub after: Option<RecordCursor>,
    /// The maximum number of requests in the page.
    pub limit: usize,
}

/// The first page, of at most 100 requests, without a filter.
impl Default for InboxQuery<'_> {
    fn default() -> Self {
        InboxQuery { chat: None, tool: None, after: None, limit: 100 }
    }
}

impl Inner {
    /// Returns all approval requests of this list that have not expired and whose key may still be used.
    pub(super) async fn pending(
        &self,
        list: RecordList,
    ) -> Result<Vec<PendingApproval>, LedgerStoreError> {
        let mut query = InboxQuery { limit: usize::MAX, ..InboxQuery::default() };
        let mut all = Vec::new();
        loop {
            let page = self.merged(vec![list.clone()], query, |_| true).await?;
            all.extend(page.approvals);
            query.after = page.next;
            if query.after.is_none() {
                return Ok(all);
            }
        }
    }

    /// Returns a page of what this principal has requested, or may decide as one of an audience.
    pub(super) async fn inbox(
        &self,
        principal: &Principal,
        query: InboxQuery<'_>,
    ) -> Result<PendingApprovals, LedgerStoreError> {
        let mut audiences = (self.audiences_of)(principal);
        audiences.sort_unstable();
        audiences.dedup();
        if audiences.len() > MAX_AUDIENCES {
            let count = audiences.len();
            tracing::warn!(
                count,
                "`Approvals::with_audiences` named more than {MAX_AUDIENCES} audiences of a principal: \
                 the others do not count"
            );
            audiences.truncate(MAX_AUDIENCES);
        }
        let audiences =
            audiences.iter().map(|name| RecordList::of_audience(principal.tenant(), name));
        let own = std::iter::once(RecordList::of_requester(principal));
        let lists = own.chain(audiences).map(|list| match (query.chat, query.tool) {
            (Some(chat), _) => list.in_chat(chat),
            (None, Some(tool)) => list.of_tool(tool),
            (None, None) => list,
        });
        self.merged(lists.collect(), query, |record| {
            query.tool.is_none_or(|tool| *record.tool_name == *tool)
                && (record.requester == *principal || self.can_decide(principal, record))
        })
        .await
    }

    /// Returns a page of several lists, in one order, each record once.
    async fn merged(
        &self,
        lists: Vec<RecordList>,
        query: InboxQuery<'_>,
        is_shown: impl Fn(&ApprovalRecord) -> bool,
    ) -> Result<PendingApprovals, LedgerStoreError> {
        let page = query.limit.saturating_add(1).min(PAGE_RECORDS.div_ceil(lists.len().max(1)));
        // With a limit of 0, the next page begins before all requests.
        let after = query.after.or(Some(RecordCursor::after_time(UnixMillis(0))));
        let feed = |list| Feed { list, after, has_more: true, records: VecDeque::new() };
        let mut feeds: Vec<Feed> = lists.into_iter().map(feed).collect();
        let mut approvals = Vec::new();
        let mut last = after;
        let mut hidden = 0;
        let mut bytes = 0;
        loop {
            let places = try_join_all(feeds.iter_mut().map(|feed| feed.place(self, page))).await?;
            let first = places.into_iter().flatten().min();
            if first.is_none() {
                return Ok(PendingApprovals { approvals, next: None });
            }
            if approvals.len() >= query.limit || hidden >= MAX_HIDDEN || bytes >= MAX_PAGE_BYTES {
                return Ok(PendingApprovals { approvals, next: last });
            }
            last = first;
            let mut record = None;
            for feed in &mut feeds {
                record = feed.take(first).or(record);
            }
            let record = record.filter(|(record, _)| is_shown(record));
            match record.and_then(|(it, now)| Some((it.approval_id(&self.keys, now)?, it))) {
                Some((approval_id, record)) => {
                    bytes += record.input.as_str().len() + record.description.len();
                    approvals.push(PendingApproval { approval_id, record });
                }
                None => hidden += 1,
            }
        }
    }
}

/// A list that is read page by page, without the records that have expired.
struct Feed {
    list: RecordList,
    after: Option<RecordCursor>,
    has_more: bool,
    /// Each with the time of the ledger when it was read.
    records: VecDeque<(ApprovalRecord, UnixMillis)>,
}

impl Feed {
    /// Returns the place of the next record, which is read if necessary.
    async fn place(
        &mut self,
        inner: &Inner,
        limit: usize,
    ) -> Result<Option<RecordCursor>, LedgerStoreError> {
        while self.records.is_empty() && self.has_more {
            let Feed { list, after, .. } = &*self;
            let page = ListRecords { list, after: *after, later_than_now: true, limit };
            let ListedRecords { now, records, next } = inner.read_pending(page).await?;
            let records = records.into_iter().map(|VersionedRecord { record, .. }| (record, now));
            // A store of a third party may not know `later_than_now`.
            self.records.extend(records.filter(|(record, now)| record.expires_at > *now));
            (self.after, self.has_more) = (next, next.is_some());
        }
        Ok(self.place_of_first())
    }

    /// Returns the next record, if it is the one at this place.
    fn take(&mut self, place: Option<RecordCursor>) -> Option<(ApprovalRecord, UnixMillis)> {
        if self.place_of_first() == place { self.records.pop_front() } else { None }
    }

    /// Returns the place of the first record that has been read.
    fn place_of_first(&self) -> Option<RecordCursor> {
        self.records.front().map(|(record, _)| RecordCursor::of_pending(record))
    }
}

/// How many records that the principal may not decide are read for a page.
const MAX_HIDDEN: usize = 200;

/// How many bytes of inputs and descriptions a page has, after which no other request follows.
const MAX_PAGE_BYTES: usize = 1 << 20;

/// The maximum number of audiences of a request, and of a principal.
pub(super) const MAX_AUDIENCES: usize = 16;

/// The maximum number of bytes of the name of an audience of a request.
pub(super) const MAX_AUDIENCE_BYTES: usize = 128;
