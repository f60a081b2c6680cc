//! What a chat server counts for its operator: runs, readers and refused appends. `docs/metrics.md` lists
//! the series.
//!
//! Without the feature `metrics` the functions do nothing, so that their callers need no condition.

/// Counts the live runs of this process.
pub(crate) fn add_live_runs(change: f64) {
    add("ui_message_stream_live_runs", change);
}

/// Counts a run that another turn has ended, or that was refused.
pub(crate) fn count_run(event: &'static str) {
    count("ui_message_stream_runs_total", "event", event);
}

/// Counts the responses that clients read now.
pub(crate) fn add_readers(change: f64) {
    add("ui_message_stream_readers", change);
}

/// Counts an operation of a store that has failed.
pub(crate) fn count_store_failure(operation: &'static str) {
    count("ui_message_stream_store_failures_total", "operation", operation);
}

/// Counts an append that the store has refused.
pub(crate) fn count_refused_append(reason: &'static str) {
    count("ui_message_stream_refused_appends_total", "reason", reason);
}

fn count(series: &'static str, label: &'static str, value: &'static str) {
    #[cfg(feature = "metrics")]
    metrics::counter!(series, label => value).increment(1);
    let _ = (series, label, value);
}

fn add(series: &'static str, change: f64) {
    #[cfg(feature = "metrics")]
    metrics::gauge!(series).increment(change);
    let _ = (series, change);
}
