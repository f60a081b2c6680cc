//! The same route for those who do not read a stream: the message, why it ends there, and what waits.

use axum::body::Body;
use axum::http::{Request, StatusCode, header};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use test_support::test_server::{Host, Line, PERSON, Scripted};
use tower::ServiceExt;
use ui_message_stream::approval::{PendingToolCall, Principal};
use ui_message_stream::chat::{Chat, ClientAnswers};
use ui_message_stream::request::Limits;
use ui_message_stream::{Json, UiMessage};

/// Posts, and asks for an answer of this type.
async fn post(host: &Host, accept: &str, body: &Value) -> (String, String) {
    let (status, media_type, text) = post_as("alice", host, "/api/chat", accept, body).await;
    assert_eq!(status, StatusCode::OK);
    (media_type, text)
}

async fn post_as(
    person: &str,
    host: &Host,
    path: &str,
    accept: &str,
    body: &Value,
) -> (StatusCode, String, String) {
    let request = Request::post(path)
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::ACCEPT, accept)
        .header(PERSON, person)
        .body(Body::from(body.to_string()))
        .unwrap();
    let response = host.routes.clone().oneshot(request).await.unwrap();
    let status = response.status();
    let media_type = response.headers()[header::CONTENT_TYPE].to_str().unwrap().to_owned();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, media_type, String::from_utf8(body.to_vec()).unwrap())
}

/// ClientAnswers by id, and reads what comes of it in full.
async fn answer(host: &Host, answers: &Value) -> Value {
    let path = "/api/chat/chat/answers";
    let (status, _, text) = post_as("alice", host, path, "application/json", answers).await;
    assert_eq!(status, StatusCode::OK, "{text}");
    serde_json::from_str(&text).unwrap()
}

/// ClientAnswers by id what nothing waits for: the status and why.
async fn refused(host: &Host, person: &str, answers: &Value) -> (u16, String) {
    let path = "/api/chat/chat/answers";
    let (status, _, text) = post_as(person, host, path, "application/json", answers).await;
    (status.as_u16(), text)
}

async fn ask(host: &Host, messages: Value) -> Value {
    let body = json!({"id": "chat", "messages": messages});
    let (media_type, text) = post(host, "application/json", &body).await;
    assert_eq!(media_type, "application/json");
    serde_json::from_str(&text).unwrap()
}

fn user(text: &str) -> Value {
    json!([{"id": "m1", "role": "user", "parts": [{"type": "text", "text": text}]}])
}

#[tokio::test]
async fn a_message_that_is_complete() {
    let answer = ask(&Host::new(), user("hello")).await;
    assert_eq!(answer["stopReason"], "stop");
    assert_eq!(answer["approvals"], json!([]));
    assert_eq!(answer["message"]["role"], "assistant");
    assert!(answer["message"]["parts"].to_string().contains("You said: hello"));
}

#[tokio::test]
async fn what_waits_for_a_person_is_decided_by_the_other_route_and_goes_on() {
    let host = Host::new();
    let asked = ask(&host, user("delete notes.txt")).await;
    assert_eq!(asked["stopReason"], "requires_approval");
    let approval = &asked["approvals"][0];
    assert_eq!(approval["toolName"], "delete_file");
    assert_eq!(approval["input"], json!({"path": "notes.txt"}));
    let decision = json!({"approvalId": approval["approvalId"], "approved": true});
    let decided = host.decide("alice", &json!({"decisions": [decision]})).await.json();
    assert_eq!(decided["decisions"][0]["counts"], true);

    // The same answer within the message: the outcome is there, and nothing is decided twice.
    let mut message = asked["message"].clone();
    let parts = message["parts"].as_array_mut().unwrap();
    let call = parts.iter_mut().find(|part| part["type"] == "tool-delete_file").unwrap();
    call["state"] = json!("approval-responded");
    call["approval"]["approved"] = json!(true);
    let mut messages = user("delete notes.txt");
    messages.as_array_mut().unwrap().push(message);
    let answer = ask(&host, messages).await;
    assert_eq!(answer["stopReason"], "stop");
    assert!(answer["message"]["parts"].to_string().contains("output-available"), "{answer}");
    assert_eq!(host.tools.effects().len(), 1);
}

#[tokio::test]
async fn what_waits_for_the_client() {
    let answer = ask(&Host::new(), user("location")).await;
    assert_eq!(answer["stopReason"], "requires_client_tool");
    let [call] = answer["toolCalls"].as_array().unwrap().as_slice() else { panic!("{answer}") };
    assert_eq!(call["toolName"], "get_location");
    assert_eq!(call["input"], json!({}));
}

