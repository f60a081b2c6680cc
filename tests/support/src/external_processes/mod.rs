//! External programs that tests use: Node with the pinned packages, the demo as a process,
//! `redis-server`, alone and as a cluster, and Postgres; and proxies: in front of several servers, and in front of a store.
//!
//! If a program is missing, the test prints this past the test harness and passes. With `CI=true`
//! it fails.

pub mod fault_proxy;
pub mod postgres_server;
pub mod redis_cluster;
pub mod redis_server;
pub mod round_robin;

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::{patience, repository};

/// Returns the folder of a Node project in this repository, with its packages installed. Returns
/// `None` if Node or the packages are missing.
pub fn node_project(folder: &str) -> Option<PathBuf> {
    let folder = repository().join(folder);
    match install(&folder) {
        Ok(()) => Some(folder),
        Err(why) => {
            missing(&why);
            None
        }
    }
}

/// Returns the folder of the scripts that drive a browser, with their packages installed. Returns `None`
/// unless `CI=true` or `BROWSER=1` is set, and if Chromium, Node or the packages are missing.
pub fn browser_scripts() -> Option<PathBuf> {
    let is_set = |name: &str, value: &str| std::env::var(name).as_deref() == Ok(value);
    if !is_set("CI", "true") && !is_set("BROWSER", "1") {
        say("SKIPPED, `BROWSER=1` takes a browser to the pages");
        return None;
    }
    let programs = ["/usr/bin/chromium-headless-shell", "/usr/bin/chromium"];
    if !programs.iter().any(|program| Path::new(program).exists()) {
        missing("neither chromium-headless-shell nor chromium is in /usr/bin");
        return None;
    }
    node_project("tests/browser")
}

/// Sends questions about streams to the real clients, one per line, and returns the answers.
pub fn ask_judge(client: &Path, questions: &[Value]) -> Vec<Value> {
    let mut judge = Command::new("node")
        .arg("judge.mjs")
        .current_dir(client)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = judge.stdin.take().unwrap();
    let lines: String = questions.iter().map(|question| format!("{question}\n")).collect();
    let writer = std::thread::spawn(move || stdin.write_all(lines.as_bytes()).unwrap());
    let output = judge.wait_with_output().unwrap();
    writer.join().unwrap();
    let answers = String::from_utf8(output.stdout).unwrap();
    answers.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Reports that a test cannot run. With `CI=true` this is a failure.
pub fn missing(why: &str) {
    assert!(std::env::var("CI").as_deref() != Ok("true"), "{why}");
    say(&format!("SKIPPED, the real thing is not here: {why}"));
}

/// Returns whether this test shall run as on a machine with nothing but Rust. Programs that are found by an absolute path
/// are hidden by this variable, not by `PATH`.
fn are_hidden() -> bool {
    std::env::var_os("TEST_ONLY_RUST").is_some()
}

/// Returns the number in an environment variable, or `otherwise` if it is not set.
pub fn number(variable: &str, otherwise: usize) -> usize {
    std::env::var(variable).map_or(otherwise, |number| number.parse().unwrap())
}

/// Writes a line that the test harness does not capture.
pub fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

fn install(folder: &Path) -> Result<(), String> {
    // Two tests of one program may need the same folder.
    static INSTALLING: Mutex<()> = Mutex::new(());
    let _alone = INSTALLING.lock().unwrap_or_else(PoisonError::into_inner);
    let version = Command::new("node").arg("--version").output();
    let version = version.map_err(|_| "Node is not installed".to_owned())?;
    let version = String::from_utf8_lossy(&version.stdout).trim().to_owned();
    let major = version.trim_start_matches('v').split('.').next().and_then(|n| n.parse().ok());
    if major < Some(20) {
        return Err(format!("Node {version} is too old, 20 is needed"));
    }
    // npm writes this file when an installation is complete.
    let installed = folder.join("node_modules/.package-lock.json");
    let is_newer = |file: &Path| file.metadata().and_then(|data| data.modified()).ok();
    if is_newer(&installed) >= is_newer(&folder.join("package-lock.json")) {
        return Ok(());
    }
    let npm =
        Command::new("npm").args(["ci", "--no-audit", "--no-fund"]).current_dir(folder).output();
    match npm {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!("npm ci: {}", String::from_utf8_lossy(&output.stderr))),
        Err(error) => Err(format!("npm: {error}")),
    }
}

/// Runs a program of a Node project and returns its output. Fails if the program fails.
pub fn run_node(folder: &Path, arguments: &[&str]) -> String {
    let output = Command::new("node").args(arguments).current_dir(folder).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {printed}\n{errors}");
    let last = printed.lines().last().unwrap_or_default();
    say(&format!("{}: {last}", arguments.first().unwrap_or(&"node")));
    printed
}

/// Returns the program of an example, built from the current sources.
///
/// `cargo test` builds the examples of a package before its tests run. `cargo build` with these
/// arguments therefore runs only if the program is missing or older than one of its sources.
pub fn built_example(name: &str, arguments: &[&str]) -> PathBuf {
    // Two tests of one program may need the same example.
    static BUILDING: Mutex<()> = Mutex::new(());
    let _alone = BUILDING.lock().unwrap_or_else(PoisonError::into_inner);
    let test = std::env::current_exe().unwrap();
    let program = test.parent().and_then(Path::parent).unwrap().join("examples").join(name);
    if !is_current(&program) {
        let built = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--example", name])
            .args(arguments)
            .current_dir(repository())
            .status();
        assert!(built.unwrap().success());
    }
    program
}

