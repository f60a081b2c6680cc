//! A process is killed while its sink has not taken messages: the next process delivers them.

use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use futures::stream;
use ui_message_stream::approval::{Approvals, EmptyToolbox, Principal};
use ui_message_stream::request::Limits;
use ui_message_stream::{AgentEvent, ChatRequest};
use ui_message_stream_chat::{ChatServer, MessageChange, MessageDelivery, Turn};
use ui_message_stream_sqlite::SqliteStore;

use crate::process::{Folder, Process, block_on};

pub(crate) fn what_a_killed_process_has_not_delivered_is_delivered_by_the_next_one() -> String {
    let folder = Folder::new();
    let process = Process::start("deliver", &folder);
    while process.next_line().expect("the process has ended") != "answered" {}
    process.kill();
    let mut got = block_on(async {
        let (sender, got) = mpsc::channel();
        let store = SqliteStore::open(folder.file()).await.unwrap();
        let chats = server(store).with_message_sink(move |delivery: MessageDelivery| {
            sender.send(delivery).unwrap();
            async { Ok(()) }
        });
        // The server sweeps when it starts, and no request comes.
        let got = tokio::task::spawn_blocking(move || {
            [0, 1].map(|_| got.recv_timeout(Duration::from_secs(60)).expect("a delivery"))
        });
        let got = got.await.unwrap();
        drop(chats);
        got
    });
    got.sort_by(|one, other| one.key.cmp(&other.key));
    let [deleted, kept] = got;
    assert!(matches!(deleted.change, MessageChange::Deleted), "{deleted:?}");
    let MessageChange::Messages { first: 0, messages } = kept.change else { panic!("{kept:?}") };
    let texts: Vec<String> = messages.iter().map(|message| message.text()).collect();
    assert_eq!(texts, ["Hi", "Hello."]);
    "a process killed with two chats undelivered, the next one has delivered both".to_owned()
}

/// In the process: answers, deletes one of two chats, and waits for its sink until it is killed.
pub(crate) async fn deliver(store: SqliteStore) {
    let chats = server(store).with_message_sink(async |_: MessageDelivery| {
        std::future::pending::<()>().await;
        Ok(())
    });
    let ada = Principal::new("ada");
    for chat in ["deleted", "kept"] {
        let body = format!(
            r#"{{"id":"{chat}","message":{{"id":"m1","role":"user","parts":[{{"type":"text","text":"Hi"}}]}}}}"#
        );
        let request = ChatRequest::parse(body.as_bytes(), &Limits::default()).unwrap();
        chats.complete_response(&ada, request).await.unwrap();
    }
    chats.delete(&ada, &"deleted".into()).await.unwrap();
    println!("answered");
    std::future::pending::<()>().await;
}

fn server(store: SqliteStore) -> ChatServer {
    let agent = |_: Turn| stream::iter([AgentEvent::text("Hello.")]);
    ChatServer::new(agent, Approvals::new(EmptyToolbox)).with_store(Arc::new(store))
}
