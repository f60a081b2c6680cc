//! The policy as a function of the head of a request, as a server without axum calls it.

use axum::http::Request;
use axum::http::request::Parts;
use ui_message_stream::policy::{ChatPolicy, PolicyError};
use ui_message_stream::request::Limits;

fn head(method: &str, headers: &[(&str, &str)]) -> Parts {
    let mut request = Request::builder().method(method).uri("/api/chat");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(()).unwrap().into_parts().0
}

const HOST: (&str, &str) = ("host", "127.0.0.1:3000");
const JSON: (&str, &str) = ("content-type", "application/json");
const TEXT: (&str, &str) = ("content-type", "text/plain");

#[test]
fn a_cross_site_post_of_text_is_refused() {
    let policy = ChatPolicy::default();
    for (headers, expected) in [
        // What a browser sends for `fetch(url, {method: "POST", mode: "no-cors", body})`.
        (
            vec![HOST, TEXT, ("origin", "https://evil.example"), ("sec-fetch-site", "cross-site")],
            PolicyError::OriginNotAllowed("https://evil.example".to_owned()),
        ),
        (vec![HOST, TEXT, ("sec-fetch-site", "cross-site")], PolicyError::CrossSite),
        // An old browser does not name the page.
        (vec![HOST, TEXT], PolicyError::UnsupportedMediaType),
        (vec![HOST], PolicyError::UnsupportedMediaType),
        (vec![HOST, JSON, TEXT], PolicyError::UnsupportedMediaType),
        (vec![HOST, JSON, ("origin", "null")], PolicyError::OriginNotAllowed("null".to_owned())),
        (
            vec![("host", "evil.example"), JSON, ("origin", "http://evil.example")],
            PolicyError::HostNotAllowed("evil.example".to_owned()),
        ),
        (vec![("host", "a"), ("host", "a"), JSON], PolicyError::InvalidHost),
    ] {
        assert_eq!(policy.check(&head("POST", &headers)), Err(expected), "{headers:?}");
    }
    for headers in [vec![HOST, JSON], vec![HOST, JSON, ("origin", "http://127.0.0.1:3000")]] {
        assert_eq!(policy.check(&head("POST", &headers)), Ok(()), "{headers:?}");
    }
}

#[test]
fn only_a_request_with_a_body_needs_a_content_type() {
    let policy = ChatPolicy::default();
    for method in ["GET", "HEAD", "OPTIONS", "DELETE"] {
        assert_eq!(policy.check(&head(method, &[HOST])), Ok(()), "{method}");
        let foreign = head(method, &[HOST, ("origin", "https://evil.example")]);
        assert!(policy.check(&foreign).is_err(), "{method}");
    }
    for method in ["POST", "PUT", "PATCH", "QUERY"] {
        let error = policy.check(&head(method, &[HOST, TEXT])).unwrap_err();
        assert_eq!(error, PolicyError::UnsupportedMediaType, "{method}");
        // A route that takes another content type.
        assert_eq!(policy.check_host_and_origin(&head(method, &[HOST, TEXT])), Ok(()), "{method}");
    }
}

#[test]
fn a_refusal_has_a_status_and_names_the_setting() {
    for (error, status, text) in [
        (PolicyError::HostNotAllowed("a".to_owned()), 403, "ChatPolicy::allow_host(\"a\")"),
        (PolicyError::InvalidHost, 403, "must name one host"),
        (PolicyError::OriginNotAllowed("b".to_owned()), 403, "ChatPolicy::allow_origin"),
        (PolicyError::CrossSite, 403, "ChatPolicy::allow_origin"),
        (PolicyError::UnsupportedMediaType, 415, "application/json"),
    ] {
        assert_eq!(error.status(), status, "{error}");
        assert!(error.to_string().contains(text), "{error}");
    }
    let limits = Limits::default().with_max_bytes(7);
    assert_eq!(ChatPolicy::default().with_limits(limits).limits().max_bytes(), 7);
}

#[test]
fn a_refusal_does_not_repeat_a_long_origin() {
    let long = format!("https://{}", "x".repeat(5000));
    let origin = [HOST, JSON, ("origin", &*long)];
    let error = ChatPolicy::default().check(&head("POST", &origin)).unwrap_err();
    assert!(error.to_string().len() < 300, "{error}");
}
