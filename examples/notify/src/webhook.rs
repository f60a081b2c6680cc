//! A webhook with a signature, as <https://www.standardwebhooks.com> describes it.

use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use ui_message_stream::approval::{ApprovalNotice, Notifier};
use ui_message_stream::{BoxError, BoxFuture};

/// Posts each event to a URL.
#[derive(Debug)]
pub struct Webhook {
    client: reqwest::Client,
    url: reqwest::Url,
    key: Hmac<Sha256>,
}

impl Webhook {
    /// Creates a notifier that posts to this URL. The receiver knows the secret, which is `whsec_` and at
    /// least 24 random bytes in Base64: `echo whsec_$(openssl rand -base64 24)`.
    ///
    /// # Errors
    /// If the URL is none, or the secret is not of this form.
    pub fn new(url: &str, secret: &str) -> Result<Self, BoxError> {
        let secret = secret.strip_prefix("whsec_").ok_or("a secret begins with `whsec_`")?;
        let secret = STANDARD.decode(secret)?;
        if secret.len() < 24 {
            return Err("a secret has at least 24 bytes".into());
        }
        // A redirect would send the event, with its signature, to another host.
        let client = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none());
        let key = Hmac::new_from_slice(&secret)?;
        Ok(Webhook { client: client.build()?, url: url.parse()?, key })
    }
}

impl Notifier for Webhook {
    fn notify<'a>(&'a self, notice: &'a ApprovalNotice) -> BoxFuture<'a, Result<(), BoxError>> {
        Box::pin(async move {
            // The same id each time, by which the receiver recognizes a repeated event.
            let (id, body) = (notice.id(), notice.to_json());
            let time = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
            let signed = self.key.clone().chain_update(format!("{id}.{time}.{body}"));
            let signature = STANDARD.encode(signed.finalize().into_bytes());
            let request = self.client.post(self.url.clone()).body(body);
            let request = request.header("content-type", "application/json");
            let request = request.header("webhook-id", id).header("webhook-timestamp", time);
            let response = request.header("webhook-signature", format!("v1,{signature}")).send();
            response.await?.error_for_status()?;
            Ok(())
        })
    }
}
