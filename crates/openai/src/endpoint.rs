//! [`Endpoint`]: where a provider listens, and what it wants to see before it answers.

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

/// Where a provider listens, and what it wants to see before it answers. Cheap to clone; the clones
/// share their connections.
///
/// ```
/// use ui_message_stream_openai::Endpoint;
///
/// let endpoint = Endpoint::at("https://models.example/v1")?
///     .with_key("sk-secret")?
///     .with_header("x-team", "harbour")?;
/// assert!(!format!("{endpoint:?}").contains("secret"));
/// # Ok::<(), ui_message_stream_openai::EndpointError>(())
/// ```
#[derive(Clone)]
pub struct Endpoint {
    base: Url,
    headers: HeaderMap,
    /// What no error may repeat.
    secrets: Vec<Arc<str>>,
    most_retries: u32,
    client: Client,
}

/// Why there is no such endpoint.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EndpointError {
    /// The address is none of `http` or `https`.
    #[error("the base address is no http or https URL, as https://api.openai.com/v1 is")]
    Address,
    /// The key or a header holds what no header can.
    #[error("the key or a header holds characters that no header can")]
    Header,
    /// The client cannot be made, for want of root certificates for instance.
    #[error("the HTTP client cannot be made: {0}")]
    Client(String),
}

impl Endpoint {
    /// OpenAI's own.
    ///
    /// # Errors
    /// [`EndpointError::Header`] if the key is none, [`EndpointError::Client`].
    pub fn openai(key: &str) -> Result<Self, EndpointError> {
        Self::at(OPENAI)?.with_key(key)
    }

    /// Any other: the address as its manual gives it, mostly up to `/v1`. A query stays.
    ///
    /// # Errors
    /// [`EndpointError::Address`], [`EndpointError::Client`].
    pub fn at(base_url: &str) -> Result<Self, EndpointError> {
        let base = Url::parse(base_url.trim()).map_err(|_| EndpointError::Address)?;
        if !matches!(base.scheme(), "http" | "https") {
            return Err(EndpointError::Address);
        }
        let client = Client::builder()
            .connect_timeout(Duration::from_secs(15))
            // A model that reasons may be silent for minutes.
            .read_timeout(Duration::from_secs(600))
            // Headers hold secrets, and whoever is redirected to would read them.
            .redirect(redirect::Policy::none())
            .build()
            .map_err(|error| EndpointError::Client(error.to_string()))?;
        let secrets = secrets_in(&base).map(Arc::from).collect();
        Ok(Endpoint { base, headers: HeaderMap::new(), secrets, most_retries: 2, client })
    }

    /// Shows this key, as `authorization: Bearer`.
    ///
    /// # Errors
    /// [`EndpointError::Header`].
    pub fn with_key(self, key: &str) -> Result<Self, EndpointError> {
        self.with_header(AUTHORIZATION.as_str(), &format!("Bearer {}", key.trim()))
    }

    /// Sends this header with every request. Its value is taken for a secret.
    ///
    /// # Errors
    /// [`EndpointError::Header`].
    pub fn with_header(mut self, name: &str, value: &str) -> Result<Self, EndpointError> {
        let name = HeaderName::try_from(name).map_err(|_| EndpointError::Header)?;
        let mut header = HeaderValue::from_str(value).map_err(|_| EndpointError::Header)?;
        header.set_sensitive(true);
        self.headers.insert(name, header);
        self.keep_secret_header(value);
        Ok(self)
    }

    /// How often it is asked again where it says that it is too busy (429, 503, 529): after the time
    /// that it names, if that is not above half a minute, else after one second, two, and so on. Twice
    /// unless set. With `tools` that the provider runs it is not asked again after 503, which a proxy
    /// says as well of a request that was lost on the way back: they may have run.
    #[must_use]
    pub fn with_most_retries(mut self, most: u32) -> Self {
        self.most_retries = most;
        self
    }

    /// Names a model there, or with an empty name them all, for whoever is not to know which it is:
    /// browsers keep it.
    pub(super) fn mark(&self, model: &str) -> String {
        let port = self.base.port_or_known_default().unwrap_or_default().to_string();
        let said = [self.base.host_str().unwrap_or_default(), &port, self.base.path(), model];
        let digest = said.iter().fold(Sha256::new(), |digest, said| {
            // No host, port, path or name holds a zero byte.
            digest.chain_update(said).chain_update([0])
        });
        URL_SAFE_NO_PAD.encode(digest.finalize().get(..12).unwrap_or_default())
    }

    /// Whose it is: of others than OpenAI's own, the host.
    pub(super) fn provider(&self) -> Option<&str> {
        match self.base.host_str() {
            Some("api.openai.com") => Some("openai"),
            host => host,
        }
    }

    /// Keeps a text of a request out of what is said of errors.
    pub(super) fn keep_secret(&mut self, secret: &str) {
        self.secrets.push(secret.into());
    }

    /// Keeps the value of a header out of it, and of `Bearer` and a key also the key.
    pub(super) fn keep_secret_header(&mut self, value: &str) {
        self.keep_secret(value);
        if let Some((_, key)) = value.trim().split_once(' ') {
            self.keep_secret(key.trim());
        }
    }

