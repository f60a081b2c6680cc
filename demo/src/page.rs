//! The page of the demo, and the headers that protect it.

use axum::http::HeaderName;
use axum::http::header::{CONTENT_SECURITY_POLICY, X_CONTENT_TYPE_OPTIONS};
use axum::response::Html;
use uuid::Uuid;

/// Returns the page with its headers.
///
/// The policy allows the page's own script and style, images in the messages themselves, and
/// requests to this server. No other page may show it in a frame, where a user could be led to
/// click on Approve.
pub(crate) fn page() -> ([(HeaderName, String); 2], Html<String>) {
    let nonce = Uuid::new_v4().simple();
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; \
         img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; \
         frame-ancestors 'none'"
    );
    let headers =
        [(CONTENT_SECURITY_POLICY, policy), (X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned())];
    (headers, Html(include_str!("page.html").replace("{nonce}", &nonce.to_string())))
}
