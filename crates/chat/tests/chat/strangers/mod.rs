//! A request without a user, of another user or of a hostile page reaches nothing.

mod embedding;
mod principal;
mod route_protection;
mod same_chat_id;
