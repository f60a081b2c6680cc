//! Files of a message: sent where the model can read them, told in words where it cannot. One that
//! the provider refuses would end the chat, since it stays in the history.

use serde_json::{Value, json};
use test_support::browser::{agent, conversation};
use ui_message_stream::UiMessage;
use ui_message_stream::model::Model;
use ui_message_stream_openai::{ChatCompletions, Endpoint, Responses};

use super::provider::{Provider, fixture};

fn endpoint(provider: &Provider) -> Endpoint {
    Endpoint::new(&provider.address).unwrap()
}

/// A message with every kind of file.
fn message() -> UiMessage {
    let file =
        |media_type: &str, url: &str| json!({"type": "file", "mediaType": media_type, "url": url});
    let named = |media_type: &str, url: &str, name: &str| json!({"type": "file", "mediaType": media_type, "url": url, "filename": name});
    let message = json!({"id": "m", "role": "user", "parts": [
        {"type": "text", "text": "Look"},
        file("image/png", "https://example.com/a.png"),
        file("image/PNG", "data:image/png;base64,iVBORw0KGgo="),
        file("image/svg+xml", "data:image/svg+xml;base64,PHN2Zy8+"),
        file("image/png", "data:image/png,%89PNG"),
        named("text/csv; charset=utf-8", "data:text/csv;base64,77u/YSxiCg==", "a.csv"),
        named("application/json", "data:application/json;base64,e30=", "a.json"),
        file("text/plain", "data:text/plain;base64,/////w=="),
        file("text/plain", "https://example.com/a.txt"),
        file("application/pdf", "data:application/pdf;base64,JVBERi0="),
        file("application/pdf", "https://example.com/a.pdf"),
        named("audio/wav", "data:audio/wav;base64,UklGRg==", "a.wav"),
        file("application/zip", "data:application/zip;base64,UEsDBA=="),
    ]});
    UiMessage::parse(&message.to_string()).unwrap()
}

async fn asked(provider: &Provider, model: impl Model) -> Value {
    let mut browser = conversation(agent(model));
    browser.send_parts(message().parts).await;
    assert_eq!(browser.error(), None);
    provider.asked()[0].body.clone()
}

fn words(of: &str) -> String {
    format!("(A file of type {of}, which cannot be shown here.)")
}

const CSV: &str = "(A file of type text/csv named \"a.csv\", which says:)\n\na,b\n";
const JSON: &str = "(A file of type application/json named \"a.json\", which says:)\n\n{}";

#[tokio::test]
async fn chat_completions_are_sent_what_the_api_takes() {
    let provider = Provider::streaming([fixture("chat/text_is_joined")]).await;
    let model = ChatCompletions::new(endpoint(&provider), "a-model");
    let body = asked(&provider, model).await;
    let text = |text: &str| json!({"type": "text", "text": text});
    let image = |url: &str| json!({"type": "image_url", "image_url": {"url": url}});
    assert_eq!(
        body["messages"][1]["content"],
        json!([
            text("Look"),
            image("https://example.com/a.png"),
            image("data:image/png;base64,iVBORw0KGgo="),
            text(&words("image/svg+xml")),
            text(&words("image/png")),
            text(CSV),
            text(JSON),
            text(&words("text/plain")),
            text(&words("text/plain")),
            {"type": "file", "file": {
                "filename": "file", "file_data": "data:application/pdf;base64,JVBERi0=",
            }},
            text(&words("application/pdf")),
            text(&words("audio/wav named \"a.wav\"")),
            text(&words("application/zip")),
        ])
    );
}

#[tokio::test]
async fn responses_are_sent_what_the_api_takes() {
    let provider = Provider::streaming([fixture("responses/text")]).await;
    let model = Responses::new(endpoint(&provider), "a-model");
    let body = asked(&provider, model).await;
    let text = |text: &str| json!({"type": "input_text", "text": text});
    let image = |url: &str| json!({"type": "input_image", "image_url": url});
    assert_eq!(
        body["input"][0]["content"],
        json!([
            text("Look"),
            image("https://example.com/a.png"),
            image("data:image/png;base64,iVBORw0KGgo="),
            text(&words("image/svg+xml")),
            text(&words("image/png")),
            text(CSV),
            text(JSON),
            text(&words("text/plain")),
            text(&words("text/plain")),
            {"type": "input_file", "filename": "file",
                "file_data": "data:application/pdf;base64,JVBERi0="},
            {"type": "input_file", "file_url": "https://example.com/a.pdf"},
            text(&words("audio/wav named \"a.wav\"")),
            text(&words("application/zip")),
        ])
    );
}

#[tokio::test]
async fn a_server_that_fetches_no_images_is_told_of_them_in_words() {
    let provider = Provider::streaming([fixture("chat/text_is_joined")]).await;
    let model = ChatCompletions::new(endpoint(&provider), "a-model").without_image_urls();
    let body = asked(&provider, model).await;
    let provider = Provider::streaming([fixture("responses/text")]).await;
    let model = Responses::new(endpoint(&provider), "a-model").without_image_urls();
    let other = asked(&provider, model).await;
    let content = [&body["messages"][1]["content"], &other["input"][0]["content"]];
    for content in content.map(|content| content.as_array().unwrap()) {
        assert_eq!(content[1]["text"], words("image/png"));
        assert!(content[2].get("image_url").is_some(), "{content:?}");
    }
}

#[tokio::test]
async fn a_server_that_takes_no_files_or_images_is_told_in_words() {
    let provider = Provider::streaming([fixture("chat/text_is_joined")]).await;
    let model = ChatCompletions::new(endpoint(&provider), "a-model").without_files();
    let body = asked(&provider, model.without_images()).await;
    let provider = Provider::streaming([fixture("responses/text")]).await;
    let model = Responses::new(endpoint(&provider), "a-model").without_files();
    let other = asked(&provider, model.without_images()).await;
    let content = [&body["messages"][1]["content"], &other["input"][0]["content"]];
    for content in content.map(|content| content.as_array().unwrap()) {
        assert_eq!(content.len(), 13);
        assert_eq!(content[1]["text"], words("image/png"));
        assert_eq!(content[2]["text"], words("image/PNG"));
        assert_eq!(content[5]["text"], CSV);
        assert_eq!(content[9]["text"], words("application/pdf"));
        assert_eq!(content[10]["text"], words("application/pdf"));
    }
}
