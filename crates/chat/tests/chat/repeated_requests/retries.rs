//! A POST that is sent again, because the network failed or the user retried: its response holds
//! the outcome of the first POST and the rest of the message, and the model is not called again.

use std::time::Duration;

use axum::http::{Method, StatusCode};
use chat_test_support::answers::send;
use chat_test_support::test_server::{Answer, Client, Host, PRINCIPAL_HEADER};
use futures::StreamExt;
use serde_json::{Value, json};
use test_support::eventually;
use test_support::external_processes::{ask_judge, node_project, say};
use test_support::requests::{part, part_mut, request};
use ui_message_stream::approval::{Principal, ResumePlan};

/// A chat with pending approvals, and the request body that answers all of them.
async fn paused_chat(host: &Host, say: &str, approved: bool) -> (Client, String) {
    let mut client = host.alice_says(say).await;
    client.respond(approved);
    let body = client.body().to_string();
    (client, body)
}

/// The client after it has read this response.
fn client_after(client: &Client, answer: &Answer) -> Client {
    let mut client = client.clone();
    client.apply_response(answer);
    client
}

async fn stored_message(host: &Host) -> Value {
    host.messages("alice").await.pop().unwrap()
}

#[tokio::test]
async fn a_retry_after_the_response_ended_reads_the_same_message() {
    for (say, approved, effects) in [
        ("delete notes.txt", true, 1),
        ("delete notes.txt", false, 0),
        ("mixed", true, 2),
        ("mixed", false, 0),
    ] {
        let host = Host::new();
        let (client, body) = paused_chat(&host, say, approved).await;
        let first = host.chat("alice", body.clone()).await;
        let prompts = host.model.prompts().len();
        let client_message = client_after(&client, &first);
        assert_eq!(client_message.last(), &stored_message(&host).await);
        for _ in 0..3 {
            let again = host.chat("alice", body.clone()).await;
            assert_eq!(
                client_after(&client, &again).last(),
                client_message.last(),
                "{}",
                again.text
            );
        }
        assert_eq!(host.model.prompts().len(), prompts, "the model was called again");
        assert_eq!(host.tools.effects().len(), effects);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retries_during_the_first_request_read_the_same_message() {
    for round in 0..50 {
        let host = Host::new();
        let approved = round % 2 == 0;
        let (client, body) = paused_chat(&host, "mixed", approved).await;
        let prompts = host.model.prompts().len();
        host.tools.hold(true);
        let posts: Vec<_> = (0..8)
            .map(|_| {
                let (host, body) = (host.clone(), body.clone());
                tokio::spawn(async move { host.chat("alice", body).await })
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(round % 7)).await;
        host.tools.hold(false);
        let mut client_message = Vec::new();
        for post in posts {
            client_message.push(client_after(&client, &post.await.unwrap()).last().clone());
        }
        let stored_message = stored_message(&host).await;
        for client_message in client_message {
            assert_eq!(client_message, stored_message);
        }
        assert_eq!(host.model.prompts().len(), prompts + 1, "the model was called again");
        assert_eq!(host.tools.effects().len(), if approved { 2 } else { 0 });
    }
}

#[tokio::test]
async fn a_retry_after_a_lost_connection_reads_the_same_message() {
    let host = Host::new();
    let (client, body) = paused_chat(&host, "delete notes.txt", true).await;
    host.tools.hold(true);
    let alice = [(PRINCIPAL_HEADER, "alice")];
    let response = send(&host.routes, Method::POST, "/api/chat", &alice, body.clone()).await;
    assert_eq!(response.status(), StatusCode::OK);
    eventually(async || !host.tools.effects().is_empty()).await;
    drop(response);
    host.tools.hold(false);
    let again = host.chat("alice", body).await;
    assert_eq!(client_after(&client, &again).last(), &stored_message(&host).await);
    assert_eq!(again.of_type("tool-output-available").len(), 1);
    assert_eq!(again.of_type("text-delta").len(), 1);
    assert_eq!(host.tools.effects().len(), 1);
    // One call that requested the approval, and one that read the tool's output.
    assert_eq!(host.model.prompts().len(), 2);
}

#[tokio::test]
async fn a_retry_that_answers_one_call_of_two_leaves_the_other_pending() {
    let (host, mut client) = Host::with_alice("mixed").await;
    let open = client.pending_parts()[1].clone();
    client.respond(true);
    *part_mut(&mut client.messages[1], "tool-transfer") = open;
    let partly = client.body();
    for _ in 0..3 {
        let answer = host.chat("alice", partly.to_string()).await;
        assert_eq!(
            client_after(&client, &answer).states(),
            ["output-available", "output-available", "approval-requested"]
        );
    }
    assert_eq!(host.model.prompts().len(), 1, "the model is called only after the second answer");
    let first = host.chat("alice", partly.to_string()).await;
    client.apply_response(&first);
    client.respond(true);
    let rest = client.body().to_string();
    let first = host.chat("alice", rest.clone()).await;
    let again = host.chat("alice", rest).await;
    assert_eq!(client_after(&client, &first).states(), ["output-available"; 3]);
    assert_eq!(client_after(&client, &again).last(), client_after(&client, &first).last());
    assert_eq!(again.of_type("text-delta").len(), 1, "{}", again.text);
    assert_eq!(host.model.prompts().len(), 2);
    assert_eq!(host.tools.effects().len(), 2);
}

/// The body that approves all calls but the one of this question.
fn answers_but(client: &Client, question: &Value) -> Value {
    let mut body = client.answered(true);
    let kind = question["type"].as_str().unwrap();
    *part_mut(&mut body["messages"][1], kind) = question.clone();
    body
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_calls_answered_at_once_in_two_posts_both_count() {
    for round in 0..100 {
        let (host, client) = Host::with_alice("mixed").await;
        let prompts = host.model.prompts().len();
        let questions = client.pending_parts();
        let posts: Vec<_> = [0, 1]
            .map(|open| {
                let body = answers_but(&client, &questions[open]);
                let host = host.clone();
                tokio::spawn(async move { host.chat("alice", body.to_string()).await })
            })
            .into_iter()
            .collect();
        for post in posts {
            assert_eq!(post.await.unwrap().status, StatusCode::OK);
        }
        assert_eq!(host.tools.effects().len(), 2);
        assert_eq!(host.model.prompts().len(), prompts + 1, "round {round}");
        let stored_message = stored_message(&host).await;
        let last = stored_message["parts"].as_array().unwrap().last().unwrap().clone();
        assert_eq!(last["text"], "That is what came of it.");
    }
}

#[tokio::test]
async fn answers_during_a_run_get_the_head_of_their_response_before_their_call_has_ended() {
    let (host, client) = Host::with_alice("mixed").await;
    let questions = client.pending_parts();
    host.tools.hold(true);
    let mut responses = Vec::new();
    for open in [0, 1] {
        let request = request(&answers_but(&client, &questions[open]));
        let alice = Principal::new("alice");
        let response = host.chats.stream_response(&alice, request);
        // The tool has not ended.
        responses.push(test_support::within_patience(response).await.unwrap());
    }
    host.tools.hold(false);
    let mut texts = Vec::new();
    for response in responses {
        let frames: Vec<_> = response.map(|frame| frame.unwrap().to_vec()).collect().await;
        texts.push(String::from_utf8(frames.concat()).unwrap());
    }
    assert!(texts.iter().all(|text| text.ends_with("[DONE]\n\n")), "{texts:?}");
    // The response whose call ends last has the reply of the model.
    assert!(texts.iter().any(|text| text.contains("That is what came of it.")), "{texts:?}");
    assert_eq!(host.tools.effects().len(), 2);
}

#[tokio::test]
async fn a_retry_with_a_client_output_reads_the_same_message() {
    let (host, mut client) = Host::with_alice("location").await;
    let call = part_mut(&mut client.messages[1], "tool-get_location");
    (call["state"], call["output"]) = ("output-available".into(), json!({"city": "Lisbon"}));
    let body = client.body().to_string();
    let first = host.chat("alice", body.clone()).await;
    let again = host.chat("alice", body).await;
    assert_eq!(client_after(&client, &first).last(), client_after(&client, &again).last());
    assert_eq!(client_after(&client, &again).last(), &stored_message(&host).await);
    assert_eq!(host.model.prompts().len(), 2);
}

#[tokio::test]
async fn the_npm_client_reads_the_response_to_a_retry() {
    let Some(folder) = node_project("tests/client") else { return };
    let mut cases = Vec::new();
    let mut expected = Vec::new();
    for (say, approved) in [("delete notes.txt", true), ("mixed", true), ("mixed", false)] {
        let host = Host::new();
        let (client, body) = paused_chat(&host, say, approved).await;
        let first = host.chat("alice", body.clone()).await;
        let again = host.chat("alice", body).await;
        for answer in [&first, &again] {
            cases.push(json!({
                "case": say, "sse": answer.text, "message": client.last(), "versions": ["6.0.326"],
            }));
            expected.push(client_after(&client, &first).last().clone());
        }
    }
    let answers = ask_judge(&folder, &cases);
    assert_eq!(answers.len(), expected.len());
    for (answer, expected) in answers.iter().zip(expected) {
        let result = &answer["results"]["6.0.326"];
        assert_eq!(result["rejected"], Value::Null, "{answer}");
        assert_eq!(result["errorText"], Value::Null, "{answer}");
        assert_eq!(result["message"], expected);
        assert_eq!(result["resubmits"], json!({"approvals": false, "toolCalls": false}));
    }
    say(&format!("retried requests: {} responses read by the npm client", cases.len()));
}

/// A server stops after it has stored a tool's outcome in the ledger and before it has stored the
/// history: the next message writes the outcome from the ledger into the history, and the model
/// does not read that the call was not executed.
#[tokio::test]
async fn an_outcome_stored_only_in_the_ledger_is_written_to_the_history_later() {
    for (approved, state, shown, prompt) in [
        (true, "output-available", "approved", "notes.txt"),
        (false, "output-denied", "denied", "denied"),
    ] {
        let host = Host::new();
        let (mut client, _) = paused_chat(&host, "delete notes.txt", approved).await;
        let request = request(&client.body());
        let plan = ResumePlan::new(request.messages(), request.continued_message());
        let approvals = host.chats.approvals().for_chat(&Principal::new("alice"), request.id());
        let mut resolved = approvals.resolve(plan, &[]).await.unwrap();
        while resolved.next().await.is_some() {}
        assert_eq!(host.tools.effects().len(), usize::from(approved));

        let answer = client.say(&host, "hello").await;
        let sent = answer.of_type("data-approval");
        assert_eq!(sent.last().unwrap()["data"]["state"], shown, "{}", answer.text);
        let message = &host.messages("alice").await[1];
        let call = part(message, "tool-delete_file");
        assert_eq!(call["state"], state, "{call}");
        let data = part(message, "data-approval");
        assert_eq!(data["data"]["state"], shown, "{data}");
        let prompts = host.model.prompts();
        let prompt_text = prompts.last().unwrap();
        assert!(prompt_text.contains(prompt), "{prompt_text}");
        assert_eq!(host.tools.effects().len(), usize::from(approved));
    }
}
