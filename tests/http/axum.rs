//! The route: which requests it accepts, how it rejects the others, and how responses pass through
//! other layers.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response, StatusCode, header};
use axum::routing::post;
use futures::{StreamExt, stream};
use test_support::ledger_double::{Fault, LedgerDouble, Operation};
use test_support::responses::text_of;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tower::ServiceExt;
use tower_http::compression::CompressionLayer;
use tower_http::cors::CorsLayer;
use ui_message_stream::approval::{Approvals, EmptyToolbox, Principal};
use ui_message_stream::axum::{ChatRejection, without_authentication};
use ui_message_stream::policy::ChatPolicy;
use ui_message_stream::request::Limits;
use ui_message_stream::{AgentEvent, ChatRequest, UiMessageStream};

const CHAT: &str = r#"{"id":"c","messages":[{"id":"u","role":"user","parts":[{"type":"text","text":"Hi"}]}],"trigger":"submit-message"}"#;

fn app() -> Router {
    Router::new().route(
        "/api/chat",
        post(async |chat: ChatRequest| {
            let text = AgentEvent::text(format!("Hello, {}", chat.id()));
            UiMessageStream::reply(&chat, stream::iter([text]))
        }),
    )
}

fn request() -> axum::http::request::Builder {
    Request::post("/api/chat")
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::HOST, "127.0.0.1:3000")
}

async fn answer(app: Router, request: Request<Body>) -> (StatusCode, Response<()>, String) {
    let response = app.oneshot(request).await.unwrap();
    let (parts, body) = response.into_parts();
    let text = text_of(body).await;
    (parts.status, Response::from_parts(parts, ()), text)
}

