//! The users of the demo: each browser is one, by a signed cookie. The demo checks no password, so
//! this only keeps the chats of several browsers apart.

use axum::extract::Request;
use axum::http::HeaderValue;
use axum::http::header::{CACHE_CONTROL, HOST, REFRESH};
use axum::http::uri::Authority;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum_extra::extract::cookie::{Cookie, SameSite, SignedCookieJar};
use ui_message_stream::approval::Principal;
use uuid::Uuid;

/// Makes a request with a valid cookie that of the browser's own user.
pub(crate) async fn identify(
    cookies: SignedCookieJar,
    mut request: Request,
    next: Next,
) -> Response {
    if let Some(user) = cookies.get(&cookie_name(&request)) {
        request.extensions_mut().insert(Principal::new(user.value()));
    }
    next.run(request).await
}

/// Sets the cookie of a browser that has none, with the page.
///
/// A browser withholds its cookies when a page of another site opens this one. Such a page must not
/// replace them, so the browser opens the page once more, from here, and then sends what it has.
pub(crate) async fn welcome(cookies: SignedCookieJar, request: Request, next: Next) -> Response {
    let name = cookie_name(&request);
    let is_known = cookies.get(&name).is_some();
    let site = request.headers().get("sec-fetch-site");
    let is_from_another_site = site.is_some_and(|site| site == "cross-site");
    let query = request.uri().query().unwrap_or_default();
    let is_opened_again = query.split('&').any(|pair| pair == OPENED_AGAIN);
    let chat = query.split('&').find(|pair| is_chat(pair)).map(str::to_owned);
    let mut response = next.run(request).await;
    if is_known || (is_from_another_site && is_opened_again) {
        return response;
    }
    if is_from_another_site {
        let chat = chat.map(|chat| format!("{chat}&")).unwrap_or_default();
        if let Ok(open_again) = HeaderValue::try_from(format!("0; url=/?{chat}{OPENED_AGAIN}")) {
            response.headers_mut().insert(REFRESH, open_again);
        }
        return response;
    }
    let user = Cookie::build((name, Uuid::new_v4().to_string()))
        .path("/")
        .http_only(true)
        .same_site(SameSite::Strict);
    // No cache may give the cookie to another browser.
    let no_store = HeaderValue::from_static("no-store");
    response.headers_mut().insert(CACHE_CONTROL, no_store);
    (cookies.add(user), response).into_response()
}

/// Returns the name of the cookie. It contains the port that the browser has opened, because a browser
/// sends the cookies of a host to all of its ports. Servers behind one proxy use the same name.
fn cookie_name(request: &Request) -> String {
    let host = request.headers().get(HOST).and_then(|host| host.to_str().ok());
    let authority = host.and_then(|host| host.parse::<Authority>().ok());
    match authority.and_then(|authority| authority.port_u16()) {
        Some(port) => format!("demo-user-{port}"),
        None => "demo-user".to_owned(),
    }
}

/// Whether a pair of a query names a chat, by an id that the page could have made.
fn is_chat(pair: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    pair.strip_prefix("chat=").is_some_and(|id| id.chars().all(is_allowed))
}

const OPENED_AGAIN: &str = "opened-again";
