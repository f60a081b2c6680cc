//! Requests that a hostile page can make a browser send to a server on the same machine, none of
//! which may have an effect: forms and scripts of other sites (cross-site request forgery), and
//! pages whose name resolves to the server (DNS rebinding). The tests check which handlers ran, not
//! only the status.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderValue, Method, Request, StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::{get, post};
use futures::stream;
use http_body_util::BodyExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tower::ServiceExt;
use ui_message_stream::axum::{ChatRejection, ChatRejectionKind};
use ui_message_stream::policy::ChatPolicy;
use ui_message_stream::{AgentEvent, ChatRequest, UiMessageStream};

const CHAT: &str = r#"{"id":"c","messages":[{"id":"u","role":"user","parts":[{"type":"text","text":"Hi"}]}],"trigger":"submit-message"}"#;

/// A server with an extracted chat, and routes that extract nothing.
struct Server {
    routes: Router,
    /// The number of handler runs.
    effects: Arc<AtomicUsize>,
}

/// A response as a client receives it.
struct Answer {
    status: StatusCode,
    headers: axum::http::HeaderMap,
    text: String,
}

impl Server {
    /// The routes, without a policy layer.
    fn bare() -> Self {
        let effects = Arc::new(AtomicUsize::new(0));
        let effect = || {
            let effects = Arc::clone(&effects);
            move || {
                effects.fetch_add(1, Ordering::SeqCst);
            }
        };
        let (chats, worlds, stops, judged) = (effect(), effect(), effect(), effect());
        let routes = Router::new()
            .route(
                "/api/chat",
                post(async move |chat: ChatRequest| {
                    chats();
                    UiMessageStream::reply(&chat, stream::iter([AgentEvent::text("Hello")]))
                }),
            )
            .route(
                "/api/world",
                get(async move || {
                    worlds();
                    "secrets"
                }),
            )
            .route("/api/chat/{id}/stream", get(async || ()).delete(async move || stops()))
            .route("/judged", get(async move |_: ChatPolicy| judged()));
        Server { routes, effects }
    }

    fn with(policy: ChatPolicy) -> Self {
        let server = Server::bare();
        Server { routes: server.routes.layer(policy), ..server }
    }

    async fn answer(&self, request: Request<Body>) -> Answer {
        let response = self.routes.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let text = String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap();
        Answer { status: parts.status, headers: parts.headers, text }
    }

    /// Posts a chat request with these headers.
    async fn post(&self, headers: &[(&str, &str)]) -> Answer {
        self.answer(request(Method::POST, "/api/chat", headers)).await
    }

    fn effects(&self) -> usize {
        self.effects.load(Ordering::SeqCst)
    }
}

fn request(method: Method, uri: &str, headers: &[(&str, &str)]) -> Request<Body> {
    let mut request = Request::builder().method(method).uri(uri);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(CHAT.into()).unwrap()
}

const ROUTES: [(Method, &str); 3] = [
    (Method::POST, "/api/chat"),
    (Method::GET, "/api/world"),
    (Method::DELETE, "/api/chat/c/stream"),
];

const JSON: (&str, &str) = ("content-type", "application/json");
const LOCAL: (&str, &str) = ("host", "127.0.0.1:3000");

// Cross-site request forgery: a page of another origin makes the browser send a request to this
// server.

/// An old browser sends no header about the origin of a form.
#[tokio::test]
async fn a_body_that_is_not_declared_as_json_has_no_effect() {
    let server = Server::bare();
    let declared = |content_type| vec![LOCAL, ("content-type", content_type)];
    let not_json = [
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=b",
        "text/plain",
        "text/plain; application/json",
        "text/plain;charset=UTF-8",
        "application/json-patch+json",
        "application/jsonp",
        "application/json, text/plain",
        "application/vnd.api+json",
        "text/json",
        "",
    ];
    let text = ("content-type", "text/plain");
    let others = [vec![LOCAL], vec![LOCAL, text, JSON], vec![LOCAL, JSON, text]];
    for headers in not_json.map(declared).into_iter().chain(others) {
        let answer = server.post(&headers).await;
        assert_eq!(answer.status, StatusCode::UNSUPPORTED_MEDIA_TYPE, "{headers:?}");
        let foreign = [&headers[..], &[("origin", "https://evil.example")]].concat();
        assert_eq!(server.post(&foreign).await.status, StatusCode::FORBIDDEN, "{headers:?}");
    }
    assert_eq!(server.effects(), 0);
    for json in ["application/json", "Application/JSON; charset=utf-8", "application/json ;x=y"] {
        assert_eq!(server.post(&declared(json)).await.status, StatusCode::OK, "{json}");
    }
    assert_eq!(server.effects(), 3);
}

