//! [`ReplayGuard`] of a [`RedisStore`]: a key for each stateless approval that was used.

use ui_message_stream::BoxFuture;
use ui_message_stream::approval::store::{ApprovalUse, LedgerStoreError, ReplayGuard};
use ui_message_stream::approval::{RecordId, UnixMillis};

use crate::places::exact;
use crate::{RedisStore, random_bytes, scripts};

/// For [stateless approvals](ui_message_stream::approval::Approvals::stateless_replayable): one key
/// for each approval that was used, `use:` with the id of the approval.
impl ReplayGuard for RedisStore {
    fn set_if_absent<'a>(
        &'a self,
        approval: RecordId,
        first_use: ApprovalUse,
        keep_until: UnixMillis,
    ) -> BoxFuture<'a, Result<Option<ApprovalUse>, LedgerStoreError>> {
        Box::pin(async move {
            let attempt: [u8; 16] = random_bytes().map_err(LedgerStoreError::new)?;
            let keys = self.inner.keys.of_record(approval);
            let mut invocation = scripts::GUARD_SET.key(keys.approval_use(approval));
            invocation.arg(first_use.name()).arg(&attempt).arg(exact(keep_until).0);
            let earlier = self.inner.connection.run(&invocation).await;
            let earlier: Option<String> = earlier.map_err(LedgerStoreError::new)?;
            Ok(earlier.map(|name| ApprovalUse::from_name(&name)))
        })
    }

    fn first_use(
        &self,
        approval: RecordId,
    ) -> BoxFuture<'_, Result<Option<ApprovalUse>, LedgerStoreError>> {
        Box::pin(async move {
            let keys = self.inner.keys.of_record(approval);
            let invocation = scripts::GUARD_FIRST.key(keys.approval_use(approval));
            let name = self.inner.connection.run(&invocation).await;
            let name: Option<String> = name.map_err(LedgerStoreError::new)?;
            Ok(name.map(|name| ApprovalUse::from_name(&name)))
        })
    }
}
