//! [`PolicyError`]: why a policy rejects a request.

use http::StatusCode;
use thiserror::Error;

use super::host::Host;

/// The error of a request that a [`ChatPolicy`](super::ChatPolicy) does not allow.
///
/// The text names the setting that would allow the request. Like the response to any other rejected
/// request, it is plain text, because `useChat` shows the body of an error response unchanged.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// The request names a host that the policy does not allow.
    #[error(
        "this server does not know that it is {0:?}; if it is, name it with \
         `ChatPolicy::allow_host({0:?})`"
    )]
    HostNotAllowed(String),
    /// The request names an invalid host, or two.
    #[error("the request must name one host as browsers do, `chat.example` or `127.0.0.1:3000`")]
    InvalidHost,
    /// The request comes from a page of an origin that the policy does not allow.
    #[error(
        "pages of origin {0:?} may not post here; the server can allow them with \
         `ChatPolicy::allow_origin`{proxy}",
        proxy = proxy_line(.0)
    )]
    OriginNotAllowed(String),
    /// The request comes from a page of another site, and the browser does not name its origin, or
    /// the request names two.
    #[error(
        "pages of another site may not post here; the server can allow their origin with \
         `ChatPolicy::allow_origin`"
    )]
    CrossSite,
    /// The content type is not `application/json`.
    #[error(
        "the request must have `content-type: application/json`, as `DefaultChatTransport` sends it; \
         `WorkflowChatTransport` needs two options: {}",
        WORKFLOW_TRANSPORT.join(", ")
    )]
    UnsupportedMediaType,
}

/// The options with which `WorkflowChatTransport` of `@ai-sdk/workflow` sends what `DefaultChatTransport` does, and takes the
/// response of a server without workflow runs.
const WORKFLOW_TRANSPORT: [&str; 2] = [
    "`prepareSendMessagesRequest: ({ id, messages, trigger, messageId }) => \
     ({ headers: { 'content-type': 'application/json' }, body: { id, messages, trigger, messageId } })`",
    "`fetch: (...it) => fetch(...it).then(({ body, status, headers }) => \
     new Response(body, { status, headers: [...headers, ['x-workflow-run-id', 'none']] }))`",
];

/// Returns what to write into the configuration of a development proxy, if the page is on this
/// machine. The usual reason is a proxy that replaces the host, so that it differs from the origin.
fn proxy_line(origin: &str) -> &'static str {
    match Host::from_origin(origin) {
        Ok(host) if host.is_loopback() => {
            "; if a development proxy such as Vite's is between them, keep the host of its requests: \
             `'/api': { target: 'http://localhost:3000', changeOrigin: false }`"
        }
        _ => "",
    }
}

impl PolicyError {
    /// Returns the status of the response: 415 for the content type, otherwise 403.
    pub fn status(&self) -> StatusCode {
        match self {
            PolicyError::UnsupportedMediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            _ => StatusCode::FORBIDDEN,
        }
    }
}