#[tokio::test]
async fn a_script_of_another_site_has_no_effect() {
    let server = Server::with(ChatPolicy::default());
    let cross_site = ("sec-fetch-site", "cross-site");
    for (method, uri) in ROUTES {
        for mode in ["cors", "no-cors", "same-origin", "websocket"] {
            let headers = [LOCAL, JSON, cross_site, ("sec-fetch-mode", mode)];
            let answer = server.answer(request(method.clone(), uri, &headers)).await;
            assert_eq!(answer.status, StatusCode::FORBIDDEN, "{method} {uri} {mode}");
            assert!(answer.text.contains("ChatPolicy::allow_origin"), "{}", answer.text);
        }
    }
    assert_eq!(server.effects(), 0);
    for own in ["same-origin", "none", "same-site"] {
        let answer = server.post(&[LOCAL, JSON, ("sec-fetch-site", own)]).await;
        assert_eq!(answer.status, StatusCode::OK, "{own}");
    }
}

#[tokio::test]
async fn a_link_of_another_site_may_be_followed_but_not_framed_or_posted() {
    let server = Server::with(ChatPolicy::default());
    let cross_site = [LOCAL, JSON, ("sec-fetch-site", "cross-site")];
    let opened = |dest| [&cross_site[..], &[("sec-fetch-mode", "navigate"), dest]].concat();
    let link = opened(("sec-fetch-dest", "document"));
    let frame = opened(("sec-fetch-dest", "iframe"));
    let (world, chat) = ("/api/world", "/api/chat");
    assert_eq!(server.answer(request(Method::GET, world, &link)).await.status, StatusCode::OK);
    assert_eq!(server.effects(), 1);
    for refused in [request(Method::GET, world, &frame), request(Method::POST, chat, &link)] {
        assert_eq!(server.answer(refused).await.status, StatusCode::FORBIDDEN);
    }
    assert_eq!(server.effects(), 1);
}

#[tokio::test]
async fn a_request_of_another_origin_has_no_effect() {
    let server = Server::with(ChatPolicy::default());
    for origin in [
        "https://evil.example",
        "http://127.0.0.1:3001",
        "http://127.0.0.1",
        "http://localhost:3000",
        "http://127.0.0.1:3000.evil.example",
        "chrome-extension://abcdefgh",
        "file://",
        "",
    ] {
        for (method, uri) in ROUTES {
            let headers = [LOCAL, JSON, ("origin", origin)];
            let answer = server.answer(request(method, uri, &headers)).await;
            assert_eq!(answer.status, StatusCode::FORBIDDEN, "{origin} {uri}");
        }
    }
    let two = [LOCAL, JSON, ("origin", "http://127.0.0.1:3000"), ("origin", "http://evil.example")];
    assert_eq!(server.post(&two).await.status, StatusCode::FORBIDDEN);
    assert_eq!(server.effects(), 0);
    let own = [LOCAL, JSON, ("origin", "http://127.0.0.1:3000")];
    assert_eq!(server.post(&own).await.status, StatusCode::OK);
}

/// Development proxies replace the host of a request by that of their target with `changeOrigin`,
/// which Vite's short form sets.
#[tokio::test]
async fn the_rejection_of_a_page_on_this_machine_names_the_line_of_a_development_proxy() {
    let line = "`'/api': { target: 'http://localhost:3000', changeOrigin: false }`";
    let server = Server::bare();
    for (origin, has_line) in [
        ("http://localhost:5173", true),
        ("https://127.0.0.1:4200", true),
        ("http://[::1]:5173", true),
        ("http://192.168.1.5:5173", false),
        ("https://evil.example", false),
        ("null", false),
    ] {
        let answer = server.post(&[("host", "localhost:3000"), JSON, ("origin", origin)]).await;
        assert_eq!(answer.status, StatusCode::FORBIDDEN, "{origin}");
        assert!(answer.text.contains("ChatPolicy::allow_origin"), "{}", answer.text);
        assert_eq!(answer.text.contains(line), has_line, "{}", answer.text);
    }
    // With that line the proxy passes on the host that the page has.
    let kept = [("host", "localhost:5173"), JSON, ("origin", "http://localhost:5173")];
    assert_eq!(server.post(&kept).await.status, StatusCode::OK);
    assert_eq!(server.effects(), 1);
}

