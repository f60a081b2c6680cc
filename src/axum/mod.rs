//! The crate in an axum app: [`ChatRequest`](crate::ChatRequest) is an extractor,
//! [`UiMessageStream`](crate::UiMessageStream) a response, [`ChatPolicy`] a layer; [`chat_routes`] are
//! whole conversations.
//!
//! Nothing is decided here: requests are judged by the request room and by the policy, and what
//! they say becomes a status and a text.

mod extract;
mod host;
mod policy;
mod rejection;
mod response;
#[cfg(feature = "approvals")]
mod router;

pub use self::policy::ChatPolicy;
pub use self::rejection::{ChatRejection, ChatRejectionKind};
#[cfg(feature = "approvals")]
pub use self::router::{approval_routes, chat_routes};
