//! A real `redis-server` with its own port and folder.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::missing;

/// A running Redis. When it is dropped, its process is killed and its folder deleted.
#[derive(Debug)]
pub struct RedisServer {
    process: Child,
    port: u16,
    folder: PathBuf,
    settings: Vec<String>,
}

impl RedisServer {
    /// Starts a Redis server that writes every change to its disk before it replies. Returns `None`
    /// if `redis-server` is not installed.
    pub fn start() -> Option<Self> {
        Self::start_with(&["--appendonly", "yes", "--appendfsync", "always"])
    }

    /// Starts a Redis server that writes nothing to its disk, unless these settings say so. Returns
    /// `None` if `redis-server` is not installed.
    pub fn start_with(settings: &[&str]) -> Option<Self> {
        Self::start_with_clock(settings, None)
    }

    /// Starts a Redis server whose clock stands at this time, in milliseconds, until
    /// [`set_time`](Self::set_time) sets it. Returns `None` if `redis-server` is not installed.
    pub fn start_at(time: u64) -> Option<Self> {
        Self::start_with_clock(&[], Some(time))
    }

    /// Sets the clock of a server that was started with one.
    pub fn set_time(&self, time: u64) {
        set_time(&self.folder, time);
    }

    fn start_with_clock(settings: &[&str], time: Option<u64>) -> Option<Self> {
        if Command::new("redis-server").arg("--version").output().is_err() {
            missing("redis-server is not installed");
            return None;
        }
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let name = format!("ui-message-stream-redis-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        // Another process may take a free port before the server listens on it.
        for _ in 0..50 {
            fs::create_dir_all(&folder).unwrap();
            if let Some(time) = time {
                build_clock(&folder);
                set_time(&folder, time);
            }
            let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            // The nodes of a cluster talk on another port.
            if port > u16::MAX - CLUSTER_PORT_OFFSET {
                continue;
            }
            let settings: Vec<String> =
                settings.iter().map(|&setting| setting.to_owned()).collect();
            let process = run(port, &folder, &settings);
            let server = RedisServer { process, port, folder: folder.clone(), settings };
            if let Some(server) = server.once_it_answers() {
                return Some(server);
            }
        }
        panic!("no redis-server starts");
    }

    /// Returns the URL of the server.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// Returns the port of the server.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Kills the server with SIGKILL.
    pub fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Starts the server again, on the same port and with the data on its disk.
    pub fn start_again(&mut self) {
        self.process = run(self.port, &self.folder, &self.settings);
        assert!(answers(self.port, &mut self.process), "redis-server does not start again");
    }

    /// Kills the server and starts it again.
    pub fn restart(&mut self) {
        self.kill();
        self.start_again();
    }

    /// Suspends the server without closing its connections, or resumes it.
    pub fn hang(&self, hangs: bool) {
        super::hang(&self.process, hangs);
    }

    /// Sends a command of one line. Returns the reply if it is a text, or else its first line.
    pub fn command(&self, command: &str) -> String {
        self.commands(&[command])
    }

    /// Sends commands over one connection, and returns the reply to the last one.
    pub fn commands(&self, commands: &[&str]) -> String {
        ask(self.port, commands).unwrap()
    }

    /// Returns how many commands were executed since the start or `CONFIG RESETSTAT`: also those of scripts, and
    /// without `INFO`.
    pub fn executed_commands(&self) -> u64 {
        let stats = self.command("INFO commandstats");
        let lines = stats.lines().filter(|line| !line.starts_with("cmdstat_info:"));
        let calls = lines.filter_map(|line| line.split_once(":calls=")?.1.split(',').next());
        calls.map(|calls| calls.parse::<u64>().unwrap()).sum()
    }

    fn once_it_answers(mut self) -> Option<Self> {
        answers(self.port, &mut self.process).then_some(self)
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn run(port: u16, folder: &Path, settings: &[String]) -> Child {
    let port = port.to_string();
    let (clock, time) = (folder.join(CLOCK), folder.join(TIME));
    let clock = clock.exists().then_some([("LD_PRELOAD", clock), ("TEST_TIME", time)]);
    Command::new("redis-server")
        .envs(clock.into_iter().flatten())
        .args(["--port", &port, "--bind", "127.0.0.1", "--save", ""])
        .arg("--dir")
        .arg(folder)
        .args(settings)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Builds the library that gives a server the time of a file.
fn build_clock(folder: &Path) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/external_processes/test_clock.c");
    let mut build = Command::new("cc");
    build.args(["-shared", "-fPIC", "-o"]).arg(folder.join(CLOCK)).arg(source);
    assert!(build.status().unwrap().success(), "the library of the test clock is not built");
}

fn set_time(folder: &Path, time: u64) {
    // The server never reads a part of the file.
    let new = folder.join("new-time");
    fs::write(&new, time.to_string()).unwrap();
    fs::rename(new, folder.join(TIME)).unwrap();
}

/// Waits until this process replies on its port. Returns `false` if it does not.
fn answers(port: u16, process: &mut Child) -> bool {
    let until = Instant::now() + crate::patience();
    while Instant::now() < until {
        // The second is the reply of a Redis that requires a password.
        let is_up = |reply: String| reply == "+PONG" || reply.starts_with("-NOAUTH ");
        if ask(port, &["PING"]).is_ok_and(is_up) {
            return true;
        }
        if process.try_wait().unwrap().is_some() {
            return false;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    false
}

fn ask(port: u16, commands: &[&str]) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(crate::patience()))?;
    let mut last = String::new();
    for command in commands {
        write!(stream, "{command}\r\n")?;
        last = read_reply(&mut stream)?;
    }
    Ok(last)
}

fn read_reply(stream: &mut TcpStream) -> std::io::Result<String> {
    let mut reply = Vec::new();
    let mut byte = [0];
    while !reply.ends_with(b"\r\n") {
        stream.read_exact(&mut byte)?;
        reply.extend(byte);
    }
    let line = String::from_utf8_lossy(&reply).trim().to_owned();
    let Some(length) = line.strip_prefix('$').and_then(|length| length.parse().ok()) else {
        return Ok(line);
    };
    // The text, and the end of its line.
    let mut text = vec![0; length + 2];
    stream.read_exact(&mut text)?;
    text.truncate(length);
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// The distance between the two ports of a node of a cluster.
const CLUSTER_PORT_OFFSET: u16 = 10_000;

/// The library of the test clock, and the file that holds its time, in the folder of a server.
const CLOCK: &str = "clock.so";
const TIME: &str = "time";
