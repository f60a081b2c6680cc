//! The rules by which the events of an approval request are delivered to a notifier, in order.
//!
//! The events are a function of the record. So the record needs no list of them, and none can be lost or
//! invented.
//!
//! # The events of a request are a function of its record
//!
//! A record was requested, then decided or closed, and then its call has an outcome. So what a notifier gets is
//! computed from the record (`ApprovalEvent::all_of`), and the record only counts how many events were delivered.
//! A crash can neither lose nor invent an event, and an event costs no write of its own until it is
//! delivered. A record with an undelivered event is in one more list, by the time from which it may be delivered. A
//! server leases an event by a swap of the record, delivers it, and counts it by another swap. What is not
//! delivered is due again after 30 seconds, then after twice the time, up to an hour, so that a receiver that is
//! down keeps no others waiting. Two operations of the ledger at once serve all deliveries of a server: the ledger
//! serves streams, too. If a clock is set back by more than a minute, events wait until it has caught up.

use std::time::Duration;

use serde::Serialize;

use super::{ApprovalRecord, ApprovalState, NoticeDelivery, Transition, UnixMillis};

/// An event of an approval request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum ApprovalEvent {
    /// The approval was requested.
    Requested,
    /// The call was approved, and is executed.
    Approved,
    /// The call was denied.
    Denied,
    /// The call was approved, but with or after a newer message of the user. It is not executed.
    Lapsed,
    /// No answer arrived in time.
    Expired,
    /// The user sent another message instead of an answer.
    Superseded,
    /// The request was revoked.
    Revoked,
    /// The call was executed, and its outcome is stored.
    Executed,
    /// It is not known whether the call was executed.
    OutcomeUnknown,
}

words! {
    ApprovalEvent {
        Requested "requested" Approved "approved" Denied "denied" Lapsed "lapsed" Expired "expired"
        Superseded "superseded" Revoked "revoked" Executed "executed"
        OutcomeUnknown "outcome-unknown"
    }
}

impl ApprovalEvent {
    /// Returns the events of a request so far, with their times. A later state of the record has the same
    /// events, and perhaps more.
    pub fn all_of(record: &ApprovalRecord) -> Vec<(Self, UnixMillis)> {
        let requested = (ApprovalEvent::Requested, record.requested_at);
        let mut events = vec![requested];
        match &record.state {
            ApprovalState::Pending => {}
            ApprovalState::Denied { decision } => {
                events.push((ApprovalEvent::Denied, decision.decided_at));
            }
            ApprovalState::Lapsed { decision } => {
                events.push((ApprovalEvent::Lapsed, decision.decided_at));
            }
            ApprovalState::Expired => events.push((ApprovalEvent::Expired, record.expires_at)),
            ApprovalState::Superseded { at } => events.push((ApprovalEvent::Superseded, *at)),
            ApprovalState::Revoked { at, .. } => events.push((ApprovalEvent::Revoked, *at)),
            ApprovalState::Granted { decision } | ApprovalState::Claimed { decision, .. } => {
                events.push((ApprovalEvent::Approved, decision.decided_at));
            }
            ApprovalState::Completed { decision, at, .. } => {
                events.push((ApprovalEvent::Approved, decision.decided_at));
                events.push((ApprovalEvent::Executed, *at));
            }
            ApprovalState::OutcomeUnknown { decision } => {
                events.push((ApprovalEvent::Approved, decision.decided_at));
                // The time at which it became unknown is not stored.
                events.push((ApprovalEvent::OutcomeUnknown, decision.decided_at));
            }
        }
        events
    }
}

impl NoticeDelivery {
    /// Returns when the next event of this record may be delivered, or `None` if there is none.
    pub fn due_at(record: &ApprovalRecord) -> Option<UnixMillis> {
        let delivery = record.delivery?;
        let (_, at) = ApprovalEvent::all_of(record).into_iter().nth(delivery.delivered)?;
        Some(at.max(delivery.leased_until))
    }

    /// Leases the next event of a record to a server, if it is due. Returns its number, from 0.
    ///
    /// If it is not delivered, it is due again after 30 seconds, and after twice the time with each further
    /// failure, up to an hour.
    pub fn lease(record: &ApprovalRecord, now: UnixMillis) -> Transition<Option<usize>> {
        match record.delivery {
            Some(delivery) if Self::due_at(record).is_some_and(|due| due <= now) => {
                let lease = FIRST_LEASE * (1 << delivery.failures.min(MAX_DOUBLINGS));
                let leased = NoticeDelivery {
                    leased_until: now.after(lease),
                    failures: delivery.failures.saturating_add(1),
                    ..delivery
                };
                let next = ApprovalRecord { delivery: Some(leased), ..record.clone() };
                Transition { output: Some(delivery.delivered), next: Some(next) }
            }
            _ => Transition { output: None, next: None },
        }
    }

    /// Records that this event was delivered, and leases the next one. Returns the number of the next one, if
    /// there is one already and no other server has gone on.
    pub fn delivered(
        record: &ApprovalRecord,
        event: usize,
        now: UnixMillis,
    ) -> Transition<Option<usize>> {
        if record.delivery.is_none_or(|delivery| delivery.delivered != event) {
            return Transition { output: None, next: None };
        }
        let delivery = NoticeDelivery { delivered: event + 1, ..NoticeDelivery::default() };
        let record = ApprovalRecord { delivery: Some(delivery), ..record.clone() };
        let Transition { output, next } = Self::lease(&record, now);
        Transition { output, next: next.or(Some(record)) }
    }
}

const FIRST_LEASE: Duration = Duration::from_secs(30);

/// 30 seconds, doubled seven times, are about an hour.
const MAX_DOUBLINGS: u32 = 7;
