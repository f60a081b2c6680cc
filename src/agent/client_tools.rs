//! Tools that a request brings along, for the client that sent it to run.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;

use serde::Deserialize;

use super::any_tool::{AnyTool, ClientExecutedTool};
use super::tool::Tool;
use super::tools::{Tools, is_callable};
use crate::json::Json;
use crate::record::FieldError;
use crate::request::ChatRequest;

/// These tools and those of the request.
///
/// # Errors
/// What about the request's tools is wrong: one is named as another, as one of the server's above
/// all, whose calls the client would then answer.
pub(super) fn with_tools_of(tools: &Tools, request: &ChatRequest) -> Result<Tools, FieldError> {
    let brought = match (request.custom(FIELD), request.custom(SNAKE_FIELD)) {
        (Some(_), Some(_)) => return Err(wrong("given twice, as `client_tools` as well".into())),
        (brought, in_snake_case) => brought.or(in_snake_case),
    };
    let Some(brought) = brought else { return Ok(tools.clone()) };
    let brought: Option<Vec<ClientTool>> = brought.to().map_err(|_| wrong(SHAPE.into()))?;
    let brought = brought.unwrap_or_default();
    if brought.len() > MOST_TOOLS {
        return Err(wrong(format!("more than {MOST_TOOLS}").into()));
    }
    let mut names = HashSet::new();
    for (at, tool) in brought.iter().enumerate() {
        let place = format!("{FIELD}[{at}]");
        if !is_callable(&tool.name) {
            let rule = "takes letters, digits, `_` and `-`, at most 64 of them";
            return Err(FieldError::new("name", rule).within(&place));
        }
        if tools.has(&tool.name) {
            return Err(FieldError::new("name", "is a tool of the server").within(&place));
        }
        if !names.insert(&tool.name) {
            return Err(FieldError::new("name", "given twice").within(&place));
        }
        if !tool.input_schema.as_str().starts_with('{') {
            return Err(FieldError::new("inputSchema", "expected an object").within(&place));
        }
    }
    Ok(tools.with(brought.into_iter().map(ClientTool::into_tool)))
}

/// A tool that the client runs, and knows best what it takes: its inputs are not checked here. A
/// schema can be written so that holding an input against it takes for ever, and a stranger wrote
/// this one.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ClientTool {
    name: Box<str>,
    #[serde(default)]
    description: Box<str>,
    #[serde(alias = "input_schema", alias = "parameters")]
    input_schema: Json,
}

impl ClientTool {
    fn into_tool(self) -> Arc<dyn AnyTool> {
        let tool = Tool::client_executed(self.name, self.description, self.input_schema);
        Arc::new(ClientExecutedTool { tool, checks_by_schema: false })
    }
}

fn wrong(problem: Cow<'static, str>) -> FieldError {
    FieldError::new(FIELD, problem)
}

const SHAPE: &str = "expected a list of `{\"name\", \"description\"?, \"inputSchema\"}`";

/// Where a request holds them.
const FIELD: &str = "clientTools";

/// Where one holds them that does not come from JavaScript.
const SNAKE_FIELD: &str = "client_tools";

/// How many tools a request may bring. Models are lost among more.
const MOST_TOOLS: usize = 128;