    /// Keeps out of it what is a secret of an address.
    pub(super) fn keep_secrets_in(&mut self, address: &str) {
        if let Ok(url) = Url::parse(address) {
            secrets_in(&url).for_each(|secret| self.keep_secret(&secret));
        }
    }

    /// Sends a request, and gives the body of the answer once its head says that it is one.
    pub(super) async fn post(
        &self,
        path: &[&str],
        body: &Value,
        runs_tools: bool,
    ) -> Result<Body, ProviderError> {
        let mut url = self.base.clone();
        // An http URL has segments.
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
        for retry in 0..self.most_retries {
            if runs_tools && response.status() == StatusCode::SERVICE_UNAVAILABLE {
                break;
            }
            let Some(pause) = pause(response.status(), response.headers(), retry) else { break };
            tracing::warn!(status = response.status().as_u16(), ?pause, "the provider is busy");
            sleep(pause).await;
            response = send().await?;
        }
        if response.status().is_success() {
            return Ok(reqwest_body(response));
        }
        // Half of a secret at the end is not known as one.
        let longest = self.secrets.iter().map(|secret| secret.len()).max().unwrap_or_default();
        let (most, mut said) = (MOST_OF_AN_ERROR + longest, Vec::new());
        while said.len() < most
            && let Ok(Some(bytes)) = response.chunk().await
        {
            said.extend_from_slice(&bytes);
        }
        let is_cut = said.len() >= most;
        said.truncate(most);
        let said = self.without_secrets(&String::from_utf8_lossy(&said));
        let end = if is_cut { said.len().saturating_sub(longest) } else { said.len() };
        let mut end = end.min(MOST_OF_AN_ERROR);
        while !said.is_char_boundary(end) {
            end -= 1;
        }
        let said = said.get(..end).unwrap_or_default();
        Err(ProviderError::status_of(response.status().as_u16(), said.to_owned()))
    }

    pub(super) fn unreachable(&self, error: reqwest::Error) -> ProviderError {
        // The address may hold a key.
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

    /// What a provider says of an error, without what it repeats of the request's head.
    pub(super) fn without_secrets(&self, said: &str) -> String {
        let secrets = self.secrets.iter().filter(|secret| secret.len() >= 4);
        let mut secrets: Vec<&Arc<str>> = secrets.collect();
        // One may be a part of another.
        secrets.sort_unstable_by_key(|secret| std::cmp::Reverse(secret.len()));
        secrets
            .into_iter()
            .fold(said.to_owned(), |said, secret| said.replace(&**secret, "[redacted]"))
    }
}

/// How long to wait before a provider is asked again; `None` if that is no use.
fn pause(status: StatusCode, headers: &HeaderMap, retry: u32) -> Option<Duration> {
    if !matches!(status.as_u16(), 429 | 503 | 529) {
        return None;
    }
    let named = headers.get(RETRY_AFTER).and_then(|named| named.to_str().ok()?.parse().ok());
    let pause = named.map_or(Duration::from_secs(1 << retry.min(5)), Duration::from_secs);
    (pause <= LONGEST_PAUSE).then_some(pause)
}

/// Who is asked for, and what by: the values of the query as they are and as they are meant.
fn secrets_in(url: &Url) -> impl Iterator<Item = String> {
    let meant = url.query_pairs().map(|(_, value)| value.into_owned());
    let pairs = url.query().unwrap_or_default().split('&');
    let written = pairs.filter_map(|pair| Some(pair.split_once('=')?.1.to_owned()));
    let person = [Some(url.username()), url.password()];
    meant.chain(written).chain(person.into_iter().flatten().map(str::to_owned))
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

const OPENAI: &str = "https://api.openai.com/v1";

/// For how long the person is kept waiting until a busy provider is asked again.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// How much of an answer that is an error is kept, in bytes.
const MOST_OF_AN_ERROR: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_provider_is_asked_again_when_it_says_or_ever_later() {
        let pause = |status: u16, named: Option<&str>, retry| {
            let mut headers = HeaderMap::new();
            if let Some(named) = named {
                headers.insert(RETRY_AFTER, HeaderValue::from_str(named).unwrap());
            }
            let status = StatusCode::from_u16(status).unwrap();
            pause(status, &headers, retry).map(|pause| pause.as_secs())
        };
        assert_eq!([0, 1, 2].map(|retry| pause(429, None, retry)), [1, 2, 4].map(Some));
        assert_eq!(pause(529, Some("7"), 0), Some(7));
        assert_eq!(pause(503, Some("31"), 0), None, "nobody waits for so long");
        assert_eq!(pause(503, Some("Wed, 21 Oct 2026 07:28:00 GMT"), 1), Some(2));
        assert_eq!(pause(429, None, 5), None, "nor for that");
        for status in [400, 401, 404, 408, 500, 502, 504] {
            assert_eq!(pause(status, None, 0), None, "{status}");
        }
    }
}
