//! [`ToolHandler`]: the function of the host that runs a tool.

use std::future::Future;
use std::marker::PhantomData;
use std::pin::pin;

use futures_util::{Stream, StreamExt};
use serde::Serialize;
use tokio::task::yield_now;

use super::context::{PartEmitter, ToolContext};
use crate::tool_loop::ToolEvent;
use ui_message_stream::json::Json;
use ui_message_stream::{BoxError, BoxFuture};

/// A handler of a tool: an async function of the input, or of the input and a [`ToolContext`].
///
/// A closure that captures something clones it for each call and returns an `async move` block, as
/// in the example of [`Tool::new`](super::Tool::new). An `async move |input|` closure cannot use
/// what it captured: its future would borrow from the closure, and a handler's future is `'static`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a handler of a tool",
    label = "expected an async function of the input, or of the input and a `ToolContext`",
    note = "a tool returns `Result<Output, Error>`: the output implements `Serialize`, and the error converts to `BoxError`"
)]
pub trait ToolHandler<I, Form>: Send + Sync + 'static {
    /// Runs the handler on one input.
    fn call(&self, input: I, context: ToolContext) -> BoxFuture<'static, Result<Json, BoxError>>;
}

/// Marks a handler that takes only the input.
#[derive(Debug)]
pub struct WithoutContext(PhantomData<()>);

/// Marks a handler that takes the input and the context.
#[derive(Debug)]
pub struct WithContext(PhantomData<()>);

impl<F, Fut, I, O, E> ToolHandler<I, WithoutContext> for F
where
    F: Fn(I) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<O, E>> + Send + 'static,
    O: Serialize,
    E: Into<BoxError>,
{
    fn call(&self, input: I, _: ToolContext) -> BoxFuture<'static, Result<Json, BoxError>> {
        let output = self(input);
        Box::pin(async move { Ok(Json::from_serialize(&output.await.map_err(Into::into)?)?) })
    }
}

impl<F, Fut, I, O, E> ToolHandler<I, WithContext> for F
where
    F: Fn(I, ToolContext) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<O, E>> + Send + 'static,
    O: Serialize,
    E: Into<BoxError>,
{
    fn call(&self, input: I, context: ToolContext) -> BoxFuture<'static, Result<Json, BoxError>> {
        let output = self(input, context);
        Box::pin(async move { Ok(Json::from_serialize(&output.await.map_err(Into::into)?)?) })
    }
}

/// Emits each output as a preliminary one and returns the last output of the stream.
pub(super) async fn emit_outputs<O: Serialize, E: Into<BoxError>>(
    outputs: impl Stream<Item = Result<O, E>>,
    emitter: Option<PartEmitter>,
) -> Result<Json, BoxError> {
    let mut outputs = pin!(outputs);
    let mut last = None;
    while let Some(output) = outputs.next().await {
        let output = Json::from_serialize(&output.map_err(Into::into)?)?;
        match &emitter {
            // Ignored: the length of the last output is checked when the call ends.
            Some(emitter) => drop(emitter.emit(ToolEvent::Preliminary(output.clone())).await),
            None => yield_now().await,
        }
        last = Some(output);
    }
    last.ok_or_else(|| "the tool ended without an output".into())
}
