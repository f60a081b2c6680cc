//! [`RequestForms`]: the forms of one request, of which the first is sent that the provider accepts.
//!
//! Some providers require a field that others reject. The forms of a request are therefore in an order: each leaves out
//! more than the one before. A model remembers what its server refuses of every request, so that only the first request
//! is sent twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use reqwest::Body;
use serde_json::Value;

use crate::endpoint::Endpoint;
use crate::error::ProviderError;

/// A form of a request, for the case that the provider refused the form before it.
pub(super) struct Form {
    /// What this form leaves out, for the log.
    pub(super) left_out: &'static str,
    /// Whether the provider may accept this form after it refused the given body with this error.
    pub(super) can_help: fn(&ProviderError, &Value) -> bool,
    /// Whether the server refuses the form before this one in every conversation. The next request then begins with this
    /// form.
    pub(super) is_remembered: bool,
}

/// The number of the form with which the requests of a model begin. Clones of the model share it.
#[derive(Debug, Clone, Default)]
pub(super) struct FirstForm(Arc<AtomicUsize>);

/// The forms of one request.
pub(super) struct RequestForms {
    pub(super) path: &'static [&'static str],
    /// The forms that follow the first one, which is number 0.
    pub(super) others: &'static [Form],
    pub(super) first: FirstForm,
    /// Returns the body of the form with this number.
    pub(super) body: Box<dyn Fn(usize) -> Value + Send>,
}

impl RequestForms {
    /// Sends the forms until the provider accepts one, and returns the response.
    ///
    /// # Errors
    /// The error of the last form that was sent. No form that has the same body as the one before is sent.
    pub(super) async fn send(self, endpoint: Endpoint) -> Result<Body, ProviderError> {
        let first = self.first.0.load(Ordering::Relaxed);
        let mut remembered = first;
        let mut body = (self.body)(first);
        let mut response = endpoint.post(self.path, &body, may_run_tools(&body)).await;
        for (number, form) in (1..).zip(self.others).skip(first) {
            let Err(error) = &response else { break };
            if !(form.can_help)(error, &body) {
                continue;
            }
            let next = (self.body)(number);
            if next == body {
                continue;
            }
            if form.is_remembered {
                remembered = number;
            }
            let left_out = form.left_out;
            tracing::warn!(%error, left_out, "the provider refused the request; sending it without a part");
            body = next;
            response = endpoint.post(self.path, &body, may_run_tools(&body)).await;
        }
        if response.is_ok() {
            self.first.0.fetch_max(remembered, Ordering::Relaxed);
        }
        response
    }
}

/// Whether the provider may execute a tool because of this request.
fn may_run_tools(body: &Value) -> bool {
    let any = |list: &str, is_it: fn(&Value) -> bool| {
        body.get(list).and_then(Value::as_array).is_some_and(|list| list.iter().any(is_it))
    };
    any("tools", |tool| tool["type"] != "function") || any("input", |item| item["approve"] == true)
}
