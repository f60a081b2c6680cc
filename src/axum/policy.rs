//! [`ChatPolicy`]: for which host, from which pages and how large a request may be.

use ::axum::Extension;
use ::axum::extract::FromRequestParts;
use ::axum::middleware::{FromExtractorLayer, from_extractor};
use http::Method;
use http::header::{HOST, HeaderName, ORIGIN};
use http::request::Parts;
use http::uri::Authority;
use tower_layer::Layer;

use super::host::{Host, UnclearHost};
use super::rejection::ChatRejection;
use crate::request::Limits;

/// For which host, from which pages and how large a request may be.
///
/// Without it the defaults hold where a [`ChatRequest`](crate::ChatRequest) is extracted: this
/// server is an IP address or `localhost`, only its own pages may post, and
/// [`Limits::default`] replaces axum's own body limit. A server that has a name says so, with
/// [`allow_host`](Self::allow_host); a page of another origin, a Next.js app in front of this
/// server for instance, has to be named with [`allow_origin`](Self::allow_origin).
///
/// As a layer it tells the extractor, and guards whatever else it is laid around, `GET` and
/// `DELETE` too: what it refuses no handler sees. Where two are laid around each other, both judge
/// and the limits of the inner one hold.
///
/// ```
/// use axum::routing::{get, post};
/// use axum::Router;
/// use ui_message_stream::axum::ChatPolicy;
/// # async fn chat(_: ui_message_stream::ChatRequest) {}
/// # async fn history() {}
///
/// let app: Router = Router::new()
///     .route("/api/chat", post(chat))
///     .route("/api/history", get(history))
///     .layer(ChatPolicy::default().allow_host("chat.example"));
/// ```
///
/// As an extractor it is the policy laid around the route, else the default, once that one has let
/// the request pass: a handler that takes a `ChatPolicy` is guarded even where nobody laid one.
#[derive(Debug, Clone, Default)]
pub struct ChatPolicy {
    limits: Limits,
    hosts: Vec<String>,
    any_host: bool,
    origins: Vec<String>,
    any_origin: bool,
}

impl ChatPolicy {
    /// How large a request may be.
    #[must_use]
    pub fn with_limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Says that this server is `host`, `chat.example`: what a browser's `Host` header names, or
    /// what a proxy in front puts there. A port does not count; an international name is written
    /// as browsers send it, `xn--bcher-kva.example`.
    ///
    /// A request for a name that was not given is refused: by pointing a name of its own at
    /// 127.0.0.1 (DNS rebinding) a hostile page is of the same origin as a server there, and only
    /// the `Host` header still tells. IP addresses, `localhost` and names under it need not be
    /// given, since nobody can point them elsewhere; neither does a request without a `Host`, which
    /// no browser sends. All of this holds wherever the server listens, because this crate cannot
    /// know: a server behind a proxy on the same machine listens on loopback as well.
    ///
    /// `X-Forwarded-Host` is not read, since any client can send it. A proxy that puts an
    /// address into `Host` has to check the name itself.
    ///
    /// What cannot be read as a host is never matched, and warned of through `tracing`.
    #[must_use]
    pub fn allow_host(mut self, host: impl AsRef<str>) -> Self {
        let host = host.as_ref();
        match Host::parse(host) {
            Ok(Host::Name(name)) => self.hosts.push(name),
            Ok(Host::Address(_)) => {}
            Err(UnclearHost) => tracing::warn!(
                host,
                "`allow_host` takes a name as it stands in the `Host` header, without a scheme or \
                 a path; this one will match no request"
            ),
        }
        self
    }

    /// Answers for whatever host a request names. Only for a server that no browser on its own
    /// machine or network can reach but through a proxy that checks the name.
    #[must_use]
    pub fn allow_any_host(mut self) -> Self {
        self.any_host = true;
        self
    }

    /// Lets pages of this origin post: scheme, host and port as the browser sends them,
    /// `https://chat.example`. Also the way to name the pages of a server behind a proxy that
    /// changes the `Host` header.
    ///
    /// `null` is the origin of every page in a sandboxed frame, and of files: naming it lets all of
    /// them in.
    ///
    /// A browser asks for CORS headers as well, where the page is of another origin: that is
    /// `tower_http::cors::CorsLayer`, laid around this one.
    #[must_use]
    pub fn allow_origin(mut self, origin: impl Into<String>) -> Self {
        let origin = origin.into().to_ascii_lowercase();
        self.origins.push(without_default_port(origin.trim_end_matches('/')).to_owned());
        self
    }

    /// Lets every page of the web post, with the cookies of whoever looks at it. Only for a server
    /// that a hostile page gains nothing from.
    #[must_use]
    pub fn allow_any_origin(mut self) -> Self {
        self.any_origin = true;
        self
    }

    pub(super) fn into_limits(self) -> Limits {
        self.limits
    }

    /// Refuses a request for another host, and one that a page of another site made the browser
    /// send.
    fn judge(&self, request: &Parts) -> Result<(), ChatRejection> {
        self.check_host(request)?;
        self.check_origin(request)
    }

    fn check_host(&self, request: &Parts) -> Result<(), ChatRejection> {
        if self.any_host {
            return Ok(());
        }
        match Host::of_request(request) {
            Ok(None | Some(Host::Address(_))) => Ok(()),
            Ok(Some(Host::Name(name))) if is_localhost(&name) || self.hosts.contains(&name) => {
                Ok(())
            }
            Ok(Some(Host::Name(name))) => Err(ChatRejection::foreign_host(Some(name))),
            Err(UnclearHost) => Err(ChatRejection::foreign_host(None)),
        }
    }

