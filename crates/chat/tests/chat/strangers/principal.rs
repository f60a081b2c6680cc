//! Who may use the routes: no request without a principal, users behind cookies, and the layer
//! for servers without authentication.

use std::net::{SocketAddr, UdpSocket};

use axum::extract::Request;
use axum::extract::connect_info::{ConnectInfo, MockConnectInfo};
use axum::http::{Method, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router};
use axum_extra::extract::cookie::{Cookie, Key, PrivateCookieJar};
use chat_test_support::answers;
use chat_test_support::test_server::Host;
use serde_json::json;
use test_support::requests::user_message;
use test_support::responses::text_of;
use test_support::thread_subscriber::captured;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use ui_message_stream::approval::Principal;
use ui_message_stream::axum::{
    ChatRejection, ChatRejectionKind, LocalAddress, without_authentication,
};
use ui_message_stream_chat::axum::{approval_routes, chat_routes};

/// Sends a request with these headers and returns the status and the text of the response.
async fn send(
    routes: &Router,
    (method, path, body): (&str, &str, &str),
    headers: &[(&str, &str)],
) -> (StatusCode, String) {
    let method = Method::from_bytes(method.as_bytes()).unwrap();
    let response = answers::send(routes, method, path, headers, body.to_owned()).await;
    (response.status(), text_of(response.into_body()).await)
}

fn routes(host: &Host) -> Router {
    Router::new()
        .nest("/api/chat", chat_routes(host.chats.clone()))
        .nest("/api/approvals", approval_routes(host.chats.clone()))
}

/// A message that makes the model ask for a deletion, in a chat.
fn message(chat: &str) -> String {
    json!({"id": chat, "messages": [user_message("u", "delete notes.txt")]}).to_string()
}

#[tokio::test]
async fn a_stranger_gets_401_on_every_route_and_nothing_happens() {
    let (host, mut alice) = Host::with_alice("delete notes.txt").await;
    let answered = alice.answered(true).to_string();
    let id = alice.approval_ids()[0].clone();
    let decision = json!({"decisions": [{"approvalId": id, "approved": true}]}).to_string();
    let denial = json!({"chatId": "chat", "approved": false}).to_string();
    let message = message("new");
    for request in [
        ("POST", "/api/chat", answered.as_str()),
        ("POST", "/api/chat", &message),
        ("POST", "/api/chat/chat/answers", &decision),
        ("GET", "/api/chat/chat", ""),
        ("GET", "/api/chat/nowhere", ""),
        ("HEAD", "/api/chat/chat", ""),
        ("GET", "/api/chat/chat/stream", ""),
        ("DELETE", "/api/chat/chat/stream", ""),
        ("GET", "/api/chat", ""),
        ("DELETE", "/api/chat/chat", ""),
        ("GET", "/api/approvals", ""),
        ("POST", "/api/approvals", &decision),
        ("POST", "/api/approvals", &denial),
    ] {
        let (status, text) = send(&routes(&host), request, &[]).await;
        assert_eq!(status, StatusCode::UNAUTHORIZED, "{request:?}: {text}");
        if request.0 != "HEAD" {
            assert_eq!(text, "Not signed in.");
        }
    }
    assert!(host.tools.effects().is_empty());
    assert_eq!(host.model.prompts().len(), 1);
    assert_eq!(host.pending("alice").await.len(), 1);
    alice.answer(&host, true).await;
    assert_eq!(host.tools.effects().len(), 1);
}

/// The authentication of the agent's README: a cookie that only this server can have made names the user.
async fn authenticate(cookies: PrivateCookieJar, mut request: Request, next: Next) -> Response {
    if let Some(session) = cookies.get("session") {
        request.extensions_mut().insert(Principal::new(session.value()));
    }
    next.run(request).await
}

#[tokio::test]
async fn only_a_cookie_that_this_server_has_made_identifies_its_user() {
    let host = Host::new();
    let key = Key::generate();
    let app = routes(&host).layer(from_fn_with_state(key.clone(), authenticate));
    let (alice, bob) = (session(&key, "alice"), session(&key, "bob"));
    let ask = async |cookie: &str, request: (&str, &str, &str)| {
        send(&app, request, &[("cookie", cookie)]).await
    };
    let (status, asked) = ask(&alice, ("POST", "/api/chat", &message("hers"))).await;
    assert!(status == StatusCode::OK && asked.contains("tool-approval-request"), "{asked}");
    for (cookie, waits) in [(&alice, true), (&bob, false)] {
        let (status, text) = ask(cookie, ("GET", "/api/approvals", "")).await;
        assert_eq!((status, text.contains("approvalId")), (StatusCode::OK, waits), "{text}");
    }
    // A cookie that is changed, of another name, or of another server identifies no user.
    let other = if alice.starts_with("session=A") { 'B' } else { 'A' };
    let changed = format!("session={other}{}", &alice["session=A".len()..]);
    let moved = cookie(&key, "nickname", "alice").replacen("nickname", "session", 1);
    let foreign = session(&Key::generate(), "alice");
    for cookie in [&changed, &moved, &foreign, "session=alice", ""] {
        let (status, _) = ask(cookie, ("GET", "/api/approvals", "")).await;
        assert_eq!(status, StatusCode::UNAUTHORIZED, "{cookie}");
    }
}

/// The `Cookie` header of a browser in which this user has logged in.
fn session(key: &Key, user: &str) -> String {
    cookie(key, "session", user)
}

fn cookie(key: &Key, name: &'static str, value: &str) -> String {
    let cookies = PrivateCookieJar::new(key.clone());
    let login = cookies.add(Cookie::new(name, value.to_owned())).into_response();
    let set = login.headers()[header::SET_COOKIE].to_str().unwrap();
    set.split(';').next().unwrap().to_owned()
}

