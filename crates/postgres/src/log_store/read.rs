//! Reads of the entries of a log. Those of short pages of several logs that are ready at the same moment are one call.

use tokio_postgres::Row;
use ui_message_stream_chat::store::{LogPage, ReadLogEntries};

use super::batches::{Batched, Batches, Executed, MAX_BYTES, MAX_REQUESTS, in_order};
use super::{HEAD_COLUMNS, columns, entries, head, head_columns};
use crate::error::PostgresError;
use crate::{PostgresStore, stored};

impl PostgresStore {
    pub(super) async fn read_log(
        &self,
        read: ReadLogEntries<'_>,
    ) -> Result<Option<LogPage>, PostgresError> {
        let (owner, id) = columns(read.key);
        let epoch = stored(read.epoch.0);
        let position = stored(read.position);
        let max_bytes = read.max_bytes;
        let is_reader = read.is_reader;
        let read = Read { owner, id: id.to_vec(), epoch, position, max_bytes, is_reader };
        // A call with many long pages would keep the others waiting.
        let is_short = max_bytes <= MAX_BYTES / MAX_REQUESTS;
        if is_short && let Some(page) = self.execute_in_batch(read.clone()).await? {
            return Ok(page);
        }
        Ok(Read::execute(self, &[read]).await?.pop().transpose()?.flatten().flatten())
    }
}

/// A read as the function takes it.
#[derive(Debug, Clone)]
pub(crate) struct Read {
    owner: String,
    id: Vec<u8>,
    epoch: i64,
    position: i64,
    max_bytes: usize,
    is_reader: bool,
}

impl Batched for Read {
    type Reply = Option<LogPage>;

    fn batches(store: &PostgresStore) -> &Batches<Self> {
        &store.inner.reads
    }

    fn bytes(&self) -> usize {
        self.max_bytes
    }

    async fn execute(
        store: &PostgresStore,
        reads: &[Self],
    ) -> Result<Vec<Executed<Option<LogPage>>>, PostgresError> {
        let owners: Vec<_> = reads.iter().map(|read| &*read.owner).collect();
        let ids: Vec<_> = reads.iter().map(|read| &*read.id).collect();
        let epochs: Vec<_> = reads.iter().map(|read| read.epoch).collect();
        let positions: Vec<_> = reads.iter().map(|read| read.position).collect();
        let max_bytes: Vec<_> = reads.iter().map(|read| stored(read.max_bytes as u64)).collect();
        let are_readers: Vec<_> = reads.iter().map(|read| read.is_reader).collect();
        let values = [
            &owners as _,
            &ids as _,
            &epochs as _,
            &positions as _,
            &max_bytes as _,
            &are_readers as _,
        ];
        let rows = store.query(READ, &values).await?;
        let pages = in_order(&rows, reads.len(), page)?;
        Ok(pages.into_iter().map(|page| page.map(Some)).collect())
    }
}

fn page(row: &Row) -> Result<LogPage, PostgresError> {
    Ok(LogPage { head: head(row)?, entries: entries(row, HEAD_COLUMNS + 1)? })
}

const READ: &str = concat!(
    "SELECT ",
    head_columns!(),
    ", number, kinds, bodies FROM read_logs($1, $2, $3, $4, $5, $6)"
);
