//! The answers: what an agent says in each step, and the tools that it calls.

use std::sync::LazyLock;

use serde::Serialize;

/// The steps of an answer, in their order.
pub type Answer = Vec<Step>;

/// What the agent says in one step: first the texts, then the calls.
#[derive(Debug, Serialize)]
pub struct Step {
    /// The deltas of the text.
    pub texts: Vec<&'static str>,
    /// The calls that end the step. The last step has none.
    pub calls: Vec<Call>,
}

/// A call of a tool, with its output.
#[derive(Debug, Serialize)]
pub struct Call {
    /// The id of the call.
    pub id: String,
    /// The name of the tool.
    pub tool: &'static str,
    /// The input as JSON.
    pub input: &'static str,
    /// The input in the pieces in which the model writes it.
    pub pieces: Vec<&'static str>,
    /// The output: a value that each arm converts to JSON itself, for each response.
    pub output: Vec<Row>,
}

/// A row of a tool's output, 63 bytes as JSON.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    id: u32,
    name: &'static str,
    ok: bool,
    share: f64,
}

impl Call {
    fn new(id: String, tool: &'static str, input: &'static str, rows: usize) -> Self {
        let row = Row { id: 17, name: "a name of some length", ok: true, share: 1.5 };
        let output = vec![row; rows];
        let pieces = (0..input.len()).step_by(4).map(|at| &input[at..input.len().min(at + 4)]);
        Call { id, tool, input, pieces: pieces.collect(), output }
    }
}

/// Returns an answer of many short deltas: four steps of 550 text deltas, and three calls.
pub fn text() -> &'static Answer {
    static ANSWER: LazyLock<Answer> = LazyLock::new(|| {
        let step = |number: usize| Step {
            texts: (0..550).map(|at| WORDS[at % WORDS.len()]).collect(),
            calls: match number {
                3 => Vec::new(),
                _ => vec![Call::new(format!("call_{number}"), "read_file", FILE, 4)],
            },
        };
        (0..4).map(step).collect()
    });
    &ANSWER
}

/// Returns an answer of 50 tool outputs of 100 KB each, and one text delta.
pub fn outputs() -> &'static Answer {
    static ANSWER: LazyLock<Answer> = LazyLock::new(|| {
        let call = |number| Call::new(format!("call_{number:02}"), "read_rows", TABLE, 1_600);
        let rows = Step { texts: Vec::new(), calls: (0..50).map(call).collect() };
        vec![rows, Step { texts: vec!["Done."], calls: Vec::new() }]
    });
    &ANSWER
}

/// The deltas of a text.
const WORDS: [&str; 8] =
    ["The ", "quick ", "brown fox ", "jumps over ", "lazy, ", "sleeping ", "dogs again ", "and "];

const FILE: &str = r#"{"path":"/srv/notes/today.txt","lines":[1,2,3,4],"mode":"read-only"}"#;
const TABLE: &str = r#"{"table":"names"}"#;
