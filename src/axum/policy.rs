//! [`ChatPolicy`] as an axum extractor and as a layer.

use ::axum::Extension;
use ::axum::extract::FromRequestParts;
use ::axum::middleware::{FromExtractorLayer, from_extractor};
use http::request::Parts;
use tower_layer::Layer;

use super::rejection::ChatRejection;
use crate::policy::ChatPolicy;

impl<S: Send + Sync> FromRequestParts<S> for ChatPolicy {
    type Rejection = ChatRejection;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        let policy = parts.extensions.get::<ChatPolicy>().cloned().unwrap_or_default();
        policy.check_host_and_origin(parts)?;
        Ok(policy)
    }
}

impl<S> Layer<S> for ChatPolicy {
    type Service = <Extension<ChatPolicy> as Layer<GuardedService<S>>>::Service;

    fn layer(&self, inner: S) -> Self::Service {
        Extension(self.clone()).layer(from_extractor::<ChatPolicy>().layer(inner))
    }
}

/// A service that receives only the requests that the policy allows.
type GuardedService<S> = <FromExtractorLayer<ChatPolicy, ()> as Layer<S>>::Service;
