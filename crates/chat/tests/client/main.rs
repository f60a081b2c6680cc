//! The real client: the npm packages of `tests/client`, run by Node, talk to a chat server.
//!
//! Without Node a test says that it is skipped and passes; with `CI=true` it fails.

mod cut_conversations;
mod front_ends;
mod stock_page;
