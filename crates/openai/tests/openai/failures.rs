//! A provider that fails: the user reads only that an error occurred, and the log contains no key.

use axum::http::StatusCode;
use chat_test_support::browser::asked;
use futures::StreamExt;
use test_support::message_contents::MessageContents;
use ui_message_stream::Json;
use ui_message_stream::model::{Model, ModelMessage, ModelRequest, ModelStream};
use ui_message_stream_agent::Agent;
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

/// Records the error with which a model call ends, as it would be logged.
#[derive(Debug)]
struct WithErrorLog<M>(M, std::sync::Arc<std::sync::Mutex<Vec<String>>>);

impl<M: Model> Model for WithErrorLog<M> {
    fn call(&self, request: ModelRequest) -> ModelStream {
        let logged = std::sync::Arc::clone(&self.1);
        Box::pin(self.0.call(request).inspect(move |event| {
            if let Err(error) = event {
                let error = error.downcast_ref::<ProviderError>().unwrap();
                let line = format!("{:?} {error} {error:?}", error.status());
                logged.lock().unwrap().push(line);
            }
        }))
    }
}

/// Runs a turn that fails. Returns the text before the failure, and the logged error.
pub(crate) async fn fails(model: impl Model) -> (String, String) {
    let logged = std::sync::Arc::default();
    let browser = asked(WithErrorLog(model, std::sync::Arc::clone(&logged)), "Hello").await;
    assert_eq!(browser.error(), Some("An error occurred."));
    let text = browser.messages().last().map(|message| MessageContents::of(message).text);
    let logged = logged.lock().unwrap();
    assert_eq!(logged.len(), 1, "{logged:?}");
    (text.unwrap_or_default(), logged[0].clone())
}

#[tokio::test]
async fn a_request_is_repeated_only_if_the_provider_is_busy_and_at_most_twice() {
    let busy = || (StatusCode::TOO_MANY_REQUESTS, "busy".to_owned());
    let text = || (StatusCode::OK, fixture("chat/text_is_joined"));
    let provider = Provider::with_responses([busy(), busy(), text()]).await;
    let browser = asked(model(&provider.address), "Hello").await;
    assert_eq!((browser.error(), provider.requests().len()), (None, 3));

    let provider = Provider::with_responses([busy(), busy(), busy(), text()]).await;
    assert!(fails(model(&provider.address)).await.1.starts_with("Some(429)"));
    assert_eq!(provider.requests().len(), 3);

    let provider = Provider::with_responses([busy(), text()]).await;
    let no_retries = endpoint(&provider.address).with_max_retries(0);
    assert!(fails(ChatCompletions::new(no_retries, "a-model")).await.1.starts_with("Some(429)"));
    assert_eq!(provider.requests().len(), 1);

    // The provider may have started to generate a response.
    let provider =
        Provider::with_responses([(StatusCode::BAD_GATEWAY, String::new()), text()]).await;
    assert!(fails(model(&provider.address)).await.1.starts_with("Some(502)"));
    assert_eq!(provider.requests().len(), 1);
}

#[tokio::test]
async fn an_error_response_is_logged_without_the_key() {
    let body = format!(r#"{{"error":{{"message":"Incorrect key: {KEY} of also-secret"}}}}"#);
    let provider = Provider::with_responses([(StatusCode::UNAUTHORIZED, body)]).await;
    let (_, logged) = fails(model(&provider.address)).await;
    assert!(logged.starts_with("Some(401)"), "{logged}");
    assert!(logged.contains("Incorrect key: [redacted] of [redacted]"), "{logged}");
    assert!(!logged.contains("secret"), "{logged}");
}

/// Returns the logged error of a model call that the provider answers with this body.
async fn logged_error(
    body: impl Into<String>,
    model: impl FnOnce(Endpoint) -> Result<Box<dyn Model>, EndpointError>,
) -> String {
    let provider = Provider::with_responses([(StatusCode::BAD_REQUEST, body.into())]).await;
    let model = model(Endpoint::new(&provider.address).unwrap()).unwrap();
    let request = ModelRequest::new(vec![ModelMessage::user("Hello")]);
    let events: Vec<_> = model.call(request).collect().await;
    events[0].as_ref().unwrap_err().to_string()
}

#[tokio::test]
async fn no_part_of_a_secret_is_logged() {
    let chat = |endpoint: Endpoint| Box::new(ChatCompletions::new(endpoint, "m")) as Box<dyn Model>;
    let logged = logged_error("abcd, then abcd-efgh; not efgh", |endpoint| {
        Ok(chat(endpoint.with_header("x-a", "abcd")?.with_header("x-b", "abcd-efgh")?))
    });
    assert!(
        logged.await.ends_with("[redacted], then [redacted]; not efgh"),
        "the longest secret is redacted first"
    );
    let logged = logged_error(r#"bad token "t0ken-by-itself""#, |endpoint| {
        Ok(chat(endpoint.with_header("authorization", "Bearer t0ken-by-itself")?))
    });
    assert!(!logged.await.contains("t0ken"), "the key in a header is redacted");
    for filled in 4080..4096 {
        let message = format!("{}{}", "é".repeat(filled / 2), KEY.repeat(400));
        let logged = logged_error(message, |endpoint| Ok(chat(endpoint.with_key(KEY)?))).await;
        let rest = logged.replace("[redacted]", "");
        assert!(!rest.contains("sk") && logged.len() < 4200, "{filled}: {rest}");
    }
    let tool = r#"{"type":"mcp","server_label":"links",
        "server_url":"https://us3r-1d:p4ss-w0rd@links.example/mcp?key=qu%2Fery-1&plain=qu3ry-2",
        "headers":{"authorization":"Bearer he4d-er"}}"#;
    let message = "us3r-1d p4ss-w0rd qu%2Fery-1 qu/ery-1 qu3ry-2 he4d-er";
    let logged = logged_error(message, |endpoint| {
        let tool = Json::parse(tool).unwrap();
        Ok(Box::new(Responses::new(endpoint, "m").with_hosted_tool(&tool)))
    });
    assert!(
        logged
            .await
            .ends_with(": [redacted] [redacted] [redacted] [redacted] [redacted] [redacted]")
    );
}

