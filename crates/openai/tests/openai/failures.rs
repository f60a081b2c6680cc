//! A provider that fails: the person reads that something went wrong, and nothing else; no log
//! repeats a key.

use axum::http::StatusCode;
use futures::StreamExt;
use test_support::browser::{Held, agent, conversation};
use ui_message_stream::Json;
use ui_message_stream::agent::Agent;
use ui_message_stream::model::{Model, ModelMessage, ModelRequest, ModelStream};
use ui_message_stream_openai::{
    ChatCompletions, Endpoint, EndpointError, ProviderError, Responses,
};

use super::provider::{Provider, fixture, lines_of};

const KEY: &str = "sk-very-secret";

fn endpoint(address: &str) -> Endpoint {
    let endpoint = Endpoint::new(address).unwrap().with_key(KEY).unwrap();
    endpoint.with_header("x-team", "also-secret").unwrap()
}

fn model(address: &str) -> ChatCompletions {
    ChatCompletions::new(endpoint(address), "a-model")
}

/// Keeps the error that a model ends with, as a log would read it.
#[derive(Debug)]
struct Overheard<M>(M, std::sync::Arc<std::sync::Mutex<Vec<String>>>);

impl<M: Model> Model for Overheard<M> {
    fn call(&self, request: ModelRequest) -> ModelStream {
        let heard = std::sync::Arc::clone(&self.1);
        Box::pin(self.0.call(request).inspect(move |event| {
            if let Err(error) = event {
                let error = error.downcast_ref::<ProviderError>().unwrap();
                let said = format!("{:?} {error} {error:?}", error.status());
                heard.lock().unwrap().push(said);
            }
        }))
    }
}

/// The text before the failure, and what a log reads of the failure.
async fn fails(model: impl Model) -> (String, String) {
    let heard = std::sync::Arc::default();
    let mut browser = conversation(agent(Overheard(model, std::sync::Arc::clone(&heard))));
    browser.send("Hello").await;
    assert_eq!(browser.error(), Some("An error occurred."));
    let text = browser.messages().last().map(|message| Held::of(message).text);
    let heard = heard.lock().unwrap();
    assert_eq!(heard.len(), 1, "{heard:?}");
    (text.unwrap_or_default(), heard[0].clone())
}

#[tokio::test]
async fn a_provider_that_is_busy_is_asked_again_and_no_other() {
    let busy = || (StatusCode::TOO_MANY_REQUESTS, "busy".to_owned());
    let text = || (StatusCode::OK, fixture("chat/text_is_joined"));
    let provider = Provider::answering([busy(), busy(), text()]).await;
    let mut browser = conversation(agent(model(&provider.address)));
    browser.send("Hello").await;
    assert_eq!((browser.error(), provider.asked().len()), (None, 3));

    let provider = Provider::answering([busy(), busy(), busy(), text()]).await;
    assert!(fails(model(&provider.address)).await.1.starts_with("Some(429)"));
    assert_eq!(provider.asked().len(), 3);

    let provider = Provider::answering([busy(), text()]).await;
    let never = endpoint(&provider.address).with_max_retries(0);
    assert!(fails(ChatCompletions::new(never, "a-model")).await.1.starts_with("Some(429)"));
    assert_eq!(provider.asked().len(), 1);

    // It may have begun.
    let provider = Provider::answering([(StatusCode::BAD_GATEWAY, String::new()), text()]).await;
    assert!(fails(model(&provider.address)).await.1.starts_with("Some(502)"));
    assert_eq!(provider.asked().len(), 1);
}

#[tokio::test]
async fn an_answer_that_is_an_error_is_logged_without_the_key() {
    let said = format!(r#"{{"error":{{"message":"Incorrect key: {KEY} of also-secret"}}}}"#);
    let provider = Provider::answering([(StatusCode::UNAUTHORIZED, said)]).await;
    let (_, heard) = fails(model(&provider.address)).await;
    assert!(heard.starts_with("Some(401)"), "{heard}");
    assert!(heard.contains("Incorrect key: [redacted] of [redacted]"), "{heard}");
    assert!(!heard.contains("secret"), "{heard}");
}

/// What a log reads of an answer that is an error.
async fn logged(
    said: impl Into<String>,
    model: impl FnOnce(Endpoint) -> Result<Box<dyn Model>, EndpointError>,
) -> String {
    let provider = Provider::answering([(StatusCode::BAD_REQUEST, said.into())]).await;
    let model = model(Endpoint::new(&provider.address).unwrap()).unwrap();
    let request = ModelRequest::new(vec![ModelMessage::user("Hello")]);
    let said: Vec<_> = model.call(request).collect().await;
    said[0].as_ref().unwrap_err().to_string()
}

#[tokio::test]
async fn no_part_of_a_secret_is_logged() {
    let chat = |endpoint: Endpoint| Box::new(ChatCompletions::new(endpoint, "m")) as Box<dyn Model>;
    let heard = logged("abcd, then abcd-efgh; not efgh", |endpoint| {
        Ok(chat(endpoint.with_header("x-a", "abcd")?.with_header("x-b", "abcd-efgh")?))
    });
    assert!(heard.await.ends_with("[redacted], then [redacted]; not efgh"), "longest first");
    let heard = logged(r#"bad token "t0ken-by-itself""#, |endpoint| {
        Ok(chat(endpoint.with_header("authorization", "Bearer t0ken-by-itself")?))
    });
    assert!(!heard.await.contains("t0ken"), "the key of a header");
    for filled in 4080..4096 {
        let said = format!("{}{}", "é".repeat(filled / 2), KEY.repeat(400));
        let heard = logged(said, |endpoint| Ok(chat(endpoint.with_key(KEY)?))).await;
        let left = heard.replace("[redacted]", "");
        assert!(!left.contains("sk") && heard.len() < 4200, "{filled}: {left}");
    }
    let tool = r#"{"type":"mcp","server_label":"links",
        "server_url":"https://us3r-1d:p4ss-w0rd@links.example/mcp?key=qu%2Fery-1&plain=qu3ry-2",
        "headers":{"authorization":"Bearer he4d-er"}}"#;
    let said = "us3r-1d p4ss-w0rd qu%2Fery-1 qu/ery-1 qu3ry-2 he4d-er";
    let heard = logged(said, |endpoint| {
        let tool = Json::parse(tool).unwrap();
        Ok(Box::new(Responses::new(endpoint, "m").with_hosted_tool(&tool)))
    });
    assert!(
        heard
            .await
            .ends_with(": [redacted] [redacted] [redacted] [redacted] [redacted] [redacted]")
    );
}