/// A route that says who asks.
fn who() -> Router {
    Router::new().route("/", get(async |user: Principal| user.to_string()))
}

const WHO: (&str, &str, &str) = ("GET", "/", "");

#[tokio::test]
async fn a_route_of_the_host_takes_the_principal_too() {
    assert_eq!(send(&who(), WHO, &[]).await.0, StatusCode::UNAUTHORIZED);
    let ada = who().layer(Extension(Principal::new("ada")));
    assert_eq!(send(&ada, WHO, &[]).await, (StatusCode::OK, "ada".to_owned()));

    let optional = async |user: Result<Principal, ChatRejection>| match user {
        Ok(user) => user.to_string(),
        Err(error) => format!("{:?}", error.kind()),
    };
    let routes = Router::new().route("/", get(optional));
    let kind = format!("{:?}", ChatRejectionKind::Unauthenticated);
    assert_eq!(send(&routes, WHO, &[]).await, (StatusCode::OK, kind));
}

#[tokio::test]
async fn without_authentication_all_are_one_anonymous_user() {
    let host = Host::new();
    let app = routes(&host).layer(without_authentication());
    let (status, _) = send(&app, ("POST", "/api/chat", &message("chat")), &[]).await;
    assert_eq!(status, StatusCode::OK);
    let (status, text) = send(&app, ("GET", "/api/approvals", ""), &[]).await;
    assert!(status == StatusCode::OK && text.contains("notes.txt"), "{text}");
    let waiting = host.chats.approvals().pending(&Principal::anonymous()).await.unwrap();
    assert_eq!(waiting.len(), 1);
    // It replaces no user, wherever the authentication stands.
    for app in [
        who().layer(without_authentication()).layer(Extension(Principal::new("ada"))),
        who().layer(Extension(Principal::new("ada"))).layer(without_authentication()),
    ] {
        assert_eq!(send(&app, WHO, &[]).await.1, "ada");
    }
}

#[tokio::test]
async fn without_authentication_the_start_is_logged_as_a_warning() {
    let (log, guard) = captured();
    let layer = without_authentication();
    drop(guard);
    let text = log.text();
    assert_eq!(text.matches("WARN").count(), 1, "{text}");
    assert!(text.contains("every client is the same anonymous user"), "{text}");
    assert_eq!(send(&who().layer(layer), WHO, &[]).await.1, "anonymous");
}

#[tokio::test]
async fn without_authentication_only_this_machine_is_served_where_the_address_is_known() {
    let table = [
        ("127.0.0.1:3000", true),
        ("127.8.8.8:3000", true),
        ("[::1]:3000", true),
        ("[::ffff:127.0.0.1]:3000", true),
        ("0.0.0.0:3000", false),
        ("192.168.1.5:3000", false),
        ("8.8.8.8:3000", false),
        ("[::]:3000", false),
        ("[fe80::1]:3000", false),
        ("[::ffff:192.168.1.5]:3000", false),
    ];
    for (address, is_served) in table {
        let address = LocalAddress(address.parse().unwrap());
        let anonymous = || who().layer(without_authentication());
        for app in [
            anonymous().layer(Extension(address)),
            anonymous().layer(Extension(ConnectInfo(address))),
            anonymous().layer(MockConnectInfo(address)),
        ] {
            let (status, text) = send(&app, WHO, &[]).await;
            let expected = if is_served { StatusCode::OK } else { StatusCode::FORBIDDEN };
            assert_eq!(status, expected, "{address:?}: {text}");
            // The text does not tell the address, which may be one of a private network.
            let told = !is_served && text.contains(&address.0.ip().to_string());
            assert!(!told, "{text}");
        }
        // A user who is known may ask from anywhere.
        let known = anonymous().layer(Extension(address)).layer(Extension(Principal::new("ada")));
        assert_eq!(send(&known, WHO, &[]).await.1, "ada");
    }
    // The address of the client is not the address of this server.
    let remote: SocketAddr = "8.8.8.8:1024".parse().unwrap();
    let app = who().layer(without_authentication()).layer(Extension(ConnectInfo(remote)));
    assert_eq!(send(&app, WHO, &[]).await.1, "anonymous");
}

#[tokio::test]
async fn axum_says_on_which_address_a_connection_arrived() {
    let app = Router::new()
        .route("/", get(async |ConnectInfo(at): ConnectInfo<LocalAddress>| at.0.to_string()))
        .layer(without_authentication());
    let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let app = app.into_make_service_with_connect_info::<LocalAddress>();
    tokio::spawn(async move { axum::serve(listener, app).await });
    let ask = async |address: SocketAddr| {
        let mut socket = TcpStream::connect(address).await.unwrap();
        let from = socket.local_addr().unwrap();
        socket.write_all(b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).await.unwrap();
        (from, answer)
    };
    let loopback = SocketAddr::from(([127, 0, 0, 1], port));
    let (from, answer) = ask(loopback).await;
    assert_ne!(from, loopback);
    assert!(answer.ends_with(&format!("\r\n\r\n{loopback}")), "{from}: {answer}");
    // The address of this machine in its network, if it has one.
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    if socket.connect("192.0.2.1:9").is_ok() {
        let own = SocketAddr::new(socket.local_addr().unwrap().ip(), port);
        let (_, answer) = ask(own).await;
        assert!(answer.starts_with("HTTP/1.1 403 "), "{own}: {answer}");
        assert!(answer.contains("this server has no authentication"), "{answer}");
    }
}
