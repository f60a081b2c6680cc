//! [`Endpoint`]: the base address of a provider's API, the headers of its requests, and retries.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use reqwest::header::{
    ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER,
};
use reqwest::{Body, Client, StatusCode, Url, redirect};
use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio::time::sleep;

use crate::error::ProviderError;

/// The base address of a provider's API with the headers that authenticate requests.
///
/// Cheap to clone: clones share their connections.
///
/// ```
/// use ui_message_stream_openai::Endpoint;
///
/// let endpoint = Endpoint::new("https://models.example/v1")?
///     .with_key("sk-secret")?
///     .with_header("x-team", "harbour")?;
/// assert!(!format!("{endpoint:?}").contains("secret"));
/// # Ok::<(), ui_message_stream_openai::EndpointError>(())
/// ```
#[derive(Clone)]
pub struct Endpoint {
    base: Url,
    headers: HeaderMap,
    /// The texts that error messages must not contain.
    secrets: Vec<Arc<str>>,
    max_retries: u32,
    client: Client,
}

/// The error of creating an [`Endpoint`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EndpointError {
    /// The address is not a URL with the scheme `http` or `https`.
    #[error(
        "the base address has to begin with `http://` or `https://`, as http://localhost:1234/v1 does"
    )]
    Address,
    /// The key or a header contains characters that are not allowed in headers.
    #[error("the key or a header holds characters that no header can")]
    Header,
    /// The HTTP client cannot be created, for example because no root certificates are found.
    #[error("the HTTP client cannot be made: {0}")]
    Client(String),
}

impl Endpoint {
    /// Creates an endpoint for OpenAI's API at `https://api.openai.com/v1`.
    ///
    /// # Errors
    /// - [`EndpointError::Header`] if the key contains characters that are not allowed in headers.
    /// - [`EndpointError::Client`] if the HTTP client cannot be created.
    pub fn openai(key: &str) -> Result<Self, EndpointError> {
        Self::new(OPENAI_BASE_URL)?.with_key(key)
    }

    /// Creates an endpoint for any server.
    ///
    /// `base_url` is the address that the server's documentation gives, in most cases up to `/v1`.
    /// A query of the URL is sent with every request.
    ///
    /// # Errors
    /// - [`EndpointError::Address`] if the address is not a URL with the scheme `http` or `https`.
    /// - [`EndpointError::Client`] if the HTTP client cannot be created.
    pub fn new(base_url: &str) -> Result<Self, EndpointError> {
        let base = Url::parse(base_url.trim()).map_err(|_| EndpointError::Address)?;
        if !matches!(base.scheme(), "http" | "https") {
            return Err(EndpointError::Address);
        }
        let client = Client::builder()
            .connect_timeout(Duration::from_secs(15))
            // A reasoning model may send nothing for minutes.
            .read_timeout(Duration::from_secs(600))
            // Headers contain secrets, which the target of a redirect could read.
            .redirect(redirect::Policy::none())
            .build()
            .map_err(|error| EndpointError::Client(error.to_string()))?;
        let secrets = secrets_in(&base).map(Arc::from).collect();
        Ok(Endpoint { base, headers: HeaderMap::new(), secrets, max_retries: 2, client })
    }

    /// Sends this key with every request, as `authorization: Bearer`.
    ///
    /// # Errors
    /// [`EndpointError::Header`] if the key contains characters that are not allowed in headers.
    pub fn with_key(self, key: &str) -> Result<Self, EndpointError> {
        self.with_header(AUTHORIZATION.as_str(), &format!("Bearer {}", key.trim()))
    }

    /// Sends this header with every request. The value is treated as a secret.
    ///
    /// # Errors
    /// [`EndpointError::Header`] if the name or the value contains characters that are not allowed
    /// in headers.
    pub fn with_header(mut self, name: &str, value: &str) -> Result<Self, EndpointError> {
        let name = HeaderName::try_from(name).map_err(|_| EndpointError::Header)?;
        let mut header = HeaderValue::from_str(value).map_err(|_| EndpointError::Header)?;
        header.set_sensitive(true);
        self.headers.insert(name, header);
        self.add_header_secrets(value);
        Ok(self)
    }

