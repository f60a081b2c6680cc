//! ChatServer over HTTP: turns, retries, decisions and stored conversations.

mod call_outcomes;
mod chat_store;
mod client_versions;
mod concurrent_turns;
mod cut_pages;
mod detached_turns;
mod edited_while_running;
mod embedding;
mod history_completeness;
mod history_import;
mod json_responses;
mod late_responses;
mod limits;
mod lost_runs;
mod newer_messages;
mod out_of_band_decisions;
mod pages;
mod reconnecting;
mod rejected_responses;
mod repeated_answers;
mod repeated_requests;
mod retried_requests;
mod run_store;
mod same_chat_id;
mod stored_formats;
