//! The tools, a log of their effects, and functions with which a test changes them.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::watch;
use ui_message_stream::approval::{
    ApprovedCall, ChangedInput, DefinitionDigest, EditableInput, Progress, ToolInfo, ToolOutcome,
    Toolbox,
};
use ui_message_stream::{BoxFuture, Json, UiMessage};
use ui_message_stream_agent::ApprovalContext;
use ui_message_stream_agent::tool_policy::{ApprovalRequirement, ToolPolicy};

/// An effect of a tool.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Effect {
    /// The tool that ran.
    pub tool: String,
    /// The input of the call.
    pub input: Value,
}

/// The tools of the server.
#[derive(Debug, Clone)]
pub struct Tools {
    state: Arc<Mutex<State>>,
    /// Whether approved tools may complete.
    open: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct State {
    effects: Vec<Effect>,
    removed: HashSet<String>,
    forbidden: HashSet<String>,
    decided_by_others: HashSet<String>,
    description: Option<String>,
    path_starts_with: String,
    outputs: HashMap<String, String>,
    failures: HashMap<String, String>,
}

impl Default for Tools {
    fn default() -> Self {
        Tools { state: Arc::default(), open: watch::channel(true).0 }
    }
}

impl Tools {
    /// Returns the effects of the tools, in order.
    pub fn effects(&self) -> Vec<Effect> {
        self.state().effects.clone()
    }

    /// Suspends approved tools after their effect and before their result, or resumes them.
    pub fn hold(&self, hold: bool) {
        self.open.send_replace(!hold);
    }

    /// Makes the server deny permission for this tool from now on.
    pub fn forbid(&self, tool: &str) {
        self.state().forbidden.insert(tool.to_owned());
    }

    /// Makes other principals than the requester decide on the calls of this tool from now on.
    pub fn let_others_decide(&self, tool: &str) {
        self.state().decided_by_others.insert(tool.to_owned());
    }

    /// Removes a tool.
    pub fn remove(&self, tool: &str) {
        self.state().removed.insert(tool.to_owned());
    }

    /// Replaces the definition of `delete_file`.
    pub fn redefine(&self, description: Option<String>, path_starts_with: Option<String>) {
        let mut state = self.state();
        state.description = description;
        state.path_starts_with = path_starts_with.unwrap_or_default();
    }

    /// Makes the tool return this JSON text from now on.
    pub fn set_output(&self, tool: &str, output: &str) {
        self.state().outputs.insert(tool.to_owned(), output.to_owned());
    }

    /// Makes the tool fail with this error from now on.
    pub fn set_failure(&self, tool: &str, error: &str) {
        self.state().failures.insert(tool.to_owned(), error.to_owned());
    }

    /// Returns whether the tool exists and accepts this input.
    pub fn takes(&self, tool: &str, input: &Json) -> bool {
        let Ok(input) = input.decode::<Value>() else { return false };
        let state = self.state();
        let taken = match tool {
            "get_weather" => input["city"].is_string(),
            "delete_file" => {
                input["path"].as_str().is_some_and(|path| path.starts_with(&state.path_starts_with))
            }
            "transfer" => input["to"].is_string() && input["amount"].is_number(),
            "publish" => input["text"].is_string(),
            "get_location" => input.is_object(),
            _ => false,
        };
        taken && !state.removed.contains(tool)
    }

    /// Returns who may make a call of this tool, and when the call needs approval.
    pub fn policy(&self, tool: &str) -> ToolPolicy {
        let mut policy = ToolPolicy::default();
        policy.approval = match tool {
            "delete_file" => ApprovalRequirement::Always,
            "transfer" => ApprovalRequirement::when(|input, _| {
                let amount = input.decode::<Value>().ok().and_then(|it| it["amount"].as_f64());
                amount.is_none_or(|amount| amount > 1000.0)
            }),
            "publish" => ApprovalRequirement::when(|_, context| has_read_the_weather(context)),
            _ => ApprovalRequirement::Never,
        };
        let (tools, tool) = (self.clone(), tool.to_owned());
        policy.with_authorization(move |_, _| !tools.state().forbidden.contains(&tool))
    }

    /// Runs a tool and returns its output as JSON text.
    ///
    /// # Errors
    /// The error of the tool. The user must not see its text.
    pub fn execute(&self, tool: &str, input: &Json) -> Result<String, String> {
        let value: Value = input.decode().map_err(|error| error.to_string())?;
        let mut state = self.state();
        if matches!(tool, "delete_file" | "transfer" | "publish") {
            state.effects.push(Effect { tool: tool.to_owned(), input: value.clone() });
        }
        if let Some(error) = state.failures.get(tool) {
            return Err(error.clone());
        }
        Ok(match (state.outputs.get(tool), tool) {
            (Some(output), _) => output.clone(),
            (None, "get_weather") => {
                json!({"city": value["city"], "celsius": 21, "sky": "clear"}).to_string()
            }
            (None, "delete_file") => json!({"path": value["path"], "deleted": true}).to_string(),
            (None, "publish") => json!({"text": value["text"], "published": true}).to_string(),
            _ => json!({"to": value["to"], "amount": value["amount"], "sent": true}).to_string(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Toolbox for Tools {
    fn tool(&self, name: &str) -> Option<ToolInfo> {
        let state = self.state();
        let known = ["get_weather", "delete_file", "transfer", "publish", "get_location"];
        if !known.contains(&name) || state.removed.contains(name) {
            return None;
        }
        let description = state.description.as_deref().unwrap_or("What it does.");
        let schema =
            Json::from_serialize(&json!({"pathStartsWith": state.path_starts_with})).unwrap();
        let mut info = ToolInfo::new(DefinitionDigest::new(name, description, &schema));
        info.decided_by_others = state.decided_by_others.contains(name);
        if name == "transfer" {
            info.editable = EditableInput::Fields(vec!["amount".into()]);
        }
        Some(info)
    }

    fn check_input(&self, name: &str, input: &ChangedInput) -> Result<(), String> {
        match self.takes(name, &input.changed) {
            true => Ok(()),
            false => Err("the tool does not take this input".to_owned()),
        }
    }

    fn permits<'a>(&'a self, call: &'a ApprovedCall) -> BoxFuture<'a, bool> {
        Box::pin(async {
            let policy = self.policy(&call.tool_name);
            self.takes(&call.tool_name, &call.input)
                && policy.authorizes(&call.tool_name, &call.requester, &call.input).await
        })
    }

    fn run(&self, call: ApprovedCall, _: Progress) -> BoxFuture<'static, ToolOutcome> {
        let tools = self.clone();
        let mut open = self.open.subscribe();
        Box::pin(async move {
            let result = tools.execute(&call.tool_name, &call.input);
            let _ = open.wait_for(|open| *open).await;
            match result.map(|output| Json::parse(&output)) {
                Ok(Ok(output)) => ToolOutcome::Output(output),
                Ok(Err(error)) => ToolOutcome::Failed(error.to_string()),
                // A real host would return an error text that the user may read.
                Err(error) => panic!("{error}"),
            }
        })
    }
}

/// Returns whether the chat holds a call that read data of others.
fn has_read_the_weather(context: &ApprovalContext) -> bool {
    let mut calls = context.chat().messages.iter().flat_map(UiMessage::tool_parts);
    calls.any(|call| &*call.tool_name == "get_weather")
}
