//! The mail reaches a real mail server, and `openssl` computes the same signature of the webhook.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use axum::Router;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use notify::{Mail, Webhook};
use test_support::eventually;
use test_support::external_processes::missing;
use tokio::sync::mpsc;
use ui_message_stream::Json;
use ui_message_stream::approval::{Approvals, Notifier, Principal, ToolList};

/// Requests the approval of a call, revokes it, and delivers both events.
async fn ask_and_revoke(notifier: impl Notifier) {
    let tools = ToolList::new().tool("transfer", "Transfers money.", &Json::no_schema());
    let approvals = Approvals::new(tools).with_notifier(notifier);
    let chat = approvals.for_chat(&Principal::new("ada"), &"chat".into());
    let input = Json::parse(r#"{"euros": 40}"#).unwrap();
    let description = Some("Transfer 40 € to Bob");
    let issued = chat
        .request_approval(&"message".into(), &"call".into(), "transfer", &input, description)
        .await
        .unwrap();
    approvals.revoke(issued.record).await.unwrap();
    approvals.deliver_due().await.unwrap();
}

#[tokio::test]
async fn a_webhook_posts_each_event_with_the_signature_that_openssl_computes() {
    let (sender, mut received) = mpsc::unbounded_channel();
    let receive = async move |headers: HeaderMap, body: String| {
        sender.send((headers, body)).unwrap();
        StatusCode::NO_CONTENT
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/approvals", listener.local_addr().unwrap());
    tokio::spawn(async move {
        axum::serve(listener, Router::new().route("/approvals", post(receive))).await
    });
    let secret = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3";
    ask_and_revoke(Webhook::new(&url, secret).unwrap()).await;
    for (number, kind) in [(0, "requested"), (1, "revoked")] {
        let (headers, body) = received.recv().await.unwrap();
        assert!(body.contains(&format!(r#""event":"{kind}""#)), "{body}");
        assert!(body.contains(r#""description":"Transfer 40 € to Bob","input":{"euros": 40}"#));
        let header = |name: &str| headers[name].to_str().unwrap().to_owned();
        let (id, time) = (header("webhook-id"), header("webhook-timestamp"));
        assert!(id.ends_with(&format!("-{number}")), "{id}");
        let Some(signature) = openssl(&format!("{id}.{time}.{body}")) else { return };
        assert_eq!(header("webhook-signature"), format!("v1,{signature}"));
    }
}

/// The HMAC with the secret of the test.
fn openssl(text: &str) -> Option<String> {
    let script = "openssl dgst -sha256 -hmac 0123456789abcdef01234567 -binary | openssl base64 -A";
    let mut process = Command::new("sh")
        .args(["-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    process.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let signature = String::from_utf8(process.wait_with_output().unwrap().stdout).unwrap();
    if signature.is_empty() {
        missing("openssl is not installed");
    }
    (!signature.is_empty()).then_some(signature)
}

#[test]
fn a_webhook_needs_a_secret_that_nobody_guesses() {
    for secret in ["", "secret", "whsec_", "whsec_c2hvcnQ=", "whsec_***"] {
        assert!(Webhook::new("http://127.0.0.1", secret).is_err(), "{secret}");
    }
}

struct MailServer(Child);

impl Drop for MailServer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn a_mail_reaches_a_mail_server_and_says_who_asks_for_what() {
    // The Python of the system, which has the package `python3-aiosmtpd`.
    let program = Path::new("/usr/bin/aiosmtpd");
    if !program.exists() {
        return missing("aiosmtpd is not installed");
    }
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let log = std::env::temp_dir().join(format!("ui-message-stream-mail-{port}"));
    let server = Command::new(program)
        .args(["-n", "-l", &format!("127.0.0.1:{port}")])
        .stdout(std::fs::File::create(&log).unwrap())
        .stderr(Stdio::null())
        .env("PYTHONUNBUFFERED", "1")
        .spawn();
    let _server = MailServer(server.unwrap());
    eventually(async || TcpStream::connect(("127.0.0.1", port)).is_ok()).await;
    let url = format!("smtp://127.0.0.1:{port}");
    ask_and_revoke(Mail::new(&url, "Chat <chat@example.com>", "finance@example.com").unwrap())
        .await;
    let mail = std::fs::read_to_string(&log).unwrap();
    std::fs::remove_file(&log).unwrap();
    for line in ["To: finance@example.com", "Subject: Please decide: transfer", "ada asks:"] {
        assert_eq!(mail.matches(line).count(), 1, "{mail}");
    }
    assert!(mail.contains("Transfer 40 =E2=82=AC to Bob"), "{mail}");
}
