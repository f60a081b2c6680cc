//! The conversation against recordings of the real client.

use std::cell::Cell;
use std::fs;
use std::panic::AssertUnwindSafe;
use std::path::Path;

use axum::body::Body;
use axum::http::{Response, StatusCode};
use futures::{FutureExt, StreamExt, stream};
use serde_json::{Value, json};
use ui_message_stream::testing::{
    Conversation,
    last_assistant_message_is_complete_with_approval_responses as answers_are_complete,
    last_assistant_message_is_complete_with_tool_calls as calls_are_complete,
};
use ui_message_stream::{Json, UiMessage};

#[tokio::test]
async fn every_recorded_script_gives_the_recorded_messages_and_errors() {
    let scripts: Vec<Value> = serde_json::from_str(&upstream("client.json")).unwrap();
    let mut played = 0;
    for script in &scripts {
        let note = script["note"].as_str().unwrap();
        // An unexpected request is a mistake of the test.
        if note == "unknown approval id" {
            continue;
        }
        played += 1;
        play(script, note).await;
    }
    assert!(played > 55, "{played}");
}

async fn play(script: &Value, note: &str) {
    let responses = script["responses"].as_array().unwrap();
    let sent = Cell::new(0);
    let service = async |_| {
        let response = &responses[sent.get().min(responses.len() - 1)];
        sent.set(sent.get() + 1);
        respond(response)
    };
    let helper = script["sendAutomaticallyWhen"].as_str();
    let before = script["messages"].as_array().into_iter().flatten();
    let before: Vec<UiMessage> =
        before.map(|message| UiMessage::parse(&message.to_string()).unwrap()).collect();
    let mut chat = Conversation::with_service("/", service)
        .without_conformance_checks()
        .with_messages(before)
        .send_automatically_when(move |messages| match helper {
            Some("approvals") => answers_are_complete(messages),
            Some("tools") => calls_are_complete(messages),
            _ => false,
        })
        .on_tool_call(|name, _| match &script["toolResults"][name] {
            Value::Null => None,
            result => Some(match result["errorText"].as_str() {
                Some(text) => Err(text.to_owned()),
                None => Ok(Json::from_serialize(&result["output"]).unwrap()),
            }),
        });
    let played = AssertUnwindSafe(async {
        for action in script["actions"].as_array().unwrap() {
            if action["stopped"] == true {
                chat.stop_after(responses[sent.get()]["chunks"].as_array().unwrap().len());
            }
            match (action["do"].as_str().unwrap(), action["approved"].as_bool()) {
                ("send", _) => chat.send(action["text"].as_str().unwrap()).await,
                ("regenerate", _) => chat.regenerate().await,
                ("resume", _) => chat.reconnect().await,
                (_, Some(true)) => chat.approve(action["id"].as_str().unwrap()).await,
                _ => chat.deny(action["id"].as_str().unwrap(), action["reason"].as_str()).await,
            }
        }
    });
    let panic = played.catch_unwind().await.err();
    let expected = &script["expected"];
    let Some(requests) = expected["requests"].as_u64() else {
        let text = panic.expect(note).downcast::<String>().unwrap();
        assert!(text.contains("again and again"), "{note}: {text}");
        let actions = script["actions"].as_array().unwrap().len();
        assert_eq!(chat.requests().len(), actions - 1 + 5, "{note}");
        return;
    };
    assert!(panic.is_none(), "{note}");
    assert_eq!(sent.get() as u64, requests, "{note}");
    let messages = serde_json::to_value(chat.messages()).unwrap();
    assert_eq!(messages, expected["messages"], "{note}");
    assert_eq!(chat.error().is_some(), expected["status"] == "error", "{note}");
    // Errors that the client itself raises have its own texts.
    if expected["error"]["name"] == "Error" {
        assert_eq!(chat.error(), expected["error"]["message"].as_str(), "{note}");
    }
}

fn respond(response: &Value) -> Result<Response<Body>, &'static str> {
    let mut text = response["body"].as_str().unwrap_or_default().to_owned();
    for chunk in response["chunks"].as_array().into_iter().flatten() {
        text.push_str(&format!("data: {chunk}\n\n"));
    }
    let broken = (response["then"] == "network-error").then_some(Err("network error"));
    let pieces = stream::iter([Ok(text)]).chain(stream::iter(broken));
    let pieces = match response["then"] == "more" {
        true => pieces.chain(stream::pending()).boxed(),
        false => pieces.boxed(),
    };
    let status = response["status"].as_u64().map_or(200, |status| status as u16);
    let mut answer = Response::new(Body::from_stream(pieces));
    *answer.status_mut() = StatusCode::from_u16(status).unwrap();
    Ok(answer)
}

