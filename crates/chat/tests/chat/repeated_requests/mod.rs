//! A request that is delivered again changes nothing, and gets the answer of the first one.

mod answers;
mod messages;
mod retries;
