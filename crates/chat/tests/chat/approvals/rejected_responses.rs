//! Rejected approval responses: the sender cannot learn the reason of a rejection, neither from the
//! response nor from the next one.

use std::time::{Duration, Instant};

use axum::http::StatusCode;
use chat_test_support::test_server::{Client, Host};
use serde_json::{Value, json};
use test_support::requests::{part, part_mut, respond, user_message};

/// A pending approval of alice, and the ids that an attacker may have.
struct Scene {
    host: Host,
    /// The chat in which the response is sent: it has two pending approvals.
    client: Client,
    /// A pending approval of alice in another chat.
    other_chat: String,
    /// A pending approval of another user.
    other_user: String,
    /// An id that this server signed and whose record it has deleted.
    forgotten: String,
    /// An id that another server signed.
    other_server: String,
    /// An id that was redeemed.
    used: String,
    /// An id that was denied.
    denied: String,
    /// An id that has expired.
    expired: String,
}

impl Scene {
    async fn new() -> Self {
        let host = Host::new();
        let ask = async |person: &str, chat: &str| {
            let mut client = Client::new(person, chat);
            client.say(&host, "delete notes.txt").await;
            client
        };
        let elsewhere = Host::new();
        let mut client = Client::new("alice", "chat");
        client.say(&elsewhere, "mixed").await;
        let other_server = client.approval_ids()[0].clone();
        // A record is stored for a day after it has expired, and deleted when another record is
        // inserted.
        let forgotten = ask("alice", "forgotten").await.approval_ids()[0].clone();
        host.wait(Duration::from_secs(26 * 60 * 60));
        let expired = ask("alice", "expired").await.approval_ids()[0].clone();
        host.wait(Duration::from_secs(2 * 60 * 60));
        let mut used_client = ask("alice", "used").await;
        let used_id = used_client.approval_ids()[0].clone();
        used_client.answer(&host, true).await;
        let mut denied = ask("alice", "denied").await;
        let denied_id = denied.approval_ids()[0].clone();
        denied.answer(&host, false).await;
        let other_chat = ask("alice", "other").await.approval_ids()[0].clone();
        let other_user = ask("mallory", "hers").await.approval_ids()[0].clone();
        let client = host.alice_says("mixed").await;
        Scene {
            client,
            other_chat,
            other_user,
            forgotten,
            other_server,
            used: used_id,
            denied: denied_id,
            expired,
            host,
        }
    }

    /// One request body for each kind of rejected response, with its name.
    fn bodies(&self) -> Vec<(&'static str, Value)> {
        let ids = self.client.approval_ids();
        let own = &ids[0];
        let flipped = |at: usize| {
            let mut text = own.clone().into_bytes();
            text[at] = if text[at] == b'A' { b'B' } else { b'A' };
            String::from_utf8(text).unwrap()
        };
        let with_id = |id: &str| self.deletion(|part| part["approval"]["id"] = id.into());
        vec![
            ("a word", with_id("approval")),
            ("nothing", with_id("")),
            ("cut", with_id(&own[..own.len() - 1])),
            ("cut in half", with_id(&own[..own.len() / 2])),
            ("too long", with_id(&format!("{own}A"))),
            ("the prefix alone", with_id("a1.")),
            ("another nonce", with_id(&flipped(50))),
            ("another seal", with_id(&flipped(own.len() - 10))),
            ("another prefix", with_id(&own.replacen("a1.", "a2.", 1))),
            ("of another server", with_id(&self.other_server)),
            ("forgotten", with_id(&self.forgotten)),
            ("of another chat", with_id(&self.other_chat)),
            ("of another person", with_id(&self.other_user)),
            ("of the call beside it", with_id(&ids[1])),
            ("used", with_id(&self.used)),
            ("denied", with_id(&self.denied)),
            ("expired", with_id(&self.expired)),
            ("the call's own id", {
                self.deletion(|part| part["approval"]["id"] = part["toolCallId"].clone())
            }),
            ("changed input", self.deletion(|part| part["input"]["path"] = "budget.xlsx".into())),
            ("more input", self.deletion(|part| part["input"]["force"] = true.into())),
            ("no input", self.deletion(|part| part["input"] = Value::Null)),
            ("another tool", self.deletion(|part| part["type"] = "tool-transfer".into())),
        ]
    }

    /// A body that approves the deletion with a tampered part. The transfer stays open.
    fn deletion(&self, change: impl Fn(&mut Value)) -> Value {
        let mut client = self.client.clone();
        let part = part_mut(&mut client.messages[1], "tool-delete_file");
        respond(part, true);
        change(part);
        client.body()
    }
}