    /// Sets how many times a request is repeated if the provider is overloaded (status 429, 503 or
    /// 529). The default is 2.
    ///
    /// The delay is the number of seconds in `retry-after`, or else one second, then two, and so
    /// on, doubling. A request is not repeated if the delay would exceed 30 seconds. A request with
    /// `tools` that the provider executes is not repeated after status 503: a proxy also sends 503
    /// if the response was lost on its way back, and the tools may have run.
    #[must_use]
    pub fn with_max_retries(mut self, max_retries: u32) -> Self {
        self.max_retries = max_retries;
        self
    }

    /// Returns an opaque identifier of a model at this endpoint, or of all its models if `model` is
    /// empty.
    ///
    /// Browsers store the identifier, so it reveals neither the address nor the model.
    pub(super) fn model_fingerprint(&self, model: &str) -> String {
        let port = self.base.port_or_known_default().unwrap_or_default().to_string();
        let parts = [self.base.host_str().unwrap_or_default(), &port, self.base.path(), model];
        let digest = parts.iter().fold(Sha256::new(), |digest, part| {
            // No host, port, path or name contains a zero byte.
            digest.chain_update(part).chain_update([0])
        });
        URL_SAFE_NO_PAD.encode(digest.finalize().get(..12).unwrap_or_default())
    }

    /// Returns the name of the provider: `openai` for OpenAI's API, the host for any other.
    pub(super) fn provider(&self) -> Option<&str> {
        match self.base.host_str() {
            Some("api.openai.com") => Some("openai"),
            host => host,
        }
    }

    /// Adds a text that is removed from error messages.
    pub(super) fn add_secret(&mut self, secret: &str) {
        self.secrets.push(secret.into());
    }

    /// Adds the value of a header to the texts that are removed from error messages. Of a scheme
    /// with a key, such as `Bearer` and the key, the key is also added by itself.
    pub(super) fn add_header_secrets(&mut self, value: &str) {
        self.add_secret(value);
        if let Some((_, key)) = value.trim().split_once(' ') {
            self.add_secret(key.trim());
        }
    }

    /// Adds the secrets that an address contains to the texts that are removed from error messages.
    pub(super) fn add_url_secrets(&mut self, address: &str) {
        if let Ok(url) = Url::parse(address) {
            secrets_in(&url).for_each(|secret| self.add_secret(&secret));
        }
    }

    /// Sends a request, repeats it as set, and returns the body of a successful response.
    ///
    /// # Errors
    /// A [`ProviderError`] without a status if the provider cannot be reached; with the status and
    /// the beginning of the body if the status is not a success.
    pub(super) async fn post(
        &self,
        path: &[&str],
        body: &Value,
        may_run_tools: bool,
    ) -> Result<Body, ProviderError> {
        let mut url = self.base.clone();
        // An `http` URL has path segments.
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(path);
        }
        let body = body.to_string();
        let send = async || {
            let request = self.client.post(url.clone()).headers(self.headers.clone());
            let request = request.header(CONTENT_TYPE, "application/json");
            let request = request.header(ACCEPT, "text/event-stream").body(body.clone());
            request.send().await.map_err(|error| self.unreachable(error))
        };
        let mut response = send().await?;
        for retry in 0..self.max_retries {
            if may_run_tools && response.status() == StatusCode::SERVICE_UNAVAILABLE {
                break;
            }
            let Some(pause) = retry_delay(response.status(), response.headers(), retry) else {
                break;
            };
            tracing::warn!(status = response.status().as_u16(), ?pause, "the provider is busy");
            sleep(pause).await;
            response = send().await?;
        }
        if response.status().is_success() {
            return Ok(reqwest_body(response));
        }
        // A secret that is truncated at the end cannot be recognized, so the end is removed.
        let longest = self.secrets.iter().map(|secret| secret.len()).max().unwrap_or_default();
        let max_bytes = MAX_ERROR_BODY_BYTES + longest;
        let mut bytes_read = Vec::new();
        while bytes_read.len() < max_bytes
            && let Ok(Some(bytes)) = response.chunk().await
        {
            bytes_read.extend_from_slice(&bytes);
        }
        let is_cut = bytes_read.len() >= max_bytes;
        bytes_read.truncate(max_bytes);
        let text = self.without_secrets(&String::from_utf8_lossy(&bytes_read));
        let end = if is_cut { text.len().saturating_sub(longest) } else { text.len() };
        let mut end = end.min(MAX_ERROR_BODY_BYTES);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let text = text.get(..end).unwrap_or_default();
        Err(ProviderError::from_status(response.status().as_u16(), text.to_owned()))
    }

    pub(super) fn unreachable(&self, error: reqwest::Error) -> ProviderError {
        // The address may contain a key.
        let error = error.without_url();
        let mut said = error.to_string();
        let mut cause = std::error::Error::source(&error);
        while let Some(error) = cause {
            said.push_str(": ");
            said.push_str(&error.to_string());
            cause = error.source();
        }
        ProviderError::unreachable(self.without_secrets(&said))
    }

    /// Returns a text of the provider with all secrets of the request replaced.
    pub(super) fn without_secrets(&self, text: &str) -> String {
        let secrets = self.secrets.iter().filter(|secret| secret.len() >= 4);
        let mut secrets: Vec<&Arc<str>> = secrets.collect();
        // A secret may contain another one.
        secrets.sort_unstable_by_key(|secret| std::cmp::Reverse(secret.len()));
        secrets
            .into_iter()
            .fold(text.to_owned(), |text, secret| text.replace(&**secret, "[redacted]"))
    }
}

