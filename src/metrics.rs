//! What a server counts for its operator, apart from its HTTP requests: approvals, tokens, runs, readers,
//! and its stores.
//! `docs/metrics.md` lists the series.
//!
//! Without the feature `metrics` the functions do nothing, so that their callers need no condition.

/// Counts an event in the life of an approval request.
pub(crate) fn count_approval(event: &'static str) {
    count("ui_message_stream_approvals_total", "event", event);
}

/// Counts the live runs of this process.
#[cfg(feature = "approvals")]
pub(crate) fn add_live_runs(change: f64) {
    add("ui_message_stream_live_runs", change);
}

/// Counts a run that another turn has ended, or that was refused.
#[cfg(feature = "approvals")]
pub(crate) fn count_run(event: &'static str) {
    count("ui_message_stream_runs_total", "event", event);
}

/// Counts the responses that clients read now.
#[cfg(feature = "approvals")]
pub(crate) fn add_readers(change: f64) {
    add("ui_message_stream_readers", change);
}

/// Counts an operation of a store that has failed.
#[cfg(feature = "approvals")]
pub(crate) fn count_store_failure(operation: &'static str) {
    count("ui_message_stream_store_failures_total", "operation", operation);
}

/// Counts an append that the store has refused.
#[cfg(feature = "approvals")]
pub(crate) fn count_refused_append(reason: &'static str) {
    count("ui_message_stream_refused_appends_total", "reason", reason);
}

/// Counts the tokens that a run has read and written.
#[cfg(feature = "agent")]
pub(crate) fn count_tokens(provider: Option<&str>, model: Option<&str>, input: u64, output: u64) {
    #[cfg(feature = "metrics")]
    for (kind, tokens) in [("input", input), ("output", output)] {
        metrics::counter!(
            "ui_message_stream_tokens_total",
            "provider" => provider.unwrap_or("unknown").to_owned(),
            "model" => model.unwrap_or("unknown").to_owned(),
            "type" => kind,
        )
        .increment(tokens);
    }
    let _ = (provider, model, input, output);
}

fn count(series: &'static str, label: &'static str, value: &'static str) {
    #[cfg(feature = "metrics")]
    metrics::counter!(series, label => value).increment(1);
    let _ = (series, label, value);
}

#[cfg(feature = "approvals")]
fn add(series: &'static str, change: f64) {
    #[cfg(feature = "metrics")]
    metrics::gauge!(series).increment(change);
    let _ = (series, change);
}
