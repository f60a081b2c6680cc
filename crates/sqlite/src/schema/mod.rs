//! [`create_tables`]: the tables, and the number of their schema.

use rusqlite::{Connection, Transaction, TransactionBehavior};

use crate::error::{DbResult, SqliteError};

/// Creates the tables of an empty database, in one transaction. Another process that does the same
/// waits, and then finds nothing to do. Fails if the tables have another schema.
pub(crate) fn create_tables(connection: &mut Connection) -> DbResult<()> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    if schema_of(&transaction)? == 0 {
        transaction.execute_batch(include_str!("tables.sql"))?;
        transaction.pragma_update(None, "user_version", SCHEMA)?;
    }
    transaction.commit()?;
    Ok(())
}

/// Returns the schema of the tables: 0 of an empty database. Fails if it is newer or older than what this
/// version reads, or if the tables are of another program.
fn schema_of(transaction: &Transaction<'_>) -> DbResult<i64> {
    let number = |name| transaction.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let application = number("application_id")?;
    let schema = number("user_version")?;
    if application != APPLICATION {
        let count = "SELECT count(*) FROM sqlite_schema";
        let tables: i64 = transaction.query_row(count, [], |row| row.get(0))?;
        let is_empty = application == 0 && schema == 0 && tables == 0;
        return if is_empty { Ok(0) } else { Err(SqliteError::OtherDatabase.into()) };
    }
    match schema {
        schema if schema > SCHEMA => Err(SqliteError::NewerSchema { schema, known: SCHEMA }.into()),
        schema if (1..SCHEMA).contains(&schema) => {
            Err(SqliteError::OlderSchema { schema, known: SCHEMA }.into())
        }
        schema => Ok(schema),
    }
}

/// The number of the schema in `tables.sql`.
const SCHEMA: i64 = 2;

/// `UIMS`, which `tables.sql` writes.
const APPLICATION: i64 = 0x5549_4D53;
