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

/// Returns how each of the APIs gets the parts of that message.
async fn sent(
    chat_completions: fn(ChatCompletions) -> ChatCompletions,
    responses: fn(Responses) -> Responses,
) -> [Value; 2] {
    let provider = Provider::with_streams([fixture("chat/text_is_joined")]).await;
    let model = chat_completions(ChatCompletions::new(endpoint(&provider), "a-model"));
    let mut body = request_body(&provider, model).await;
    let provider = Provider::with_streams([fixture("responses/text")]).await;
    let model = responses(Responses::new(endpoint(&provider), "a-model"));
    let mut other = request_body(&provider, model).await;
    [body["messages"][1]["content"].take(), other["input"][0]["content"].take()]
}

#[tokio::test]
async fn each_api_gets_each_file_in_a_form_that_it_accepts() {
    let expected = |text: fn(&str) -> Value, image: fn(&str) -> Value, pdfs: [Value; 2]| {
        let [pdf, pdf_at_a_url] = pdfs;
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
            pdf,
            pdf_at_a_url,
            text(&described("audio/wav named \"a.wav\"")),
            text(&described("application/zip")),
        ])
    };
    let pdf = "data:application/pdf;base64,JVBERi0=";
    let [chat_completions, responses] = sent(|model| model, |model| model).await;
    let text: fn(&str) -> Value = |text| json!({"type": "text", "text": text});
    let image: fn(&str) -> Value = |url| json!({"type": "image_url", "image_url": {"url": url}});
    let file = json!({"type": "file", "file": {"filename": "file", "file_data": pdf}});
    let pdfs = [file, text(&described("application/pdf"))];
    assert_eq!(chat_completions, expected(text, image, pdfs));

    let text: fn(&str) -> Value = |text| json!({"type": "input_text", "text": text});
    let image: fn(&str) -> Value = |url| json!({"type": "input_image", "image_url": url});
    let pdfs = [
        json!({"type": "input_file", "filename": "file", "file_data": pdf}),
        json!({"type": "input_file", "file_url": "https://example.com/a.pdf"}),
    ];
    assert_eq!(responses, expected(text, image, pdfs));
}

#[tokio::test]
async fn images_at_a_url_are_described_as_text_for_a_server_that_fetches_no_images() {
    let contents = sent(|model| model.without_image_urls(), |model| model.without_image_urls());
    for content in contents.await {
        assert_eq!(content[1]["text"], described("image/png"));
        assert!(content[2].get("image_url").is_some(), "{content:?}");
    }
}

#[tokio::test]
async fn files_and_images_are_described_as_text_for_a_server_that_accepts_none() {
    let contents = sent(
        |model| model.without_files().without_images(),
        |model| model.without_files().without_images(),
    );
    for content in contents.await {
        assert_eq!(content.as_array().unwrap().len(), 13);
        assert_eq!(content[1]["text"], described("image/png"));
        assert_eq!(content[2]["text"], described("image/PNG"));
        assert_eq!(content[5]["text"], CSV);
        assert_eq!(content[9]["text"], described("application/pdf"));
        assert_eq!(content[10]["text"], described("application/pdf"));
    }
}
