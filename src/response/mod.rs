//! [`UiMessageStream`]: agent events as the body of a response.
//!
//! The pipeline translates the events of a stream to chunks and frames. The body yields them as an
//! `http_body::Body` and as a `Stream` of bytes. [`UiWriter`] writes a response without a stream of
//! events, and [`Smooth`] paces text.

mod body;
mod open_calls;
mod pipeline;
mod smooth;
mod summary;
mod writer;

pub use self::body::{BodyError, UiMessageStream, headers};
pub use self::pipeline::{IntoEvent, StreamError, panic_message};
pub use self::smooth::{Smooth, SmoothStream};
pub use self::summary::{FinishedMessage, ResponseOutcome, ResponseSummary};
pub use self::writer::{Disconnected, UiWriter, WriteError};
