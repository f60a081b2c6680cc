//! The ledgers of approvals in databases, without a chat server.

use std::sync::Arc;

use ui_message_stream::approval::store::LedgerStore;
use ui_message_stream::approval::{Approvals, EmptyToolbox};
use ui_message_stream_postgres::PostgresStore;
use ui_message_stream_redis::RedisStore;
use ui_message_stream_sqlite::SqliteStore;

fn main() {
    let names = [name::<PostgresStore>(), name::<RedisStore>(), name::<SqliteStore>()];
    println!("{names:?}");
}

fn name<S: LedgerStore + 'static>() -> &'static str {
    // A host makes its approvals so.
    let _ = |store: Arc<S>| Approvals::new(EmptyToolbox).with_ledger(store);
    std::any::type_name::<S>()
}