/// Returns the delay before a request is repeated, or `None` if it is not repeated.
fn retry_delay(status: StatusCode, headers: &HeaderMap, retry: u32) -> Option<Duration> {
    if !matches!(status.as_u16(), 429 | 503 | 529) {
        return None;
    }
    let named = headers.get(RETRY_AFTER).and_then(|named| named.to_str().ok()?.parse().ok());
    let pause = named.map_or(Duration::from_secs(1 << retry.min(5)), Duration::from_secs);
    (pause <= MAX_RETRY_DELAY).then_some(pause)
}

/// Returns the user name, the password and the values of the query, both encoded and decoded.
fn secrets_in(url: &Url) -> impl Iterator<Item = String> {
    let decoded = url.query_pairs().map(|(_, value)| value.into_owned());
    let pairs = url.query().unwrap_or_default().split('&');
    let encoded = pairs.filter_map(|pair| Some(pair.split_once('=')?.1.to_owned()));
    let user_info = [Some(url.username()), url.password()];
    decoded.chain(encoded).chain(user_info.into_iter().flatten().map(str::to_owned))
}

fn reqwest_body(response: reqwest::Response) -> Body {
    http::Response::<Body>::from(response).into_body()
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = (self.base.scheme(), self.base.host_str(), self.base.path());
        let headers: Vec<&str> = self.headers.keys().map(HeaderName::as_str).collect();
        f.debug_struct("Endpoint")
            .field("at", &host)
            .field("headers", &headers)
            .finish_non_exhaustive()
    }
}

const OPENAI_BASE_URL: &str = "https://api.openai.com/v1";

/// The maximum delay before a request is repeated, because the user waits meanwhile.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(30);

/// How much of the body of an error response is kept, in bytes.
const MAX_ERROR_BODY_BYTES: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_repeated_after_the_delay_of_the_provider_or_an_increasing_one() {
        let delay = |status: u16, named: Option<&str>, retry| {
            let mut headers = HeaderMap::new();
            if let Some(named) = named {
                headers.insert(RETRY_AFTER, HeaderValue::from_str(named).unwrap());
            }
            let status = StatusCode::from_u16(status).unwrap();
            retry_delay(status, &headers, retry).map(|delay| delay.as_secs())
        };
        assert_eq!([0, 1, 2].map(|retry| delay(429, None, retry)), [1, 2, 4].map(Some));
        assert_eq!(delay(529, Some("7"), 0), Some(7));
        assert_eq!(delay(503, Some("31"), 0), None, "longer than the maximum delay");
        assert_eq!(delay(503, Some("Wed, 21 Oct 2026 07:28:00 GMT"), 1), Some(2));
        assert_eq!(delay(429, None, 5), None, "the increased delay is longer than the maximum");
        for status in [400, 401, 404, 408, 500, 502, 504] {
            assert_eq!(delay(status, None, 0), None, "{status}");
        }
    }
}
