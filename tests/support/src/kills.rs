//! [`Trial`]: processes are killed with SIGKILL at random moments while they work on one [`Backend`], and
//! what they have done is checked afterwards.
//!
//! A test of a store starts its own program as these processes, each with a [`Role`]. All processes of a trial
//! write what they do to one file, the [`Journal`]. Its lines have one order, and it is what the test waits
//! for: a process is killed when it has reached a point, or when the journal has grown by a random number
//! of lines.

use std::fmt::Display;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use crate::external_processes::number;
use crate::rng::{Dice, setting};

/// What a trial is on: a store that other processes can open.
pub trait Backend {
    /// The store.
    type Store;

    /// Returns the folder of the journal, which may hold the data, too. Each trial has another one.
    fn folder(&self) -> &Path;

    /// Returns the address with which a process opens the store.
    fn address(&self) -> String;

    /// Opens the store at an address.
    fn open(address: &str) -> impl Future<Output = Arc<Self::Store>>;

    /// Checks the data without the store, after a kill.
    fn check(&self) {}

    /// Returns the journal of this trial.
    fn journal(&self) -> Journal {
        Journal(self.folder().to_owned())
    }
}

/// What processes do until they are killed, two at once, and what holds when all are killed.
pub trait Trial<B: Backend> {
    /// The role of the processes.
    const ROLE: &'static str;

    /// The largest number of lines by which the journal grows before the next process is started or killed.
    const MAX_LINES: usize;

    /// In a process: acts until it is killed.
    fn act(role: Role, store: Arc<B::Store>) -> impl Future<Output = ()>;

    /// Changes what the processes meet, each time before one is started or killed.
    fn disturb(_: &Journal, _: &mut Dice) {}

    /// Checks what is in the store and in the journal. Returns what it has counted. `next` is the number of a
    /// process that was not started.
    fn check(store: Arc<B::Store>, journal: Journal, next: u64) -> impl Future<Output = String>;
}

/// Starts and kills processes at random, [`kills`] times, and checks what they have done. Returns the counts.
pub async fn kill_at_random<B: Backend, T: Trial<B>>(backend: &B) -> String {
    let journal = backend.journal();
    let mut random = Dice::new(SEED, u64::MAX);
    let mut running: [Option<Process>; 2] = [None, None];
    let (mut killed, mut started) = (0, 0);
    let mut kill = |process: Process| {
        process.kill();
        backend.check();
        killed += 1;
        killed < kills()
    };
    let mut goes_on = true;
    while goes_on {
        T::disturb(&journal, &mut random);
        let one = &mut running[random.below(2)];
        match one.take() {
            Some(process) => goes_on = kill(process),
            None => {
                let process = Process::start(T::ROLE, started, backend);
                journal.wait_for(&format!("started {started}"), 1);
                *one = Some(process);
                started += 1;
            }
        }
        if running.iter().any(Option::is_some) {
            let begin = Instant::now();
            journal.wait_to_grow(random.below(T::MAX_LINES));
            // Not only right after a line was written.
            sleep(begin.elapsed().mul_f64(random.below(100) as f64 / 100.0));
        }
    }
    for process in running.into_iter().flatten() {
        kill(process);
    }
    let counts = T::check(B::open(&backend.address()).await, journal, started).await;
    format!("{killed} processes killed; {counts}")
}

/// Returns how many processes a trial kills: `KILLS`, or 20 if that is more.
pub fn kills() -> usize {
    number("KILLS", 20).max(20)
}

/// What this process does in a trial.
#[derive(Debug, Clone)]
pub struct Role {
    /// Its name.
    pub name: String,
    /// The number of the process.
    pub number: u64,
    /// The address of the store.
    pub store: String,
    /// What all processes of the trial have done.
    pub journal: Journal,
    stops_at: Option<String>,
    has_stopped: Arc<AtomicBool>,
}

impl Role {
    /// Returns `None` if this process is not part of a trial. Otherwise the process ends when the one that
    /// has started it ends, also if that is killed.
    pub fn from_environment() -> Option<Self> {
        let name = std::env::var("ROLE").ok()?;
        thread::spawn(|| {
            let _ = io::copy(&mut io::stdin(), &mut io::sink());
            std::process::exit(1);
        });
        let store = std::env::var("STORE").unwrap();
        let journal = Journal(std::env::var_os("JOURNAL").unwrap().into());
        let stops_at = std::env::var("STOPS_AT").ok();
        Some(Role { stops_at, ..Self::of_test(&name, setting("NUMBER").unwrap(), store, journal) })
    }

    /// Returns a role for the process of the test itself. It stops nowhere.
    pub fn of_test(name: &str, number: u64, store: String, journal: Journal) -> Self {
        Role {
            name: name.to_owned(),
            number,
            store,
            journal,
            stops_at: None,
            has_stopped: Arc::default(),
        }
    }

    /// Opens the store, and writes that this process has started.
    pub async fn start<B: Backend>(&self) -> Arc<B::Store> {
        let store = B::open(&self.store).await;
        self.journal.write(format!("started {}", self.number));
        store
    }

