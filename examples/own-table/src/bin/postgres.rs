//! The chat with its messages in the database that `DATABASE_URL` names.

use anyhow::Context;
use own_table::{PostgresTable, serve};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt().init();
    let url = std::env::var("DATABASE_URL").context("DATABASE_URL")?;
    let table = PostgresTable::connect(&url).await;
    Ok(serve(table.context("cannot use the Postgres of DATABASE_URL")?).await?)
}
