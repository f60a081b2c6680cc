//! The command line: the output and the exit code of each command of the built program.

mod broken_streams;
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
