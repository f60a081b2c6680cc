//! An agent for hosts that have none: a model, typed tools, and the loop that connects them.
//!
//! [`tool_loop`] is core: a state machine that decides what happens next. [`Agent`] (feature
//! `agent`) drives it: it calls the model, runs the tools, and requests approvals.

#[cfg(feature = "agent")]
mod builder;
#[cfg(feature = "agent")]
mod client_tools;
#[cfg(feature = "agent")]
mod context;
#[cfg(feature = "agent")]
mod driver;
#[cfg(feature = "agent")]
mod dyn_tool;
#[cfg(feature = "agent")]
mod model_inputs;
#[cfg(feature = "agent")]
mod settings;
#[cfg(feature = "agent")]
mod structured_output;
#[cfg(feature = "agent")]
mod telemetry;
#[cfg(feature = "agent")]
mod tool;
#[cfg(feature = "agent")]
mod tool_handler;
pub mod tool_loop;
#[cfg(feature = "agent")]
pub mod tool_policy;
#[cfg(feature = "agent")]
mod tool_run;
#[cfg(feature = "agent")]
mod tool_set;
#[cfg(feature = "agent")]
mod transcript;

#[cfg(feature = "agent")]
pub use self::builder::Agent;
#[cfg(feature = "agent")]
pub use self::context::{ApprovalContext, EmitError, ToolContext};
#[cfg(feature = "agent")]
pub use self::dyn_tool::{DynTool, DynToolDefinition, IntoTool};
#[cfg(feature = "agent")]
pub use self::tool::{ClientExecuted, Tool};
#[cfg(feature = "agent")]
pub use self::tool_handler::{ToolError, ToolHandler, WithContext, WithoutContext};
