//! [`ChatPolicy`]: which hosts, origins and content type a request may have, and its size limits.
//!
//! [`ChatPolicy::check`] is a function of the head of a request, for a server of any framework. With
//! axum the policy is also a layer and an extractor, and the extractors of this crate apply it.

#[cfg(feature = "axum")]
mod bodies;
mod error;
mod host;

#[cfg(feature = "cors")]
use std::time::Duration;

#[cfg(feature = "cors")]
use http::header::{AUTHORIZATION, HeaderValue, RETRY_AFTER};
use http::header::{CONTENT_TYPE, HOST, HeaderName, ORIGIN};
use http::request::Parts;
use http::uri::Authority;
use http::{HeaderMap, Method};
#[cfg(feature = "cors")]
use tower_http::cors::{AllowOrigin, CorsLayer};

#[cfg(feature = "axum")]
pub(crate) use self::bodies::{BodyBudget, IncompleteBody};
pub use self::error::PolicyError;
use self::host::{Host, InvalidHost};
use crate::id::log_text;
use crate::request::Limits;

/// Checks the host, the origin and the content type of each request, and holds the size limits of the
/// request body.
///
/// It rejects requests that a hostile page makes the browser of a user send: from a page of another
/// origin (cross-site request forgery), and from a page whose domain name is pointed at this server
/// (DNS rebinding). It does not identify the user.
///
/// The default policy allows IP addresses, `localhost` and names under `localhost` as hosts, allows
/// requests only from pages of the same origin, and uses [`Limits::default`]. Behind a development
/// proxy on the same machine, which may replace the host, a page at a loopback host counts as one of
/// the same origin if the browser says so in `Sec-Fetch-Site`. If clients reach the server under a
/// domain name, allow that name with [`allow_host`](Self::allow_host). If the page has another
/// origin and posts to this server directly, allow that origin with
/// [`allow_origin`](Self::allow_origin).
///
/// Behind the route handlers of `examples/nextjs`, allow the name in `CHAT_SERVER` with
/// `allow_host`, unless it is `localhost` or an IP address. They check the `Origin` header
/// themselves and do not forward it, so `allow_origin` has no effect there.
///
/// # With any server
///
/// With a server other than axum, call [`check`](Self::check) on every route, before the body is
/// read. A route without this call is not protected.
///
/// ```
/// use http::request::Parts;
/// use http::{Request, Response};
/// use ui_message_stream::policy::ChatPolicy;
///
/// fn refusal(policy: &ChatPolicy, head: &Parts) -> Option<Response<String>> {
///     let error = policy.check(head).err()?;
///     let mut response = Response::new(error.to_string());
///     *response.status_mut() = error.status();
///     Some(response)
/// }
///
/// let form = Request::post("/api/chat").header("content-type", "text/plain").body(()).unwrap();
/// let refusal = refusal(&ChatPolicy::default(), &form.into_parts().0).unwrap();
/// assert_eq!(refusal.status(), 415);
/// ```
///
/// # With axum
///
/// Without a `ChatPolicy` layer, the extractor [`ChatRequest`](crate::ChatRequest) and all routes
/// of `chat_routes` and `approval_routes` apply the default policy. Its limits replace the body
/// limit of axum.
///
/// Used as a layer, the policy replaces the default policy, and checks the host and the origin of
/// every request to the routes inside it, with any method. The content type is checked where a
/// `ChatRequest` is read. A rejected request reaches no handler. If one policy is inside another,
/// both check the request, and the limits of the inner one apply.
///
/// ```
/// # #[cfg(feature = "axum")] {
/// use axum::routing::{get, post};
/// use axum::Router;
/// use ui_message_stream::policy::ChatPolicy;
/// # async fn chat(_: ui_message_stream::ChatRequest) {}
/// # async fn history() {}
///
/// let app: Router = Router::new()
///     .route("/api/chat", post(chat))
///     .route("/api/history", get(history))
///     .layer(ChatPolicy::default().allow_host("chat.example"));
/// # }
/// ```
///
/// Used as an extractor, `ChatPolicy` checks the host and the origin of the request and returns the
/// policy of the layer, or the default policy if there is no layer. A handler with a `ChatPolicy`
/// argument therefore gets these two checks even without a layer.
#[derive(Debug, Clone, Default)]
pub struct ChatPolicy {
    limits: Limits,
    #[cfg(feature = "axum")]
    bodies: BodyBudget,
    hosts: Vec<String>,
    any_host: bool,
    origins: Vec<String>,
    loopback_origins: bool,
    any_origin: bool,
}

