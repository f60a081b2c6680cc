//! The chat with its messages in the file `own-table.db`.

use std::path::Path;

use anyhow::Context;
use own_table::{SqliteTable, serve};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt().init();
    let table = SqliteTable::open(Path::new("own-table.db")).context("own-table.db")?;
    Ok(serve(table).await?)
}
