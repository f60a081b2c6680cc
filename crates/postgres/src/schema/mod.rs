//! [`create_tables`] and [`check`]: the tables, and the number of their schema.

use deadpool_postgres::Pool;
use tokio_postgres::GenericClient;
use tokio_postgres::types::Type;

use crate::error::{DbResult, PostgresError};

/// Creates the tables if there are none, in one transaction. Another server that does the same waits,
/// and then finds nothing to do.
pub(crate) async fn create_tables(pool: &Pool, name: &str) -> DbResult<()> {
    let mut client = pool.get().await?;
    let transaction = client.transaction().await?;
    // The wait for another server may take longer than an operation.
    transaction.batch_execute("SET LOCAL statement_timeout = 0").await?;
    let lock = format!("SELECT pg_advisory_xact_lock(hashtext('{name} migrations'))");
    transaction.batch_execute(&lock).await?;
    if number(&*transaction, name).await? == 0 {
        // With a schema that exists already, the role needs no right to create one.
        let exists = "SELECT 1 FROM pg_namespace WHERE nspname = $1";
        if transaction.query_typed(exists, &[(&name, Type::TEXT)]).await?.is_empty() {
            transaction.batch_execute(&format!("CREATE SCHEMA \"{name}\"")).await?;
        }
        transaction.batch_execute(&named(include_str!("tables.sql"), name)).await?;
        let insert = named("INSERT INTO SCHEMA.migrations (number) VALUES ($1)", name);
        transaction.execute_typed(&insert, &[(&SCHEMA, Type::INT4)]).await?;
    }
    transaction.commit().await?;
    Ok(())
}

/// Fails if there are no tables, or if they have another schema.
pub(crate) async fn check(pool: &Pool, name: &str) -> DbResult<()> {
    let client = pool.get().await?;
    match number(&**client, name).await? {
        0 => Err(PostgresError::NoTables.into()),
        _ => Ok(()),
    }
}

/// Returns the schema of the tables: 0 if there are none. Fails if it is not the one that this version
/// reads.
async fn number(client: &impl GenericClient, name: &str) -> DbResult<i32> {
    // Not `to_regclass`, which may not see what another server has just committed.
    let exists = "SELECT 1 FROM pg_tables WHERE schemaname = $1 AND tablename = 'migrations'";
    if client.query_typed(exists, &[(&name, Type::TEXT)]).await?.is_empty() {
        return Ok(0);
    }
    let newest = named("SELECT coalesce(max(number), 0) FROM SCHEMA.migrations", name);
    let newest = client.query_typed(&newest, &[]).await?;
    match newest.first().map_or(Ok(0), |row| row.try_get(0))? {
        schema if schema > SCHEMA => {
            Err(PostgresError::NewerSchema { schema, known: SCHEMA }.into())
        }
        schema if (1..SCHEMA).contains(&schema) => {
            Err(PostgresError::OlderSchema { schema, known: SCHEMA }.into())
        }
        schema => Ok(schema),
    }
}

/// Returns a statement with the name of the schema.
pub(crate) fn named(statement: &str, name: &str) -> String {
    statement.replace("SCHEMA.", &format!("\"{name}\".")).replace("'SCHEMA", &format!("'{name}"))
}

/// The number of the schema in `tables.sql`. Each change there raises it, also one of a function.
const SCHEMA: i32 = 3;
