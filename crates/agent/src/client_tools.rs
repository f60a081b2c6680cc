//! Tools that a request defines, which the client that sent it executes.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;

use serde::Deserialize;

use super::dyn_tool::{DynTool, IntoTool};
use super::tool::Tool;
use super::tool_set::{ToolSet, is_callable, of_client};
use ui_message_stream::approval::{DefinitionDigest, ToolInfo};
use ui_message_stream::json::{FieldError, Json};
use ui_message_stream::model::parameters;
use ui_message_stream::request::ChatRequest;

/// Returns the agent's tools together with the tools of the request.
///
/// # Errors
/// A [`FieldError`] if a tool of the request is invalid: the field is malformed or given twice,
/// there are too many tools, or a name is not callable, is given twice or is the name of a tool of
/// the server. In the last case the client could answer the calls of the server's tool.
pub(super) fn with_request_tools(
    tools: &ToolSet,
    request: &ChatRequest,
) -> Result<ToolSet, FieldError> {
    let client_tools = match (request.custom(FIELD), request.custom(SNAKE_CASE_FIELD)) {
        (Some(_), Some(_)) => {
            return Err(invalid_field("given twice, as `client_tools` as well".into()));
        }
        (client_tools, snake_case_tools) => client_tools.or(snake_case_tools),
    };
    let Some(client_tools) = client_tools else { return Ok(tools.clone()) };
    let client_tools: Option<Vec<ClientTool>> =
        client_tools.decode().map_err(|_| invalid_field(EXPECTED_SHAPE.into()))?;
    let client_tools = client_tools.unwrap_or_default();
    if client_tools.len() > MAX_TOOLS {
        return Err(invalid_field(format!("more than {MAX_TOOLS}").into()));
    }
    let mut names = HashSet::new();
    for (index, tool) in client_tools.iter().enumerate() {
        let path = format!("{FIELD}[{index}]");
        if !is_callable(&tool.name) {
            let rule = "takes letters, digits, `_` and `-`, at most 64 of them";
            return Err(FieldError::new("name", rule).within(&path));
        }
        if tools.contains(&tool.name) {
            return Err(FieldError::new("name", "is a tool of the server").within(&path));
        }
        if !names.insert(&tool.name) {
            return Err(FieldError::new("name", "given twice").within(&path));
        }
        if !tool.input_schema.as_str().starts_with('{') {
            return Err(FieldError::new("inputSchema", "expected an object").within(&path));
        }
        // A provider would refuse the whole request.
        if parameters(&tool.input_schema).is_none() {
            let rule = "expected the schema of an object";
            return Err(FieldError::new("inputSchema", rule).within(&path));
        }
    }
    Ok(tools.with(client_tools.into_iter().map(ClientTool::into_tool)))
}

/// A tool that a request defines.
///
/// Its inputs are not validated here: the client knows what its tool accepts. A schema from an
/// untrusted client can also be written so that its evaluation takes unbounded time.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ClientTool {
    name: Box<str>,
    #[serde(default)]
    description: Box<str>,
    #[serde(default = "any_object", alias = "input_schema", alias = "parameters")]
    input_schema: Json,
    #[serde(default, alias = "requires_approval", alias = "default_requires_approval")]
    requires_approval: bool,
}

impl ClientTool {
    fn into_tool(self) -> Arc<dyn DynTool> {
        let tool = Tool::client_executed(self.name, self.description, self.input_schema)
            .without_schema_validation();
        if self.requires_approval { tool.needs_approval().into_tool() } else { tool.into_tool() }
    }
}

/// Returns what an approval of a tool that a request has defined is bound to. The request that answers does
/// not have to define the tool again. A call that is handed to the client twice is still one call.
pub(super) fn info(name: &str) -> ToolInfo {
    of_client(ToolInfo::new(DefinitionDigest::new(name, "", &Json::null())))
}

/// The schema of a tool that has none.
fn any_object() -> Json {
    // The text is a valid schema.
    Json::parse(r#"{"type": "object"}"#).unwrap_or_else(|_| Json::null())
}

fn invalid_field(problem: Cow<'static, str>) -> FieldError {
    FieldError::new(FIELD, problem)
}

const EXPECTED_SHAPE: &str = "expected a list of `{\"name\", \"description\"?, \"inputSchema\"?, \
                              \"requiresApproval\"?}`";

/// The field of the request that holds the tools.
const FIELD: &str = "clientTools";

/// The same field in requests of clients that are not written in JavaScript.
const SNAKE_CASE_FIELD: &str = "client_tools";

/// The maximum number of tools that a request may define. Models choose badly among more.
const MAX_TOOLS: usize = 128;
