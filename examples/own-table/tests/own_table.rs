//! The chat over HTTP, with each database: what a client invents or changes is not stored, an edit or a
//! regeneration leaves one answer, and each call has the outcome that the ledger knows.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use axum::Router;
use axum::body::Body;
use axum::http::request::Builder;
use axum::http::{Request, StatusCode};
use axum::response::Response;
use http_body_util::BodyExt;
use own_table::{ChatKey, MessageTable, PostgresTable, SqliteTable, app, approvals, effects};
use serde_json::{Value, json};
use test_support::eventually;
use test_support::external_processes::postgres_server::PostgresServer;
use test_support::ledger_double::{Fault, LedgerDouble, Operation};
use tower::ServiceExt;
use ui_message_stream::approval::{ApprovalRecord, ApprovalState, Principal};
use ui_message_stream::axum::without_authentication;
use ui_message_stream::model::ToolResult;

/// What fails in the ledger of a page.
#[derive(Default)]
struct Faults {
    reading: AtomicBool,
    storing_outcomes: AtomicBool,
}

impl Faults {
    fn of(&self, operation: Operation<'_>) -> Option<Fault> {
        let fails = match operation {
            Operation::List => &self.reading,
            Operation::Replace(ApprovalRecord {
                state: ApprovalState::Completed { .. }, ..
            }) => &self.storing_outcomes,
            _ => return None,
        };
        fails.load(SeqCst).then_some(Fault::NotDone("a fault of the test"))
    }
}

/// A page that posts what the test wants.
struct Page<T> {
    app: Router,
    table: T,
    chat: &'static str,
    faults: Arc<Faults>,
}

