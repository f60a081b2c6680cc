//! Answers that do not count: whoever sends one learns nothing of why, neither from the response nor
//! from the next one.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use test_support::test_server::{Client, Host};

/// A question of alice's, and what an attacker has beside it.
struct Scene {
    host: Host,
    /// The chat in which the answer is sent: it has two open questions.
    client: Client,
    /// A question of hers in another chat.
    other_chat: String,
    /// A question of somebody else's.
    other_person: String,
    /// An id that this server sealed and whose record it has forgotten.
    forgotten: String,
    /// An id that another server sealed.
    other_server: String,
    /// An id that was used.
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
        // A record is kept for a day after it has expired, and forgotten when another is made.
        let forgotten = ask("alice", "forgotten").await.approval_ids()[0].clone();
        host.wait(Duration::from_secs(26 * 60 * 60));
        let expired = ask("alice", "expired").await.approval_ids()[0].clone();
        host.wait(Duration::from_secs(2 * 60 * 60));
        let mut used = ask("alice", "used").await;
        let used_id = used.approval_ids()[0].clone();
        used.answer(&host, true).await;
        let mut denied = ask("alice", "denied").await;
        let denied_id = denied.approval_ids()[0].clone();
        denied.answer(&host, false).await;
        let other_chat = ask("alice", "other").await.approval_ids()[0].clone();
        let other_person = ask("mallory", "hers").await.approval_ids()[0].clone();
        let mut client = Client::new("alice", "chat");
        client.say(&host, "mixed").await;
        Scene {
            client,
            other_chat,
            other_person,
            forgotten,
            other_server,
            used: used_id,
            denied: denied_id,
            expired,
            host,
        }
    }

    /// The kinds of answers that do not count, by name.
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
            ("of another person", with_id(&self.other_person)),
            ("of the call beside it", with_id(&ids[1])),
            ("used", with_id(&self.used)),
            ("denied", with_id(&self.denied)),
            ("expired", with_id(&self.expired)),
            (
                "the call's own id",
                self.deletion(|part| {
                    part["approval"]["id"] = part["toolCallId"].clone();
                }),
            ),
            ("changed input", self.deletion(|part| part["input"]["path"] = "budget.xlsx".into())),
            ("more input", self.deletion(|part| part["input"]["force"] = true.into())),
            ("no input", self.deletion(|part| part["input"] = Value::Null)),
            ("another tool", self.deletion(|part| part["type"] = "tool-transfer".into())),
        ]
    }

    /// The deletion approved, in another way than honestly; the transfer stays open.
    fn deletion(&self, change: impl Fn(&mut Value)) -> Value {
        let mut client = self.client.clone();
        let parts = client.messages[1]["parts"].as_array_mut().unwrap();
        let part = parts.iter_mut().find(|part| part["type"] == "tool-delete_file").unwrap();
        part["state"] = "approval-responded".into();
        part["approval"]["approved"] = true.into();
        change(part);
        client.body()
    }
}

const NOT_EXECUTED: &str = "This tool call was not executed.";

#[tokio::test]
async fn no_answer_that_does_not_count_tells_why() {
    let mut seen: Option<(&str, String, String)> = None;
    let kinds = Scene::new().await.bodies().len();
    for kind in 0..kinds {
        // A world of its own for each: nothing that was sent before can matter.
        let mut scene = Scene::new().await;
        let effects = scene.host.tools.effects().len();
        let (name, body) = scene.bodies().swap_remove(kind);
        let refused = scene.host.chat("alice", body.to_string()).await;
        let errors = refused.of_type("tool-output-error");
        assert_eq!(errors.len(), 1, "{name}: {}", refused.text);
        assert_eq!(errors[0]["errorText"], NOT_EXECUTED, "{name}");
        assert_eq!(scene.host.tools.effects().len(), effects, "{name}");
        // The next turn, as the same client has it that answers honestly now.
        let next = scene.client.answer(&scene.host, true).await;
        assert_eq!(scene.host.tools.effects().len(), effects + 2, "{name}");
        let (refused, next) = (refused.nameless(), next.nameless());
        match &seen {
            None => seen = Some((name, refused, next)),
            Some((first, expected, expected_next)) => {
                assert_eq!(&refused, expected, "{name} is told from {first}");
                assert_eq!(&next, expected_next, "after {name}, told from {first}");
            }
        }
    }
}

#[tokio::test]
async fn a_chat_of_somebody_else_is_one_that_does_not_exist() {
    let scene = Scene::new().await;
    let honest = scene.client.answered(true);
    let mut changed = scene.deletion(|part| part["input"]["path"] = "budget.xlsx".into());
    changed["messages"].as_array_mut().unwrap().truncate(2);
    let foreign = scene.host.chat("mallory", honest.to_string()).await;
    assert_eq!(foreign.status, 404);
    for body in [
        changed,
        json!({"id": "chat", "messages": []}),
        json!({
            "id": "chat", "messages": [{"id": "u", "role": "user", "parts": []}],
        }),
    ] {
        let answer = scene.host.chat("mallory", body.to_string()).await;
        assert_eq!(answer.nameless(), foreign.nameless());
    }
}

/// How long each kind of refusal takes is printed, and never judged: a machine has other things to do.
#[tokio::test]
async fn how_long_a_refusal_takes_is_stated() {
    const ROUNDS: usize = 20;
    let scene = Scene::new().await;
    let bodies = scene.bodies();
    let mut times = vec![Vec::with_capacity(ROUNDS); bodies.len()];
    for _ in 0..ROUNDS {
        for (kind, (_, body)) in bodies.iter().enumerate() {
            let body = body.to_string();
            let begun = Instant::now();
            let answer = scene.host.chat("alice", body).await;
            times[kind].push(begun.elapsed());
            assert_eq!(answer.of_type("tool-output-error").len(), 1);
        }
    }
    for ((name, _), mut times) in bodies.iter().zip(times) {
        times.sort_unstable();
        println!("refused, {name}: median {:?} of {ROUNDS}", times[ROUNDS / 2]);
    }
}
