//! Checks the inputs that approvers have changed, before anything is stored.

use std::fmt;

use super::ChatApprovals;
use super::ledger_requests::approved_call;
use crate::approval::store::LedgerStoreError;
use crate::approval::{ApprovalRecord, RecordedDecision, ResumePlan};
use crate::id::{ApprovalId, log_text};

/// Why the decisions of a request are not redeemed. Nothing was stored, and the request can be sent
/// again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RedeemError {
    /// The ledger or the replay guard failed.
    #[error(transparent)]
    Ledger(#[from] LedgerStoreError),
    /// The approver has changed an input, and the tool does not accept the change.
    #[error(transparent)]
    Input(#[from] InputError),
}

/// A changed input that is not accepted. The approval request stays pending.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct InputError {
    /// The id of the approval request.
    pub approval_id: ApprovalId,
    /// The name of the tool.
    pub tool_name: Box<str>,
    /// What is wrong with the input, and where. The approver reads it.
    pub problem: String,
}

impl std::error::Error for InputError {}

impl fmt::Display for InputError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the changed input for `{}`: {}", log_text(&self.tool_name), self.problem)
    }
}

impl ChatApprovals {
    /// Checks the inputs that the user has changed in these answers, so that the user learns what is
    /// wrong before anything is stored. Answers that do not count are left to the redemption, which says
    /// nothing about them.
    ///
    /// # Errors
    /// [`RedeemError::Input`] for the first input that is not accepted, [`RedeemError::Ledger`] if the
    /// records cannot be read.
    pub async fn check_changed_inputs(&self, plan: &ResumePlan) -> Result<(), RedeemError> {
        let keys = &self.inner.keys;
        let changed = plan.unverified_responses().filter(|answer| answer.changed_input.is_some());
        let changed: Vec<_> = changed.collect();
        if changed.is_empty() {
            return Ok(());
        }
        let now = super::system_time();
        let id_of = |id| ApprovalRecord::record_id_from_token(id, keys, now);
        let ids: Vec<_> = changed.iter().filter_map(|answer| id_of(&answer.approval_id)).collect();
        let snapshot = self.inner.ledger.load(&ids).await?;
        for answer in changed {
            let record = snapshot.records.iter().map(|versioned| &versioned.record);
            let mut own = record.filter(|record| {
                let may_decide = record.requester == self.principal
                    || self.inner.can_decide(&self.principal, record);
                record.is_pending()
                    && may_decide
                    && self.is_own_request(record, &answer.approval_id, now)
            });
            let Some(record) = own.next() else { continue };
            let changed_input = answer.changed_input.clone();
            let decision =
                self.decision(snapshot.now, None).with_changed_input(changed_input, record);
            let checked = match check_changed_input(self, record, &decision).await {
                Ok(()) if is_permitted(self, record, decision).await => Ok(()),
                Ok(()) => Err("the tool may not run with this input".to_owned()),
                Err(problem) => Err(problem),
            };
            checked.map_err(|problem| InputError {
                approval_id: answer.approval_id.clone(),
                tool_name: record.tool_name.clone(),
                problem,
            })?;
        }
        Ok(())
    }
}

/// Checks whether the tool accepts the input that this decision changes, if it changes one. The
/// permissions of the user are not checked.
///
/// # Errors
/// The text that the approver reads.
pub(super) async fn check_changed_input(
    approvals: &ChatApprovals,
    record: &ApprovalRecord,
    decision: &RecordedDecision,
) -> Result<(), String> {
    let Some(changed) = &decision.changed_input else { return Ok(()) };
    record.editable.check(&record.input, changed)?;
    let toolbox = &approvals.inner.toolbox;
    toolbox.refresh(&record.tool_name).await;
    // A request for a tool that is gone is revoked when it is claimed.
    let Some(tool) = toolbox.tool(&record.tool_name) else { return Ok(()) };
    tool.editable.check(&record.input, changed)?;
    toolbox.check_input(&record.tool_name, changed)
}

async fn is_permitted(
    approvals: &ChatApprovals,
    record: &ApprovalRecord,
    decision: RecordedDecision,
) -> bool {
    approvals.inner.toolbox.permits(&approved_call(record, decision, None)).await
}
