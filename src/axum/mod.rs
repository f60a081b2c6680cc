//! The crate in an axum app: [`ChatRequest`](crate::ChatRequest) is an extractor,
//! [`UiMessageStream`](crate::UiMessageStream) a response, [`ChatPolicy`] a layer.
//!
//! Nothing is decided here: requests are judged by the request room and by the policy, and what
//! they say becomes a status and a text.

mod extract;
mod host;
mod policy;
mod rejection;
mod response;

pub use self::policy::ChatPolicy;
pub use self::rejection::{ChatRejection, ChatRejectionKind};
