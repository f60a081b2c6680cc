//! The chat route for clients that do not read streams: the response holds the message, the stop
//! reason, and the pending approvals and client tool calls.

use axum::http::{Method, StatusCode, header};
use chat_test_support::answers::send;
use chat_test_support::test_server::{Host, Line, PRINCIPAL_HEADER, Scripted};
use serde_json::{Value, json};
use test_support::requests::{part, part_mut, respond, user_message};
use test_support::responses::text_of;
use ui_message_stream::approval::{PendingToolCall, Principal};
use ui_message_stream::request::Limits;
use ui_message_stream::{Json, UiMessage};
use ui_message_stream_chat::{Chat, ClientAnswers};

/// Posts with this `Accept` header.
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
    let headers = [("accept", accept), (PRINCIPAL_HEADER, person)];
    let response = send(&host.routes, Method::POST, path, &headers, body.to_string()).await;
    let status = response.status();
    let media_type = response.headers()[header::CONTENT_TYPE].to_str().unwrap().to_owned();
    (status, media_type, text_of(response.into_body()).await)
}

/// Posts answers by id, and returns the JSON response.
async fn answer(host: &Host, answers: &Value) -> Value {
    let path = "/api/chat/chat/answers";
    let (status, _, text) = post_as("alice", host, path, "application/json", answers).await;
    assert_eq!(status, StatusCode::OK, "{text}");
    serde_json::from_str(&text).unwrap()
}

/// Posts answers by id that match no open call, and returns the status and the error.
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
    json!([user_message("m1", text)])
}

#[tokio::test]
async fn a_finished_turn_gives_its_message_and_the_stop_reason_stop() {
    let answer = ask(&Host::new(), user("hello")).await;
    assert_eq!(answer["stopReason"], "stop");
    assert_eq!(answer["approvals"], json!([]));
    assert_eq!(answer["message"]["role"], "assistant");
    assert!(answer["message"]["parts"].to_string().contains("You said: hello"));
}

#[tokio::test]
async fn an_approval_pending_in_a_json_response_can_be_decided_by_the_approval_route() {
    let host = Host::new();
    let paused = ask(&host, user("delete notes.txt")).await;
    assert_eq!(paused["stopReason"], "requires_approval");
    let approval = &paused["approvals"][0];
    assert_eq!(approval["toolName"], "delete_file");
    assert_eq!(approval["input"], json!({"path": "notes.txt"}));
    assert!(host.decides("alice", approval["approvalId"].as_str().unwrap(), true).await);

    // The same decision within the message: the response holds the outcome, and the call is not
    // decided twice.
    let mut message = paused["message"].clone();
    respond(part_mut(&mut message, "tool-delete_file"), true);
    let mut messages = user("delete notes.txt");
    messages.as_array_mut().unwrap().push(message);
    let answer = ask(&host, messages).await;
    assert_eq!(answer["stopReason"], "stop");
    assert!(answer["message"]["parts"].to_string().contains("output-available"), "{answer}");
    assert_eq!(host.tools.effects().len(), 1);
}

#[tokio::test]
async fn a_json_response_lists_the_calls_that_wait_for_the_client() {
    let answer = ask(&Host::new(), user("location")).await;
    assert_eq!(answer["stopReason"], "requires_client_tool");
    let [call] = answer["toolCalls"].as_array().unwrap().as_slice() else { panic!("{answer}") };
    assert_eq!(call["toolName"], "get_location");
    assert_eq!(call["input"], json!({}));
}