impl ChatPolicy {
    /// Sets the limits of the request body.
    #[must_use]
    pub fn with_limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Sets how many bytes the incomplete bodies of requests may have, all together. The default is
    /// 256 MiB, for all policies of the process without this setting.
    ///
    /// The bodies that one [`Principal`](crate::approval::Principal) sends may have an eighth of it. A
    /// single body always fits. Beyond one of these limits, the body is cut off that is the longest under
    /// way, of this principal or of the one that holds the most: its request gets status 503 with the
    /// header `Retry-After`. All requests without a principal count as those of one more.
    ///
    /// This limits what clients that send slowly hold. The extractor [`ChatRequest`](crate::ChatRequest)
    /// and the routes of this crate apply it. All clones of the policy share the limit.
    #[cfg(feature = "axum")]
    #[must_use]
    pub fn with_max_incoming_bytes(mut self, bytes: usize) -> Self {
        self.bodies = BodyBudget::new(bytes);
        self
    }

    /// Returns the budget of the bodies that are being received.
    #[cfg(feature = "axum")]
    pub(crate) fn bodies(&self) -> &BodyBudget {
        &self.bodies
    }

    /// Allows requests whose host is `host`, for example `chat.example`.
    ///
    /// `host` is compared with the `Host` header, which the browser or a proxy in front of this
    /// server sends. A port is ignored. Write an international name in the form that browsers send:
    /// `xn--bcher-kva.example`.
    ///
    /// A request for any other name is rejected, to prevent DNS rebinding. In this attack, the
    /// domain name of a hostile page is pointed at 127.0.0.1. The browser then sends the requests
    /// of the page to this server and treats them as requests of the same origin. Only the `Host`
    /// header shows the attacker's name.
    ///
    /// IP addresses, `localhost` and names under `localhost` are always allowed, because an
    /// attacker cannot point them at another address. A request without a host is allowed too,
    /// because browsers always send one. These rules are the same for every address on which the
    /// server listens. A loopback address does not mean that the server is private, because a proxy
    /// on the same machine can publish it.
    ///
    /// `X-Forwarded-Host` is not read, because any client can send it. If a proxy replaces the name
    /// in `Host` by an IP address, this check sees only the address, and the proxy has to check the
    /// name.
    ///
    /// An invalid host never matches a request. It is logged as a warning through `tracing`.
    #[must_use]
    pub fn allow_host(mut self, host: impl AsRef<str>) -> Self {
        let host = host.as_ref();
        match Host::parse(host) {
            Ok(Host::Name(name)) => self.hosts.push(name),
            Ok(Host::Address(_)) => {}
            Err(InvalidHost) => tracing::warn!(
                host,
                "`allow_host` takes a name as it stands in the `Host` header, without a scheme or \
                 a path; this one will match no request"
            ),
        }
        self
    }

    /// Allows every host.
    ///
    /// Use it only if a proxy in front of the server checks the host name, and no browser can reach
    /// the server without that proxy, neither from the same machine nor from the same network.
    #[must_use]
    pub fn allow_any_host(mut self) -> Self {
        self.any_host = true;
        self
    }

    /// Allows requests from pages of this origin: scheme, host and port as the browser sends them,
    /// for example `https://chat.example`.
    ///
    /// If a proxy changes the `Host` header, also allow the public origin of the server's own
    /// pages. Otherwise they count as pages of another origin.
    ///
    /// `null` is the origin of every page in a sandboxed frame and of every local file. If you
    /// allow `null`, you allow all of them.
    ///
    /// For a page of another origin the browser also requires CORS headers: `ChatPolicy::cors` of the feature
    /// `cors`.
    #[must_use]
    pub fn allow_origin(mut self, origin: impl Into<String>) -> Self {
        let origin = origin.into().to_ascii_lowercase();
        self.origins.push(without_default_port(origin.trim_end_matches('/')).to_owned());
        self
    }

    /// Allows requests from every page that this machine serves: at `localhost`, a name under
    /// `localhost` or a loopback address, with any port.
    ///
    /// Use it for development, when the front end has its own port, for example that of a
    /// development server.
    #[must_use]
    pub fn allow_loopback_origins(mut self) -> Self {
        self.loopback_origins = true;
        self
    }

    /// Allows requests from every page of the web, with the cookies of the user who visits the
    /// page.
    ///
    /// Use it only if any web page may read and change everything on this server.
    #[must_use]
    pub fn allow_any_origin(mut self) -> Self {
        self.any_origin = true;
        self
    }

