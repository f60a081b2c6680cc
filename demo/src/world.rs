//! The world that the demo's tools act on. The page shows it: what happened, and what did not.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, TransactionBehavior};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

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
    pub(crate) amount: u32,
}

/// The weather in a city.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Report {
    celsius: i32,
    city: String,
    sky: String,
}

/// Whether a file was there.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Deleted {
    deleted: bool,
    path: String,
}

/// A transfer that was made.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Sent {
    amount: u32,
    sent: bool,
    to: String,
}

/// Where the user is.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Place {
    latitude: f64,
    longitude: f64,
}

/// The world, shared by all chats. It is in a database, so that a restart of the demo does not
/// contradict the chats.
#[derive(Debug)]
pub struct SharedWorld(Mutex<Connection>);

impl SharedWorld {
    /// Creates the world in a database that has none.
    pub(crate) fn new(mut connection: Connection) -> Result<Self, rusqlite::Error> {
        connection.busy_timeout(BUSY_TIMEOUT)?;
        // What a tool has done must not be lost, because it is not done again.
        connection.pragma_update(None, "synchronous", "FULL")?;
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        // Not `table_exists`, which answers from the schema that this connection has read before.
        let count = "SELECT count(*) FROM sqlite_schema WHERE name = 'demo_files'";
        if transaction.query_row(count, [], |row| row.get::<_, i64>(0))? == 0 {
            transaction.execute_batch(TABLES)?;
            for file in FILES {
                transaction.execute("INSERT INTO demo_files (name) VALUES (?1)", [file])?;
            }
        }
        transaction.commit()?;
        Ok(SharedWorld(Mutex::new(connection)))
    }

    /// Returns the key of the cookies. The first call creates it.
    pub(crate) fn cookie_key(
        &self,
        create: impl FnOnce() -> Vec<u8>,
    ) -> Result<Vec<u8>, rusqlite::Error> {
        let mut connection = self.lock();
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let select = "SELECT key FROM demo_cookie_key";
        let stored = transaction.query_row(select, [], |row| row.get(0)).optional()?;
        if let Some(key) = stored {
            return Ok(key);
        }
        let key = create();
        transaction.execute("INSERT INTO demo_cookie_key (key) VALUES (?1)", [&key])?;
        transaction.commit()?;
        Ok(key)
    }

    pub(crate) fn now(&self) -> Result<World, rusqlite::Error> {
        let connection = self.lock();
        let mut files = connection.prepare("SELECT name FROM demo_files ORDER BY place")?;
        let files = files.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?;
        let select = "SELECT recipient, amount FROM demo_transfers ORDER BY place";
        let mut transfers = connection.prepare(select)?;
        let transfers = transfers
            .query_map([], |row| Ok(Transfer { to: row.get(0)?, amount: row.get(1)? }))?
            .collect::<Result<_, _>>()?;
        Ok(World { files, transfers })
    }

    /// Returns the file that a text names, also if it is missing. If the text names none, returns the
    /// first file that is left, or `notes.txt`, which is missing then.
    pub(crate) fn file_named_in(&self, text: &str) -> String {
        let is_punctuation = |c: char| !c.is_alphanumeric();
        let mut words = text.split_whitespace().map(|word| word.trim_matches(is_punctuation));
        let named = words.find(|word| word.contains('.')).map(str::to_owned);
        let first = || self.now().ok()?.files.into_iter().next();
        named.or_else(first).unwrap_or_else(|| "notes.txt".to_owned())
    }

    /// Deletes a file if it exists.
    pub(crate) fn delete(
        &self,
        DeleteFile { path }: &DeleteFile,
    ) -> Result<Deleted, rusqlite::Error> {
        let deleted = self.lock().execute("DELETE FROM demo_files WHERE name = ?1", [path])?;
        Ok(Deleted { deleted: deleted > 0, path: path.clone() })
    }

    /// Sends money.
    pub(crate) fn send(&self, Transfer { to, amount }: &Transfer) -> Result<Sent, rusqlite::Error> {
        let insert = "INSERT INTO demo_transfers (recipient, amount) VALUES (?1, ?2)";
        self.lock().execute(insert, (to, amount))?;
        Ok(Sent { amount: *amount, sent: true, to: to.clone() })
    }

    fn lock(&self) -> MutexGuard<'_, Connection> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const FILES: [&str; 10] = [
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

const TABLES: &str = "
    CREATE TABLE demo_files (place INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
    CREATE TABLE demo_transfers (
        place INTEGER PRIMARY KEY, recipient TEXT NOT NULL, amount INTEGER NOT NULL
    );
    CREATE TABLE demo_cookie_key (key BLOB NOT NULL);
";

/// How long an operation waits for the chats to be saved.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

impl DeleteFile {
    /// Returns how long the deletion takes. An archive is large, so that a user can see a tool run.
    pub(crate) fn duration(&self) -> Duration {
        if self.path.ends_with(".zip") { Duration::from_secs(3) } else { Duration::ZERO }
    }
}

impl Weather {
    pub(crate) fn report(&self) -> Report {
        Report { celsius: 21, city: self.city.clone(), sky: "clear".to_owned() }
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
        "janitor" => format!("The janitor says: {}", output.as_str().unwrap_or_default()),
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
    fn a_world_that_another_process_has_created_meanwhile_is_used() {
        let name = format!("ui-message-stream-world-{}.db", std::process::id());
        let file = std::env::temp_dir().join(name);
        let connections = [(); 2].map(|()| Connection::open(&file).unwrap());
        // Each has read the schema of the empty file.
        for connection in &connections {
            assert!(!connection.table_exists(None, "demo_files").unwrap());
        }
        let worlds = connections.map(SharedWorld::new);
        std::fs::remove_file(&file).unwrap();
        for world in worlds {
            assert_eq!(world.unwrap().now().unwrap().files.len(), FILES.len());
        }
    }

    #[test]
    fn a_file_that_is_named_and_gone_is_not_replaced_by_another_one() {
        let world = SharedWorld::new(Connection::open_in_memory().unwrap()).unwrap();
        for deleted in [true, false] {
            let path = world.file_named_in("Please delete budget.xlsx!");
            assert_eq!(path, "budget.xlsx");
            assert_eq!(world.delete(&DeleteFile { path }).unwrap().deleted, deleted);
        }
        assert_eq!(world.file_named_in("delete a file"), "notes.txt");
    }
}
