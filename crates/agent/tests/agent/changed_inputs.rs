//! An approver changes the input of a call, over the routes: the tool runs with the changed input, every
//! page shows it, and the model reads both.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::http::{Method, StatusCode};
use chat_test_support::answers::{routes, send_json};
use chat_test_support::calling_model::Calls;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use test_support::eventually;
use test_support::requests::{call_mut, part, respond, user_message};
use test_support::responses::chunks_of;
use ui_message_stream::UiMessage;
use ui_message_stream::approval::Approvals;
use ui_message_stream::checker::Checker;
use ui_message_stream_agent::{Agent, Tool, ToolError};
use ui_message_stream_chat::ChatServer;

/// Sends money.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
struct Transfer {
    to: String,
    amount: u32,
}

/// A chat in which a transfer of 900 to the bakery waits for its approval.
struct Host {
    routes: Router,
    model: Calls,
    sent: Arc<Mutex<Vec<Transfer>>>,
    page: UiMessage,
}

/// How the approver sends the changed input.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Route {
    /// `useChat`, with its own copy of the message.
    Chat,
    Answers,
    Approvals,
}

const ROUTES: [Route; 3] = [Route::Chat, Route::Answers, Route::Approvals];

impl Host {
    async fn new() -> Self {
        let sent: Arc<Mutex<Vec<Transfer>>> = Arc::default();
        let effects = Arc::clone(&sent);
        let transfer = Tool::new("transfer", move |transfer: Transfer| {
            effects.lock().unwrap().push(transfer.clone());
            async move { Ok::<_, ToolError>(transfer) }
        });
        let transfer =
            transfer.needs_approval().editable_fields(["amount"]).check_change(|input| {
                assert_ne!(input.changed.amount, 13, "a bug of the host");
                match input.changed.amount <= input.original.amount {
                    true => Ok(()),
                    false => Err("amount: may be lowered, not raised".to_owned()),
                }
            });
        let transfer = transfer.authorize(|_, transfer| transfer.amount > 0);
        let model = Calls::of(&[("transfer", json!({"to": "bakery", "amount": 900}))]);
        let agent = Agent::new(model.clone()).tool(transfer);
        let chats = ChatServer::new(agent.clone(), Approvals::new(agent));
        let routes = routes(&chats);
        let page = UiMessage::parse(r#"{"id": "", "role": "assistant", "parts": []}"#).unwrap();
        let mut host = Host { routes, model, sent, page };
        let body = json!({"id": "chat", "messages": [user_message("u1", "Pay")]});
        let (status, text) = host.send(Method::POST, "/api/chat", &body).await;
        assert_eq!(status, StatusCode::OK, "{text}");
        host.page = host.stored().await;
        host
    }

    async fn send(&self, method: Method, path: &str, body: &Value) -> (StatusCode, String) {
        send_json(&self.routes, method, path, body).await
    }

    /// The assistant's message, as a page that is opened now shows it.
    async fn stored(&self) -> UiMessage {
        let (_, text) = self.send(Method::GET, "/api/chat/chat", &Value::Null).await;
        let body: Value = serde_json::from_str(&text).unwrap();
        UiMessage::parse(&body["messages"][1].to_string()).unwrap()
    }

    fn approval_id(&self) -> String {
        self.page.tool_parts().next().unwrap().approval_id().unwrap().to_string()
    }

    /// Approves the call with this input, or with its own.
    async fn approve(&self, route: Route, input: Option<&Value>) -> (StatusCode, String) {
        let id = self.approval_id();
        let mut decision = json!({"approvalId": id, "approved": true});
        if let Some(input) = input {
            decision["input"] = input.clone();
        }
        let decisions = json!({"decisions": [decision]});
        let (path, body) = match route {
            Route::Answers => ("/api/chat/chat/answers", decisions),
            Route::Approvals => ("/api/approvals", decisions),
            Route::Chat => {
                let mut message = serde_json::to_value(&self.page).unwrap();
                let part = call_mut(&mut message, "call_0");
                respond(part, true);
                let mut body =
                    json!({"id": "chat", "messageId": self.page.id, "messages": [message]});
                if let Some(input) = input {
                    body["approvalInputs"] = json!({ &id: input, "ap_of_another_chat": 7 });
                }
                ("/api/chat", body)
            }
        };
        self.send(Method::POST, path, &body).await
    }

    fn sent(&self) -> Vec<u32> {
        self.sent.lock().unwrap().iter().map(|transfer| transfer.amount).collect()
    }

    /// Waits until the stored message has its answer.
    async fn answered(&self) -> Value {
        eventually(async || self.stored().await.text() == "Done.").await;
        serde_json::to_value(self.stored().await).unwrap()
    }
}

#[tokio::test]
async fn the_changed_input_runs_and_every_page_shows_it() {
    for route in ROUTES {
        let host = Host::new().await;
        let asked = serde_json::to_value(&host.page).unwrap();
        let data = &part(&asked, "data-approval")["data"];
        assert_eq!(data["editable"], json!(["amount"]), "{route:?}");

        let changed = json!({"to": "bakery", "amount": 100});
        let (status, text) = host.approve(route, Some(&changed)).await;
        assert_eq!(status, StatusCode::OK, "{route:?}: {text}");
        let stored = host.answered().await;
        assert_eq!(host.sent(), [100], "{route:?}");
        let call = part(&stored, "tool-transfer");
        assert_eq!(call["input"], changed, "{route:?}");
        assert_eq!(call["approval"]["approved"], true, "{route:?}");
        let data = &part(&stored, "data-approval")["data"];
        assert_eq!(data["changedInput"], changed, "{route:?}");
        assert_eq!(data["originalInput"], json!({"to": "bakery", "amount": 900}), "{route:?}");

        let read = host.model.read();
        let (call, result) = read.split_once("changed the input of this call").expect(&read);
        assert!(call.contains(r#""amount":900"#), "{read}");
        assert!(result.contains(r#"\"amount\":100"#), "{read}");
    }
}

#[tokio::test]
async fn the_stream_replaces_the_input_directly_before_the_output() {
    for route in [Route::Chat, Route::Answers] {
        let host = Host::new().await;
        let changed = json!({"to": "bakery", "amount": 100});
        let (_, text) = host.approve(route, Some(&changed)).await;
        let chunks = chunks_of(&text);
        let at = |kind: &str| chunks.iter().position(|chunk| chunk["type"] == kind).expect(&text);
        let input = at("tool-input-available");
        assert_eq!(chunks[input]["input"], changed, "{route:?}");
        assert_eq!(input + 1, at("tool-output-available"), "{route:?}: {text}");
        assert!(input < at("start-step"), "{route:?}: {text}");

        let mut checker = Checker::continuing(&host.page);
        let mut found = Vec::new();
        for chunk in &chunks {
            found.extend(checker.handle_data(&chunk.to_string()));
        }
        found.extend(checker.finish());
        assert!(found.is_empty(), "{route:?}: {found:?}");
    }
}

#[tokio::test]
async fn an_input_that_is_not_accepted_is_named_and_nothing_is_stored() {
    let cases = [
        (json!({"to": "eve", "amount": 1}), "`to` cannot be changed"),
        (json!({"to": "bakery", "amount": -1}), "/amount: -1 is less than the minimum of 0"),
        (json!({"to": "bakery"}), "\"amount\" is a required property"),
        (json!({"to": "bakery", "amount": 0}), "the tool may not run with this input"),
        (json!({"to": "bakery", "amount": 901}), "amount: may be lowered, not raised"),
        (json!({"to": "bakery", "amount": 13}), "the change could not be checked"),
    ];
    for route in ROUTES {
        let host = Host::new().await;
        for (input, problem) in &cases {
            let (status, text) = host.approve(route, Some(input)).await;
            assert_eq!(status, StatusCode::BAD_REQUEST, "{route:?} {input}: {text}");
            assert!(text.contains(problem), "{route:?} {input}: {text}");
        }
        assert_eq!(host.sent(), [0; 0], "{route:?}");
        assert_eq!(host.stored().await, host.page, "{route:?}");
        // The same page can still approve what it shows.
        let (status, text) = host.approve(route, None).await;
        assert_eq!(status, StatusCode::OK, "{route:?}: {text}");
        host.answered().await;
        assert_eq!(host.sent(), [900], "{route:?}");
    }
}

#[tokio::test]
async fn a_repetition_with_another_input_gets_the_first_outcome() {
    for (first, second) in ROUTES.into_iter().flat_map(|first| ROUTES.map(|second| (first, second)))
    {
        let host = Host::new().await;
        host.approve(first, Some(&json!({"to": "bakery", "amount": 100}))).await;
        host.answered().await;
        // With a space: a random approval id never holds this name.
        for input in [json!({"to": "bakery", "amount": 50}), json!({"to": "eve & co", "amount": 1})]
        {
            let (status, text) = host.approve(second, Some(&input)).await;
            assert_eq!(status, StatusCode::OK, "{first:?} {second:?}: {text}");
        }
        assert_eq!(host.sent(), [100], "{first:?} {second:?}");
        assert!(!serde_json::to_string(&host.stored().await).unwrap().contains("eve & co"));
    }
}

#[tokio::test]
async fn a_denial_has_no_input() {
    let host = Host::new().await;
    let decision = json!({"approvalId": host.approval_id(), "approved": false, "input": {}});
    let body = json!({"decisions": [decision]});
    for path in ["/api/chat/chat/answers", "/api/approvals"] {
        let (status, text) = host.send(Method::POST, path, &body).await;
        let expected = "decisions[0].input: a denied call does not run: leave `input` out";
        assert_eq!((status, text.as_str()), (StatusCode::BAD_REQUEST, expected), "{path}");
    }
}

#[tokio::test]
async fn answers_hold_an_input_beside_their_decision() {
    let host = Host::new().await;
    let id = host.approval_id();
    let decisions = json!([{"approvalId": id, "approved": true}]);
    let changed = json!({"to": "bakery", "amount": 100});
    let body = json!({"decisions": decisions, "approvalInputs": {&id: changed}});
    let (status, text) = host.send(Method::POST, "/api/chat/chat/answers", &body).await;
    let expected = "approvalInputs: expected the `input` of a decision in its place";
    assert_eq!((status, text.as_str()), (StatusCode::BAD_REQUEST, expected));
    let (_, text) = host.send(Method::GET, "/api/approvals", &Value::Null).await;
    let pending: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(pending["approvals"][0]["editable"], json!(["amount"]));
}
