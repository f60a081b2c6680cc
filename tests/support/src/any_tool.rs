//! [`AnyTool`]: a toolbox in which every name is a tool.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::FutureExt;
use futures::future::ready;
use ui_message_stream::approval::{
    ApprovedCall, DefinitionDigest, Progress, ToolInfo, ToolOutcome, Toolbox,
};
use ui_message_stream::{BoxFuture, Json};

/// A toolbox in which every name is a tool. It permits every call, and one function runs them all.
#[derive(Clone)]
pub struct AnyTool(Arc<Run>);

type Run = dyn Fn(ApprovedCall) -> BoxFuture<'static, ToolOutcome> + Send + Sync;

impl AnyTool {
    /// Creates a toolbox that runs calls with this function.
    pub fn new<F, R>(run: F) -> Self
    where
        F: Fn(ApprovedCall) -> R + Send + Sync + 'static,
        R: Future<Output = ToolOutcome> + Send + 'static,
    {
        AnyTool(Arc::new(move |call| run(call).boxed()))
    }

    /// Creates a toolbox in which every call has this outcome.
    pub fn with_outcome(outcome: ToolOutcome) -> Self {
        Self::new(move |_| ready(outcome.clone()))
    }

    /// Creates a toolbox in which every call has this text as its output.
    pub fn with_output(text: &str) -> Self {
        Self::with_outcome(ToolOutcome::Output(Json::string(text)))
    }

    /// Creates a toolbox in which every call has this text as its output, and the number of the
    /// calls that have run.
    pub fn counted(text: &'static str) -> (Self, Arc<AtomicUsize>) {
        let count = Arc::<AtomicUsize>::default();
        let counted = Arc::clone(&count);
        let tool = Self::new(move |_| {
            counted.fetch_add(1, Ordering::SeqCst);
            ready(ToolOutcome::Output(Json::string(text)))
        });
        (tool, count)
    }
}

impl fmt::Debug for AnyTool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AnyTool")
    }
}

impl Toolbox for AnyTool {
    fn tool(&self, name: &str) -> Option<ToolInfo> {
        Some(ToolInfo::new(DefinitionDigest::new(name, "A tool.", &Json::null())))
    }

    fn permits<'a>(&'a self, _: &'a ApprovedCall) -> BoxFuture<'a, bool> {
        Box::pin(ready(true))
    }

    fn run(&self, call: ApprovedCall, _: Progress) -> BoxFuture<'static, ToolOutcome> {
        (self.0)(call)
    }
}
