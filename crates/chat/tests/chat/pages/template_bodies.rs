//! The bodies that front ends of others post: a conversation with a question, for each of `fixtures/templates/`.

use std::collections::BTreeMap;

use axum::http::StatusCode;
use chat_test_support::test_server::{Client, Host};
use serde::Deserialize;
use serde_json::{Value, json};
use test_support::requests::user_message;

/// The bodies of a front end, by what the user does. `$id`, `$last`, `$lastId` and `$messages` are those of the page.
#[derive(Deserialize)]
struct Template {
    /// Where the bodies come from.
    #[serde(rename = "origin")]
    _origin: String,
    #[serde(flatten)]
    bodies: BTreeMap<String, Value>,
}

impl Template {
    fn body(&self, act: &str, client: &Client) -> String {
        let body = self.bodies.get(act).unwrap_or(&self.bodies["new message"]);
        let fields = body.as_object().unwrap().iter().map(|(name, value)| {
            let value = match value.as_str() {
                Some("$id") => client.chat.as_str().into(),
                Some("$last") => client.last().clone(),
                Some("$lastId") => client.last()["id"].clone(),
                Some("$messages") => client.messages.clone().into(),
                _ => value.clone(),
            };
            (name.clone(), value)
        });
        Value::Object(fields.collect()).to_string()
    }
}

async fn post(host: &Host, client: &mut Client, template: &Template, act: &str) {
    let answer = host.chat(&client.person, template.body(act, client)).await;
    client.apply_response(&answer);
}

async fn say(host: &Host, client: &mut Client, template: &Template, act: &str, text: &str) {
    client.messages.push(user_message(format!("u{}", client.messages.len()), text));
    post(host, client, template, act).await;
}

#[tokio::test]
async fn a_template_has_a_conversation_with_a_question() {
    let folder = test_support::repository().join("fixtures/templates");
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let template = std::fs::read_to_string(&path).unwrap();
        let template: Template = serde_json::from_str(&template).unwrap();
        let (host, mut client) = (Host::new(), Client::new("ada", "chat"));
        say(&host, &mut client, &template, "new message", "hello").await;
        say(&host, &mut client, &template, "new message", "delete").await;
        assert_eq!(client.states(), ["approval-requested"], "{name}");
        assert_eq!(host.tools.effects().len(), 0, "{name}");

        client.respond(true);
        post(&host, &mut client, &template, "answer").await;
        assert_eq!(client.states(), ["output-available"], "{name}");
        assert_eq!(host.tools.effects().len(), 1, "{name}");

        say(&host, &mut client, &template, "message after an answer", "thanks").await;
        assert_eq!(host.messages("ada").await.len(), 6, "{name}");
        assert_eq!(host.tools.effects().len(), 1, "{name}");
    }
}

/// deep-chat posts messages of its own form, unless its page converts them.
#[tokio::test]
async fn a_body_of_another_protocol_is_refused_with_the_field_that_is_wrong() {
    let host = Host::new();
    let body = json!({"messages": [{"role": "user", "text": "Hi"}]});
    let answer = host.chat("ada", body.to_string()).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    assert_eq!(answer.text, "messages[0].id: missing");
}
