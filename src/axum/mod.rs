//! The integration with axum.
//!
//! [`ChatRequest`](crate::ChatRequest) is an extractor, [`UiMessageStream`](crate::UiMessageStream)
//! is a response, and
//! [`ChatPolicy`](crate::policy::ChatPolicy) is a layer. [`chat_routes`] and [`approval_routes`] serve
//! whole conversations.
//!
//! This module makes no protocol decisions. The module [`request`](crate::request) and the policy
//! check requests, and this module converts their errors to a status and a text.

mod extract;
mod policy;
mod rejection;
mod response;
#[cfg(feature = "approvals")]
mod router;

pub use self::rejection::{ChatRejection, ChatRejectionKind};
#[cfg(feature = "approvals")]
pub use self::router::{approval_routes, chat_routes};