/// Returns whether a program is newer than each of the sources in the dependency file that Cargo
/// writes next to it.
fn is_current(program: &Path) -> bool {
    let changed = |path: &Path| path.metadata().and_then(|data| data.modified()).ok();
    let Some(built) = changed(program) else { return false };
    let Ok(rule) = std::fs::read_to_string(program.with_extension("d")) else { return false };
    let Some((_, sources)) = rule.split_once(": ") else { return false };
    // A space in a path has a backslash before it.
    let sources = sources.trim().replace("\\ ", "\0");
    let sources = sources.split_whitespace().map(|source| PathBuf::from(source.replace('\0', " ")));
    // They contain the versions and features of dependencies.
    let packages = ["crates/agent", "crates/chat", "crates/mcp", "demo"];
    let manifests = packages.map(|package| format!("{package}/Cargo.toml"));
    let manifests = manifests.into_iter().chain(["Cargo.lock".into(), "Cargo.toml".into()]);
    let manifests = manifests.map(|file| repository().join(file));
    sources.chain(manifests).all(|file| changed(&file).is_some_and(|changed| changed <= built))
}

/// The demo, running on its own port.
#[derive(Debug)]
pub struct Demo {
    process: Example,
    /// The URL of the demo.
    pub url: String,
}

impl Demo {
    /// Starts the demo.
    pub fn start() -> Self {
        let process = Example::start("chat", &[]);
        Demo { url: process.url.clone(), process }
    }

    /// Returns the folder of the gates.
    pub fn gates(&self) -> &Path {
        self.process.gates()
    }
}

/// An example that serves HTTP, running on its own port.
#[derive(Debug)]
pub struct Example {
    process: Child,
    data: DataFolder,
    log: Arc<Mutex<String>>,
    /// The first URL that the example prints, without a path.
    pub url: String,
}

impl Example {
    /// Starts an example. `arguments` are those of `cargo build`.
    pub fn start(name: &str, arguments: &[&str]) -> Self {
        Example::run(built_example(name, arguments), &[])
    }

    /// Suspends the process without closing its connections, or resumes it.
    pub fn hang(&self, hangs: bool) {
        hang(&self.process, hangs);
    }

    /// Returns the CPU time of the process so far. Linux counts it in units of 10 ms.
    pub fn cpu_time(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.process.id())).unwrap();
        // The name of the program may hold spaces.
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        let ticks = |field: usize| fields[field].parse::<u64>().unwrap();
        Duration::from_millis((ticks(11) + ticks(12)) * 10)
    }

    /// Asks the process to stop, as a process manager does.
    pub fn terminate(&self) {
        signal(&self.process, "TERM");
    }

    /// Waits until the process has stopped, and returns whether it was successful.
    pub fn wait(&mut self) -> bool {
        self.process.wait().unwrap().success()
    }

    /// Starts a program that is built, with these environment variables.
    pub fn run(program: impl AsRef<OsStr>, variables: &[(&str, String)]) -> Self {
        // Each demo has chats of its own.
        let data = DataFolder::new();
        let mut process = Command::new(program)
            .env("PORT", "0")
            .env("UIMS_DATA", data.0.join("chat.db"))
            .env("DEMO_GATES", &data.0)
            .envs(variables.iter().map(|(name, value)| (name, value)))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut printed = BufReader::new(process.stdout.take().unwrap());
        // A store may log warnings before.
        let url = printed.by_ref().lines().find_map(|line| {
            let line = line.unwrap();
            let url = line.split_whitespace().find(|word| word.starts_with("http://"));
            url.map(str::to_owned)
        });
        let url = url.expect("the example serves HTTP");
        // All further output must be read: the example would block on a full pipe.
        let log = Arc::new(Mutex::new(String::new()));
        let written = Arc::clone(&log);
        std::thread::spawn(move || {
            for line in printed.lines().map_while(Result::ok) {
                written.lock().unwrap().extend([&*line, "\n"]);
            }
        });
        Example { url: url.trim_end_matches("/api/chat").to_owned(), process, data, log }
    }

    /// Returns the folder of the gates, unless the variable `DEMO_GATES` names another one.
    pub fn gates(&self) -> &Path {
        self.data.path()
    }

    /// Returns what the example has printed since it serves HTTP.
    pub fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }
}

/// A gate of the demo: an answer to `until NAME`, or a deletion of the file `NAME`, waits at it.
#[derive(Debug)]
pub struct Gate(PathBuf);

impl Gate {
    /// Closes the gate with this name.
    pub fn closed(folder: &Path, name: &str) -> Self {
        let file = folder.join(name);
        std::fs::write(&file, "").unwrap();
        Gate(file)
    }

    /// Waits until something waits at the gate.
    pub fn reached(&self) {
        wait_until("something waits at the gate", || {
            self.0.metadata().is_ok_and(|file| file.len() > 0)
        });
    }

    /// Lets everything through that waits.
    pub fn open(self) {
        std::fs::remove_file(self.0).unwrap();
    }
}

/// Waits for a state. Fails if it is not reached within [`patience`].
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < patience(), "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn hang(process: &Child, hangs: bool) {
    signal(process, if hangs { "STOP" } else { "CONT" });
}

fn signal(process: &Child, signal: &str) {
    // A command of every shell.
    let kill = format!("kill -{signal} {}", process.id());
    let sent = Command::new("sh").args(["-c", &kill]).status();
    assert!(sent.unwrap().success());
}

/// A folder that is deleted when this value is dropped.
#[derive(Debug)]
pub struct DataFolder(PathBuf);

impl DataFolder {
    /// Creates an empty folder.
    #[expect(clippy::new_without_default, reason = "it creates a folder")]
    pub fn new() -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("ui-message-stream-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        DataFolder(folder)
    }

    /// Returns the path of the folder.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for DataFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Drop for Example {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