/// A proxy on this machine replaces the host. The browser says whether the page posted to the server
/// that it came from, and scripts cannot set what it says.
#[tokio::test]
async fn a_page_may_post_through_a_proxy_that_replaces_the_host_only_if_it_is_on_this_machine() {
    let same_origin = [("sec-fetch-site", "same-origin")];
    for (origin, host, sites, is_taken) in [
        ("http://localhost:5173", "localhost:3000", &same_origin[..], true),
        ("http://localhost:5173", "127.0.0.1:3000", &same_origin, true),
        ("https://app.localhost:5173", "[::1]:3000", &same_origin, true),
        ("http://[::1]:5173", "localhost:3000", &same_origin, true),
        // A page by DNS rebinding has its own name, also behind such a proxy.
        ("http://evil.example:5173", "localhost:3000", &same_origin, false),
        ("http://localhost.evil.example:5173", "localhost:3000", &same_origin, false),
        ("http://127.0.0.1.evil.example:5173", "127.0.0.1:3000", &same_origin, false),
        ("http://localhost@evil.example", "localhost:3000", &same_origin, false),
        ("http://192.168.1.5:5173", "localhost:3000", &same_origin, false),
        ("null", "localhost:3000", &same_origin, false),
        ("", "localhost:3000", &same_origin, false),
        // A server under a name is not the target of a proxy on this machine.
        ("http://localhost:5173", "chat.example", &same_origin, false),
        ("http://localhost:5173", "192.168.1.5:3000", &same_origin, false),
        // The page posts to another server than its own.
        ("http://localhost:5173", "localhost:3000", &[("sec-fetch-site", "same-site")], false),
        ("http://localhost:5173", "localhost:3000", &[("sec-fetch-site", "cross-site")], false),
        ("http://localhost:5173", "localhost:3000", &[("sec-fetch-site", "none")], false),
        ("http://localhost:5173", "localhost:3000", &[("sec-fetch-site", "same-origin, x")], false),
        ("http://localhost:5173", "localhost:3000", &[("sec-fetch-site", "")], false),
        ("http://localhost:5173", "localhost:3000", &[], false),
        (
            "http://localhost:5173",
            "localhost:3000",
            &[("sec-fetch-site", "same-origin"), ("sec-fetch-site", "same-origin")],
            false,
        ),
    ] {
        let server = Server::with(ChatPolicy::default().allow_host("chat.example"));
        let headers = [&[("host", host), JSON, ("origin", origin)][..], sites].concat();
        let answer = server.post(&headers).await;
        assert_eq!(answer.status == StatusCode::OK, is_taken, "{headers:?}: {}", answer.text);
        assert_eq!(server.effects(), usize::from(is_taken), "{headers:?}");
    }
}

#[tokio::test]
async fn the_null_origin_of_a_sandboxed_frame_has_no_effect() {
    let server = Server::bare();
    for host in [LOCAL, ("host", "null"), ("host", "localhost")] {
        let answer = server.post(&[host, JSON, ("origin", "null")]).await;
        assert_eq!(answer.status, StatusCode::FORBIDDEN, "{host:?}");
    }
    assert_eq!(server.effects(), 0);
}

#[tokio::test]
async fn no_response_has_cors_headers_unless_the_host_adds_them() {
    let server = Server::with(ChatPolicy::default().allow_origin("https://front.example"));
    let origin = |origin| [LOCAL, JSON, ("origin", origin)];
    let asks = ("access-control-request-method", "POST");
    let preflight = [&origin("https://evil.example")[..], &[asks]].concat();
    for request in [
        request(Method::POST, "/api/chat", &origin("https://front.example")),
        request(Method::POST, "/api/chat", &origin("https://evil.example")),
        request(Method::POST, "/api/chat", &[("host", "evil.example"), JSON]),
        request(Method::OPTIONS, "/api/chat", &preflight),
    ] {
        let answer = server.answer(request).await;
        let cors = answer.headers.keys().find(|name| name.as_str().starts_with("access-control"));
        assert_eq!(cors, None);
    }
    assert_eq!(server.effects(), 1);
}