#[tokio::test]
async fn an_error_in_the_stream_ends_it_behind_what_was_said() {
    let whole = lines_of("chat/text_is_joined");
    let begun: Vec<&str> = whole.lines().take(2).collect();
    let error = format!(r#"{{"error":{{"message":"overloaded, {KEY}","code":"server_error"}}}}"#);
    let stream = format!("data: {}\n\ndata: {}\n\ndata: {error}\n\n", begun[0], begun[1]);
    let provider = Provider::streaming([stream]).await;
    let (text, heard) = fails(model(&provider.address)).await;
    assert_eq!(text, "The harbour");
    assert!(heard.contains("server_error: overloaded, [redacted]"), "{heard}");
    assert!(!heard.contains("secret"), "{heard}");
}

#[tokio::test]
async fn a_stream_that_is_cut_is_no_answer_and_its_calls_do_not_run() {
    for name in ["chat/text_is_joined", "chat/reasoning_then_arguments_in_pieces"] {
        let whole = lines_of(name);
        for events in 0..whole.lines().count() {
            let cut: String =
                whole.lines().take(events).map(|line| format!("data: {line}\n\n")).collect();
            if cut.contains(r#""finish_reason":"stop""#) {
                continue;
            }
            // As a server ends whose context is full.
            let failed = format!("{cut}error: {{\"code\":500}}\n\ndata: [DONE]\n\n");
            let done = format!("{cut}data: [DONE]\n\n");
            for cut in [cut, done, failed] {
                let provider = Provider::streaming([cut]).await;
                let (_, heard) = fails(model(&provider.address)).await;
                assert!(heard.contains("ended before the answer did"), "{name}, {events}: {heard}");
                assert_eq!(provider.asked().len(), 1, "{name}, {events}");
            }
        }
    }
}

#[tokio::test]
async fn what_is_no_stream_or_not_there_is_an_error() {
    let page = "data: <html>wrong address</html>\n\n".to_owned();
    let provider = Provider::streaming([page, "{}".to_owned()]).await;
    let (_, heard) = fails(model(&provider.address)).await;
    assert!(heard.contains("the provider's stream is none"), "{heard}");
    let (_, heard) = fails(model(&provider.address)).await;
    assert!(heard.contains("ended before the answer did"), "{heard}");
    // A port that was free a moment ago.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}/v1?key=also-secret", listener.local_addr().unwrap());
    drop(listener);
    let (_, heard) = fails(model(&address)).await;
    assert!(heard.contains("cannot be reached"), "{heard}");
    assert!(!heard.contains("secret"), "{heard}");
}

#[tokio::test]
async fn an_error_that_says_that_it_is_an_answer_is_logged() {
    let error = format!(r#"{{"error":{{"message":"no capacity, {KEY}","code":"busy"}}}}"#);
    let pretty = error.replace(':', ":\n ");
    let in_stream = format!("data: {error}\n\n");
    let provider = Provider::streaming([pretty, error, in_stream]).await;
    let responses = Responses::new(endpoint(&provider.address), "a-model");
    let (_, first) = fails(model(&provider.address)).await;
    for heard in [first, fails(responses.clone()).await.1, fails(responses).await.1] {
        assert!(heard.contains("busy: no capacity, [redacted]"), "{heard}");
    }
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let provider = Provider::answering([
        (StatusCode::TEMPORARY_REDIRECT, String::new()),
        (StatusCode::OK, fixture("chat/text_is_joined")),
    ])
    .await;
    let (_, heard) = fails(model(&provider.address)).await;
    assert!(heard.starts_with("Some(307)"), "{heard}");
    assert_eq!(provider.asked().len(), 1);
}

#[test]
fn a_key_is_never_shown() {
    let model = model("http://user:pass-secret@localhost/v1?key=query-secret");
    let shown = format!("{:?} {:?}", model, Agent::new(model.clone()));
    assert!(shown.contains("a-model") && !shown.contains("secret"), "{shown}");
    assert!(matches!(Endpoint::new("models.example/v1"), Err(EndpointError::Address)));
    assert!(matches!(Endpoint::new("file:///etc"), Err(EndpointError::Address)));
    let error = Endpoint::openai("sk-\nsecret").unwrap_err();
    assert!(matches!(error, EndpointError::Header) && !format!("{error:?}").contains("secret"));
}
