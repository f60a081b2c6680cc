//! A pooler between the store and Postgres, as PgBouncer in transaction mode: each transaction has another session, and what
//! the client sets when it connects is ignored.

use std::sync::Arc;

use chat_test_support::log_hints::check_many_readers;
use test_support::external_processes::postgres_server::PostgresServer;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::{Mutex, mpsc};
use ui_message_stream::approval::store::conformance;
use ui_message_stream_chat::store::conformance as log_conformance;

use crate::database::Database;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_store_needs_no_session_of_its_own() {
    let Some(database) = Database::new() else { return };
    let url = pooler(database.server).await;
    let store = database.options().open(&url).await.unwrap();
    log_conformance::check(async || store.clone()).await;
    conformance::check(async || store.clone()).await;
    // No notifications arrive: readers ask.
    check_many_readers(&database.open().await, &store).await;
}

/// Starts a pooler, and returns its URL.
async fn pooler(server: &PostgresServer) -> String {
    let (idle, sessions) = mpsc::unbounded_channel();
    for _ in 0..4 {
        let mut session = UnixStream::connect(server.socket()).await.unwrap();
        let startup = b"\0\0\0\x26\0\x03\0\0user\0tests\0database\0postgres\0\0";
        session.write_all(startup).await.unwrap();
        while message(&mut session).await.unwrap()[0] != b'Z' {}
        idle.send(session).unwrap();
    }
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("postgresql://tests@{}/postgres", listener.local_addr().unwrap());
    let sessions = Arc::new(Mutex::new(sessions));
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            tokio::spawn(serve(client, idle.clone(), Arc::clone(&sessions)));
        }
    });
    url
}

/// Sends the transactions of a client to the session that was not used for longest. Returns `None` when the client has left.
async fn serve(
    mut client: TcpStream,
    idle: mpsc::UnboundedSender<UnixStream>,
    sessions: Arc<Mutex<mpsc::UnboundedReceiver<UnixStream>>>,
) -> Option<()> {
    client.set_nodelay(true).ok()?;
    let startup = client.read_u32().await.ok()?;
    client.read_exact(&mut vec![0; startup as usize - 4]).await.ok()?;
    client.write_all(b"R\0\0\0\x08\0\0\0\0Z\0\0\0\x05I").await.ok()?;
    loop {
        let mut requests = message(&mut client).await?;
        let mut session = sessions.lock().await.recv().await?;
        let mut is_idle = false;
        while !is_idle {
            let mut kind = requests[0];
            while !matches!(kind, b'S' | b'Q' | b'X') {
                let request = message(&mut client).await?;
                kind = request[0];
                requests.extend(request);
            }
            if kind != b'X' {
                session.write_all(&requests).await.ok()?;
                requests = Vec::new();
            }
            let mut reply = vec![b' '];
            while kind != b'X' && reply[0] != b'Z' {
                reply = message(&mut session).await?;
                client.write_all(&reply).await.ok()?;
            }
            is_idle = kind == b'X' || reply.ends_with(b"I");
            if !is_idle {
                requests = message(&mut client).await?;
            }
        }
        idle.send(session).ok()?;
    }
}

/// Returns the next message: its kind, its length, and what it holds.
async fn message(from: &mut (impl AsyncRead + Unpin)) -> Option<Vec<u8>> {
    let mut message = vec![0; 5];
    from.read_exact(&mut message).await.ok()?;
    let length = u32::from_be_bytes(message[1..].try_into().ok()?);
    message.resize(length as usize + 1, 0);
    from.read_exact(&mut message[5..]).await.ok()?;
    Some(message)
}
