//! [`migrate`] and [`check`]: the tables, and the number of their schema.

use rusqlite::{Connection, Transaction, TransactionBehavior};

use crate::error::{DbResult, SqliteError};

/// Brings the tables to the newest schema, in one transaction. Another process that does the same
/// waits, and then finds nothing to do.
pub(crate) fn migrate(connection: &mut Connection) -> DbResult<()> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let schema = schema_of(&transaction)?;
    let done = usize::try_from(schema).unwrap_or(0);
    for step in MIGRATIONS.iter().skip(done) {
        transaction.execute_batch(step)?;
    }
    if schema < NEWEST {
        transaction.pragma_update(None, "user_version", NEWEST)?;
    }
    transaction.commit()?;
    Ok(())
}

/// Fails if the tables have another schema than the newest.
pub(crate) fn check(connection: &mut Connection) -> DbResult<()> {
    let schema = schema_of(&connection.transaction()?)?;
    match schema {
        NEWEST => Ok(()),
        schema => Err(SqliteError::NotMigrated { schema, needed: NEWEST }.into()),
    }
}

/// Returns the schema of the tables: 0 of an empty database. Fails if it is newer than this version
/// reads, or if the tables are of another program.
fn schema_of(transaction: &Transaction<'_>) -> DbResult<i64> {
    let number = |name| transaction.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let (application, schema) = (number("application_id")?, number("user_version")?);
    if application != APPLICATION {
        let count = "SELECT count(*) FROM sqlite_schema";
        let tables: i64 = transaction.query_row(count, [], |row| row.get(0))?;
        let is_empty = application == 0 && schema == 0 && tables == 0;
        return if is_empty { Ok(0) } else { Err(SqliteError::OtherDatabase.into()) };
    }
    match schema {
        schema if schema > NEWEST => Err(SqliteError::NewerSchema { schema, known: NEWEST }.into()),
        schema => Ok(schema),
    }
}

/// The steps from each schema to the next. Step `n` makes schema `n` of schema `n - 1`.
const MIGRATIONS: [&str; 3] = [include_str!("1.sql"), include_str!("2.sql"), include_str!("3.sql")];

/// The newest schema.
pub(crate) const NEWEST: i64 = MIGRATIONS.len() as i64;

/// `UIMS`, which the first step writes.
const APPLICATION: i64 = 0x5549_4D53;
