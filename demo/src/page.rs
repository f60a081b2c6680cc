//! The pages of the demo, and the headers that protect them.

use axum::http::HeaderName;
use axum::http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use axum::response::Html;
use uuid::Uuid;

/// The page with one chat.
pub(crate) const CHAT: &str = include_str!("page.html");

/// The page that shows all chats of its user as they are now.
pub(crate) const ALL_CHATS: &str = include_str!("chats.html");

/// Returns a page with its headers.
///
/// The policy allows the page's own script with what it imports, its style, images in the messages
/// themselves, and requests to this server. No other page may show it in a frame, where a user could be led to
/// click on Approve.
pub(crate) fn page(html: &str) -> ([(HeaderName, String); 2], Html<String>) {
    let nonce = Uuid::new_v4().simple();
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; \
         img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; \
         frame-ancestors 'none'"
    );
    let headers =
        [(CONTENT_SECURITY_POLICY, policy), (X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned())];
    (headers, Html(html.replace("{nonce}", &nonce.to_string())))
}

/// Returns a script that a page imports. Like the page, it is read as the type that it has.
pub(crate) fn script(text: &'static str) -> ([(HeaderName, &'static str); 2], &'static str) {
    let headers = [(CONTENT_TYPE, "text/javascript"), (X_CONTENT_TYPE_OPTIONS, "nosniff")];
    (headers, text)
}

/// The scripts of the package for pages that the page with one chat imports.
pub(crate) const SCRIPTS: [(&str, &str); 2] = [
    ("/input-fields.mjs", include_str!("../../packages/client/src/input-fields.js")),
    ("/reconnecting-fetch.mjs", include_str!("../../packages/client/src/reconnecting-fetch.js")),
];
