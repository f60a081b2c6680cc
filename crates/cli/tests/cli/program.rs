//! The built program.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_ui-message-stream");

/// The result of a run: the exit code, standard output and standard error.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RunResult {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// Runs the program with an empty standard input.
pub(crate) fn run(arguments: &[&str]) -> RunResult {
    run_with(arguments, "")
}

/// Runs the program with this standard input.
pub(crate) fn run_with(arguments: &[&str], input: &str) -> RunResult {
    let mut child = Command::new(PROGRAM)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_owned();
    // The program may exit before it has read all of its input.
    let writer = std::thread::spawn(move || drop(stdin.write_all(input.as_bytes())));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    RunResult {
        code: output.status.code().unwrap(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

/// The command `record` or `replay`, on a free port.
pub(crate) struct Server {
    process: Child,
    printed: BufReader<ChildStdout>,
    error_lines: BufReader<ChildStderr>,
    /// The first printed line: the address of the server.
    pub(crate) url: String,
}

impl Server {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        let mut process = Command::new(PROGRAM)
            .args(arguments)
            .args(["--port", "0"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let printed = BufReader::new(process.stdout.take().unwrap());
        let error_lines = BufReader::new(process.stderr.take().unwrap());
        let mut server = Server { process, printed, error_lines, url: String::new() };
        server.url = server.next_line();
        server
    }

    /// Returns the next line on standard output.
    pub(crate) fn next_line(&mut self) -> String {
        next_line(&mut self.printed)
    }

    /// Returns the next line on standard error.
    pub(crate) fn next_error_line(&mut self) -> String {
        next_line(&mut self.error_lines)
    }
}

fn next_line(lines: &mut impl BufRead) -> String {
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    line.trim().to_owned()
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Creates an empty folder for the files of a test.
pub(crate) fn scratch(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cli").join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

pub(crate) fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