    fn check_origin(&self, request: &Parts) -> Result<(), ChatRejection> {
        let headers = &request.headers;
        if self.any_origin {
            return Ok(());
        }
        if headers.get_all(ORIGIN).iter().count() > 1 {
            return Err(ChatRejection::foreign_origin(None));
        }
        let Some(origin) = headers.get(ORIGIN) else {
            // No browser, or none that says where the page is from.
            let mut sites = headers.get_all(&SEC_FETCH_SITE).iter();
            let is_foreign = sites.any(|site| site.as_bytes() == b"cross-site");
            return if is_foreign && !is_followed_link(request) {
                Err(ChatRejection::foreign_origin(None))
            } else {
                Ok(())
            };
        };
        let origin = origin.to_str().unwrap_or_default().to_ascii_lowercase();
        let in_uri = request.uri.authority().map(Authority::as_str);
        let host = in_uri.or_else(|| headers.get(HOST)?.to_str().ok());
        let is_own = host.is_some_and(|host| is_of_host(&origin, &host.to_ascii_lowercase()));
        if is_own || self.origins.iter().any(|named| named == without_default_port(&origin)) {
            Ok(())
        } else {
            Err(ChatRejection::foreign_origin(Some(origin)))
        }
    }
}

impl<S: Send + Sync> FromRequestParts<S> for ChatPolicy {
    type Rejection = ChatRejection;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        let policy = parts.extensions.get::<ChatPolicy>().cloned().unwrap_or_default();
        policy.judge(parts)?;
        Ok(policy)
    }
}

impl<S> Layer<S> for ChatPolicy {
    type Service = <Extension<ChatPolicy> as Layer<Guarded<S>>>::Service;

    fn layer(&self, inner: S) -> Self::Service {
        Extension(self.clone()).layer(from_extractor::<ChatPolicy>().layer(inner))
    }
}

/// A service that only a request taken by the policy reaches.
type Guarded<S> = <FromExtractorLayer<ChatPolicy, ()> as Layer<S>>::Service;

/// `localhost` and what is under it never leave the machine (RFC 6761, 6.3): no stranger's name
/// server has a say in where they lead.
fn is_localhost(name: &str) -> bool {
    name == "localhost" || name.ends_with(".localhost")
}

/// Whether the browser opens this as the page that the person sees, as a link makes it do: the page
/// with the link reads nothing of the answer, and does not hold it in a frame of its own.
fn is_followed_link(request: &Parts) -> bool {
    let is = |name: HeaderName, value: &[u8]| {
        request.headers.get(name).is_some_and(|sent| sent.as_bytes() == value)
    };
    matches!(request.method, Method::GET | Method::HEAD)
        && is(SEC_FETCH_MODE, b"navigate")
        && is(SEC_FETCH_DEST, b"document")
}

/// Whether an origin names this host. Its scheme does not count: behind a proxy that ends TLS the
/// server cannot know it.
fn is_of_host(origin: &str, host: &str) -> bool {
    let Some((scheme, origin_host)) = without_default_port(origin).split_once("://") else {
        return false;
    };
    matches!(scheme, "http" | "https")
        && origin_host
            == without_default_port(&format!("{scheme}://{host}")).split_at(scheme.len() + 3).1
}

/// An origin without a port that its scheme implies.
fn without_default_port(origin: &str) -> &str {
    let port = if origin.starts_with("https://") {
        ":443"
    } else if origin.starts_with("http://") {
        ":80"
    } else {
        return origin;
    };
    origin.strip_suffix(port).unwrap_or(origin)
}

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const SEC_FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");
const SEC_FETCH_DEST: HeaderName = HeaderName::from_static("sec-fetch-dest");

#[cfg(test)]
mod tests {
    use super::*;

    fn check(policy: &ChatPolicy, headers: &[(&str, &str)]) -> bool {
        let mut request = http::Request::post("/api/chat");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        policy.check_origin(&request.body(()).unwrap().into_parts().0).is_ok()
    }

    #[test]
    fn a_page_of_this_host_may_post() {
        let policy = ChatPolicy::default();
        for (origin, host) in [
            ("http://localhost:3000", "localhost:3000"),
            ("https://chat.example", "chat.example"),
            ("https://chat.example", "chat.example:443"),
            ("http://chat.example:80", "Chat.Example"),
            ("http://[::1]:3000", "[::1]:3000"),
        ] {
            assert!(check(&policy, &[("origin", origin), ("host", host)]), "{origin} {host}");
        }
        assert!(check(&policy, &[("host", "localhost:3000")]));
        assert!(check(&policy, &[("host", "a"), ("sec-fetch-site", "same-origin")]));
    }

    #[test]
    fn a_page_of_another_host_may_post_only_if_it_is_named() {
        let policy = ChatPolicy::default();
        for (origin, host) in [
            ("http://localhost:3001", "localhost:3000"),
            ("https://evil.example", "chat.example"),
            ("https://chat.example.evil.example", "chat.example"),
            ("http://chat.example:443", "chat.example"),
            ("null", "chat.example"),
            ("file://chat.example", "chat.example"),
        ] {
            assert!(!check(&policy, &[("origin", origin), ("host", host)]), "{origin} {host}");
            let named = ChatPolicy::default().allow_origin(origin);
            assert!(check(&named, &[("origin", origin), ("host", host)]), "{origin} {host}");
        }
        assert!(!check(&policy, &[("host", "a"), ("sec-fetch-site", "cross-site")]));
        let any = ChatPolicy::default().allow_any_origin();
        assert!(check(&any, &[("origin", "https://evil.example"), ("host", "a")]));
    }
}
