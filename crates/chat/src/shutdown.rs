//! [`Shutdown`]: lets the turns, the responses and the deliveries of a server end, and stops those that do not.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

/// Whether a server works, and what has not ended. All clones share this.
#[derive(Debug, Clone, Default)]
pub(super) struct Shutdown {
    state: watch::Sender<State>,
    /// Turns and responses that have not ended have to stop. Each turn waits for this, so it is apart
    /// from the state, which changes with each turn.
    closed: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct State {
    turns: usize,
    responses: usize,
    deliveries: usize,
    phase: Phase,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Open,
    /// No run begins any more.
    Closing,
    /// Turns and responses that have not ended are stopped.
    Closed,
}

/// A turn, a response or a delivery that has not ended. It is counted until this value is dropped.
#[derive(Debug)]
pub(super) struct Counted(Shutdown, Count);

type Count = fn(&mut State) -> &mut usize;

impl Shutdown {
    /// Counts a turn. Returns `None` if the server begins no more such turns.
    pub(super) fn count_turn(&self, may_begin_run: bool) -> Option<Counted> {
        let is_counted = self.state.send_if_modified(|state| {
            let is_allowed = match state.phase {
                Phase::Open => true,
                Phase::Closing => !may_begin_run,
                Phase::Closed => false,
            };
            state.turns += usize::from(is_allowed);
            is_allowed
        });
        is_counted.then(|| Counted(self.clone(), State::turns))
    }

    pub(super) fn count_response(&self) -> Counted {
        self.state.send_modify(|state| state.responses += 1);
        Counted(self.clone(), State::responses)
    }

    /// Counts a delivery to the sink of the host. Returns `None` if the server begins no more.
    pub(super) fn count_delivery(&self) -> Option<Counted> {
        let is_counted = self.state.send_if_modified(|state| {
            let is_allowed = state.phase != Phase::Closed;
            state.deliveries += usize::from(is_allowed);
            is_allowed
        });
        is_counted.then(|| Counted(self.clone(), State::deliveries))
    }

    /// Returns whether the server begins no more runs.
    pub(super) fn has_begun(&self) -> bool {
        self.state.borrow().phase != Phase::Open
    }

    /// Returns whether turns and responses have to stop.
    pub(super) fn is_closed(&self) -> bool {
        *self.closed.borrow()
    }

    /// Waits until turns and responses have to stop.
    pub(super) fn closed(&self) -> impl Future<Output = ()> + Send + use<> {
        let closed = self.closed.clone();
        async move {
            // An error means that there is no sender.
            let _ = closed.subscribe().wait_for(|is_closed| *is_closed).await;
        }
    }

    /// Waits until all turns, responses and deliveries have ended, for at most this time, stops the others, and waits
    /// until their runs are handed over. Returns how many turns were stopped.
    pub(super) async fn shut_down(&self, grace: Duration) -> usize {
        self.state.send_modify(|state| state.phase = Phase::Closing);
        let mut state = self.state.subscribe();
        let have_ended = state
            .wait_for(|state| state.turns == 0 && state.responses == 0 && state.deliveries == 0);
        // What has not ended is counted below.
        let _ = timeout(grace, have_ended).await;
        let turns = self.state.borrow().turns;
        self.state.send_modify(|state| state.phase = Phase::Closed);
        self.closed.send_replace(true);
        let has_stopped = |state: &State| state.turns == 0 && state.deliveries == 0;
        let have_stopped = timeout(HAND_OVER_TIME, state.wait_for(has_stopped)).await;
        let left = self.state.borrow().turns;
        if have_stopped.is_err() && left > 0 {
            tracing::warn!(
                left,
                "turns have not stopped: their runs wait until their leases have passed"
            );
        }
        turns
    }
}

impl State {
    fn turns(&mut self) -> &mut usize {
        &mut self.turns
    }

    fn responses(&mut self) -> &mut usize {
        &mut self.responses
    }

    fn deliveries(&mut self) -> &mut usize {
        &mut self.deliveries
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let count = self.1;
        self.0.state.send_modify(|state| *count(state) -= 1);
    }
}

/// How long the runs that are stopped have to be handed over. A connection to Redis that is half-open is
/// replaced in this time.
const HAND_OVER_TIME: Duration = Duration::from_secs(3);
