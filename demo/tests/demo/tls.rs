//! A Redis that requires TLS.

use std::net::TcpListener;
use std::process::{Command, Stdio};

use serde_json::json;
use test_support::external_processes::redis_server::RedisServer;
use test_support::external_processes::{DataFolder, Example, built_example, missing};

use crate::http::{Stream, history, message, text_of};

#[test]
fn the_demo_keeps_its_chats_in_a_redis_that_requires_tls_and_checks_its_certificate() {
    let folder = DataFolder::new();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let key = path("key.pem");
    let certificate = path("certificate.pem");
    let created = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=test"])
        .args(["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", &key, "-out", &certificate])
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .stderr(Stdio::null())
        .status();
    if !created.is_ok_and(|status| status.success()) {
        return missing("openssl cannot create a certificate");
    }
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let settings = [
        ["--tls-port", &port.to_string()],
        ["--tls-key-file", &key],
        ["--tls-cert-file", &certificate],
        ["--tls-ca-cert-file", &certificate],
        ["--tls-auth-clients", "no"],
    ];
    let Some(_redis) = RedisServer::start_with(settings.as_flattened()) else { return };
    let store = ("CHAT_STORE", format!("rediss://127.0.0.1:{port}/"));
    let program = built_example("chat", &["--features", "demo/tls"]);
    // No system trusts this certificate.
    let refused = Command::new(&program).env(store.0, &store.1).output().unwrap();
    let error = String::from_utf8(refused.stderr).unwrap();
    assert!(error.contains("CHAT_STORE: cannot connect to Redis at 127.0.0.1:"), "{error}");
    assert!(error.contains("invalid peer certificate"), "{error}");

    let server = Example::run(&program, &[store, ("SSL_CERT_FILE", certificate.clone())]);
    let body = json!({"id": "c", "messages": [message("slow 3")]});
    let mut answer = Stream::post(&server, "/api/chat", &body);
    answer.read_to_end();
    assert_eq!((answer.text(), answer.error()), ("1 2 3 ".to_owned(), None));
    assert_eq!(text_of(&history(&server)), "1 2 3 ");
}