#[tokio::test]
async fn outputs_by_id_let_it_go_on_and_come_to_the_same_when_they_come_again() {
    for given in [
        json!({"toolOutputs": [{"toolCallId": "ID", "output": {"city": "Lisbon"}}]}),
        json!({"tool_outputs": [{"tool_call_id": "ID", "output": {"city": "Lisbon"}}]}),
        // As Letta's clients say it.
        json!({"tool_returns": [{
            "type": "tool", "tool_call_id": "ID", "tool_return": {"city": "Lisbon"}, "status": "success",
        }]}),
    ] {
        let host = Host::new();
        let asked = ask(&host, user("location")).await;
        let id = asked["toolCalls"][0]["toolCallId"].as_str().unwrap();
        let given: Value = serde_json::from_str(&given.to_string().replace("ID", id)).unwrap();
        let first = answer(&host, &given).await;
        assert_eq!(first["stopReason"], "stop");
        assert_eq!(first["toolCalls"], json!([]));
        let parts = first["message"]["parts"].to_string();
        assert!(parts.contains(r#""output":{"city":"Lisbon"}"#), "{parts}");
        assert!(parts.contains("That is what came of it."), "{parts}");
        let calls_of_model = host.model.prompts().len();
        assert_eq!(answer(&host, &given).await, first);
        assert_eq!(host.model.prompts().len(), calls_of_model, "the model is not asked again");

        // Read as a stream it is what this client has not seen.
        let path = "/api/chat/chat/answers";
        let (_, media_type, text) = post_as("alice", &host, path, "*/*", &given).await;
        assert_eq!(media_type, "text/event-stream");
        assert!(text.contains("That is what came of it."), "{text}");
        assert_eq!(host.model.prompts().len(), calls_of_model);
    }
}

#[tokio::test]
async fn an_error_of_the_client_is_one() {
    let host = Host::new();
    let asked = ask(&host, user("location")).await;
    let id = &asked["toolCalls"][0]["toolCallId"];
    let error = json!({"toolCallId": id, "output": "no GPS", "status": "error"});
    let went_on = answer(&host, &json!({"toolOutputs": [error]})).await;
    let parts = went_on["message"]["parts"].to_string();
    assert!(parts.contains(r#""errorText":"no GPS""#), "{parts}");
}

#[tokio::test]
async fn decisions_and_outputs_go_together_and_what_is_left_waits() {
    let call = |tool: &str, input: &str| Scripted {
        tool: tool.to_owned(),
        input: input.to_owned(),
        id: None,
    };
    let calls = vec![
        call("get_location", "{}"),
        call("delete_file", r#"{"path":"notes.txt"}"#),
        call("delete_file", r#"{"path":"report.pdf"}"#),
    ];
    let host = Host::scripted(vec![Line { word: "all".to_owned(), calls }]);
    let asked = ask(&host, user("all")).await;
    let location = &asked["toolCalls"][0]["toolCallId"];
    let [first, second] = asked["approvals"].as_array().unwrap().as_slice() else { panic!() };
    let some = json!({
        "toolOutputs": [{"toolCallId": location, "output": "here"}],
        "decisions": [{"approvalId": first["approvalId"], "approved": true}],
    });
    let waits = answer(&host, &some).await;
    assert_eq!(waits["stopReason"], "requires_approval");
    assert_eq!(waits["approvals"].as_array().unwrap().len(), 1);
    assert_eq!(host.tools.effects().len(), 1);
    let rest = json!({"decisions": [
        {"approvalId": second["approvalId"], "approved": false, "reason": "keep it"},
    ]});
    let ended = answer(&host, &rest).await;
    assert_eq!(ended["stopReason"], "stop");
    assert!(ended["message"]["parts"].to_string().contains("keep it"));
    answer(&host, &some).await;
    answer(&host, &rest).await;
    assert_eq!(host.tools.effects().len(), 1, "nothing is decided twice");
}

#[tokio::test]
async fn an_answer_that_nothing_waits_for_says_so_and_changes_nothing() {
    let host = Host::new();
    let output = |id: &Value| json!({"toolOutputs": [{"toolCallId": id, "output": 1}]});
    assert_eq!(refused(&host, "alice", &output(&json!("call"))).await.0, 404);
    let asked = ask(&host, user("mixed")).await;
    let before = asked["message"].clone();
    let parts = before["parts"].as_array().unwrap();
    let deletion = parts.iter().find(|part| part["type"] == "tool-delete_file").unwrap();
    for (answers, why) in [
        (output(&json!("call_9")), "toolOutputs[0].toolCallId: names no call"),
        // The server's own tool: a client cannot answer for it.
        (output(&deletion["toolCallId"]), "toolOutputs[0].toolCallId: names no call"),
        (json!({"decisions": []}), "decisions: answers nothing"),
        (
            json!({"decisions": [{"approvalId": "ap", "approved": true}]}),
            "decisions: answers nothing",
        ),
        (json!({"toolOutputs": [{"toolCallId": "call_9"}]}), "toolOutputs[0].output: missing"),
        (
            json!({"toolOutputs": [
                {"toolCallId": "call_9", "output": 1}, {"toolCallId": "call_9", "output": 2},
            ]}),
            "toolOutputs[1].toolCallId: has an output already",
        ),
        (json!({"outputs": [], "tool_outputs": null}), "decisions: answers nothing"),
        (json!({"decisions": {}}), "decisions: expected a list"),
        (
            json!({"decisions": [
                {"approvalId": "ap", "approved": false}, {"approvalId": "ap", "approved": true},
            ]}),
            "decisions[1].approved: contradicts another answer",
        ),
    ] {
        let (status, text) = refused(&host, "alice", &answers).await;
        assert_eq!(status, 400, "{answers}: {text}");
        assert!(text.contains(why), "{answers}: {text}");
    }
    assert_eq!(refused(&host, "mallory", &output(&json!("call_9"))).await.0, 404);
    let chat = host.chats.chat(&Principal::new("alice"), &"chat".into()).await.unwrap();
    assert_eq!(serde_json::to_value(chat.messages.last()).unwrap(), before);
    assert_eq!(host.tools.effects().len(), 0);
}

#[tokio::test]
async fn a_run_that_failed_says_so_and_no_more() {
    let host = Host::new();
    host.model.set_failure("password=hunter2");
    let answer = ask(&host, user("hello")).await;
    assert_eq!(answer["stopReason"], "error");
    assert!(!answer.to_string().contains("hunter2"));
}

#[tokio::test]
async fn who_reads_streams_gets_one() {
    for accept in ["*/*", "text/event-stream", "application/json, text/event-stream"] {
        let body = json!({"id": "chat", "messages": user("hello")});
        let (media_type, text) = post(&Host::new(), accept, &body).await;
        assert_eq!(media_type, "text/event-stream", "{accept}");
        assert!(text.ends_with("data: [DONE]\n\n"));
    }
}

#[test]
fn answers_by_id_are_read_as_strictly_as_any_request() {
    let twice = r#"{"decisions": [{"approvalId": "ap", "approved": false}],
        "decisions": [{"approvalId": "ap", "approved": true}]}"#;
    let many = format!("{{{}}}", vec![r#""":1"#; 30_000].join(","));
    for (body, why) in [
        (twice, "decisions: given twice"),
        (&*many, "more than 20000 messages, parts and unknown fields"),
        ("[", "the body is not JSON"),
    ] {
        let error =
            ClientAnswers::parse(body.as_bytes(), &Limits::default()).unwrap_err().to_string();
        assert!(error.starts_with(why), "{error}");
    }
}

#[test]
fn an_output_by_id_is_of_the_call_that_was_left_to_the_client() {
    let given = br#"{"toolOutputs": [{"toolCallId": "call_1", "output": "paid"}]}"#;
    let given = ClientAnswers::parse(given, &Limits::default()).unwrap();
    let part = |tool: &str, more: Value| {
        let mut part = json!({"type": format!("tool-{tool}"), "toolCallId": "call_1", "input": {}});
        part.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        part
    };
    for (part, is_it) in [
        (part("get_location", json!({"state": "input-available"})), true),
        // A model that numbers its calls anew, and a call that is the server's.
        (part("transfer", json!({"state": "input-available"})), false),
        (part("transfer", json!({"state": "approval-requested", "approval": {"id": "ap"}})), false),
        (
            part("get_location", json!({"state": "approval-requested", "approval": {"id": "ap"}})),
            false,
        ),
    ] {
        let message = json!({"id": "m1", "role": "assistant", "parts": [part]});
        let mut chat = Chat::new("chat", Principal::new("alice"));
        chat.messages.push(UiMessage::parse(&message.to_string()).unwrap());
        let left =
            PendingToolCall::client_executed("call_1", "get_location", Json::parse("{}").unwrap());
        chat.left_to_client.push(left);
        assert_eq!(chat.answered(&given).is_ok(), is_it, "{message}");
    }
}
