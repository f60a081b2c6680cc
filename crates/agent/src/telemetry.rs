//! The spans of an agent. Their names follow the OpenTelemetry conventions for generative AI. They
//! hold no content.

use tracing::{Span, field};

use super::context::ToolContext;
use ui_message_stream::id::{ChatId, log_text};
use ui_message_stream::model::{Model, Usage};

/// Creates the span of a run.
pub(super) fn run_span(model: &dyn Model, chat: &ChatId) -> Span {
    tracing::info_span!(
        "invoke_agent",
        gen_ai.operation.name = "invoke_agent",
        gen_ai.provider.name = model.provider(),
        gen_ai.conversation.id = &*log_text(chat),
        gen_ai.usage.input_tokens = field::Empty,
        gen_ai.usage.output_tokens = field::Empty,
        otel.status_code = field::Empty,
        error.type = field::Empty,
    )
}

/// Creates the span of a step of a run.
pub(super) fn step_span(run: &Span, step: u32) -> Span {
    tracing::info_span!(parent: run, "step", step)
}

/// Creates the span of a model call.
pub(super) fn model_span(model: &dyn Model, chat: &ChatId) -> Span {
    tracing::info_span!(
        "chat",
        otel.name = model.name().map(|name| format!("chat {name}")),
        otel.kind = "client",
        otel.status_code = field::Empty,
        gen_ai.operation.name = "chat",
        gen_ai.provider.name = model.provider(),
        gen_ai.request.model = model.name(),
        gen_ai.conversation.id = &*log_text(chat),
        gen_ai.response.finish_reasons = field::Empty,
        gen_ai.usage.input_tokens = field::Empty,
        gen_ai.usage.output_tokens = field::Empty,
        error.type = field::Empty,
    )
}

/// Creates the span of a tool call.
pub(super) fn tool_span(tool: &str, context: &ToolContext) -> Span {
    tracing::info_span!(
        "execute_tool",
        otel.name = format!("execute_tool {}", log_text(tool)),
        otel.status_code = field::Empty,
        gen_ai.operation.name = "execute_tool",
        gen_ai.conversation.id = &*log_text(&context.chat_id),
        gen_ai.tool.name = &*log_text(tool),
        gen_ai.tool.type = "function",
        gen_ai.tool.call.id = &*log_text(&context.tool_call_id),
        error.type = field::Empty,
    )
}

/// Records the token usage of a run or of a model call.
pub(super) fn record_usage(span: &Span, usage: Usage) {
    span.record("gen_ai.usage.input_tokens", usage.input_tokens);
    span.record("gen_ai.usage.output_tokens", usage.output_tokens);
}

/// Marks a span as failed, with the kind of the failure.
pub(super) fn record_failure(span: &Span, kind: &'static str) {
    span.record("otel.status_code", "ERROR");
    span.record("error.type", kind);
}
