//! The chat with its messages in the database that `DATABASE_URL` names.

use own_table::{PostgresTable, serve};
use ui_message_stream::BoxError;

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let url = std::env::var("DATABASE_URL").map_err(|_| "DATABASE_URL is not set")?;
    Ok(serve(PostgresTable::connect(&url).await?).await?)
}
