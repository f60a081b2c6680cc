//! What a server counts for its operator, apart from its HTTP requests: approvals and tokens.
//! `docs/metrics.md` lists the series.
//!
//! Without the feature `metrics` the functions do nothing, so that their callers need no condition.

/// Counts an event in the life of an approval request.
pub(crate) fn count_approval(event: &'static str) {
    #[cfg(feature = "metrics")]
    metrics::counter!("ui_message_stream_approvals_total", "event" => event).increment(1);
    let _ = event;
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
