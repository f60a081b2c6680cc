//! Approvals: requests, responses, the ledger and the audit.

mod adapter;
mod approvals;
mod audit;
mod changed_inputs;
mod foreign_requests;
mod inbox;
mod ledger_store;
mod new_message;
mod notifier;
mod one_tool;
mod other_keys;
mod random_orders;
mod resume_plan;
mod stored_formats;
