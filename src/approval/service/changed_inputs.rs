//! Checks the inputs that approvers have changed, before anything is stored.

use super::ChatApprovals;
use super::ledger_requests::{Refusal, current_tool, refusal};
use crate::approval::store::{RedeemError, system_time};
use crate::approval::{ApprovalRecord, ApprovalStatus, InputError, ResumePlan};

/// Checks the inputs that the user has changed in these answers.
pub(super) async fn check_changed_inputs(
    approvals: &ChatApprovals,
    plan: &ResumePlan,
) -> Result<(), RedeemError> {
    let inner = &approvals.inner;
    let now = system_time();
    let changed = plan.unverified_responses().filter(|answer| answer.changed_input.is_some());
    let changed: Vec<_> = changed.collect();
    if changed.is_empty() {
        return Ok(());
    }
    let id_of = |id| ApprovalRecord::record_id_from_token(id, &inner.keys, now);
    let ids: Vec<_> = changed.iter().filter_map(|answer| id_of(&answer.approval_id)).collect();
    let snapshot = inner.ledger.load(&ids).await?;
    for answer in changed {
        let record = snapshot.records.iter().map(|versioned| &versioned.record);
        let mut own = record.filter(|record| {
            let may_decide = record.requester == approvals.principal
                || inner.can_decide(&approvals.principal, record);
            record.status(snapshot.now) == ApprovalStatus::Pending
                && may_decide
                && !record.is_self_approval(&approvals.principal)
                && !plan.is_closed_by_message(record, &answer.approval_id)
                && approvals.is_own_request(record, &answer.approval_id, now)
        });
        let Some(record) = own.next() else { continue };
        let changed_input = answer.changed_input.clone();
        let decision = approvals.decision(snapshot.now, None);
        let decision = decision.with_changed_input(changed_input, &record.input);
        if decision.changed_input.is_none() {
            continue;
        }
        // A request of a tool that is gone is revoked, and the call of one that is away fails.
        let Ok(Some(tool)) = current_tool(approvals, record).await else { continue };
        if let Some(Refusal::Input(problem)) =
            refusal(approvals, record, decision, Some(tool)).await
        {
            let approval_id = answer.approval_id.clone();
            let tool_name = record.tool_name.clone();
            return Err(InputError { approval_id, tool_name, problem }.into());
        }
    }
    Ok(())
}