#[tokio::test]
async fn the_cors_layer_of_a_policy_answers_the_pages_that_it_allows_and_no_others() {
    let policy =
        ChatPolicy::default().allow_origin("https://front.example").allow_loopback_origins();
    let mut server = Server::with(policy.clone());
    server.routes = server.routes.layer(policy.cors());
    for (origin, is_allowed) in [
        ("https://front.example", true),
        ("https://FRONT.example:443", true),
        ("http://localhost:5173", true),
        ("https://evil.example", false),
        ("https://front.example.evil.example", false),
        ("http://front.example", false),
        ("null", false),
    ] {
        let effects = server.effects();
        for method in ["GET", "POST", "PATCH", "DELETE"] {
            let asks = ("access-control-request-method", method);
            let names = "authorization,content-type,last-event-id";
            let headers = ("access-control-request-headers", names);
            let preflight = [LOCAL, ("origin", origin), asks, headers];
            let answer = server.answer(request(Method::OPTIONS, "/api/chat", &preflight)).await;
            let allowed = answer.headers.get("access-control-allow-origin");
            assert_eq!(allowed.is_some_and(|it| it == origin), is_allowed, "{origin} {method}");
            assert_eq!(allowed.is_some(), is_allowed, "{origin} {method}");
            let methods = answer.headers["access-control-allow-methods"].to_str().unwrap();
            assert!(methods.contains(method), "{methods}");
            let listed = answer.headers["access-control-allow-headers"].to_str().unwrap();
            assert!(names.split(',').all(|name| listed.contains(name)), "{listed}");
        }
        assert_eq!(server.effects(), effects, "a preflight request does nothing");
        let answer = server.post(&[LOCAL, JSON, ("origin", origin)]).await;
        assert_eq!(answer.headers.contains_key("access-control-allow-origin"), is_allowed);
        assert_eq!(server.effects() - effects, usize::from(is_allowed), "{origin}");
        assert!(answer.headers["vary"].to_str().unwrap().contains("origin"), "{origin}");
    }
}

// DNS rebinding: the name of the page resolves to this server, so the browser considers it the same
// origin.

