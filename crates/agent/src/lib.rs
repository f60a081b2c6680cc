//! An agent for hosts that have none: a model, typed tools, and the loop that connects them.
//!
//! [`tool_loop`] is core: a state machine that decides what happens next. [`Agent`] drives it: it calls the
//! model, runs the tools, and requests approvals.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(not(test), deny(clippy::unwrap_used))]
#![deny(clippy::disallowed_methods)]

#[macro_use]
mod debug;

mod agent_tool;
mod builder;
mod client_tools;
mod context;
mod driver;
mod dyn_tool;
mod inner_calls;
mod metrics;
mod model_inputs;
mod schema;
mod schemas;
mod settings;
mod structured_output;
mod telemetry;
mod tool;
mod tool_error;
mod tool_handler;
pub mod tool_loop;
pub mod tool_policy;
mod tool_run;
mod tool_set;
mod transcript;

pub use self::agent_tool::AgentInput;
pub use self::builder::Agent;
pub use self::context::{ApprovalContext, EmitError, ToolContext};
pub use self::dyn_tool::{DynTool, DynToolDefinition, IntoTool};
pub use self::inner_calls::Resumed;
pub use self::schemas::Schemas;
pub use self::tool::{ClientExecuted, Tool};
pub use self::tool_error::ToolError;
pub use self::tool_handler::{ToolHandler, WithContext, WithoutContext};
