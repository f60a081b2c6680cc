//! The command line: each command as people run it, and its exit code.

mod check;
mod http;
mod parse_request;
mod program;
mod record;
mod reduce;
mod replay;
mod replayed;
mod streams;
mod usage;
