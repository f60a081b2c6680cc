//! The tools of a Model Context Protocol server, in a chat with an agent.

mod host;
mod names;
mod reconnecting;
mod server;
mod tools;
mod versions;
