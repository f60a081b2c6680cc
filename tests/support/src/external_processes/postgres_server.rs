//! A real Postgres with its own folder.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use super::{are_hidden, missing};

/// A Postgres that listens on a socket in a folder of its own. It is stopped and its folder is deleted
/// when the process that has started it ends, also if that process is killed.
#[derive(Debug)]
pub struct PostgresServer {
    process: Child,
    folder: String,
}

impl PostgresServer {
    /// Returns the Postgres that the tests of this process share. The first call starts it. Returns
    /// `None` if Postgres is not installed.
    pub fn shared() -> Option<&'static Self> {
        static SHARED: OnceLock<Option<PostgresServer>> = OnceLock::new();
        SHARED.get_or_init(Self::start).as_ref()
    }

    /// Starts a Postgres. Returns `None` if it is not installed.
    pub fn start() -> Option<Self> {
        let Some(programs) = programs() else {
            missing("Postgres is not installed");
            return None;
        };
        let mut process = shell()
            .args(["-c", SCRIPT, "postgres-of-tests"])
            .arg(programs)
            .current_dir("/")
            // The script waits for the end of this pipe.
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut folder = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut folder).unwrap();
        let folder = folder.trim().to_owned();
        assert!(!folder.is_empty(), "Postgres does not start");
        Some(PostgresServer { process, folder })
    }

    /// Returns the URL of the database `postgres`.
    pub fn url(&self) -> String {
        format!("postgresql://tests@{}/postgres", self.folder.replace('/', "%2F"))
    }

    /// Returns the path of the socket.
    pub fn socket(&self) -> String {
        format!("{}/.s.PGSQL.5432", self.folder)
    }

    /// Returns what Postgres has logged.
    pub fn log(&self) -> String {
        fs::read_to_string(format!("{}/log", self.folder)).unwrap()
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}

/// Returns the folder of the programs of Postgres: the one of Debian, or one of the path.
fn programs() -> Option<PathBuf> {
    if are_hidden() {
        return None;
    }
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = versions.map(|version| version.path().join("bin"));
    let mut folders = folders.chain(std::env::split_paths(&path));
    folders.find(|folder| folder.join("initdb").exists() && folder.join("postgres").exists())
}

/// Returns a shell, which is not run by root: Postgres refuses that.
fn shell() -> Command {
    let is_root = Path::new("/root").read_dir().is_ok();
    let mut command = Command::new(if is_root { "setpriv" } else { "sh" });
    if is_root {
        command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups", "sh"]);
    }
    command
}

/// Prints the folder once Postgres accepts connections, and stops Postgres at the end of its input.
/// A loss of power is not tested, so nothing is synced.
const SCRIPT: &str = r#"
set -e
trap '' HUP INT TERM
folder=$(mktemp -d /tmp/ui-message-stream-postgres.XXXXXX)
trap 'rm -rf "$folder"' EXIT
"$1/initdb" -D "$folder/data" -U tests -A trust -E UTF8 --locale=C -N >/dev/null
"$1/postgres" -D "$folder/data" -k "$folder" -p 5432 -c listen_addresses= -c fsync=off \
    -c max_connections=300 </dev/null >"$folder/log" 2>&1 &
until "$1/pg_isready" -q -h "$folder" -p 5432; do
    kill -0 $! || { cat "$folder/log" >&2; exit 1; }
    sleep 0.05
done
echo "$folder"
cat >/dev/null
kill -QUIT $!
wait || true
"#;
