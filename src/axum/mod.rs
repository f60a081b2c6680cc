//! The integration with axum.
//!
//! [`ChatRequest`](crate::ChatRequest) and [`Principal`](crate::approval::Principal) are extractors,
//! [`UiMessageStream`](crate::UiMessageStream) is a response, and
//! [`ChatPolicy`](crate::policy::ChatPolicy) is a layer and an extractor. The routes of whole conversations
//! are those of `ui-message-stream-chat`.
//!
//! A request without a principal is rejected with status 401: insert a
//! [`Principal`](crate::approval::Principal) into its extensions where you authenticate, or add the
//! layer [`without_authentication`].
//!
//! `axum::serve` has no timeouts and no maximum number of connections, and does not set
//! `TCP_NODELAY`. `serve` (feature `serve`) does.
//!
//! This module makes no protocol decisions. The modules [`request`](crate::request) and
//! [`policy`](crate::policy) check requests, and this module converts their errors to a status and
//! a text.

mod extract;
#[cfg(feature = "metrics")]
mod measure;
mod policy;
mod principal;
mod rejection;
mod response;
#[cfg(feature = "serve")]
mod serve;
mod without_authentication;

pub use self::extract::JsonBody;
#[cfg(feature = "metrics")]
pub use self::measure::measure;
pub use self::rejection::{ChatRejection, ChatRejectionKind};
#[cfg(feature = "serve")]
pub use self::serve::{Serve, serve};
pub use self::without_authentication::{
    LocalAddress, WithoutAuthentication, without_authentication,
};
