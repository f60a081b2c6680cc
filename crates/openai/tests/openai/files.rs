//! The files of a message: sent if the model can read them, else described as text. A file that the
//! provider refuses would make every later request fail, because it stays in the history.

use chat_test_support::browser::{agent, conversation};
use serde_json::{Value, json};
use ui_message_stream::UiMessage;
use ui_message_stream::model::Model;
use ui_message_stream_openai::{ChatCompletions, Endpoint, Responses};

use super::provider::{Provider, fixture};

fn endpoint(provider: &Provider) -> Endpoint {
    Endpoint::new(&provider.address).unwrap()
}

/// Returns a message with every kind of file.
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

/// Returns the body of the request in which the model sends that message.
async fn request_body(provider: &Provider, model: impl Model) -> Value {
    let mut browser = conversation(agent(model));
    browser.send_parts(message().parts).await;
    assert_eq!(browser.error(), None);
    provider.requests()[0].body.clone()
}

/// Returns the text that replaces a file.
fn described(of: &str) -> String {
    format!("(A file of type {of}, which cannot be shown here.)")
}

const CSV: &str = "(A file of type text/csv named \"a.csv\", which says:)\n\na,b\n";
const JSON: &str = "(A file of type application/json named \"a.json\", which says:)\n\n{}";

#[tokio::test]
async fn chat_completions_send_each_file_in_a_form_that_the_api_accepts() {
    let provider = Provider::with_streams([fixture("chat/text_is_joined")]).await;
    let model = ChatCompletions::new(endpoint(&provider), "a-model");
    let body = request_body(&provider, model).await;
    let text = |text: &str| json!({"type": "text", "text": text});
    let image = |url: &str| json!({"type": "image_url", "image_url": {"url": url}});
    assert_eq!(
        body["messages"][1]["content"],
        json!([
            text("Look"),
            image("https://example.com/a.png"),
            image("data:image/png;base64,iVBORw0KGgo="),
            text(&described("image/svg+xml")),
            text(&described("image/png")),
            text(CSV),
            text(JSON),
            text(&described("text/plain")),
            text(&described("text/plain")),
            {"type": "file", "file": {
                "filename": "file", "file_data": "data:application/pdf;base64,JVBERi0=",
            }},
            text(&described("application/pdf")),
            text(&described("audio/wav named \"a.wav\"")),
            text(&described("application/zip")),
        ])
    );
}

#[tokio::test]
async fn responses_send_each_file_in_a_form_that_the_api_accepts() {
    let provider = Provider::with_streams([fixture("responses/text")]).await;
    let model = Responses::new(endpoint(&provider), "a-model");
    let body = request_body(&provider, model).await;
    let text = |text: &str| json!({"type": "input_text", "text": text});
    let image = |url: &str| json!({"type": "input_image", "image_url": url});
    assert_eq!(
        body["input"][0]["content"],
        json!([
            text("Look"),
            image("https://example.com/a.png"),
            image("data:image/png;base64,iVBORw0KGgo="),
            text(&described("image/svg+xml")),
            text(&described("image/png")),
            text(CSV),
            text(JSON),
            text(&described("text/plain")),
            text(&described("text/plain")),
            {"type": "input_file", "filename": "file",
                "file_data": "data:application/pdf;base64,JVBERi0="},
            {"type": "input_file", "file_url": "https://example.com/a.pdf"},
            text(&described("audio/wav named \"a.wav\"")),
            text(&described("application/zip")),
        ])
    );
}

#[tokio::test]
async fn images_at_a_url_are_described_as_text_for_a_server_that_fetches_no_images() {
    let provider = Provider::with_streams([fixture("chat/text_is_joined")]).await;
    let model = ChatCompletions::new(endpoint(&provider), "a-model").without_image_urls();
    let body = request_body(&provider, model).await;
    let provider = Provider::with_streams([fixture("responses/text")]).await;
    let model = Responses::new(endpoint(&provider), "a-model").without_image_urls();
    let other = request_body(&provider, model).await;
    let content = [&body["messages"][1]["content"], &other["input"][0]["content"]];
    for content in content.map(|content| content.as_array().unwrap()) {
        assert_eq!(content[1]["text"], described("image/png"));
        assert!(content[2].get("image_url").is_some(), "{content:?}");
    }
}

#[tokio::test]
async fn files_and_images_are_described_as_text_for_a_server_that_accepts_none() {
    let provider = Provider::with_streams([fixture("chat/text_is_joined")]).await;
    let model = ChatCompletions::new(endpoint(&provider), "a-model").without_files();
    let body = request_body(&provider, model.without_images()).await;
    let provider = Provider::with_streams([fixture("responses/text")]).await;
    let model = Responses::new(endpoint(&provider), "a-model").without_files();
    let other = request_body(&provider, model.without_images()).await;
    let content = [&body["messages"][1]["content"], &other["input"][0]["content"]];
    for content in content.map(|content| content.as_array().unwrap()) {
        assert_eq!(content.len(), 13);
        assert_eq!(content[1]["text"], described("image/png"));
        assert_eq!(content[2]["text"], described("image/PNG"));
        assert_eq!(content[5]["text"], CSV);
        assert_eq!(content[9]["text"], described("application/pdf"));
        assert_eq!(content[10]["text"], described("application/pdf"));
    }
}
