//! The world of each user, on which the demo's tools act. The page shows it: what happened, and what did not.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, TransactionBehavior};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::time::sleep;
use ui_message_stream::approval::Principal;

use crate::gates::Gate;

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

/// The worlds of the users, one for each. They are in a database, so that a restart of the demo does not
/// contradict the chats. It holds what was done in a world, so a new user needs nothing in it.
#[derive(Debug)]
pub(crate) struct Worlds(Mutex<Connection>);

impl Worlds {
    /// Opens the worlds in a database, which may have none.
    pub(crate) fn new(connection: Connection) -> Result<Self, rusqlite::Error> {
        connection.busy_timeout(BUSY_TIMEOUT)?;
        // What a tool has done must not be lost, because it is not done again.
        connection.pragma_update(None, "synchronous", "FULL")?;
        connection.execute_batch(TABLES)?;
        Ok(Worlds(Mutex::new(connection)))
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

    /// Returns the world of a user as it is now.
    pub(crate) fn of(&self, user: &Principal) -> Result<World, rusqlite::Error> {
        let connection = self.lock();
        let mut deleted = connection.prepare("SELECT file FROM demo_deletions WHERE user = ?1")?;
        let deleted: Vec<String> =
            deleted.query_map([id(user)], |row| row.get(0))?.collect::<Result<_, _>>()?;
        let is_left = |file: &&str| !deleted.iter().any(|deleted| deleted == file);
        let select = "SELECT recipient, amount FROM demo_payments WHERE user = ?1 ORDER BY place";
        let mut transfers = connection.prepare(select)?;
        let transfers = transfers
            .query_map([id(user)], |row| Ok(Transfer { to: row.get(0)?, amount: row.get(1)? }))?
            .collect::<Result<_, _>>()?;
        Ok(World {
            files: FILES.into_iter().filter(is_left).map(str::to_owned).collect(),
            transfers,
        })
    }

    /// Deletes a file of a user if it exists.
    pub(crate) fn delete(
        &self,
        user: &Principal,
        DeleteFile { path }: &DeleteFile,
    ) -> Result<Deleted, rusqlite::Error> {
        let insert = "INSERT OR IGNORE INTO demo_deletions (user, file) VALUES (?1, ?2)";
        let is_file = FILES.contains(&path.as_str());
        let deleted = is_file && self.lock().execute(insert, (id(user), path))? > 0;
        Ok(Deleted { deleted, path: path.clone() })
    }

    /// Sends money of a user.
    pub(crate) fn send(
        &self,
        user: &Principal,
        Transfer { to, amount }: &Transfer,
    ) -> Result<Sent, rusqlite::Error> {
        let insert = "INSERT INTO demo_payments (user, recipient, amount) VALUES (?1, ?2, ?3)";
        self.lock().execute(insert, (id(user), to, amount))?;
        Ok(Sent { amount: *amount, sent: true, to: to.clone() })
    }

    /// Makes the world of a user as it was at first.
    pub(crate) fn reset(&self, user: &Principal) -> Result<(), rusqlite::Error> {
        let mut connection = self.lock();
        let transaction = connection.transaction()?;
        transaction.execute("DELETE FROM demo_deletions WHERE user = ?1", [id(user)])?;
        transaction.execute("DELETE FROM demo_payments WHERE user = ?1", [id(user)])?;
        transaction.commit()
    }

    fn lock(&self) -> MutexGuard<'_, Connection> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the id under which the database has a user. That of all clients without a cookie is empty.
fn id(user: &Principal) -> &str {
    user.id().unwrap_or_default()
}

/// The files of a new world.
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
    CREATE TABLE IF NOT EXISTS demo_deletions (
        user TEXT NOT NULL, file TEXT NOT NULL, PRIMARY KEY (user, file)
    );
    CREATE TABLE IF NOT EXISTS demo_payments (
        place INTEGER PRIMARY KEY, user TEXT NOT NULL, recipient TEXT NOT NULL, amount INTEGER NOT NULL
    );
    CREATE INDEX IF NOT EXISTS demo_payments_of_a_user ON demo_payments (user);
    CREATE TABLE IF NOT EXISTS demo_cookie_key (key BLOB NOT NULL);
";

/// How long an operation waits for the chats to be saved.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

impl DeleteFile {
    /// Waits for as long as the deletion takes. An archive is large, so that a user can see a tool run. A test
    /// that closes the gate with the name of the file says itself when the deletion ends.
    pub(crate) async fn takes_time(&self) {
        match Gate::named(&self.path).filter(Gate::is_closed) {
            Some(gate) => gate.pass().await,
            None if self.path.ends_with(".zip") => sleep(Duration::from_secs(3)).await,
            None => {}
        }
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
    fn each_user_has_a_world_and_can_reset_it() {
        let worlds = Worlds::new(Connection::open_in_memory().unwrap()).unwrap();
        let [ann, ben] = ["ann", "ben"].map(Principal::new);
        let budget = DeleteFile { path: "budget.xlsx".to_owned() };
        for deleted in [true, false] {
            assert_eq!(worlds.delete(&ann, &budget).unwrap().deleted, deleted);
        }
        let unknown = DeleteFile { path: "unknown.txt".to_owned() };
        assert!(!worlds.delete(&ann, &unknown).unwrap().deleted);
        worlds.send(&ann, &Transfer { to: "Ben".to_owned(), amount: 1 }).unwrap();
        let changed = worlds.of(&ann).unwrap();
        assert_eq!((changed.files.len(), changed.transfers.len()), (FILES.len() - 1, 1));
        for other in [&ben, &Principal::anonymous()] {
            assert_eq!(worlds.of(other).unwrap().files, FILES);
        }

        worlds.reset(&ben).unwrap();
        assert_eq!(worlds.of(&ann).unwrap().transfers.len(), 1);
        worlds.reset(&ann).unwrap();
        let first = worlds.of(&ann).unwrap();
        assert_eq!((first.files, first.transfers.len()), (FILES.map(str::to_owned).to_vec(), 0));
        assert!(worlds.delete(&ann, &budget).unwrap().deleted);
    }
}
