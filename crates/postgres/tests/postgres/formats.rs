//! Schemas and formats: what this version does not read is refused by name.

use std::error::Error;
use test_support::contention::InsertOne;

use chat_test_support::store_requests::{begin, key, put};
use futures::future::join_all;
use test_support::contention;
use ui_message_stream::approval::store::LedgerStore;
use ui_message_stream::approval::{Principal, RecordId};
use ui_message_stream_postgres::{PostgresError, PostgresOptions};

use crate::database::Database;

#[tokio::test]
async fn of_stores_that_create_the_tables_at_the_same_time_all_succeed() {
    let Some(database) = Database::new() else { return };
    let stores = join_all((0..8).map(|_| database.open())).await;
    for store in &stores {
        store.ping().await.unwrap();
    }
    assert_eq!(database.count("migrations").await, 1);
}

#[tokio::test]
async fn a_store_waits_for_another_that_creates_the_tables_longer_than_an_operation_may_take() {
    let Some(database) = Database::new() else { return };
    let other = database.connect().await;
    let lock = format!("pg_advisory_lock(hashtext('{} migrations'))", database.schema);
    other.batch_execute(&format!("SELECT {lock}")).await.unwrap();
    let create = async {
        other.batch_execute("SELECT pg_sleep(6)").await.unwrap();
        drop(other);
    };
    let (store, ()) = tokio::join!(database.open(), create);
    store.ping().await.unwrap();
}

#[tokio::test]
async fn tables_that_do_not_exist_are_an_error_that_names_the_function() {
    let Some(database) = Database::new() else { return };
    let url = database.server.url();
    let options = database.options().with_existing_tables();
    let refused = options.open(&url).await.unwrap_err();
    assert!(matches!(refused, PostgresError::NoTables), "{refused}");
    assert!(refused.to_string().contains("PostgresOptions::create_tables"), "{refused}");
    database.options().create_tables(&url).await.unwrap();
    options.open(&url).await.unwrap().ping().await.unwrap();
    // The second time there is nothing to do.
    database.options().create_tables(&url).await.unwrap();
}

#[tokio::test]
async fn a_role_that_may_not_create_tables_opens_existing_ones() {
    let Some(database) = Database::new() else { return };
    drop(database.open().await);
    let schema = &database.schema;
    database
        .execute(&format!(
            "CREATE ROLE server_{schema} LOGIN;
             GRANT USAGE ON SCHEMA {schema} TO server_{schema};
             GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO server_{schema};
             GRANT USAGE ON ALL SEQUENCES IN SCHEMA {schema} TO server_{schema};"
        ))
        .await;
    let url = database.server.url().replace("tests@", &format!("server_{schema}@"));
    let store = database.options().open(&url).await.unwrap();
    let ada = Principal::new("ada");
    begin(&store, &key(&ada, "chat")).await;
    assert!(put(&store, &key(&ada, "chat"), 1, &["one", "two"]).await);
    store.insert(&contention::record(RecordId::from_bytes([1; 16]))).await.unwrap();
    store.sweep().await.unwrap();
    store.delete_user(&ada).await.unwrap();
}

#[tokio::test]
async fn a_newer_schema_is_refused_and_not_changed() {
    let Some(database) = Database::new() else { return };
    drop(database.open().await);
    database.execute("INSERT INTO migrations VALUES (99)").await;
    let url = database.server.url();
    for options in [database.options(), database.options().with_existing_tables()] {
        let refused = options.open(&url).await.unwrap_err();
        assert!(matches!(refused, PostgresError::NewerSchema { schema: 99, .. }), "{refused}");
        assert!(refused.to_string().contains("upgrade the server"), "{refused}");
    }
    assert!(database.options().create_tables(&url).await.is_err());
    assert_eq!(database.number("SELECT max(number)::BIGINT FROM migrations").await, 99);
}

#[tokio::test]
async fn an_older_schema_is_refused_and_not_changed() {
    let Some(database) = Database::new() else { return };
    drop(database.open().await);
    // The first version had no such function.
    database.execute("UPDATE migrations SET number = 1; DROP FUNCTION run_steps").await;
    let url = database.server.url();
    for options in [database.options(), database.options().with_existing_tables()] {
        let refused = options.open(&url).await.unwrap_err();
        let is_older = matches!(refused, PostgresError::OlderSchema { schema: 1, known: 2.. });
        assert!(is_older, "{refused}");
        assert!(refused.to_string().contains("PostgresOptions::with_schema"), "{refused}");
    }
    assert!(database.options().create_tables(&url).await.is_err());
    assert_eq!(database.number("SELECT max(number)::BIGINT FROM migrations").await, 1);
}

#[tokio::test]
async fn a_creation_that_fails_changes_nothing() {
    let Some(database) = Database::new() else { return };
    let schema = &database.schema;
    database.execute(&format!("CREATE SCHEMA {schema}; CREATE TABLE {schema}.rows ()")).await;
    let refused = database.options().open(&database.server.url()).await.unwrap_err();
    assert!(
        matches!(&refused, PostgresError::Refused { sqlstate } if sqlstate == "42P07"),
        "{refused}"
    );
    let tables = format!("SELECT count(*) FROM pg_tables WHERE schemaname = '{schema}'");
    assert_eq!(database.number(&tables).await, 1);
}

#[tokio::test]
async fn wrong_arguments_and_an_unknown_role_are_errors() {
    let Some(database) = Database::new() else { return };
    let url = database.server.url();
    for name in ["", "A", "1a", "a-b", "a\"b", &"a".repeat(64)] {
        let refused = PostgresOptions::new().with_schema(name).open(&url).await.unwrap_err();
        assert!(matches!(refused, PostgresError::SchemaName), "{name}: {refused}");
    }
    let refused = database.options().open("postgresql://secret:secret@[").await.unwrap_err();
    assert!(!format!("{refused:?} {refused}").contains("secret"));
    let refused = database.options().open(&url.replace("tests@", "nobody@")).await.unwrap_err();
    assert_eq!(
        refused.to_string(),
        "Postgres refuses the user or the password: correct them in the URL, or extend pg_hba.conf \
         (SQLSTATE 28000)"
    );
}

#[tokio::test]
async fn an_approval_of_a_newer_format_is_an_error_that_names_the_format() {
    let Some((database, store)) = Database::with_store().await else { return };
    let record = contention::record(RecordId::from_bytes([1; 16]));
    store.insert(&record).await.unwrap();
    let newer = "UPDATE approvals SET record = jsonb_set(record::JSONB, '{format}', '9')";
    database.execute(newer).await;
    let error = LedgerStore::load(&store, &[record.id]).await.unwrap_err();
    let cause = error.source().unwrap().to_string();
    assert!(cause.contains("format 9 is newer"), "{cause}");
}
