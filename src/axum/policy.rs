//! [`ChatPolicy`]: from where a chat may be posted to, and how large.

use ::axum::Extension;
use http::HeaderMap;
use http::header::{HOST, HeaderName, ORIGIN};
use http::uri::Authority;
use tower_layer::Layer;

use super::rejection::ChatRejection;
use crate::request::Limits;

/// From where a chat may be posted to, and how large; a layer that the extractor reads.
///
/// Without it the defaults hold: [`Limits::default`], and only pages of this host may post. The
/// limits replace axum's own body limit. A page of another origin, a Next.js app in front of this
/// server for instance, has to be named:
///
/// ```
/// use axum::{Router, routing::post};
/// use ui_message_stream::axum::ChatPolicy;
/// # async fn chat(_: ui_message_stream::ChatRequest) {}
///
/// let app: Router = Router::new()
///     .route("/api/chat", post(chat))
///     .layer(ChatPolicy::default().allow_origin("https://chat.example"));
/// ```
#[derive(Debug, Clone, Default)]
pub struct ChatPolicy {
    limits: Limits,
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

    /// Lets pages of this origin post: scheme, host and port as the browser sends them,
    /// `https://chat.example`. Also the way to name the public host of a server behind a proxy
    /// that changes the `Host` header.
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

    pub(super) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Refuses a request that a page of another site made the browser send.
    pub(super) fn check_origin(
        &self,
        headers: &HeaderMap,
        authority: Option<&Authority>,
    ) -> Result<(), ChatRejection> {
        if self.any_origin {
            return Ok(());
        }
        if headers.get_all(ORIGIN).iter().count() > 1 {
            return Err(ChatRejection::foreign_origin(None));
        }
        let Some(origin) = headers.get(ORIGIN) else {
            // No browser, or none that says where the page is from.
            let cross_site =
                headers.get(&SEC_FETCH_SITE).is_some_and(|site| site.as_bytes() == b"cross-site");
            return if cross_site { Err(ChatRejection::foreign_origin(None)) } else { Ok(()) };
        };
        let origin = origin.to_str().unwrap_or_default().to_ascii_lowercase();
        let host = authority.map(Authority::as_str).or_else(|| headers.get(HOST)?.to_str().ok());
        let is_own = host.is_some_and(|host| is_of_host(&origin, &host.to_ascii_lowercase()));
        if is_own || self.origins.iter().any(|named| named == without_default_port(&origin)) {
            Ok(())
        } else {
            Err(ChatRejection::foreign_origin(Some(origin)))
        }
    }
}

impl<S> Layer<S> for ChatPolicy {
    type Service = <Extension<ChatPolicy> as Layer<S>>::Service;

    fn layer(&self, inner: S) -> Self::Service {
        Extension(self.clone()).layer(inner)
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn check(policy: &ChatPolicy, headers: &[(&'static str, &str)]) -> bool {
        let headers = headers
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()))
            .collect();
        policy.check_origin(&headers, None).is_ok()
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
