//! [`StartedTurn`]: a turn on a task of its own, for which a request waits.

use std::panic::resume_unwind;

use tokio::sync::oneshot;
use tokio::task::{JoinError, JoinHandle};

use super::error::ChatError;
use super::redeem::Accepted;
use super::store::ChatStoreError;

/// A turn that runs on a task of its own. It continues if this value is dropped.
pub(super) struct StartedTurn<R> {
    response: oneshot::Receiver<Result<R, ChatError>>,
    /// The response, if it has arrived before it was asked for.
    received: Option<Result<Result<R, ChatError>, oneshot::error::RecvError>>,
    /// Sent when the answers are redeemed, or if that fails after the response. Calls may still be
    /// executed.
    accepted: oneshot::Receiver<AcceptedResult>,
    task: JoinHandle<()>,
}

pub(super) type AcceptedResult = Result<Accepted, ChatError>;

impl<R> StartedTurn<R> {
    pub(super) fn new(
        response: oneshot::Receiver<Result<R, ChatError>>,
        accepted: oneshot::Receiver<AcceptedResult>,
        task: JoinHandle<()>,
    ) -> Self {
        StartedTurn { response, received: None, accepted, task }
    }

    /// Waits for the answers that the ledger accepts. Returns `None` if the turn redeems none, or if
    /// the response says why.
    pub(super) async fn accepted(&mut self) -> Option<AcceptedResult> {
        (&mut self.accepted).await.ok()
    }

    /// Waits until the turn has a response, or until it has redeemed its answers. Returns whether it
    /// has no response, because calls are being executed.
    pub(super) async fn is_executing(&mut self) -> bool {
        tokio::select! {
            biased;
            response = &mut self.response => {
                self.received = Some(response);
                false
            }
            accepted = &mut self.accepted => {
                matches!(accepted, Ok(Ok(Accepted { is_executing: true, is_incomplete: false, .. })))
            }
        }
    }

    /// Waits for the response.
    pub(super) async fn response(self) -> Result<R, ChatError> {
        let received = match self.received {
            Some(received) => received,
            None => self.response.await,
        };
        if let Ok(response) = received {
            return response;
        }
        // Only code of the host panics, or the runtime shuts down.
        match self.task.await.map_err(JoinError::try_into_panic) {
            Err(Ok(panic)) => resume_unwind(panic),
            Err(Err(error)) => Err(ChatStoreError::new(error).into()),
            Ok(()) => Err(ChatError::ShuttingDown),
        }
    }
}
