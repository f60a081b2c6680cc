//! Code that the tests of chats, agents and stores share.

pub mod answers;
pub mod browser;
pub mod calling_model;
pub mod deleted_users;
pub mod faulted_operations;
pub mod kept_records;
pub mod kill_trials;
pub mod log_double;
pub mod log_hints;
pub mod long_answer;
pub mod model_double;
pub mod random_logs;
pub mod recorded_conversations;
pub mod store_requests;
pub mod test_server;
pub mod turn_costs;