    /// Returns the layer that answers the browser of a page of another origin, which this policy allows
    /// ([`allow_origin`](Self::allow_origin) and its siblings): with its methods, headers and cookies. Add it
    /// outside of the policy, because the browser asks before it sends a request.
    ///
    /// ```
    /// use axum::Router;
    /// use ui_message_stream::policy::ChatPolicy;
    ///
    /// let policy = ChatPolicy::default().allow_origin("https://app.example");
    /// let app: Router = Router::new().layer(policy.clone()).layer(policy.cors());
    /// ```
    ///
    /// The page sets `api` of its transport, and `credentials: 'include'` to send a cookie.
    #[cfg(feature = "cors")]
    pub fn cors(&self) -> CorsLayer {
        let policy = self.clone();
        let allows = move |origin: &HeaderValue, _: &Parts| policy.allows_origin(origin);
        CorsLayer::new()
            .allow_origin(AllowOrigin::predicate(allows))
            .allow_methods([Method::GET, Method::POST, Method::PATCH, Method::DELETE])
            .allow_headers([
                AUTHORIZATION,
                CONTENT_TYPE,
                LAST_EVENT_ID,
                HeaderName::from_static(AI_SDK_VERSION),
            ])
            .expose_headers([RETRY_AFTER])
            .allow_credentials(true)
            .max_age(Duration::from_secs(3600))
    }

    /// Whether pages of this origin are allowed, although they are not the server's own.
    #[cfg(feature = "cors")]
    fn allows_origin(&self, origin: &HeaderValue) -> bool {
        let origin = origin.to_str().unwrap_or_default().to_ascii_lowercase();
        self.any_origin || self.names_origin(&origin)
    }

    fn names_origin(&self, origin: &str) -> bool {
        self.origins.iter().any(|allowed| allowed == without_default_port(origin))
            || self.loopback_origins && is_loopback_origin(origin)
    }

    /// Returns the limits of the request body.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Checks the host and the origin of a request, and its content type unless the method is
    /// `GET`, `HEAD`, `OPTIONS` or `DELETE`.
    ///
    /// The content type must be `application/json`, because a page of another site can post text or
    /// a form without asking the server first, but not JSON.
    ///
    /// # Errors
    /// [`PolicyError`] if the request must not be answered. Its [`status`](PolicyError::status) and
    /// its text are the response.
    pub fn check(&self, request: &Parts) -> Result<(), PolicyError> {
        self.check_host_and_origin(request)?;
        match request.method {
            Method::GET | Method::HEAD | Method::OPTIONS | Method::DELETE => Ok(()),
            _ => check_content_type(request),
        }
    }

    /// Checks the host and the origin of a request, for a route that takes another content type.
    ///
    /// # Errors
    /// [`PolicyError`] if the request names a host that is not allowed, or comes from a page of an
    /// origin that is not allowed.
    pub fn check_host_and_origin(&self, request: &Parts) -> Result<(), PolicyError> {
        self.check_host(request)?;
        self.check_origin(request)
    }

    fn check_host(&self, request: &Parts) -> Result<(), PolicyError> {
        if self.any_host {
            return Ok(());
        }
        match Host::from_parts(request) {
            Ok(None | Some(Host::Address(_))) => Ok(()),
            Ok(Some(host)) if host.is_loopback() => Ok(()),
            Ok(Some(Host::Name(name))) if self.hosts.contains(&name) => Ok(()),
            Ok(Some(Host::Name(name))) => Err(PolicyError::HostNotAllowed(name)),
            Err(InvalidHost) => Err(PolicyError::InvalidHost),
        }
    }

    fn check_origin(&self, request: &Parts) -> Result<(), PolicyError> {
        let headers = &request.headers;
        if self.any_origin {
            return Ok(());
        }
        if headers.get_all(ORIGIN).iter().count() > 1 {
            return Err(PolicyError::CrossSite);
        }
        let Some(origin) = headers.get(ORIGIN) else {
            // The client is not a browser, or a browser that does not send the origin of the page.
            let mut sites = headers.get_all(&SEC_FETCH_SITE).iter();
            let is_cross_site = sites.any(|site| site.as_bytes() == b"cross-site");
            return if is_cross_site && !is_top_level_navigation(request) {
                Err(PolicyError::CrossSite)
            } else {
                Ok(())
            };
        };
        let origin = origin.to_str().unwrap_or_default().to_ascii_lowercase();
        let in_uri = request.uri.authority().map(Authority::as_str);
        let host = in_uri.or_else(|| headers.get(HOST)?.to_str().ok());
        let is_own =
            host.is_some_and(|host| is_origin_of_host(&origin, &host.to_ascii_lowercase()));
        if is_own
            || is_own_before_proxy(&origin, host, &request.headers)
            || self.names_origin(&origin)
        {
            Ok(())
        } else {
            // A client that is not a browser can send any text.
            Err(PolicyError::OriginNotAllowed(log_text(&origin).into_owned()))
        }
    }
}

