//! [`MessageDecisions`]: decisions that came without a history, by the message that holds their calls.

use std::collections::{HashMap, HashSet};

use super::inner::Inner;
use super::{AuditEvent, AuditEventKind};
use crate::approval::judge::authorized_record;
use crate::approval::store::{LedgerStoreError, system_time};
use crate::approval::token::Token;
use crate::approval::{
    ApprovalDecision, ApprovalRecord, Principal, RecordId, RejectionReason, ResumePlan,
};
use crate::id::{ChatId, MessageId};

/// The decisions on the tool calls of one message. The principal may make all of them.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct MessageDecisions {
    /// The owner of the chat.
    pub requester: Principal,
    /// The id of the chat.
    pub chat_id: ChatId,
    /// The id of the message that holds the calls.
    pub message_id: MessageId,
    /// The record of each approval request, and the decision on it.
    pub decisions: Vec<(ApprovalRecord, ApprovalDecision)>,
}

impl MessageDecisions {
    /// Returns the resume plan of a chat request that brings exactly these decisions.
    pub fn plan(&self) -> ResumePlan {
        let decisions = self.decisions.iter().map(|(record, decision)| (record, decision));
        ResumePlan::from_decisions(&self.message_id, decisions)
    }
}

/// Groups the decisions that this principal may make.
pub(super) async fn group_by_message(
    inner: &Inner,
    principal: &Principal,
    decisions: Vec<ApprovalDecision>,
) -> Result<Vec<MessageDecisions>, LedgerStoreError> {
    let keys = &inner.keys;
    let now = system_time();
    let denials = decisions.iter().filter(|decision| !decision.approved);
    let denied: HashSet<_> = denials.map(|decision| decision.approval_id.clone()).collect();
    let mut seen = HashSet::new();
    let decisions: Vec<(Option<Token>, ApprovalDecision)> = decisions
        .into_iter()
        .filter(|decision| !decision.approved || !denied.contains(&decision.approval_id))
        .filter(|decision| seen.insert(decision.approval_id.clone()))
        .map(|decision| (Token::open(keys, &decision.approval_id, now), decision))
        .collect();
    let tokens = decisions.iter().filter_map(|(token, _)| *token);
    let ids: HashSet<RecordId> = tokens.map(|token| token.record).collect();
    let ids: Vec<RecordId> = ids.into_iter().collect();
    let (_, records) = inner.records(&ids).await?;
    let records = records.into_iter().map(|loaded| (loaded.record.id, loaded.record));
    let records: HashMap<RecordId, ApprovalRecord> = records.collect();
    let mut groups: Vec<MessageDecisions> = Vec::new();
    for (token, decision) in decisions {
        let record = token.and_then(|token| records.get(&token.record));
        let id = &decision.approval_id;
        let may_decide = |record: &ApprovalRecord| inner.can_decide(principal, record);
        let authorized = authorized_record(id, token, record, principal, may_decide);
        let record = match authorized.and_then(|record| {
            let is_self_approval = decision.approved && record.is_self_approval(principal);
            if is_self_approval { Err(RejectionReason::SelfApproval) } else { Ok(record) }
        }) {
            Ok(record) => record,
            Err(cause) => {
                let record = token.map(|token| token.record);
                if record.is_none() {
                    inner.other_keys.warn_of_answer(id, &inner.keys);
                }
                let kind = AuditEventKind::Rejected { cause };
                inner.audit(&AuditEvent { record, ..AuditEvent::new(now, principal, kind) });
                continue;
            }
        };
        let group = groups.iter_mut().find(|group| {
            group.requester == record.requester
                && group.chat_id == record.chat_id
                && group.message_id == record.message_id
        });
        let pair = (record.clone(), decision);
        match group {
            Some(group) => group.decisions.push(pair),
            None => groups.push(MessageDecisions {
                requester: record.requester.clone(),
                chat_id: record.chat_id.clone(),
                message_id: record.message_id.clone(),
                decisions: vec![pair],
            }),
        }
    }
    Ok(groups)
}
