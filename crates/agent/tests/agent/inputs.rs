//! The inputs of the tools of most tests.

use schemars::JsonSchema;
use serde::Deserialize;
use ui_message_stream_agent::ToolError;

#[derive(Deserialize, JsonSchema)]
pub(crate) struct Number {
    pub(crate) n: u64,
}

#[derive(Deserialize, JsonSchema)]
pub(crate) struct What {
    pub(crate) what: String,
}

/// Returns twice the number.
pub(crate) async fn double(input: Number) -> Result<u64, ToolError> {
    Ok(2 * input.n)
}
