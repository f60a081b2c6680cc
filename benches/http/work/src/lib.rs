//! What all arms do: the answers that their agents write, and how the arms in Rust listen.
//!
//! An arm is a server that answers `POST /text`, `POST /outputs` and, if it takes part there, `POST /paced`.
//! The two answers are values, so that arms in other languages read them as JSON.

mod answer;
mod listen;
mod pace;
mod said;

pub use answer::{Answer, Call, Row, Step, outputs, text};
pub use listen::{listen, serve};
pub use pace::{MARK, paced, unix_nanoseconds};
pub use said::{Said, said};
