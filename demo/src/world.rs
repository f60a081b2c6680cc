//! The world that the demo's tools act on. It is held in memory, so that the page can show what
//! happened and what did not.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Files that can be deleted, and transfers of money.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct World {
    pub(crate) files: Vec<String>,
    pub(crate) transfers: Vec<Transfer>,
}

/// Looks up the weather in a city.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Weather {
    pub(crate) city: String,
}

/// Deletes a file for good.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct DeleteFile {
    pub(crate) path: String,
}

/// Sends money to somebody.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Transfer {
    pub(crate) to: String,
    pub(crate) amount: u64,
}

/// The world, shared by all chats.
#[derive(Debug)]
pub struct SharedWorld(Mutex<World>);

impl Default for SharedWorld {
    fn default() -> Self {
        let files = [
            "notes.txt",
            "budget.xlsx",
            "holiday.jpg",
            "draft.md",
            "report.pdf",
            "old.log",
            "invoice.csv",
            "backup.zip",
            "tickets.eml",
            "recipe.md",
        ];
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

    /// Returns the file that a text names, also if it is missing. If the text names none, returns the
    /// first file that is left, or `notes.txt`, which is missing then.
    pub(crate) fn file_named_in(&self, text: &str) -> String {
        let is_punctuation = |c: char| !c.is_alphanumeric();
        let mut words = text.split_whitespace().map(|word| word.trim_matches(is_punctuation));
        let named = words.find(|word| word.contains('.')).map(str::to_owned);
        let chosen = named.or_else(|| self.lock().files.first().cloned());
        chosen.unwrap_or_else(|| "notes.txt".to_owned())
    }

    /// Deletes a file if it exists.
    pub(crate) fn delete(&self, DeleteFile { path }: &DeleteFile) -> Value {
        let mut world = self.lock();
        let before = world.files.len();
        world.files.retain(|file| file != path);
        json!({ "path": path, "deleted": world.files.len() < before })
    }

    /// Sends money.
    pub(crate) fn send(&self, transfer: Transfer) -> Value {
        let output = json!({ "to": transfer.to, "amount": transfer.amount, "sent": true });
        self.lock().transfers.push(transfer);
        output
    }

    fn lock(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DeleteFile {
    /// Returns how long the deletion takes. An archive is large, so that a user can see a tool run.
    pub(crate) fn duration(&self) -> Duration {
        if self.path.ends_with(".zip") { Duration::from_secs(3) } else { Duration::ZERO }
    }
}

impl Weather {
    pub(crate) fn report(&self) -> Value {
        json!({ "city": self.city, "celsius": 21, "sky": "clear" })
    }
}

/// Describes the output of a tool, in the words of a model.
pub(crate) fn describe_output(tool: &str, output: &Value) -> String {
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

/// Describes a denial and its reason, in the words of a model.
pub(crate) fn describe_denial(tool: &str, reason: Option<&str>) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_named_and_gone_is_not_replaced_by_another_one() {
        let world = SharedWorld::default();
        for deleted in [true, false] {
            let path = world.file_named_in("Please delete budget.xlsx!");
            assert_eq!(path, "budget.xlsx");
            assert_eq!(world.delete(&DeleteFile { path })["deleted"], deleted);
        }
        assert_eq!(world.file_named_in("delete a file"), "notes.txt");
    }
}
