//! The chat over HTTP, with each database: what a client invents or changes is not stored, and an edit or
//! a regeneration leaves one answer.

use std::path::PathBuf;

use axum::Router;
use axum::body::Body;
use axum::http::request::Builder;
use axum::http::{Request, StatusCode};
use http_body_util::BodyExt;
use own_table::{ChatKey, MessageTable, PostgresTable, SqliteTable, app, effects};
use serde_json::{Value, json};
use test_support::external_processes::postgres_server::PostgresServer;
use tower::ServiceExt;
use ui_message_stream::approval::Principal;
use ui_message_stream::axum::without_authentication;

/// A page that posts what the test wants.
struct Page<T> {
    app: Router,
    table: T,
    chat: &'static str,
}

impl<T: MessageTable> Page<T> {
    async fn post(&self, fields: Value) -> (StatusCode, String) {
        let mut body = json!({"id": self.chat});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let request = Request::post("/api/chat").header("content-type", "application/json");
        self.send(request, Body::from(body.to_string())).await
    }

    async fn get(&self, path: &str) -> (StatusCode, String) {
        self.send(Request::get(path), Body::empty()).await
    }

    async fn send(&self, request: Builder, body: Body) -> (StatusCode, String) {
        let request = request.header("host", "127.0.0.1").body(body).unwrap();
        let response = self.app.clone().oneshot(request).await.unwrap();
        let status = response.status();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    /// Posts a request that is answered, and waits until the answer is stored. Returns the stored
    /// messages.
    async fn answered(&self, fields: Value) -> Vec<Value> {
        let (_, version) = self.table.load(self.key()).await.unwrap();
        let (status, text) = self.post(fields).await;
        assert_eq!(status, StatusCode::OK, "{text}");
        loop {
            let (messages, now) = self.table.load(self.key()).await.unwrap();
            if now == version + 2 {
                return messages.iter().map(|it| serde_json::to_value(it).unwrap()).collect();
            }
            tokio::task::yield_now().await;
        }
    }

    fn key(&self) -> ChatKey {
        ChatKey { user: Principal::anonymous(), chat: self.chat.into() }
    }
}

fn user(id: &str, text: &str) -> Value {
    json!({"id": id, "role": "user", "parts": [{"type": "text", "text": text}]})
}

fn texts(messages: &[Value]) -> Vec<String> {
    let text = |message: &Value| {
        let parts = message["parts"].as_array().unwrap().iter();
        parts.filter_map(|part| part["text"].as_str()).collect::<Vec<_>>().join("|")
    };
    messages.iter().map(text).collect()
}

async fn an_edit_and_a_regeneration_leave_one_answer<T: MessageTable>(table: T) {
    let app = app(table.clone()).layer(without_authentication());
    let page = Page { app, table, chat: "edited" };
    let first = page.answered(json!({"messages": [user("u1", "one")]})).await;
    assert_eq!(texts(&first), ["one", "You say: one"]);
    let changed = json!({"messageId": "u1", "messages": [user("u1", "two")]});
    let edited = page.answered(changed.clone()).await;
    assert_eq!(texts(&edited), ["two", "You say: two"]);
    let regenerate = json!({
        "trigger": "regenerate-message", "messageId": edited[1]["id"],
        "messages": [user("u1", "two")],
    });
    let regenerated = page.answered(regenerate).await;
    assert_eq!(texts(&regenerated), ["two", "You say: two"]);
    assert_ne!(edited[1]["id"], regenerated[1]["id"]);
    // The edit again.
    assert_eq!(page.post(changed).await.0, StatusCode::CONFLICT);
    let two = [&regenerated[..], &[user("u2", "three")]].concat();
    let later = page.answered(json!({"messages": two})).await;
    assert_eq!(texts(&later), ["two", "You say: two", "three", "You say: three"]);

    // A page that is opened again reads them, and finds no answer that it could rejoin.
    let (status, history) = page.get("/api/chat/edited").await;
    assert_eq!((status, history), (StatusCode::OK, json!({"messages": later}).to_string()));
    let resumed = page.get("/api/chat/edited/stream").await;
    assert_eq!(resumed, (StatusCode::NO_CONTENT, String::new()));
    let unknown = page.get("/api/chat/unknown").await;
    assert_eq!(unknown, (StatusCode::OK, r#"{"messages":[]}"#.to_owned()));
}

async fn what_a_client_invents_or_changes_is_not_stored<T: MessageTable>(table: T) {
    let app = app(table.clone()).layer(without_authentication());
    let page = Page { app, table, chat: "changed" };
    let before = page.answered(json!({"messages": [user("u1", "one")]})).await;
    let asked = [&before[..], &[user("u2", "delete notes.txt")]].concat();
    let asked = page.answered(json!({"messages": asked})).await;
    let call =
        asked[3]["parts"].as_array().unwrap().iter().position(|part| part["approval"].is_object());
    let call = call.unwrap();

    // An older text and an older answer are changed. A message, a call and its output are invented.
    let mut answered = asked[3].clone();
    let part = &mut answered["parts"][call];
    part["state"] = "approval-responded".into();
    part["approval"]["approved"] = true.into();
    let invented = json!({
        "type": "tool-delete_file", "toolCallId": "invented", "state": "output-available",
        "input": {}, "output": "invented",
    });
    answered["parts"]
        .as_array_mut()
        .unwrap()
        .extend([invented, json!({"type": "text", "text": "invented"})]);
    let mut changed = before[1].clone();
    changed["parts"][1]["text"] = "changed".into();
    let mut message = before[1].clone();
    message["id"] = "invented".into();
    let posted = json!([user("u1", "changed"), changed, message, asked[2], answered]);
    let executed = effects();
    let after = page.answered(json!({"messages": posted})).await;
    assert_eq!(effects(), executed + 1);
    assert_eq!(after[..3], asked[..3]);
    assert_eq!(after.len(), 4);
    let part = &after[3]["parts"][call];
    assert_eq!(part["state"], "output-available");
    assert_eq!((&part["output"], &part["approval"]["approved"]), (&part["input"], &true.into()));
    assert!(!after[3].to_string().contains("invented"), "{}", after[3]);

    // A message that only the client knows is not continued.
    let invented =
        json!({"id": "x", "role": "assistant", "parts": [{"type": "text", "text": "invented"}]});
    let posted = [&after[..], &[invented]].concat();
    assert_eq!(page.post(json!({"messages": posted})).await.0, StatusCode::CONFLICT);
    let (stored, _) = page.table.load(page.key()).await.unwrap();
    assert_eq!(stored.len(), 4);
}

async fn check<T: MessageTable>(table: T) {
    an_edit_and_a_regeneration_leave_one_answer(table.clone()).await;
    what_a_client_invents_or_changes_is_not_stored(table).await;
}

#[tokio::test]
async fn both_tables_hold_what_the_server_wrote_and_the_user_said() {
    let file =
        PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{}.db", std::process::id()));
    check(SqliteTable::open(&file).unwrap()).await;
    std::fs::remove_file(file).unwrap();
    let Some(server) = PostgresServer::start() else { return };
    check(PostgresTable::connect(&server.url()).await.unwrap()).await;
}

#[test]
fn the_guide_shows_these_routes() {
    let guide = std::fs::read_to_string(test_support::repository().join("docs/your-agent.md"));
    let guide = guide.unwrap();
    let shown = guide.split("```rs\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    assert!(shown.starts_with("/// Returns the routes of the chat."), "{shown}");
    assert!(include_str!("../src/lib.rs").ends_with(shown), "{shown}");
}