#[tokio::test]
async fn an_error_in_the_stream_ends_the_message_after_its_first_text() {
    let all_events = lines_of("chat/text_is_joined");
    let first_events: Vec<&str> = all_events.lines().take(2).collect();
    let error = format!(r#"{{"error":{{"message":"overloaded, {KEY}","code":"server_error"}}}}"#);
    let stream =
        format!("data: {}\n\ndata: {}\n\ndata: {error}\n\n", first_events[0], first_events[1]);
    let provider = Provider::with_streams([stream]).await;
    let (text, logged) = fails(model(&provider.address)).await;
    assert_eq!(text, "The harbour");
    assert!(logged.contains("server_error: overloaded, [redacted]"), "{logged}");
    assert!(!logged.contains("secret"), "{logged}");
}

#[tokio::test]
async fn a_stream_that_is_cut_off_is_an_error_and_its_calls_do_not_run() {
    for name in ["chat/text_is_joined", "chat/reasoning_then_arguments_in_pieces"] {
        let all_events = lines_of(name);
        for events in 0..all_events.lines().count() {
            let cut: String =
                all_events.lines().take(events).map(|line| format!("data: {line}\n\n")).collect();
            if cut.contains(r#""finish_reason":"stop""#) {
                continue;
            }
            // A server whose context is full ends its stream like this.
            let failed = format!("{cut}error: {{\"code\":500}}\n\ndata: [DONE]\n\n");
            let done = format!("{cut}data: [DONE]\n\n");
            for cut in [cut, done, failed] {
                let provider = Provider::with_streams([cut]).await;
                let (_, logged) = fails(model(&provider.address)).await;
                assert!(
                    logged.contains("ended before the answer did"),
                    "{name}, {events}: {logged}"
                );
                assert_eq!(provider.requests().len(), 1, "{name}, {events}");
            }
        }
    }
}

#[tokio::test]
async fn a_body_that_is_not_a_stream_and_an_unreachable_provider_are_errors() {
    let page = "data: <html>wrong address</html>\n\n".to_owned();
    let provider = Provider::with_streams([page, "{}".to_owned()]).await;
    let (_, logged) = fails(model(&provider.address)).await;
    assert!(logged.contains("the provider's response is not a valid stream"), "{logged}");
    let (_, logged) = fails(model(&provider.address)).await;
    assert!(logged.contains("ended before the answer did"), "{logged}");
    // A port that was free a moment ago.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}/v1?key=also-secret", listener.local_addr().unwrap());
    drop(listener);
    let (_, logged) = fails(model(&address)).await;
    assert!(logged.contains("cannot be reached"), "{logged}");
    assert!(!logged.contains("secret"), "{logged}");
}

#[tokio::test]
async fn an_error_with_a_successful_status_is_logged() {
    let error = format!(r#"{{"error":{{"message":"no capacity, {KEY}","code":"busy"}}}}"#);
    let pretty = error.replace(':', ":\n ");
    let in_stream = format!("data: {error}\n\n");
    let provider = Provider::with_streams([pretty, error, in_stream]).await;
    let responses = Responses::new(endpoint(&provider.address), "a-model");
    let (_, first) = fails(model(&provider.address)).await;
    for logged in [first, fails(responses.clone()).await.1, fails(responses).await.1] {
        assert!(logged.contains("busy: no capacity, [redacted]"), "{logged}");
    }
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let provider = Provider::with_responses([
        (StatusCode::TEMPORARY_REDIRECT, String::new()),
        (StatusCode::OK, fixture("chat/text_is_joined")),
    ])
    .await;
    let (_, logged) = fails(model(&provider.address)).await;
    assert!(logged.starts_with("Some(307)"), "{logged}");
    assert_eq!(provider.requests().len(), 1);
}

#[test]
fn debug_and_errors_contain_no_key() {
    let model = model("http://user:pass-secret@localhost/v1?key=query-secret");
    let debug = format!("{:?} {:?}", model, Agent::new(model.clone()));
    assert!(debug.contains("a-model") && !debug.contains("secret"), "{debug}");
    // To a URL parser, the first part of the second one is a scheme.
    for without_scheme in ["models.example/v1", "localhost:1234"] {
        let error = Endpoint::new(without_scheme).unwrap_err();
        assert!(matches!(error, EndpointError::Address), "{error:?}");
        assert!(error.to_string().contains("begin with `http://`"), "{error}");
    }
    assert!(matches!(Endpoint::new("file:///etc"), Err(EndpointError::Address)));
    let error = Endpoint::openai("sk-\nsecret").unwrap_err();
    assert!(matches!(error, EndpointError::Header) && !format!("{error:?}").contains("secret"));
}