/// Rejects a request unless it has exactly one `Content-Type`, and it is JSON.
pub(crate) fn check_content_type(request: &Parts) -> Result<(), PolicyError> {
    let mut content_types = request.headers.get_all(CONTENT_TYPE).iter();
    let (Some(content_type), None) = (content_types.next(), content_types.next()) else {
        return Err(PolicyError::UnsupportedMediaType);
    };
    let is_json = content_type.to_str().is_ok_and(|value| {
        let essence = value.split(';').next().unwrap_or_default();
        essence.trim().eq_ignore_ascii_case("application/json")
    });
    if is_json { Ok(()) } else { Err(PolicyError::UnsupportedMediaType) }
}

/// Whether the browser loads the response as a top-level page, for example because the user
/// followed a link. The page with the link cannot read the response, and does not embed it in a
/// frame.
fn is_top_level_navigation(request: &Parts) -> bool {
    let has_header = |name: HeaderName, value: &[u8]| {
        request.headers.get(name).is_some_and(|sent| sent.as_bytes() == value)
    };
    matches!(request.method, Method::GET | Method::HEAD)
        && has_header(SEC_FETCH_MODE, b"navigate")
        && has_header(SEC_FETCH_DEST, b"document")
}

/// Whether the origin has this host. Its scheme is not compared, because a server behind a proxy
/// that terminates TLS cannot know the scheme.
fn is_origin_of_host(origin: &str, host: &str) -> bool {
    let Some((scheme, origin_host)) = without_default_port(origin).split_once("://") else {
        return false;
    };
    matches!(scheme, "http" | "https")
        && origin_host
            == without_default_port(&format!("{scheme}://{host}")).split_at(scheme.len() + 3).1
}

/// Whether a page posts to its own server on this machine, which has forwarded the request here and
/// replaced the host.
///
/// `Sec-Fetch-Site: same-origin` says that the browser sent the request to the origin of the page.
/// No script can set or change this header. So the request had the host of the origin before it was
/// forwarded, and is accepted as if the proxy had kept that host.
///
/// A page by DNS rebinding also has this header, but its origin has the attacker's name, which is no
/// loopback host. A page on another port of this machine that posts here itself has the value
/// `same-site`.
fn is_own_before_proxy(origin: &str, host: Option<&str>, headers: &HeaderMap) -> bool {
    let mut sites = headers.get_all(&SEC_FETCH_SITE).iter();
    let is_same_origin =
        sites.next().is_some_and(|site| site == "same-origin") && sites.next().is_none();
    let is_loopback = |host| Host::parse(host).is_ok_and(|host| host.is_loopback());
    is_same_origin && is_loopback_origin(origin) && host.is_some_and(is_loopback)
}

/// Whether only a server on this machine can have this origin.
fn is_loopback_origin(origin: &str) -> bool {
    Host::from_origin(origin).is_ok_and(|host| host.is_loopback())
}

/// Returns the origin without its port if the port is the default of its scheme.
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

/// The name of a header in which a page may say its version of the AI SDK (npm package `ai`), as [`Version`] reads it.
///
/// [`Version`]: crate::chunk::Version
pub const AI_SDK_VERSION: &str = "ai-sdk-version";

#[cfg(feature = "cors")]
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
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
    fn a_page_of_the_same_host_may_post() {
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
    fn a_page_of_another_host_may_post_only_if_its_origin_is_allowed() {
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

    #[test]
    fn a_page_of_another_port_of_this_machine_may_post_if_loopback_origins_are_allowed() {
        let policy = ChatPolicy::default().allow_loopback_origins();
        for origin in [
            "http://localhost:5173",
            "https://localhost",
            "http://app.localhost:3001",
            "http://127.0.0.1:3001",
            "http://127.9.9.9",
            "http://[::1]:3001",
        ] {
            assert!(check(&policy, &[("origin", origin), ("host", "localhost:3000")]), "{origin}");
            let default = ChatPolicy::default();
            assert!(!check(&default, &[("origin", origin), ("host", "a")]), "{origin}");
        }
        for origin in [
            "https://evil.example",
            "http://localhost.evil.example",
            "http://127.0.0.1.evil.example",
            "http://192.168.0.7:3001",
            "file://localhost",
            "http://user@localhost",
            "http://localhost:3000/",
            "null",
            "",
        ] {
            assert!(!check(&policy, &[("origin", origin), ("host", "localhost:3000")]), "{origin}");
        }
    }
}