/// Values of the `Host` header, and whether a server that allows the host name `chat.example`
/// accepts them.
const HOSTS: &[(&str, bool)] = &[
    // Hosts that a browser on this machine sends.
    ("localhost", true),
    ("localhost:3000", true),
    ("LocalHost:3000", true),
    ("localhost.", true),
    ("localhost.:3000", true),
    ("chat.localhost:3000", true),
    ("127.0.0.1", true),
    ("127.0.0.1:3000", true),
    ("127.8.8.8:3000", true),
    ("[::1]", true),
    ("[::1]:3000", true),
    ("[0:0:0:0:0:0:0:1]:3000", true),
    ("[::ffff:7f00:1]:3000", true),
    // IP addresses, which need no name server.
    ("0.0.0.0:3000", true),
    ("192.168.1.5:3000", true),
    ("[fe80::1]:3000", true),
    ("8.8.8.8", true),
    // The allowed host name.
    ("chat.example", true),
    ("chat.example:443", true),
    ("chat.example.:8443", true),
    ("CHAT.Example", true),
    // Names that resolve to this server.
    ("evil.example", false),
    ("evil.example:3000", false),
    ("evil", false),
    ("localhost.evil.example", false),
    ("localhost.evil.example:3000", false),
    ("evil-localhost", false),
    ("evillocalhost:3000", false),
    ("localhost.localdomain", false),
    ("127.0.0.1.evil.example:3000", false),
    ("127.0.0.1.nip.io:3000", false),
    ("127-0-0-1.evil.example", false),
    ("chat.example.evil.example", false),
    ("evilchat.example", false),
    ("evil.chat.example", false),
    ("example", false),
    ("xn--lcalhost-o4a:3000", false),
    ("null", false),
    // Hosts that a careless parser takes for an allowed one.
    ("evil.example:localhost", false),
    ("evil.example:3000:localhost", false),
    ("localhost@evil.example", false),
    ("localhost:3000@evil.example:3000", false),
    ("evil.example@localhost", false),
    ("evil.example@127.0.0.1:3000", false),
    ("user:password@localhost:3000", false),
    ("evil.example/localhost", false),
    ("evil.example#.localhost", false),
    ("evil.example?.localhost", false),
    ("evil.example\\.localhost", false),
    ("evil.example .localhost", false),
    ("evil.example\t.localhost", false),
    ("evil.example,localhost", false),
    ("localhost, evil.example", false),
    ("http://localhost", false),
    ("//localhost", false),
    ("*", false),
    ("*.localhost", false),
    ("%6cocalhost", false),
    ("localhost%00.evil.example", false),
    ("ｌｏｃａｌｈｏｓｔ", false),
    ("lоcalhost:3000", false), // a Cyrillic letter
    ("localhost。", false),
    ("bücher.example", false),
    // Empty hosts, dots and invalid ports.
    ("", false),
    (":3000", false),
    (".", false),
    ("..", false),
    (".localhost", false),
    ("evil..localhost", false),
    ("localhost..", false),
    ("localhost:", true), // RFC 3986 lets the port be empty
    ("localhost:port", false),
    ("localhost:-1", false),
    ("localhost:+80", false),
    ("localhost:65536", false),
    ("localhost:3000 ", false),
    ("localhost: 3000", false),
    ("localhost:3000.", false),
    ("localhost:0x50", false),
    // Addresses that only a URL parser accepts: a browser sends their normalised form.
    ("127.1:3000", false),
    ("127.0.1", false),
    ("2130706433", false),
    ("0x7f.1", false),
    ("0x7f000001:3000", false),
    ("0X7F.0.0.1", false),
    ("0177.0.0.1", false),
    ("127.0.0.01", false),
    ("127.0.0.256", false),
    ("127.0.0.1.1", false),
    ("evil.example.1", false),
    ("evil.example.0x", false),
    ("::1", false),
    ("::1:3000", false),
    ("[::1", false),
    ("::1]", false),
    ("[]", false),
    ("[::1]3000", false),
    ("[::1].evil.example", false),
    ("[::1]:port", false),
    ("[::1%25lo]", false),
    ("[localhost]", false),
    ("[127.0.0.1]", false),
    ("[::1]@evil.example", false),
    ("[v1.evil]", false),
];

#[tokio::test]
async fn every_route_accepts_and_rejects_the_hosts_of_the_table() {
    assert!(HOSTS.len() >= 40);
    for (host, is_taken) in HOSTS {
        let server = Server::with(ChatPolicy::default().allow_host("chat.example"));
        for (method, uri) in ROUTES {
            let mut request = request(method, uri, &[JSON, ("sec-fetch-site", "same-origin")]);
            let value = HeaderValue::from_bytes(host.as_bytes()).unwrap();
            request.headers_mut().insert(header::HOST, value);
            let answer = server.answer(request).await;
            let expected = if *is_taken { StatusCode::OK } else { StatusCode::FORBIDDEN };
            assert_eq!(answer.status, expected, "{host:?} {uri}: {}", answer.text);
        }
        assert_eq!(server.effects(), if *is_taken { 3 } else { 0 }, "{host:?}");
    }
}

#[tokio::test]
async fn a_page_by_dns_rebinding_has_no_effect_though_its_origin_is_the_host() {
    let server = Server::bare();
    let rebound = [("host", "evil.example:3000"), JSON, ("origin", "http://evil.example:3000")];
    let answer = server.post(&rebound).await;
    assert_eq!(answer.status, StatusCode::FORBIDDEN);
    let same_origin = [("host", "evil.example:3000"), ("sec-fetch-site", "same-origin")];
    let judged = server.answer(request(Method::GET, "/judged", &same_origin)).await;
    assert_eq!(judged.status, StatusCode::FORBIDDEN);
    assert_eq!(server.effects(), 0);

    // That route has no policy layer, so it accepts the request.
    server.answer(request(Method::GET, "/api/world", &same_origin)).await;
    assert_eq!(server.effects(), 1);
}

