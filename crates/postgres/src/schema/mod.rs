//! [`migrate`] and [`check`]: the tables, and the number of their schema.

use deadpool_postgres::Pool;
use tokio_postgres::GenericClient;

use crate::error::{DbResult, PostgresError};

/// Brings the tables to the newest schema, in one transaction. Another server that does the same
/// waits, and then finds nothing to do.
pub(crate) async fn migrate(pool: &Pool, name: &str) -> DbResult<()> {
    let mut client = pool.get().await?;
    let transaction = client.transaction().await?;
    // A migration, and the wait for that of another server, may take longer than an operation.
    transaction.batch_execute("SET LOCAL statement_timeout = 0").await?;
    let lock = format!("SELECT pg_advisory_xact_lock(hashtext('{name} migrations'))");
    transaction.batch_execute(&lock).await?;
    let schema = number(&*transaction, name).await?;
    if schema == 0 {
        // With a schema that exists already, the role needs no right to create one.
        let exists = "SELECT 1 FROM pg_namespace WHERE nspname = $1";
        if transaction.query_opt(exists, &[&name]).await?.is_none() {
            transaction.batch_execute(&format!("CREATE SCHEMA \"{name}\"")).await?;
        }
        let table = "CREATE TABLE migrations (number INT PRIMARY KEY, \
            applied_at TIMESTAMPTZ NOT NULL DEFAULT now())";
        transaction.batch_execute(table).await?;
    }
    for (number, step) in (1..).zip(MIGRATIONS).filter(|(number, _)| *number > schema) {
        transaction.batch_execute(step).await?;
        let applied = "INSERT INTO migrations (number) VALUES ($1)";
        transaction.execute(applied, &[&number]).await?;
    }
    transaction.commit().await?;
    Ok(())
}

/// Fails if the tables have another schema than the newest.
pub(crate) async fn check(pool: &Pool, name: &str) -> DbResult<()> {
    let client = pool.get().await?;
    match number(&**client, name).await? {
        NEWEST => Ok(()),
        schema => Err(PostgresError::NotMigrated { schema, needed: NEWEST }.into()),
    }
}

/// Returns the schema of the tables: 0 if there are none. Fails if it is newer than this version
/// reads.
async fn number(client: &impl GenericClient, name: &str) -> DbResult<i32> {
    // Not `to_regclass`, which may not see what another server has just committed.
    let exists = "SELECT 1 FROM pg_tables WHERE schemaname = $1 AND tablename = 'migrations'";
    if client.query_opt(exists, &[&name]).await?.is_none() {
        return Ok(0);
    }
    let newest = client.query_one("SELECT coalesce(max(number), 0) FROM migrations", &[]).await?;
    match newest.try_get(0)? {
        schema if schema > NEWEST => {
            Err(PostgresError::NewerSchema { schema, known: NEWEST }.into())
        }
        schema => Ok(schema),
    }
}

/// The steps from each schema to the next. Step `n` makes schema `n` of schema `n - 1`.
const MIGRATIONS: [&str; 2] = [include_str!("1.sql"), include_str!("2.sql")];

/// The newest schema.
const NEWEST: i32 = MIGRATIONS.len() as i32;
