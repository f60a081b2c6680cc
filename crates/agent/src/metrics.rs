//! The tokens of an agent, as a series of the `metrics` crate. `docs/metrics.md` lists the series.

/// Counts the tokens that a run has read and written. Does nothing without the feature `metrics`.
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