#[tokio::test]
async fn the_rejection_of_a_host_names_the_setting_that_allows_it() {
    let named = [("host", "Chat.Example:8080"), JSON, ("origin", "https://chat.example:8080")];
    let answer = Server::bare().post(&named).await;
    assert_eq!(answer.status, StatusCode::FORBIDDEN);
    assert_eq!(answer.headers[header::CONTENT_TYPE], "text/plain; charset=utf-8");
    assert_eq!(
        answer.text,
        "this server does not know that it is \"chat.example\"; if it is, name it with \
         `ChatPolicy::allow_host(\"chat.example\")`"
    );
    for unclear in ["chat.example:x", "a@chat.example", &"chat.".repeat(51)] {
        let answer = Server::bare().post(&[("host", unclear), JSON]).await;
        assert_eq!(
            answer.text,
            "the request must name one host as browsers do, `chat.example` or `127.0.0.1:3000`"
        );
    }
    for host in ["chat.example", "CHAT.example.", "chat.example:443"] {
        let server = Server::with(ChatPolicy::default().allow_host(host));
        assert_eq!(server.post(&named).await.status, StatusCode::OK, "{host}");
    }
    for host in ["https://chat.example", "chat.example/", "*.example", "", "127.0.0.1"] {
        let server = Server::with(ChatPolicy::default().allow_host(host));
        assert_eq!(server.post(&named).await.status, StatusCode::FORBIDDEN, "{host}");
        assert_eq!(server.post(&[LOCAL, JSON]).await.status, StatusCode::OK, "{host}");
    }
    let any = Server::with(ChatPolicy::default().allow_any_host());
    assert_eq!(any.post(&named).await.status, StatusCode::OK);
}

#[tokio::test]
async fn an_allowed_origin_is_not_an_allowed_host_and_vice_versa() {
    let evil = [("host", "evil.example"), JSON, ("origin", "https://front.example")];
    let origin = Server::with(ChatPolicy::default().allow_origin("https://front.example"));
    assert_eq!(origin.post(&evil).await.status, StatusCode::FORBIDDEN);
    let any_origin = Server::with(ChatPolicy::default().allow_any_origin());
    assert_eq!(any_origin.post(&evil).await.status, StatusCode::FORBIDDEN);
    let any_host = Server::with(ChatPolicy::default().allow_any_host().allow_host("chat.example"));
    assert_eq!(any_host.post(&evil).await.status, StatusCode::FORBIDDEN);
    assert_eq!(origin.effects() + any_origin.effects() + any_host.effects(), 0);
}

#[tokio::test]
async fn two_host_headers_are_rejected_even_if_both_are_allowed() {
    let server = Server::with(ChatPolicy::default());
    for (first, second) in
        [("localhost", "evil.example"), ("evil.example", "localhost"), ("localhost", "localhost")]
    {
        let two = [("host", first), ("host", second), JSON];
        assert_eq!(server.post(&two).await.status, StatusCode::FORBIDDEN, "{first} {second}");
        let get = request(Method::GET, "/api/world", &two);
        assert_eq!(server.answer(get).await.status, StatusCode::FORBIDDEN, "{first} {second}");
    }
    assert_eq!(server.effects(), 0);
}

/// HTTP/2 has the host in the URI, and a client of a proxy may send it there in HTTP/1.1.
#[tokio::test]
async fn the_host_in_the_uri_is_checked_and_must_equal_the_header() {
    let server = Server::with(ChatPolicy::default());
    for (uri, host, is_taken) in [
        ("http://localhost:3000/api/chat", None, true),
        ("http://localhost:3000/api/chat", Some("localhost"), true),
        ("https://[::1]/api/chat", Some("[0::1]:443"), true),
        ("http://evil.example/api/chat", None, false),
        ("http://evil.example/api/chat", Some("evil.example"), false),
        ("http://evil.example/api/chat", Some("localhost"), false),
        ("http://localhost/api/chat", Some("evil.example"), false),
        ("http://localhost/api/chat", Some("127.0.0.1"), false),
        ("http://localhost@evil.example/api/chat", None, false),
        ("http://evil.example@localhost/api/chat", None, false),
    ] {
        let host = host.map(|host| ("host", host));
        let headers: Vec<_> = [JSON].into_iter().chain(host).collect();
        let before = server.effects();
        let answer = server.answer(request(Method::POST, uri, &headers)).await;
        let expected = if is_taken { StatusCode::OK } else { StatusCode::FORBIDDEN };
        assert_eq!(answer.status, expected, "{uri} {host:?}");
        assert_eq!(server.effects() - before, usize::from(is_taken), "{uri} {host:?}");
    }
}

