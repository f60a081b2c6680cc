//! [`Client`]: a program of `tests/client` that answers each line.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::Value;

use super::compare::with_halves_spelt_out;

/// A running program.
pub(crate) struct Client {
    process: Child,
    questions: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Client {
    pub(crate) fn start(folder: &Path, program: &str) -> Self {
        let mut process = Command::new("node")
            .arg(program)
            .current_dir(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let questions = process.stdin.take();
        let answers = BufReader::new(process.stdout.take().unwrap());
        Client { process, questions, answers }
    }

    /// The pipe for questions, which may be written on another thread. The program ends when it is
    /// closed.
    pub(crate) fn take_questions(&mut self) -> ChildStdin {
        self.questions.take().unwrap()
    }

    /// The next answer, in the order of the questions.
    pub(crate) fn answer(&mut self) -> Value {
        let mut line = String::new();
        let read = self.answers.read_line(&mut line).unwrap();
        assert!(read > 0, "the client has stopped: {:?}", self.process.wait());
        let answer: Value = serde_json::from_str(&with_halves_spelt_out(&line)).unwrap();
        assert!(answer["refused"].is_null(), "the question was refused: {answer}");
        answer
    }

    pub(crate) fn ask(&mut self, question: &Value) -> Value {
        ask(self.questions.as_mut().unwrap(), question);
        self.answer()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        drop(self.questions.take());
        // The program ends with its input. Its last output is ignored.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Writes one question.
pub(crate) fn ask(questions: &mut ChildStdin, question: &Value) {
    // If the program has stopped, reading its answer reports why.
    let _ = questions.write_all(format!("{question}\n").as_bytes());
}
