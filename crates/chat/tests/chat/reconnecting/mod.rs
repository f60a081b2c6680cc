//! A reader gets each part of an answer once, whenever it connects.

mod cut_pages;
mod live_responses;
mod missed_hints;
mod recorded_conversations;
mod serve;
