//! The world that the demo's tools act on, in memory, so that one can see what happened and what
//! did not.

use std::future::ready;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use ui_message_stream::Json;
use ui_message_stream::approval::{DefinitionDigest, ToolOutcome};
use ui_message_stream::approvals::{ApprovedCall, ToolFacts, Toolbox};
use ui_message_stream::ledger_store::BoxFuture;

/// Files that can be deleted, and money that can be sent.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct World {
    pub(crate) files: Vec<String>,
    pub(crate) transfers: Vec<Transfer>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Transfer {
    pub(crate) to: String,
    pub(crate) amount: u64,
}

/// The world, shared by all chats.
#[derive(Debug)]
pub(crate) struct SharedWorld(Mutex<World>);

impl Default for SharedWorld {
    fn default() -> Self {
        let files =
            ["notes.txt", "budget.xlsx", "holiday.jpg", "draft.md", "report.pdf", "old.log"];
        SharedWorld(Mutex::new(World {
            files: files.map(str::to_owned).to_vec(),
            transfers: Vec::new(),
        }))
    }
}

impl SharedWorld {
    pub(crate) fn now(&self) -> World {
        self.lock().clone()
    }

    /// The file that a text names, else the first one left, else one that is not there.
    pub(crate) fn file_named_in(&self, text: &str) -> String {
        let world = self.lock();
        let named = world.files.iter().find(|file| text.contains(file.as_str()));
        let chosen = named.or(world.files.first());
        chosen.cloned().unwrap_or_else(|| "notes.txt".to_owned())
    }

    /// Runs a tool that the server runs.
    pub(crate) fn run_tool(&self, tool: &str, input: &Value) -> Result<Value, String> {
        match tool {
            "get_weather" => Ok(json!({ "city": input["city"], "celsius": 21, "sky": "clear" })),
            "delete_file" => {
                let path = input["path"].as_str().ok_or("delete_file takes a path")?;
                let mut world = self.lock();
                let before = world.files.len();
                world.files.retain(|file| file != path);
                Ok(json!({ "path": path, "deleted": world.files.len() < before }))
            }
            "transfer" => {
                let transfer = Transfer::deserialize(input).map_err(|error| error.to_string())?;
                let output = json!({ "to": transfer.to, "amount": transfer.amount, "sent": true });
                self.lock().transfers.push(transfer);
                Ok(output)
            }
            other => Err(format!("there is no tool {other:?}")),
        }
    }

    fn takes(&self, tool: &str, input: &Json) -> bool {
        match tool {
            "delete_file" => input.to::<Value>().is_ok_and(|input| input["path"].is_string()),
            "transfer" => input.to::<Transfer>().is_ok(),
            _ => false,
        }
    }

    fn lock(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What approvals ask of the tools that need one.
impl Toolbox for SharedWorld {
    fn tool(&self, name: &str) -> Option<ToolFacts> {
        let description = match name {
            "delete_file" => "Deletes a file for good.",
            "transfer" => "Sends money.",
            _ => return None,
        };
        Some(ToolFacts::new(DefinitionDigest::of(name, description, &Json::null())))
    }

    fn permits<'a>(&'a self, call: &'a ApprovedCall) -> BoxFuture<'a, bool> {
        Box::pin(ready(self.takes(&call.tool_name, &call.input)))
    }

    fn run(&self, call: ApprovedCall) -> BoxFuture<'static, ToolOutcome> {
        let ran = call.input.to().map_err(|error| error.to_string());
        let ran = ran.and_then(|input| self.run_tool(&call.tool_name, &input));
        let output = ran.and_then(|output| Json::of(&output).map_err(|error| error.to_string()));
        Box::pin(ready(output.map_or_else(ToolOutcome::Failed, ToolOutcome::Output)))
    }
}

/// What came of a tool, in the words of a model that read its output.
pub(crate) fn in_words(tool: &str, output: &Value) -> String {
    let text = |key: &str| output[key].as_str().unwrap_or("it").to_owned();
    match tool {
        "get_weather" => {
            format!(
                "It is {} °C in {} and the sky is {}.",
                output["celsius"],
                text("city"),
                text("sky")
            )
        }
        "delete_file" if output["deleted"] == true => format!("{} is deleted.", text("path")),
        "delete_file" => format!("{} was not there any more.", text("path")),
        "transfer" => format!("{} went to {}.", output["amount"], text("to")),
        "get_location" => format!("You are in {}.", text("city")),
        other => format!("{other} said {output}."),
    }
}

/// What a denial meant, in the words of a model that read the reason.
pub(crate) fn denied_in_words(tool: &str, reason: Option<&str>) -> String {
    let outcome = match tool {
        "delete_file" => "The file stays where it is",
        "transfer" => "No money was sent",
        other => return format!("{other} did not run, as you wished."),
    };
    match reason {
        Some(reason) => format!("{outcome}, you denied it: {reason}."),
        None => format!("{outcome}, you denied it."),
    }
}
