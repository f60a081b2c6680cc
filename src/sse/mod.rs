//! Server-sent events: chunks to frames, and bytes back to chunks.
//!
//! A frame is `data: <one line of JSON>` and a blank line. After the last one comes `data: [DONE]`.
//! Comments keep an idle connection alive; every client ignores them.
//!
//! Wire: [event stream format](https://html.spec.whatwg.org/multipage/server-sent-events.html)

mod buffer;
mod decode;
mod encode;
mod escape;

pub use self::buffer::Buffer;
pub use self::decode::{Decoder, Event};
pub use self::encode::{DONE, Encoder, KEEP_ALIVE};
