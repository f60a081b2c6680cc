//! [`ReplayGuard`] of a [`PostgresStore`]: a row for each stateless approval that was used.

use tokio_postgres::types::Type;
use ui_message_stream::BoxFuture;
use ui_message_stream::approval::store::{ApprovalUse, LedgerStoreError, ReplayGuard};
use ui_message_stream::approval::{RecordId, UnixMillis};

use crate::{PostgresStore, Value, column, stored};

/// For [stateless approvals](ui_message_stream::approval::Approvals::stateless_replayable): one row
/// for each approval that was used.
///
/// The row does not say which attempt has stored it. If the reply to an attempt is lost, its
/// repetition finds the row as if it were that of another attempt, and a call that was claimed is
/// not executed.
impl ReplayGuard for PostgresStore {
    fn set_if_absent<'a>(
        &'a self,
        approval: RecordId,
        first_use: ApprovalUse,
        keep_until: UnixMillis,
    ) -> BoxFuture<'a, Result<Option<ApprovalUse>, LedgerStoreError>> {
        Box::pin(async move {
            let id = approval.to_string();
            let first_use = first_use.name();
            let delete_at = stored(keep_until.0);
            loop {
                let values: [Value<'_>; 3] =
                    [(&id, Type::TEXT), (&first_use, Type::TEXT), (&delete_at, Type::INT8)];
                if !self.query(SET, &values).await?.is_empty() {
                    return Ok(None);
                }
                // Otherwise the use was deleted in between.
                if let Some(known) = self.first_use(approval).await? {
                    return Ok(Some(known));
                }
            }
        })
    }

    fn first_use(
        &self,
        approval: RecordId,
    ) -> BoxFuture<'_, Result<Option<ApprovalUse>, LedgerStoreError>> {
        Box::pin(async move {
            let rows = self.query(FIRST, &[(&approval.to_string(), Type::TEXT)]).await?;
            let name = rows.first().map(|row| column(row, 0)).transpose()?;
            Ok(name.map(ApprovalUse::from_name))
        })
    }
}

const SET: &str = "INSERT INTO SCHEMA.approval_uses (id, first_use, delete_at) VALUES ($1, $2, $3) \
    ON CONFLICT (id) DO NOTHING RETURNING id";
const FIRST: &str = "SELECT first_use FROM SCHEMA.approval_uses WHERE id = $1";
