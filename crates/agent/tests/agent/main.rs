//! The agent: its loop, its tools, its output and the order of its chunks.

mod agent;
mod approval_orderings_http;
mod approved_progress;
mod authorization;
mod changed_inputs;
mod chunk_order;
mod client_tools;
mod debug_output;
mod failing_ledger;
mod failing_model;
mod hostile_ids;
mod incomplete_histories;
mod inner_agents;
mod limits;
mod metrics;
mod open_calls;
mod provider_approvals;
mod provider_approvals_multi_server;
mod provider_double;
mod recordings;
mod schemas;
mod spans;
mod structured_output;
mod tool_loop;
mod tools;
mod without_chat_server;
