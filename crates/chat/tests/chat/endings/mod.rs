//! An answer ends as its page, the chat and the model say, also if clients, servers and stores fail.

mod answer_ends;
mod deleted_chats;
mod detached_turns;
mod failing_reads;
mod failing_stores;
pub(crate) mod faults;
mod lost_runs;
mod repeated_stops;
mod shutdown;
mod slow_store;
mod stop_at_another_server;
