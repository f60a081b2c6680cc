//! What pages read of chats: one, all of a user, pending approvals, an answer as JSON.

mod followed_chats;
mod history;
mod json_responses;
mod listed_chats;
mod template_bodies;
