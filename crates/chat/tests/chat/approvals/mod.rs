//! A call runs only after a permitted person has approved it, once, however late and from wherever the decision comes.

mod bell_ringer;
mod call_outcomes;
mod client_executed;
mod concurrent_turns;
mod decisions_in_live_runs;
mod expiry;
mod inbox;
mod late_responses;
mod late_revocations;
mod newer_messages;
mod notifier;
mod out_of_band_decisions;
mod rejected_responses;
mod settled_on_load;
