//! The chat with its messages in the file `own-table.db`.

use std::path::Path;

use own_table::{SqliteTable, serve};
use ui_message_stream::BoxError;

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    Ok(serve(SqliteTable::open(Path::new("own-table.db"))?).await?)
}