#[tokio::test]
async fn all_rejected_responses_look_alike() {
    let mut seen: Option<(&str, String, String)> = None;
    let kinds = Scene::new().await.bodies().len();
    for kind in 0..kinds {
        // Each kind gets a new scene, so that earlier requests cannot influence the result.
        let mut scene = Scene::new().await;
        let effects = scene.host.tools.effects().len();
        let (name, body) = scene.bodies().swap_remove(kind);
        let rejected = scene.host.chat("alice", body.to_string()).await;
        assert_eq!(rejected.status, StatusCode::CONFLICT, "{name}: {}", rejected.text);
        assert_eq!(scene.host.tools.effects().len(), effects, "{name}");
        // The next turn: the same client answers both requests validly.
        let next = scene.client.answer(&scene.host, true).await;
        assert_eq!(scene.host.tools.effects().len(), effects + 2, "{name}");
        let (rejected, next) = (rejected.text_with_numbered_ids(), next.text_with_numbered_ids());
        match &seen {
            None => seen = Some((name, rejected, next)),
            Some((first, expected, expected_next)) => {
                assert_eq!(&rejected, expected, "{name} differs from {first}");
                assert_eq!(
                    &next, expected_next,
                    "after {name}, the next response differs from {first}"
                );
            }
        }
    }
}

#[tokio::test]
async fn a_question_whose_answer_does_not_count_is_asked_again_beside_an_accepted_answer() {
    for case in ["another input", "another id", "an approval of a call on which others decide"] {
        let host = Host::new();
        if case.ends_with("others decide") {
            host.tools.let_others_decide("delete_file");
        }
        let mut client = host.alice_says("mixed").await;
        let asked = client.pending_parts()[0]["approval"].clone();
        client.respond(true);
        let answered = part_mut(client.messages.last_mut().unwrap(), "tool-delete_file");
        match case {
            "another input" => answered["input"]["path"] = "budget.xlsx".into(),
            "another id" => answered["approval"]["id"] = "a1.".into(),
            _ => {}
        }
        let response = client.send(&host).await;
        assert_eq!(host.tools.effects().len(), 1, "{case}: {}", response.text);
        let stored = host.messages("alice").await.pop().unwrap();
        for message in [client.last(), &stored] {
            let asked_again = part(message, "tool-delete_file");
            assert_eq!(asked_again["state"], "approval-requested", "{case}: {}", response.text);
            assert_eq!(asked_again["approval"], json!({"id": asked["id"]}), "{case}");
            assert_eq!(part(message, "tool-transfer")["state"], "output-available", "{case}");
        }
        // The question can be answered.
        let mut other = Client { messages: vec![user_message("u", "mixed"), stored], ..client };
        other.answer(&host, false).await;
        assert_eq!(part(other.last(), "tool-delete_file")["state"], "output-denied", "{case}");
    }
}

#[tokio::test]
async fn a_changed_input_that_the_tool_does_not_accept_leaves_both_questions_open() {
    let (host, client) = Host::with_alice("mixed").await;
    let ids = client.approval_ids();
    let mut body = client.answered(true);
    body["approvalInputs"] = json!({ids[1].as_str(): {"to": "Mallory", "amount": 5000}});
    let refused = host.chat("alice", body.to_string()).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{}", refused.text);
    assert_eq!(host.pending("alice").await.len(), 2);
    assert_eq!(host.tools.effects().len(), 0);
}

#[tokio::test]
async fn a_chat_of_another_user_is_answered_like_an_unknown_chat() {
    let scene = Scene::new().await;
    let honest = scene.client.answered(true);
    let mut changed = scene.deletion(|part| part["input"]["path"] = "budget.xlsx".into());
    changed["messages"].as_array_mut().unwrap().truncate(2);
    let message = user_message("u", "hello");
    for (at, (body, status)) in [
        (honest, 409),
        (changed, 409),
        (json!({"id": "chat", "messages": []}), 200),
        (json!({"id": "chat", "messages": [message]}), 200),
    ]
    .into_iter()
    .enumerate()
    {
        // Each user has no chat yet.
        let user = format!("mallory {at}");
        let mut unknown = body.clone();
        unknown["id"] = "nowhere".into();
        let foreign = scene.host.chat(&user, body.to_string()).await;
        let unknown = scene.host.chat(&user, unknown.to_string()).await;
        assert_eq!(foreign.status, status);
        assert_eq!(foreign.text_with_numbered_ids(), unknown.text_with_numbered_ids());
    }
    let effects = scene.host.tools.effects().len();
    assert_eq!(effects, 1, "only the approval that alice redeemed before has run");
}

/// Prints how long each kind of rejection takes. Times are not asserted, because they depend on the
/// load of the machine.
#[tokio::test]
async fn the_duration_of_each_kind_of_rejection_is_printed() {
    const ROUNDS: usize = 20;
    let scene = Scene::new().await;
    let bodies = scene.bodies();
    let mut times = vec![Vec::with_capacity(ROUNDS); bodies.len()];
    for _ in 0..ROUNDS {
        for (kind, (_, body)) in bodies.iter().enumerate() {
            let body = body.to_string();
            let started = Instant::now();
            let answer = scene.host.chat("alice", body).await;
            times[kind].push(started.elapsed());
            assert_eq!(answer.status, StatusCode::CONFLICT);
        }
    }
    for ((name, _), mut times) in bodies.iter().zip(times) {
        times.sort_unstable();
        println!("rejected, {name}: median {:?} of {ROUNDS}", times[ROUNDS / 2]);
    }
}
