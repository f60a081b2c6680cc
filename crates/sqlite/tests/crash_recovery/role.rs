//! [`Role`]: what a process does.

use std::path::PathBuf;
use std::sync::Arc;

use chat_test_support::inner_agent_kills;
use test_support::notifier_kills;
use ui_message_stream_sqlite::SqliteStore;

use crate::process::wait_for_go;
use crate::{bytes, claims, deliveries, kills, limits};

/// What a process does with a file.
pub(crate) struct Role {
    name: String,
    file: PathBuf,
}

impl Role {
    pub(crate) fn from_environment() -> Option<Self> {
        let name = std::env::var("ROLE").ok()?;
        Some(Role { name, file: std::env::var_os("FILE").unwrap().into() })
    }

    pub(crate) async fn run(self) {
        let Role { name, file } = self;
        match &*name {
            "create" => {
                println!("ready");
                wait_for_go();
                SqliteStore::open(&file).await.unwrap().ping().await.unwrap();
            }
            "hold" => {
                // With its last connection SQLite removes the `-wal` and `-shm`.
                let store = SqliteStore::open(&file).await.unwrap();
                store.ping().await.unwrap();
                println!("ready");
                wait_for_go();
                drop(store);
            }
            "open" => match SqliteStore::open(&file).await {
                Ok(_) => println!("opened"),
                Err(error) => println!("{error:?}"),
            },
            "agents" => {
                let store = SqliteStore::open(&file).await.unwrap();
                let server = inner_agent_kills::Server::from_environment().unwrap();
                server.serve(Arc::new(store)).await;
            }
            "answer" => bytes::answer(SqliteStore::open(&file).await.unwrap()).await,
            "claim" => claims::claim_all(SqliteStore::open(&file).await.unwrap()).await,
            "deliver" => deliveries::deliver(SqliteStore::open(&file).await.unwrap()).await,
            "notify" => {
                let store = SqliteStore::open(&file).await.unwrap();
                let server = notifier_kills::Server::from_environment().unwrap();
                server.serve(Arc::new(store)).await;
            }
            "write" => kills::write(SqliteStore::open(&file).await.unwrap()).await,
            "save" => limits::save(SqliteStore::open(&file).await.unwrap()).await,
            "fill" => limits::fill(SqliteStore::open(&file).await.unwrap()).await,
            other => panic!("no role {other}"),
        }
    }
}
