//! The rules by which the events of an approval request are delivered to a notifier, in order.
//!
//! The events are a function of the record: it was requested, then it was decided or closed, then its call has
//! an outcome. So the record needs no list of them, and none can be lost or invented.

use std::time::Duration;

use super::{ApprovalRecord, ApprovalState, NoticeDelivery, Transition, UnixMillis};

impl NoticeDelivery {
    /// Returns when the next event of this record may be delivered, or `None` if there is none.
    pub fn due_at(record: &ApprovalRecord) -> Option<UnixMillis> {
        let delivery = record.delivery?;
        let next = event_times(record).into_iter().nth(delivery.delivered);
        next.map(|at| at.max(delivery.leased_until))
    }

    /// Leases the next event of a record to a server for this time, if it is due. Returns its number, from 0.
    pub fn lease(
        record: &ApprovalRecord,
        lease: Duration,
        now: UnixMillis,
    ) -> Transition<Option<usize>> {
        match record.delivery {
            Some(delivery) if Self::due_at(record).is_some_and(|due| due <= now) => {
                let leased = NoticeDelivery { leased_until: now.after(lease), ..delivery };
                leased.of(record, Some(delivery.delivered))
            }
            _ => Transition { output: None, next: None },
        }
    }

    /// Records that this event was delivered, and leases the next one for this time. Returns the number of the
    /// next one, if there is one already and no other server has gone on.
    pub fn delivered(
        record: &ApprovalRecord,
        event: usize,
        lease: Duration,
        now: UnixMillis,
    ) -> Transition<Option<usize>> {
        if record.delivery.is_none_or(|delivery| delivery.delivered != event) {
            return Transition { output: None, next: None };
        }
        let delivered = event + 1;
        let next = (delivered < event_times(record).len()).then_some(delivered);
        let leased_until = next.map_or(UnixMillis::default(), |_| now.after(lease));
        NoticeDelivery { delivered, leased_until }.of(record, next)
    }

    fn of<T>(self, record: &ApprovalRecord, output: T) -> Transition<T> {
        let next = ApprovalRecord { delivery: Some(self), ..record.clone() };
        Transition { output, next: Some(next) }
    }
}

/// Returns the times of the events of a request so far.
fn event_times(record: &ApprovalRecord) -> Vec<UnixMillis> {
    let mut times = vec![record.requested_at];
    times.extend(record.decision().map(|decision| decision.decided_at));
    match &record.state {
        ApprovalState::Expired => times.push(record.expires_at),
        ApprovalState::Superseded { at }
        | ApprovalState::Revoked { at, .. }
        | ApprovalState::Completed { at, .. } => times.push(*at),
        // The time at which it became unknown is not stored.
        ApprovalState::OutcomeUnknown { decision } => times.push(decision.decided_at),
        _ => {}
    }
    times
}
