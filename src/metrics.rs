//! What a server counts for its operator, apart from its HTTP requests: approvals, tokens, runs, readers,
//! and its stores.
//! `docs/metrics.md` lists the series.
//!
//! Without the feature `metrics` the functions do nothing, so that their callers need no condition.

/// Counts an event in the life of an approval request.
pub(crate) fn count_approval(event: &'static str) {
    #[cfg(feature = "metrics")]
    metrics::counter!("ui_message_stream_approvals_total", "event" => event).increment(1);
    let _ = event;
}

/// Counts the live runs of this process.
#[cfg(feature = "approvals")]
pub(crate) fn add_live_runs(change: f64) {
    #[cfg(feature = "metrics")]
    metrics::gauge!("ui_message_stream_live_runs").increment(change);
    let _ = change;
}

/// Counts a run that another turn has ended, or that was refused.
#[cfg(feature = "approvals")]
pub(crate) fn count_run(event: &'static str) {
    #[cfg(feature = "metrics")]
    metrics::counter!("ui_message_stream_runs_total", "event" => event).increment(1);
    let _ = event;
}

/// Counts the responses that clients read now.
#[cfg(feature = "approvals")]
pub(crate) fn add_readers(change: f64) {
    #[cfg(feature = "metrics")]
    metrics::gauge!("ui_message_stream_readers").increment(change);
    let _ = change;
}

/// Counts an operation of a store that has failed.
#[cfg(feature = "approvals")]
pub(crate) fn count_store_failure(operation: &'static str) {
    #[cfg(feature = "metrics")]
    metrics::counter!("ui_message_stream_store_failures_total", "operation" => operation)
        .increment(1);
    let _ = operation;
}

/// Counts an append that the store has refused.
#[cfg(feature = "approvals")]
pub(crate) fn count_refused_append(reason: &'static str) {
    #[cfg(feature = "metrics")]
    metrics::counter!("ui_message_stream_refused_appends_total", "reason" => reason).increment(1);
    let _ = reason;
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
