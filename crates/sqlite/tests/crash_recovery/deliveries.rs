//! A process is killed while its sink has not taken messages: the next process delivers them.

use std::sync::Arc;

use chat_test_support::kill_trials::block_on;
use futures::stream;
use test_support::kills::{Backend, Process, Role};
use tokio::sync::mpsc;
use tokio::time::timeout;
use ui_message_stream::approval::{Approvals, EmptyToolbox, Principal};
use ui_message_stream::request::Limits;
use ui_message_stream::{AgentEvent, ChatRequest};
use ui_message_stream_chat::{ChatServer, MessageChange, MessageDelivery, Turn};
use ui_message_stream_sqlite::SqliteStore;

use crate::file::File;

pub(crate) fn what_a_killed_process_has_not_delivered_is_delivered_by_the_next_one() -> String {
    let file = File::new();
    let process = Process::start("deliver", 0, &file);
    file.journal().wait_for("answered", 1);
    process.kill();
    let mut got = block_on(async {
        let (sender, mut got) = mpsc::unbounded_channel();
        let chats =
            server(file.store().await).with_message_sink(move |delivery: MessageDelivery| {
                sender.send(delivery).unwrap();
                async { Ok(()) }
            });
        // The server sweeps when it starts, and no request comes.
        let both = async { [got.recv().await.unwrap(), got.recv().await.unwrap()] };
        let both = timeout(test_support::patience(), both).await.expect("two deliveries");
        drop(chats);
        both
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
pub(crate) async fn deliver(role: &Role, store: Arc<SqliteStore>) {
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
    role.journal.write("answered");
    std::future::pending::<()>().await;
}

fn server(store: Arc<SqliteStore>) -> ChatServer {
    let agent = |_: Turn| stream::iter([AgentEvent::text("Hello.")]);
    ChatServer::new(agent, Approvals::new(EmptyToolbox)).with_store(store)
}