    /// If this process is killed at this point, and passes it for the first time, writes that and waits forever.
    pub async fn pass(&self, point: &str) {
        if self.stops_at.as_deref() == Some(point) && !self.has_stopped.swap(true, Ordering::SeqCst)
        {
            self.journal.write(format!("at {point}"));
            std::future::pending::<()>().await;
        }
    }
}

/// The file to which all processes of a trial write, in the folder that they share.
#[derive(Debug, Clone)]
pub struct Journal(PathBuf);

impl Journal {
    /// Appends a line with one write, and returns the file. All lines have 128 bytes, so that none crosses a page of
    /// the file: a kill could cut it there.
    pub fn write(&self, line: impl Display) -> File {
        let line = format!("{:127}\n", line.to_string());
        assert_eq!(line.len(), LINE, "{line}");
        let file = OpenOptions::new().create(true).append(true).open(self.path("journal"));
        let mut file = file.unwrap();
        assert_eq!(file.write(line.as_bytes()).unwrap(), line.len());
        file
    }

    /// Returns all lines.
    pub fn lines(&self) -> Vec<String> {
        let text = fs::read_to_string(self.path("journal")).unwrap_or_default();
        text.lines().map(|line| line.trim_end().to_owned()).collect()
    }

    /// Returns the rest of each line that begins with these words.
    pub fn after(&self, words: &str) -> Vec<String> {
        let lines = self.lines().into_iter();
        let rest = |line: String| {
            let rest = line.strip_prefix(words)?;
            (rest.is_empty() || rest.starts_with(' ')).then(|| rest.trim_start().to_owned())
        };
        lines.filter_map(rest).collect()
    }

    /// Waits until so many lines begin with these words.
    pub fn wait_for(&self, words: &str, count: usize) {
        self.wait(words, || self.after(words).len() >= count);
    }

    /// Waits until so many processes wait for each other at this place.
    pub fn meet(&self, place: &str, processes: usize) {
        self.write(place);
        self.wait_for(place, processes);
    }

    /// Waits until there are so many lines more.
    fn wait_to_grow(&self, lines: usize) {
        let length = || fs::metadata(self.path("journal")).map_or(0, |file| file.len());
        let end = length() + (lines * LINE) as u64;
        self.wait("any progress", || length() >= end);
    }

    fn wait(&self, what: &str, is_so: impl Fn() -> bool) {
        let begin = Instant::now();
        while !is_so() {
            assert!(begin.elapsed() < crate::patience(), "no {what}: {:#?}", self.lines());
            sleep(Duration::from_micros(200));
        }
    }

    /// Returns the path of another file in the folder.
    pub fn path(&self, file: &str) -> PathBuf {
        self.0.join(file)
    }

    /// Moves the time of the ledgers of this trial on.
    pub fn pass_time(&self, time: Duration) {
        let time = (self.passed_time() + time).as_millis();
        // No process reads a part of the file.
        fs::write(self.path("new-time"), time.to_string()).unwrap();
        fs::rename(self.path("new-time"), self.path("time")).unwrap();
    }

    /// Returns by how much the time of the ledgers is later than that of their stores.
    pub fn passed_time(&self) -> Duration {
        let millis = fs::read_to_string(self.path("time")).ok();
        Duration::from_millis(millis.map_or(0, |millis| millis.parse().unwrap()))
    }
}

/// This program as another process. It is killed when this value is dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
    number: u64,
    journal: Journal,
}

impl Process {
    /// Starts this program with a role.
    pub fn start(role: &str, number: u64, backend: &impl Backend) -> Self {
        Self::start_command(this_program(), role, number, backend)
    }

    /// Starts this program with a role, which is killed at a point.
    pub fn start_to_stop(point: &str, role: &str, number: u64, backend: &impl Backend) -> Self {
        let mut command = this_program();
        command.env("STOPS_AT", point);
        Self::start_command(command, role, number, backend)
    }

    /// Starts a command that executes this program.
    pub fn start_command(
        mut command: Command,
        role: &str,
        number: u64,
        backend: &impl Backend,
    ) -> Self {
        let journal = backend.journal();
        command.env("ROLE", role).env("NUMBER", number.to_string());
        command.env("STORE", backend.address()).env("JOURNAL", &journal.0);
        // The process ends at the end of its input.
        let child = command.stdin(Stdio::piped()).spawn().unwrap();
        Process { child, number, journal }
    }

    /// Returns a command that executes this program in a shell after these commands.
    pub fn in_shell(commands: &str) -> Command {
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("{commands}; exec \"$0\"")]);
        shell.arg(std::env::current_exe().unwrap());
        shell
    }

    /// Waits for the end of the process, which must be a success.
    pub fn finish(mut self) {
        let _input = self.child.stdin.take();
        assert!(self.child.wait().unwrap().success());
    }

    /// Kills the process with SIGKILL. It must not have ended before.
    pub fn kill(mut self) {
        assert_eq!(self.child.try_wait().unwrap(), None, "process {} has ended", self.number);
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.journal.write(format!("killed {}", self.number));
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn this_program() -> Command {
    Command::new(std::env::current_exe().unwrap())
}

/// The seed of what is chosen at random.
pub const SEED: u64 = 40;

/// The length of a line in the journal.
const LINE: usize = 128;