#[tokio::test]
async fn forwarded_host_headers_of_a_proxy_are_ignored() {
    let server = Server::bare();
    for header in ["x-forwarded-host", "forwarded", "x-host", "x-original-host"] {
        let value = if header == "forwarded" { "host=localhost" } else { "localhost" };
        let answer = server.post(&[("host", "evil.example"), (header, value), JSON]).await;
        assert_eq!(answer.status, StatusCode::FORBIDDEN, "{header}");
    }
    assert_eq!(server.effects(), 0);
}

#[tokio::test]
async fn a_request_without_a_host_is_accepted_because_browsers_always_send_one() {
    let server = Server::with(ChatPolicy::default());
    assert_eq!(server.post(&[JSON]).await.status, StatusCode::OK);
    let with_origin = [JSON, ("origin", "http://evil.example")];
    assert_eq!(server.post(&with_origin).await.status, StatusCode::FORBIDDEN);
    assert_eq!(server.effects(), 1);
}

#[tokio::test]
async fn of_two_nested_policies_both_apply() {
    let inner = ChatPolicy::default().allow_host("chat.example").allow_host("inner.example");
    let outer = ChatPolicy::default().allow_host("chat.example").allow_host("outer.example");
    let server = Server::with(inner);
    let routes = server.routes.clone().layer(outer);
    let server = Server { routes, ..server };
    for (host, is_taken) in
        [("chat.example", true), ("inner.example", false), ("outer.example", false)]
    {
        let answer = server.post(&[("host", host), JSON]).await;
        assert_eq!(answer.status == StatusCode::OK, is_taken, "{host}");
    }
    assert_eq!(server.effects(), 1);
}

#[tokio::test]
async fn a_handler_can_read_the_reason_of_a_rejection() {
    let routes = Router::new().route(
        "/",
        get(async |policy: Result<ChatPolicy, ChatRejection>| match policy {
            Err(refused) if refused.kind() == ChatRejectionKind::HostNotAllowed => "foreign host",
            Err(_) => "refused",
            Ok(_) => "taken",
        }),
    );
    for (headers, expected) in [
        (&[("host", "evil.example")][..], "foreign host"),
        (&[("host", "evil.example:x")], "foreign host"),
        (&[LOCAL, ("origin", "https://evil.example")], "refused"),
        (&[LOCAL], "taken"),
    ] {
        let request = request(Method::GET, "/", headers);
        let response = routes.clone().oneshot(request).await.into_response();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(body, expected);
    }
}

/// The policy checks the host as hyper parses it.
#[tokio::test]
async fn the_same_hosts_are_rejected_over_a_socket() {
    let server = Server::with(ChatPolicy::default());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let routes = server.routes.clone();
    tokio::spawn(async move { axum::serve(listener, routes).await });
    for (head, status) in [
        ("GET /api/world HTTP/1.1\r\nHost: localhost\r\n", "200"),
        ("GET /api/world HTTP/1.0\r\n", "200"),
        ("GET http://localhost/api/world HTTP/1.1\r\nHost: localhost\r\n", "200"),
        ("GET /api/world HTTP/1.1\r\nHost: evil.example\r\n", "403"),
        ("GET /api/world HTTP/1.1\r\nhOsT:\tevil.example \r\n", "403"),
        ("GET /api/world HTTP/1.1\r\nHost:\r\n", "403"),
        ("GET /api/world HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n", "403"),
        ("GET http://evil.example/api/world HTTP/1.1\r\nHost: localhost\r\n", "403"),
        ("GET http://localhost/api/world HTTP/1.1\r\nHost: evil.example\r\n", "403"),
        ("HEAD /api/world HTTP/1.1\r\nHost: evil.example\r\n", "403"),
        ("DELETE /api/chat/c/stream HTTP/1.1\r\nHost: evil.example\r\n", "403"),
    ] {
        let before = server.effects();
        let mut socket = TcpStream::connect(address).await.unwrap();
        let sent = format!("{head}Connection: close\r\n\r\n");
        socket.write_all(sent.as_bytes()).await.unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).await.unwrap();
        assert_eq!(answer.split(' ').nth(1), Some(status), "{head:?}: {answer}");
        assert_eq!(server.effects() - before, usize::from(status == "200"), "{head:?}");
        assert_eq!(answer.contains("secrets"), status == "200", "{head:?}");
    }
}
