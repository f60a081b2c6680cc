//! The command line: each command as people run it, and its exit code.

#[path = "cli/check.rs"]
mod check;
mod doubles;
mod fixture_files;
#[path = "cli/http.rs"]
mod http;
#[path = "cli/parse_request.rs"]
mod parse_request;
#[path = "cli/program.rs"]
mod program;
mod real;
#[path = "cli/record.rs"]
mod record;
#[path = "cli/reduce.rs"]
mod reduce;
#[path = "cli/replay.rs"]
mod replay;
#[path = "cli/replayed.rs"]
mod replayed;
#[path = "cli/streams.rs"]
mod streams;
#[path = "cli/usage.rs"]
mod usage;
