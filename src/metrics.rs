//! What the approvals count for an operator, apart from HTTP requests. `docs/metrics.md` lists the series.
//!
//! Without the feature `metrics` the functions do nothing, so that their callers need no condition.

/// Counts an event in the life of an approval request.
pub(crate) fn count_approval(event: &'static str) {
    count("ui_message_stream_approvals_total", "event", event);
}

/// Counts an operation of a store that has failed.
pub(crate) fn count_store_failure(operation: &'static str) {
    count("ui_message_stream_store_failures_total", "operation", operation);
}

fn count(series: &'static str, label: &'static str, value: &'static str) {
    #[cfg(feature = "metrics")]
    metrics::counter!(series, label => value).increment(1);
    let _ = (series, label, value);
}
