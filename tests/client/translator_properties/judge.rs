//! The real client, in several versions, as a process that answers each line.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};

use super::case::Case;
use super::translate::Translated;

/// A running `tests/client/judge.mjs`.
pub(crate) struct Judge {
    process: Child,
    questions: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Judge {
    /// Starts the process, or returns why it cannot be started.
    pub(crate) fn start() -> Result<Self, String> {
        let folder = folder();
        let node = Command::new("node").arg("--version").stdout(Stdio::null()).status();
        if !node.is_ok_and(|status| status.success()) {
            return Err("Node is not installed".to_owned());
        }
        if !folder.join("node_modules").is_dir() {
            return Err(format!(
                "the client is not installed: run `npm ci` in {}",
                folder.display()
            ));
        }
        let mut process = Command::new("node")
            .arg(folder.join("judge.mjs"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("the judge does not start: {error}"))?;
        let questions = process.stdin.take();
        let answers = process.stdout.take().ok_or("the judge has no output")?;
        Ok(Judge { process, questions, answers: BufReader::new(answers) })
    }

    /// The pipe for questions. Dropping it ends the judge.
    pub(crate) fn questions(&mut self) -> ChildStdin {
        self.questions.take().expect("the questions are asked by one thread")
    }

    /// The next answer, in the order of the questions.
    pub(crate) fn answer(&mut self) -> Value {
        let mut line = String::new();
        let read = self.answers.read_line(&mut line).expect("the judge can be read");
        assert!(read > 0, "the judge has stopped: {:?}", self.process.wait());
        let answer: Value = serde_json::from_str(&line).expect("the judge answers in JSON");
        assert!(answer["refused"].is_null(), "the judge refused a question: {answer}");
        answer
    }

    /// One question and its answer.
    pub(crate) fn ask(&mut self, case: &Case, translated: &Translated) -> Value {
        let questions = self.questions.as_mut().expect("the pipe was not taken before");
        ask(questions, case, translated).expect("the judge listens");
        self.answer()
    }
}

impl Drop for Judge {
    fn drop(&mut self) {
        drop(self.questions.take());
        // The process ends with its input. Its last output is ignored.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Writes one question.
pub(crate) fn ask(
    questions: &mut impl Write,
    case: &Case,
    translated: &Translated,
) -> std::io::Result<()> {
    let mut question = json!({ "case": 0, "sse": translated.sse, "versions": case.clients() });
    if let Some(message) = case.continued() {
        question["message"] = message.clone();
    }
    let mut line = question.to_string();
    line.push('\n');
    questions.write_all(line.as_bytes())?;
    questions.flush()
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/client")
}