#[tokio::test]
async fn a_response_has_the_headers_of_the_protocol() {
    let (status, response, text) = answer(app(), request().body(CHAT.into()).unwrap()).await;
    assert_eq!(status, StatusCode::OK);
    let headers = response.headers();
    assert_eq!(headers[header::CONTENT_TYPE], "text/event-stream");
    assert_eq!(headers[header::CACHE_CONTROL], "no-cache, no-transform");
    assert_eq!(headers["x-vercel-ai-ui-message-stream"], "v1");
    assert_eq!(headers["x-accel-buffering"], "no");
    assert!(!headers.contains_key(header::CONNECTION));
    assert!(text.starts_with(r#"data: {"type":"start","messageId":"msg_"#), "{text}");
    assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
}

#[tokio::test]
async fn the_rejection_of_a_content_type_names_the_options_of_the_client() {
    let mut request = request().body(Body::from(CHAT)).unwrap();
    request.headers_mut().remove(header::CONTENT_TYPE);
    let (status, _, text) = answer(app(), request).await;
    assert_eq!(status, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    let expected = "the request must have `content-type: application/json`, as \
                    `DefaultChatTransport` sends it; `WorkflowChatTransport` needs two options: ";
    let options = text.strip_prefix(expected).unwrap_or_else(|| panic!("{text}"));
    // The page of the guide has them too.
    let guide = include_str!("../../docs/client-versions.md");
    let (_, options) = options.split_once('`').unwrap();
    for option in options.trim_end_matches('`').split("`, `") {
        assert!(guide.contains(option), "{option}");
    }
    assert_eq!(options.matches("`, `").count(), 1, "{options}");
}

#[tokio::test]
async fn an_invalid_chat_request_is_rejected_as_400_with_the_path_of_the_error() {
    let body = r#"{"id":"c","trigger":"submit-message","messages":[{"id":"u","role":"user","parts":[{"type":"text","text":7}]}]}"#;
    let (status, response, text) = answer(app(), request().body(body.into()).unwrap()).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert_eq!(response.headers()[header::CONTENT_TYPE], "text/plain; charset=utf-8");
    assert_eq!(text, "messages[0].parts[0].text: expected a string");
}

#[tokio::test]
async fn the_crates_byte_limit_applies_instead_of_axums_and_can_be_raised() {
    let long = CHAT.replace("Hi", &"x".repeat(3 << 20));
    let (status, _, text) = answer(app(), request().body(long.clone().into()).unwrap()).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
    assert!(text.contains("Limits::with_max_bytes"), "{text}");

    let limits = Limits::default().with_max_bytes(8 << 20);
    let raised = app().layer(ChatPolicy::default().with_limits(limits));
    assert_eq!(answer(raised, request().body(long.into()).unwrap()).await.0, StatusCode::OK);
}

#[tokio::test]
async fn a_body_that_is_too_long_is_not_read_to_its_end() {
    let (sent, mut received) = mpsc::unbounded_channel();
    let endless = stream::repeat_with(move || {
        sent.send(()).unwrap();
        Ok::<_, std::io::Error>(vec![b' '; 64 << 10])
    });
    let request = request().body(Body::from_stream(endless)).unwrap();
    assert_eq!(answer(app(), request).await.0, StatusCode::PAYLOAD_TOO_LARGE);
    let mut pieces = 0;
    while received.recv().await.is_some() {
        pieces += 1;
    }
    // A client that has sent more than twice the limit may lose the response.
    assert!(pieces <= 66, "{pieces} pieces of 64 KiB for a limit of 2 MiB");
}

#[tokio::test]
async fn the_route_works_inside_a_cors_layer() {
    let origin = "https://front.example";
    let cors = CorsLayer::new()
        .allow_origin([origin.parse().unwrap()])
        .allow_headers([header::CONTENT_TYPE]);
    let app = app().layer(ChatPolicy::default().allow_origin(origin)).layer(cors);
    let preflight = Request::options("/api/chat")
        .header(header::ORIGIN, origin)
        .header(header::ACCESS_CONTROL_REQUEST_METHOD, "POST")
        .header(header::ACCESS_CONTROL_REQUEST_HEADERS, "content-type")
        .body(Body::empty());
    let (status, response, _) = answer(app.clone(), preflight.unwrap()).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(response.headers()[header::ACCESS_CONTROL_ALLOW_ORIGIN], origin);
    let posted = request().header(header::ORIGIN, origin).body(Body::from(CHAT)).unwrap();
    let (status, response, _) = answer(app, posted).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(response.headers()[header::ACCESS_CONTROL_ALLOW_ORIGIN], origin);
}

/// A compression layer must let each chunk of an event stream pass when it is sent.
#[tokio::test(start_paused = true)]
async fn the_first_chunk_passes_a_compression_layer_before_the_second_is_produced() {
    for encoding in ["gzip", "br"] {
        let (events, receiver) = mpsc::unbounded_channel::<AgentEvent>();
        let receiver = std::sync::Arc::new(std::sync::Mutex::new(Some(receiver)));
        let app = Router::new().route(
            "/api/chat",
            post(async move |chat: ChatRequest| {
                let receiver = receiver.lock().unwrap().take().unwrap();
                UiMessageStream::reply(&chat, UnboundedReceiverStream::new(receiver))
            }),
        );
        let always = |_: StatusCode,
                      _: axum::http::Version,
                      _: &axum::http::HeaderMap,
                      _: &axum::http::Extensions| true;
        let app = app.layer(CompressionLayer::new().compress_when(always));
        let request =
            request().header(header::ACCEPT_ENCODING, encoding).body(Body::from(CHAT)).unwrap();
        let response = app.oneshot(request).await.unwrap();
        assert_eq!(response.headers()[header::CONTENT_ENCODING], encoding);
        let mut compressed = Vec::new();
        let mut body = response.into_body().into_data_stream();
        for word in ["first", "second", "third"] {
            events.send(AgentEvent::text(word)).unwrap();
            while !decompressed(encoding, &compressed).contains(word) {
                let next = tokio::time::timeout(test_support::patience(), body.next()).await;
                let piece = next.unwrap_or_else(|_| panic!("{encoding} holds `{word}` back"));
                compressed.extend_from_slice(&piece.unwrap().unwrap());
            }
        }
    }
}

/// The part of a compressed stream that can be decompressed so far.
fn decompressed(encoding: &str, compressed: &[u8]) -> String {
    use std::io::Read;
    let mut text = Vec::new();
    // An error at the end is expected: the stream is incomplete.
    let _ = match encoding {
        "gzip" => flate2::read::MultiGzDecoder::new(compressed).read_to_end(&mut text),
        _ => brotli::Decompressor::new(compressed, 4096).read_to_end(&mut text),
    };
    String::from_utf8_lossy(&text).into_owned()
}

/// Over a socket: hyper flushes its buffer when the body is pending.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_start_chunk_reaches_the_client_before_a_slow_agent_emits_an_event() {
    use std::io::{Read, Write};
    let (go_on, may_go_on) = std::sync::mpsc::channel::<()>();
    let may_go_on = std::sync::Arc::new(std::sync::Mutex::new(may_go_on));
    let app = Router::new().route(
        "/api/chat",
        post(async move |chat: ChatRequest| {
            let slow = stream::once(async move {
                // An agent that blocks its thread, which agents should not do.
                may_go_on.lock().unwrap().recv().unwrap();
                AgentEvent::text("at last")
            });
            UiMessageStream::reply(&chat, slow)
        }),
    );
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    let client = tokio::task::spawn_blocking(move || {
        let mut socket = std::net::TcpStream::connect(address).unwrap();
        socket.set_read_timeout(Some(test_support::patience())).unwrap();
        write!(
            socket,
            "POST /api/chat HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n\
             connection: close\r\ncontent-length: {}\r\n\r\n{CHAT}",
            CHAT.len()
        )
        .unwrap();
        let mut text = String::new();
        let mut buffer = [0; 4096];
        while !text.contains("\"type\":\"start\"") {
            let read = socket.read(&mut buffer).expect("`start` comes before the agent goes on");
            text.push_str(&String::from_utf8_lossy(&buffer[..read]));
        }
        assert!(!text.contains("at last"));
        go_on.send(()).unwrap();
        socket.read_to_string(&mut text).unwrap();
        text
    });
    assert!(client.await.unwrap().contains("at last"));
}

async fn redeem(
    State(approvals): State<Approvals>,
    user: Principal,
    chat: ChatRequest,
) -> Result<UiMessageStream, ChatRejection> {
    let deferred = approvals.redeem(&user, &chat).await?;
    drop(deferred);
    Ok(UiMessageStream::reply(&chat, stream::iter([AgentEvent::text("Hello")])))
}

async fn run(
    State(approvals): State<Approvals>,
    user: Principal,
    chat: ChatRequest,
) -> Result<UiMessageStream, ChatRejection> {
    let running = approvals.run(&user, &chat, |call, _| async move { call.input }).await?;
    drop(running);
    Ok(UiMessageStream::reply(&chat, stream::iter([AgentEvent::text("Hello")])))
}

#[tokio::test]
async fn a_route_that_redeems_approvals_responds_503_if_the_ledger_fails() {
    for (is_reachable, expected) in
        [(true, StatusCode::OK), (false, StatusCode::SERVICE_UNAVAILABLE)]
    {
        let approvals = Approvals::new(EmptyToolbox);
        let approvals = match is_reachable {
            true => approvals,
            false => {
                let unreachable = |_: Operation<'_>| Some(Fault::NotDone("no route to 10.0.0.7"));
                approvals.with_ledger(Arc::new(LedgerDouble::new(unreachable)))
            }
        };
        for route in [post(redeem), post(run)] {
            let app = Router::new().route("/api/chat", route).layer(without_authentication());
            let app = app.with_state(approvals.clone());
            let (status, _, text) = answer(app, request().body(CHAT.into()).unwrap()).await;
            assert_eq!(status, expected, "{text}");
            if !is_reachable {
                // The cause is for the log.
                assert_eq!(text, "the chat cannot be reached; try again later");
            }
        }
    }
}