#[tokio::test]
async fn the_conversation_sends_the_recorded_requests() {
    for (name, before) in [
        ("01-first-message", Before::LastGone),
        ("03-regenerate", Before::Answered),
        ("04-regenerate-with-message-id", Before::Answered),
        ("05-edit-user-message", Before::Answered),
        ("06-approval-approved", Before::Asked),
        ("07-approval-denied-with-reason", Before::Asked),
        ("08-turn-after-denied", Before::LastGone),
        ("10-approval-dynamic-tool", Before::Asked),
        ("11-approval-provider-executed", Before::Asked),
        ("12-client-tool-output", Before::Open),
        ("13-client-tool-output-error", Before::Open),
        ("15-tool-output-for-unanswered-approval", Before::Asked),
        ("16-new-message-while-approval-pending", Before::LastGone),
        ("17-approval-on-earlier-message", Before::Asked),
        ("18-custom-body-and-headers", Before::LastGone),
        ("21-after-stop-with-partial-tool-input", Before::LastGone),
        ("22-after-error-chunk", Before::LastGone),
    ] {
        let recorded: Value =
            serde_json::from_str(&upstream(&format!("requests/{name}.json"))).unwrap();
        let body = &recorded["body"];
        let mut custom = body.clone();
        custom["messageId"] = "not sent".into();
        let service = async |_| {
            let mut refused = Response::new(Body::empty());
            *refused.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
            Ok::<_, ()>(refused)
        };
        let mut chat = Conversation::with_service("/", service)
            .without_conformance_checks()
            .with_messages(before.of(&body["messages"]))
            .with_body(&custom);
        let sent = body["messages"].as_array().unwrap().last().unwrap();
        let text = sent["parts"][0]["text"].as_str().unwrap_or_default();
        match name.get(..2).unwrap() {
            "03" => chat.regenerate().await,
            "04" => chat.regenerate_message("srv-2").await,
            "05" => chat.edit("id-1", text).await,
            "06" | "10" | "11" => chat.approve("ap1").await,
            "07" => chat.deny("ap1", "not now").await,
            "12" => chat.tool_output("pickColor", "red").await,
            "13" => chat.tool_error("pickColor", "dialog closed").await,
            "15" => chat.tool_output("c1", "done by hand").await,
            "17" => {
                chat.approve("ap1").await;
                assert!(chat.requests().is_empty());
                chat.submit().await;
            }
            _ => chat.send(text).await,
        }
        let made = sent["id"].as_str().unwrap();
        let got = chat.requests()[0].replace("client-1", made);
        assert_eq!(serde_json::from_str::<Value>(&got).unwrap(), *body, "{name}");
    }
}

/// The messages before a recorded request.
#[derive(Clone, Copy)]
enum Before {
    /// Without the user's last message.
    LastGone,
    /// With a response that is regenerated.
    Answered,
    /// With the last call still awaiting approval.
    Asked,
    /// With the last call still open.
    Open,
}

impl Before {
    fn of(self, messages: &Value) -> Vec<UiMessage> {
        let mut messages = messages.as_array().unwrap().clone();
        match self {
            Before::LastGone => drop(messages.pop()),
            Before::Answered => messages.push(
                json!({"id":"srv-2","role":"assistant","parts":[{"type":"text","text":"a"}]}),
            ),
            Before::Asked | Before::Open => {
                let call = &mut messages[1]["parts"][1];
                let is_approval = matches!(self, Before::Asked);
                call["state"] =
                    if is_approval { "approval-requested" } else { "input-available" }.into();
                let call = call.as_object_mut().unwrap();
                call.retain(|key, _| key != "output" && key != "errorText");
                if let Some(approval) = call.get_mut("approval").and_then(Value::as_object_mut) {
                    approval.retain(|key, _| key != "approved" && key != "reason");
                }
            }
        }
        messages.iter().map(|message| UiMessage::parse(&message.to_string()).unwrap()).collect()
    }
}

#[test]
fn the_completion_helpers_agree_with_those_of_the_client() {
    for line in upstream("predicates.jsonl").lines() {
        let case: Value = serde_json::from_str(line).unwrap();
        let messages = case["messages"].as_array().unwrap().iter();
        let messages: Vec<UiMessage> =
            messages.map(|message| UiMessage::parse(&message.to_string()).unwrap()).collect();
        let decisions = json!([answers_are_complete(&messages), calls_are_complete(&messages)]);
        let expected = json!([case["approvalResponsesComplete"], case["toolCallsComplete"]]);
        assert_eq!(decisions, expected, "{}", case["note"]);
    }
}

pub(crate) fn upstream(path: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/upstream");
    fs::read_to_string(folder.join(path)).unwrap()
}
