//! What a turn costs Postgres.

use std::sync::Arc;

use chat_test_support::turn_costs::costs_of_ten_turns;
use test_support::external_processes::missing;
use test_support::external_processes::postgres_server::PostgresServer;
use tokio_postgres::NoTls;
use ui_message_stream_postgres::PostgresStore;

use crate::database::Database;

/// A transaction that writes gets an id, and is synced to the disk.
#[tokio::test]
async fn the_transactions_of_a_turn_that_write_are_counted() {
    // A server of its own: it counts the transactions of all its sessions.
    let Some(server) = PostgresServer::start() else { return };
    let store = PostgresStore::open(&server.url()).await.unwrap();
    let (client, connection) = tokio_postgres::connect(&server.url(), NoTls).await.unwrap();
    tokio::spawn(connection);
    // Autovacuum has transactions of its own.
    client.execute("ALTER SYSTEM SET autovacuum = off", &[]).await.unwrap();
    client.execute("SELECT pg_reload_conf()", &[]).await.unwrap();
    let transactions = async || {
        let next = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text";
        let next: String = client.query_one(next, &[]).await.unwrap().get(0);
        [next.parse().unwrap()]
    };
    let [transactions] = costs_of_ten_turns(Arc::new(store), transactions).await;
    assert_eq!(transactions[5], 3, "{transactions:?}");
}

/// A role may have `jit_above_cost=0`, with which Postgres compiles each statement. `auto_explain` logs what it does.
#[tokio::test]
async fn postgres_compiles_no_statement_of_a_turn() {
    let Some(database) = Database::new() else { return };
    if database.number("SELECT pg_jit_available()::INT::BIGINT").await == 0 {
        return missing("this Postgres compiles no statements");
    }
    let settings = [
        "jit_above_cost=0",
        "session_preload_libraries=auto_explain",
        "auto_explain.log_min_duration=0",
        "auto_explain.log_nested_statements=on",
    ];
    let options = settings.map(|setting| format!("-c{setting}")).join("%20");
    let url = format!("{}?options={options}", database.server.url());
    let store = database.options().open(&url).await.unwrap();
    costs_of_ten_turns(Arc::new(store), async || [0]).await;
    let log = database.server.log();
    let plans: Vec<&str> = log.split("Query Text: ").skip(1).collect();
    for table in ["rows", "items", "places", "approval_lists"] {
        assert!(plans.iter().any(|plan| plan.contains(&format!(" {table} "))), "{table}: {log}");
    }
    let compiled: Vec<_> = plans.iter().filter(|plan| plan.contains("JIT:")).collect();
    assert!(compiled.is_empty(), "{compiled:#?}");
}
