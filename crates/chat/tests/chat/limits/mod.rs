//! What a user may hold, and what happens at each limit.

mod logged_limits;
mod logged_rejections;
mod reader_limit;
mod run_counts;
mod stored;