impl<T: MessageTable> Page<T> {
    fn new(table: T, chat: &'static str) -> Self {
        let faults = Arc::<Faults>::default();
        let of_ledger = faults.clone();
        let ledger = LedgerDouble::new(move |operation: Operation<'_>| of_ledger.of(operation));
        let app = app(table.clone(), approvals().with_ledger(Arc::new(ledger)));
        Page { app: app.layer(without_authentication()), table, chat, faults }
    }

    async fn post(&self, fields: Value) -> (StatusCode, String) {
        let (request, body) = self.request(fields);
        self.send(request, body).await
    }

    fn request(&self, fields: Value) -> (Builder, Body) {
        let mut body = json!({"id": self.chat});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let request = Request::post("/api/chat").header("content-type", "application/json");
        (request, Body::from(body.to_string()))
    }

    async fn get(&self, path: &str) -> (StatusCode, String) {
        self.send(Request::get(path), Body::empty()).await
    }

    async fn send(&self, request: Builder, body: Body) -> (StatusCode, String) {
        let response = self.response(request, body).await;
        let status = response.status();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    async fn response(&self, request: Builder, body: Body) -> Response {
        let request = request.header("host", "127.0.0.1").body(body).unwrap();
        self.app.clone().oneshot(request).await.unwrap()
    }

    /// Posts a request that is answered, and waits until the answer is stored. Returns the stored
    /// messages.
    async fn answered(&self, fields: Value) -> Vec<Value> {
        let (_, version) = self.table.load(self.key()).await.unwrap();
        let (status, text) = self.post(fields).await;
        assert_eq!(status, StatusCode::OK, "{text}");
        self.stored_after(version).await
    }

    /// Posts a request whose response nothing reads.
    async fn posts_and_leaves(&self, fields: Value) -> Vec<Value> {
        let (_, version) = self.table.load(self.key()).await.unwrap();
        let (request, body) = self.request(fields);
        let response = self.response(request, body).await;
        assert_eq!(response.status(), StatusCode::OK);
        drop(response);
        self.stored_after(version).await
    }

    /// Waits until the request after this version and its answer are stored.
    async fn stored_after(&self, version: i64) -> Vec<Value> {
        eventually(async || self.table.load(self.key()).await.unwrap().1 == version + 2).await;
        self.stored().await
    }

    async fn stored(&self) -> Vec<Value> {
        let (messages, _) = self.table.load(self.key()).await.unwrap();
        messages.iter().map(|it| serde_json::to_value(it).unwrap()).collect()
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

fn place_of_call(message: &Value) -> usize {
    let parts = message["parts"].as_array().unwrap();
    parts.iter().position(|part| part["toolCallId"].is_string()).unwrap()
}

fn call(message: &Value) -> &Value {
    &message["parts"][place_of_call(message)]
}

/// The message as the page posts it after the user's decision.
fn decided(message: &Value, approved: bool) -> Value {
    let mut message = message.clone();
    let call = place_of_call(&message);
    let part = &mut message["parts"][call];
    part["state"] = "approval-responded".into();
    part["approval"]["approved"] = approved.into();
    message
}

async fn an_edit_and_a_regeneration_leave_one_answer<T: MessageTable>(table: T) {
    let page = Page::new(table, "edited");
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
    let page = Page::new(table, "changed");
    let before = page.answered(json!({"messages": [user("u1", "one")]})).await;
    let asked = [&before[..], &[user("u2", "delete notes.txt")]].concat();
    let asked = page.answered(json!({"messages": asked})).await;
    let call = place_of_call(&asked[3]);

    // An older text and an older answer are changed. A message, a call and its output are invented.
    let mut answered = decided(&asked[3], true);
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

async fn a_call_has_its_outcome_though_its_reader_has_left<T: MessageTable>(table: T) {
    let page = Page::new(table, "left");
    let asked = page.answered(json!({"message": user("u1", "delete notes.txt")})).await;
    let executed = effects();
    page.faults.storing_outcomes.store(true, SeqCst);
    page.posts_and_leaves(json!({"message": decided(&asked[1], true)})).await;
    eventually(async || effects() == executed + 1).await;

    // The next message names no call. The model reads that the call runs, and later its output.
    let meanwhile = page.answered(json!({"message": user("u2", "What happened?")})).await;
    assert_eq!(texts(&meanwhile)[3], ToolResult::Executing.text());
    page.faults.storing_outcomes.store(false, SeqCst);
    let shown = async || {
        let (_, history) = page.get("/api/chat/left").await;
        let history: Value = serde_json::from_str(&history).unwrap();
        history["messages"][1].clone()
    };
    eventually(async || call(&shown().await)["state"] == "output-available").await;
    let later = page.answered(json!({"message": user("u3", "What happened?")})).await;
    assert_eq!(texts(&later)[5], r#"{"path": "notes.txt"}"#);
    assert_eq!(later[1], shown().await);
    assert_eq!(effects(), executed + 1);
}

async fn a_decision_that_is_posted_again_changes_nothing<T: MessageTable>(table: T) {
    let page = Page::new(table, "again");
    let asked = page.answered(json!({"message": user("u1", "delete notes.txt")})).await;
    let [approved, denied] = [true, false].map(|it| json!({"message": decided(&asked[1], it)}));
    let executed = effects();
    let answered = page.answered(approved.clone()).await;
    for repeated in [&approved, &denied] {
        assert_eq!(page.post(repeated.clone()).await.0, StatusCode::CONFLICT);
    }
    assert_eq!((page.stored().await, effects()), (answered, executed + 1));

    let asked = page.answered(json!({"message": user("u2", "delete notes.txt")})).await;
    let [approved, denied] = [true, false].map(|it| json!({"message": decided(&asked[3], it)}));
    let answered = page.answered(denied.clone()).await;
    assert_eq!(call(&answered[3])["state"], "output-denied");
    for repeated in [&approved, &denied] {
        assert_eq!(page.post(repeated.clone()).await.0, StatusCode::CONFLICT);
    }
    assert_eq!((page.stored().await, effects()), (answered, executed + 1));
}

async fn an_answer_that_does_not_count_leaves_the_question_open<T: MessageTable>(table: T) {
    let page = Page::new(table, "open");
    let asked = page.answered(json!({"message": user("u1", "delete notes.txt")})).await;
    let executed = effects();
    let mut changed = decided(&asked[1], true);
    changed["parts"][place_of_call(&asked[1])]["input"] = json!({"path": "other.txt"});
    let refused = page.answered(json!({"message": changed})).await;
    assert_eq!((call(&refused[1]), effects()), (call(&asked[1]), executed));
    let approved = page.answered(json!({"message": decided(&refused[1], true)})).await;
    assert_eq!((&call(&approved[1])["state"], approved.len()), (&"output-available".into(), 2));
    assert_eq!(effects(), executed + 1);
}

async fn after_a_failure_of_the_ledger_the_same_message_is_answered<T: MessageTable>(table: T) {
    let page = Page::new(table, "failed");
    let message = json!({"messages": [user("u1", "one")]});
    page.faults.reading.store(true, SeqCst);
    assert_eq!(page.post(message.clone()).await.0, StatusCode::SERVICE_UNAVAILABLE);
    page.faults.reading.store(false, SeqCst);
    let answered = page.answered(message.clone()).await;
    assert_eq!(texts(&answered), ["one", "You say: one"]);
    assert_eq!(page.post(message).await.0, StatusCode::CONFLICT);
}

async fn check<T: MessageTable>(table: T) {
    an_edit_and_a_regeneration_leave_one_answer(table.clone()).await;
    what_a_client_invents_or_changes_is_not_stored(table.clone()).await;
    a_call_has_its_outcome_though_its_reader_has_left(table.clone()).await;
    a_decision_that_is_posted_again_changes_nothing(table.clone()).await;
    an_answer_that_does_not_count_leaves_the_question_open(table.clone()).await;
    after_a_failure_of_the_ledger_the_same_message_is_answered(table).await;
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