#[tokio::test]
async fn client_outputs_by_id_continue_the_turn_and_repeating_them_has_no_further_effect() {
    for given in [
        json!({"toolOutputs": [{"toolCallId": "ID", "output": {"city": "Lisbon"}}]}),
        json!({"tool_outputs": [{"tool_call_id": "ID", "output": {"city": "Lisbon"}}]}),
        // The field names of Letta's clients.
        json!({"tool_returns": [{
            "type": "tool", "tool_call_id": "ID", "tool_return": {"city": "Lisbon"}, "status": "success",
        }]}),
    ] {
        let host = Host::new();
        let paused = ask(&host, user("location")).await;
        let id = paused["toolCalls"][0]["toolCallId"].as_str().unwrap();
        let given: Value = serde_json::from_str(&given.to_string().replace("ID", id)).unwrap();
        let first = answer(&host, &given).await;
        assert_eq!(first["stopReason"], "stop");
        assert_eq!(first["toolCalls"], json!([]));
        let parts = first["message"]["parts"].to_string();
        assert!(parts.contains(r#""output":{"city":"Lisbon"}"#), "{parts}");
        assert!(parts.contains("That is what came of it."), "{parts}");
        let calls_of_model = host.model.prompts().len();
        assert_eq!(answer(&host, &given).await, first);
        assert_eq!(host.model.prompts().len(), calls_of_model, "the model is not called again");

        // A streamed response holds the part of the message that this client has not received.
        let path = "/api/chat/chat/answers";
        let (_, media_type, text) = post_as("alice", &host, path, "*/*", &given).await;
        assert_eq!(media_type, "text/event-stream");
        assert!(text.contains("That is what came of it."), "{text}");
        assert_eq!(host.model.prompts().len(), calls_of_model);
    }
}

#[tokio::test]
async fn a_client_output_with_the_status_error_becomes_a_tool_error() {
    let host = Host::new();
    let paused = ask(&host, user("location")).await;
    let id = &paused["toolCalls"][0]["toolCallId"];
    let error = json!({"toolCallId": id, "output": "no GPS", "status": "error"});
    let continued = answer(&host, &json!({"toolOutputs": [error]})).await;
    let parts = continued["message"]["parts"].to_string();
    assert!(parts.contains(r#""errorText":"no GPS""#), "{parts}");
}

#[tokio::test]
async fn decisions_and_outputs_can_be_sent_together_and_unanswered_calls_stay_pending() {
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
    let paused = ask(&host, user("all")).await;
    let location = &paused["toolCalls"][0]["toolCallId"];
    let [first, second] = paused["approvals"].as_array().unwrap().as_slice() else { panic!() };
    let first_answers = json!({
        "toolOutputs": [{"toolCallId": location, "output": "here"}],
        "decisions": [{"approvalId": first["approvalId"], "approved": true}],
    });
    let partial = answer(&host, &first_answers).await;
    assert_eq!(partial["stopReason"], "requires_approval");
    assert_eq!(partial["approvals"].as_array().unwrap().len(), 1);
    assert_eq!(host.tools.effects().len(), 1);
    let remaining_answers = json!({"decisions": [
        {"approvalId": second["approvalId"], "approved": false, "reason": "keep it"},
    ]});
    let finished = answer(&host, &remaining_answers).await;
    assert_eq!(finished["stopReason"], "stop");
    assert!(finished["message"]["parts"].to_string().contains("keep it"));
    answer(&host, &first_answers).await;
    answer(&host, &remaining_answers).await;
    assert_eq!(host.tools.effects().len(), 1, "nothing is decided twice");
}

#[tokio::test]
async fn an_answer_that_matches_no_open_call_is_an_error_and_changes_nothing() {
    let host = Host::new();
    let output = |id: &Value| json!({"toolOutputs": [{"toolCallId": id, "output": 1}]});
    assert_eq!(refused(&host, "alice", &output(&json!("call"))).await.0, 404);
    let paused = ask(&host, user("mixed")).await;
    let before = paused["message"].clone();
    let deletion = part(&before, "tool-delete_file");
    for (answers, expected_error) in [
        (output(&json!("call_9")), "toolOutputs[0].toolCallId: names no call"),
        // A server-executed tool call: a client cannot send its output.
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
        assert!(text.contains(expected_error), "{answers}: {text}");
    }
    assert_eq!(refused(&host, "mallory", &output(&json!("call_9"))).await.0, 404);
    let chat = host.chats.chat(&Principal::new("alice"), &"chat".into()).await.unwrap();
    assert_eq!(serde_json::to_value(chat.messages.last()).unwrap(), before);
    assert_eq!(host.tools.effects().len(), 0);
}

#[tokio::test]
async fn a_failed_run_gives_the_stop_reason_error_and_hides_the_cause() {
    let host = Host::new();
    host.model.set_failure("password=hunter2");
    let answer = ask(&host, user("hello")).await;
    assert_eq!(answer["stopReason"], "error");
    assert!(!answer.to_string().contains("hunter2"));
}

#[tokio::test]
async fn a_client_that_accepts_event_streams_receives_one() {
    for accept in ["*/*", "text/event-stream", "application/json, text/event-stream"] {
        let body = json!({"id": "chat", "messages": user("hello")});
        let (media_type, text) = post(&Host::new(), accept, &body).await;
        assert_eq!(media_type, "text/event-stream", "{accept}");
        assert!(text.ends_with("data: [DONE]\n\n"));
    }
}

#[test]
fn answers_by_id_are_parsed_as_strictly_as_chat_requests() {
    let twice = r#"{"decisions": [{"approvalId": "ap", "approved": false}],
        "decisions": [{"approvalId": "ap", "approved": true}]}"#;
    let many = format!("{{{}}}", vec![r#""":1"#; 30_000].join(","));
    for (body, expected_error) in [
        (twice, "decisions: given twice"),
        (&*many, "more than 20000 messages, parts and unknown fields"),
        ("[", "the body is not JSON"),
        (
            r#"{"approvals": [{"approvalId": "ap", "approved": true}]}"#,
            "unknown field `approvals`; expected `decisions`, `toolOutputs` or `tool_call_id`",
        ),
        (r#"{"\n<b>": 1}"#, "unknown fields; expected `decisions`"),
        (r#"{"tool_outputs": [{}]}"#, "tool_outputs: expected a list of"),
        (r#"{"tool_call_id": "c1"}"#, "output: missing"),
        (r#"{"tool_call_id": "c1", "tool_return": 1, "status": "late"}"#, "expected a list of"),
        (r#"[{"toolCallId": "c1"}]"#, "[0].output: missing"),
        (
            r#"[{"toolCallId": "c1", "output": 1}, {"toolCallId": "c1", "output": 2}]"#,
            "[1].toolCallId: has an output already",
        ),
        (r#"[{"toolCallId": "c1", "output": 1}"#, "the body is not JSON"),
    ] {
        let error =
            ClientAnswers::parse(body.as_bytes(), &Limits::default()).unwrap_err().to_string();
        assert!(error.starts_with(expected_error), "{error}");
    }
}

/// Other backends take these bodies.
#[test]
fn a_bare_output_and_a_list_of_them_are_read_as_a_list_of_outputs() {
    let parse = |body: &str| ClientAnswers::parse(body.as_bytes(), &Limits::default()).unwrap();
    let one = r#"{"tool_call_id": "c1", "tool_return": {"city": "Lisbon"}, "status": "success"}"#;
    let two = r#"{"tool_call_id": "c2", "tool_return": "refused", "status": "error"}"#;
    for (bare, outputs) in
        [(one.to_owned(), one.to_owned()), (format!(" [{one}, {two}]"), format!("{one}, {two}"))]
    {
        assert_eq!(parse(&bare), parse(&format!(r#"{{"toolOutputs": [{outputs}]}}"#)));
    }
    assert!(parse("{}").tool_outputs.is_empty());
    // A field of the application beside answers is its own.
    let own = parse(r#"{"decisions": [], "tool_call_id": "c1"}"#);
    assert_eq!(
        (own.tool_outputs.len(), own.custom.get("tool_call_id")),
        (0, Some(Json::string("c1")))
    );
}

#[test]
fn an_output_by_id_is_accepted_only_for_a_client_executed_call() {
    let given = br#"{"toolOutputs": [{"toolCallId": "call_1", "output": "paid"}]}"#;
    let given = ClientAnswers::parse(given, &Limits::default()).unwrap();
    let part = |tool: &str, more: Value| {
        let mut part = json!({"type": format!("tool-{tool}"), "toolCallId": "call_1", "input": {}});
        part.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        part
    };
    for (part, is_accepted) in [
        (part("get_location", json!({"state": "input-available"})), true),
        // A model that reuses call ids, and a server-executed call.
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
        chat.client_executed.push(left);
        assert_eq!(chat.request_from_answers(&given).is_ok(), is_accepted, "{message}");
    }
}
