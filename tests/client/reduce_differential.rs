//! The reducer against the real client, on random streams: the same message, or an error on the
//! same chunk.
//!
//! `REDUCE_CASES` sets the number of streams (1 000), `REDUCE_SEED` selects them, and `REDUCE_ONLY`
//! runs only the stream of this number. Older clients are only asked whether they accept the
//! stream; `docs/client-versions.md` lists their known differences. Without Node the test says that
//! it is skipped; with `CI=true` it fails.

use std::fs;
use std::path::Path;
use std::sync::mpsc::sync_channel;
use std::thread;

use serde_json::{Value, json};
use test_support::external_processes::{node_project, say};
use test_support::rng::setting;
use ui_message_stream::chunk::{Chunk, ReceivedChunk};
use ui_message_stream::reducer::{PartialJson, ResetOn, compact};
use ui_message_stream::{Json, UiMessage};

use crate::random_streams::case::{Case, NEWEST_V6, NEWEST_V7};
use crate::random_streams::client::{Client, ask};
use crate::random_streams::compare::{Verdict, canonical, refused};
use crate::random_streams::in_chat::InChat;
use crate::random_streams::{generator, minimise};

const NEWEST: &str = NEWEST_V6.0;
const OLDER: [&str; 2] = ["6.0.0", "6.0.230"];

#[test]
fn the_reducer_holds_the_same_message_as_the_client() {
    let Some(folder) = node_project("tests/client") else { return };
    let seed = setting("REDUCE_SEED").unwrap_or(20_260_201);
    let count = setting("REDUCE_CASES").unwrap_or(1_000);
    let numbers = setting("REDUCE_ONLY").map_or(0..count, |only| only..only + 1);

    let mut clients = Clients::start(&folder);
    let (mut to_judge, mut to_chat) =
        (clients.judge.take_questions(), clients.chat.take_questions());
    let (sender, receiver) = sync_channel(64);
    let mut tally = Tally::default();
    let failing: Vec<(u64, Case, String)> = thread::scope(|scope| {
        scope.spawn(move || {
            for number in numbers {
                let tried = Tried::of(generator::case(seed, number));
                for question in tried.questions() {
                    ask(&mut to_judge, &question);
                }
                ask(&mut to_chat, &tried.in_chat.question());
                if sender.send((number, tried)).is_err() {
                    return;
                }
            }
        });
        let mut failing = Vec::new();
        for (number, tried) in receiver {
            let answers = tried.questions().iter().map(|_| clients.judge.answer()).collect();
            let answers = Answers { judge: answers, chat: clients.chat.answer() };
            tally.count(&tried);
            for fault in tried.faults(&answers) {
                failing.push((number, tried.case.clone(), fault));
            }
        }
        failing
    });

    say(&format!("reducer: {} (REDUCE_SEED={seed})", tally.summary()));
    let Some((number, case, _)) = failing.iter().min_by_key(|(_, case, _)| case.chunks.len())
    else {
        return;
    };
    for (number, _, fault) in &failing {
        println!("REDUCE_ONLY={number}: {}", fault.lines().next().unwrap_or_default());
    }
    let mut clients = Clients::start(&folder);
    let mut faults = |case: &Case| {
        let tried = Tried::of(case.clone());
        let answers =
            tried.questions().iter().map(|question| clients.judge.ask(question)).collect();
        let chat = clients.chat.ask(&tried.in_chat.question());
        tried.faults(&Answers { judge: answers, chat })
    };
    let smallest = minimise::minimised(case, &mut |case| !faults(case).is_empty());
    println!("REDUCE_SEED={seed} REDUCE_ONLY={number}");
    println!("message: {}", smallest.message.as_deref().unwrap_or("none"));
    println!("reads on: {}\n{}", smallest.reads_on, smallest.chunks.join("\n"));
    for fault in faults(&smallest) {
        println!("{fault}");
    }
    panic!("{} faults, one of them above (REDUCE_SEED={seed})", failing.len());
}

#[test]
fn the_reducer_holds_the_same_message_as_a_client_of_ai_7() {
    let Some(folder) = node_project("tests/client") else { return };
    let seed = setting("REDUCE_SEED").unwrap_or(20_260_201);
    let count = setting("REDUCE_CASES").unwrap_or(1_000);
    let numbers = setting("REDUCE_ONLY").map_or(0..count, |only| only..only + 1);
    let (name, version) = NEWEST_V7;
    let mut judge = Client::start(&folder, "judge.mjs");
    let mut faults = |case: &Case| {
        let answer = judge.ask(&case.question(&[name]));
        let mut faults = case.verdict().differences(&Verdict::of(&answer["results"][name]));
        faults.extend(case.unreadable());
        faults
    };
    let (mut chunks, mut refused) = (0, 0);
    for number in numbers {
        let case = generator::case_for(version, seed, number);
        chunks += case.chunks.len();
        refused += usize::from(case.reduce(ResetOn::OtherId).1.is_some());
        if faults(&case).is_empty() {
            continue;
        }
        let smallest = minimise::minimised(&case, &mut |case| !faults(case).is_empty());
        println!("REDUCE_SEED={seed} REDUCE_ONLY={number}");
        println!("message: {}", smallest.message.as_deref().unwrap_or("none"));
        println!("reads on: {}\n{}", smallest.reads_on, smallest.chunks.join("\n"));
        panic!("{}", faults(&smallest).join("\n"));
    }
    say(&format!(
        "reducer: {count} streams of {chunks} chunks against {name}, {refused} refused (REDUCE_SEED={seed})"
    ));
}

/// `RECORD=1 cargo test --test client recorded_streams` records them again. It needs Node.
#[test]
fn the_reducer_holds_what_a_client_of_ai_7_held_of_the_recorded_streams() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/upstream/streams-of-7.jsonl");
    if std::env::var_os("RECORD").is_some() {
        fs::write(&path, recorded_streams()).unwrap();
    }
    let recorded = fs::read_to_string(&path).unwrap();
    assert!(recorded.lines().count() >= RECORDED);
    for (number, line) in recorded.lines().enumerate() {
        let line: Value = serde_json::from_str(line).unwrap();
        let chunks = line["chunks"].as_array().unwrap();
        let case = Case {
            message: line["message"].as_str().map(str::to_owned),
            chunks: chunks.iter().map(|chunk| chunk.as_str().unwrap().to_owned()).collect(),
            reads_on: line["readsOn"] == true,
            client: NEWEST_V7.1,
        };
        let differences = case.verdict().differences(&Verdict::of(&line["result"]));
        assert!(differences.is_empty(), "line {}: {}", number + 1, differences.join("\n"));
    }
}

/// The number of the recorded streams.
const RECORDED: usize = 500;

/// Short random streams with the result of the client, each on a line.
fn recorded_streams() -> String {
    let folder = node_project("tests/client").expect("the real client records the results");
    let (name, version) = NEWEST_V7;
    let mut judge = Client::start(&folder, "judge.mjs");
    let cases = (0..).map(|number| generator::case_for(version, 20_260_201, number));
    let is_short = |case: &Case| {
        let bytes = case.chunks.iter().chain(&case.message).map(String::len).sum::<usize>();
        case.chunks.len() > 2 && bytes < 800
    };
    let mut lines = String::new();
    for case in cases.filter(is_short).take(RECORDED) {
        let mut result = judge.ask(&case.question(&[name]))["results"][name].take();
        if let Some(result) = result.as_object_mut() {
            result.retain(|key, _| ["rejected", "errorText", "message", "shown"].contains(&&**key));
        }
        if let Some(rejected) = result["rejected"].as_object_mut() {
            rejected.remove("message");
        }
        let line = json!({
            "chunks": case.chunks,
            "message": case.message,
            "readsOn": case.reads_on,
            "result": result,
        });
        lines.push_str(&format!("{line}\n"));
    }
    lines
}

#[test]
fn every_prefix_of_a_document_is_repaired_as_by_the_client() {
    let Some(folder) = node_project("tests/client") else { return };
    let seed = setting("REDUCE_SEED").unwrap_or(20_260_201);
    let count = setting("REDUCE_CASES").unwrap_or(1_000).max(1_000);
    let mut client = Client::start(&folder, "partial-json.mjs");
    let mut prefixes = 0;
    for number in 0..count {
        let text = generator::document(seed, number);
        let mut partial = PartialJson::default();
        let mut read = vec![partial.read()];
        for character in text.chars() {
            partial.push(character.encode_utf8(&mut [0; 4]));
            read.push(partial.read());
        }
        let read: Vec<_> = read.iter().map(|json| json.as_ref().map(Json::as_str)).collect();
        let answer = client.ask(&json!({ "text": text, "read": read }));
        assert_eq!(answer["differing"], json!([]), "REDUCE_SEED={seed}, document {number}: {text}");
        assert_eq!(answer["prefixes"], read.len());
        prefixes += read.len();
    }
    say(&format!(
        "partial JSON: {prefixes} prefixes of {count} documents read as the client does (REDUCE_SEED={seed})"
    ));
}

/// The clients: the client's functions, and `Chat`.
struct Clients {
    judge: Client,
    chat: Client,
}

impl Clients {
    fn start(folder: &Path) -> Self {
        Clients {
            judge: Client::start(folder, "judge.mjs"),
            chat: Client::start(folder, "chat.mjs"),
        }
    }
}

/// The answers of the clients.
struct Answers {
    judge: Vec<Value>,
    chat: Value,
}

/// A case, and the cases that are derived from it.
struct Tried {
    case: Case,
    in_chat: InChat,
    /// The variant for an old client.
    older: Option<Case>,
    /// The chunks that its message compacts to, and that message.
    compacted: Option<(Case, Value)>,
}

impl Tried {
    fn of(case: Case) -> Self {
        Tried {
            in_chat: InChat::of(&case),
            older: case.for_old_client(),
            compacted: compacted(&case),
            case,
        }
    }

    fn questions(&self) -> Vec<Value> {
        let mut questions = vec![self.case.question(&[NEWEST])];
        questions.extend(self.older.as_ref().map(|older| older.question(&OLDER)));
        questions.extend(self.compacted.as_ref().map(|(case, _)| case.question(&[NEWEST])));
        questions
    }

    /// The differences from the expected results.
    fn faults(&self, answers: &Answers) -> Vec<String> {
        let mut faults = self.in_chat.faults(&answers.chat);
        let mut answers = answers.judge.iter();
        let mut next = || &answers.next().unwrap()["results"];
        faults.extend(self.case.verdict().differences(&Verdict::of(&next()[NEWEST])));
        if let Some(older) = &self.older {
            let results = next();
            // These never start a new message.
            let (_, here) = older.reduce(ResetOn::Never);
            for version in OLDER {
                let there = refused(&results[version]);
                if there.map(|(at, _)| at) != here.map(|(at, _)| at) {
                    faults.push(format!("{version} refused {there:?}, here {here:?}"));
                }
            }
        }
        if let Some((case, message)) = &self.compacted {
            let rebuilt = Verdict::of(&next()[NEWEST]).message;
            if rebuilt != *message {
                let chunks = case.chunks.join("\n");
                faults.push(format!("compacted to\n{chunks}\nis\n{rebuilt}\nnot\n{message}"));
            }
        }
        faults.extend(self.case.unreadable());
        faults
    }
}

impl Case {
    /// The reason why the message cannot be stored and read back.
    fn unreadable(&self) -> Option<String> {
        let (mut reducer, _) = self.reduce(ResetOn::OtherId);
        let text = serde_json::to_string(reducer.message()).unwrap();
        match UiMessage::parse(&text) {
            Ok(read) if serde_json::to_string(&read).is_ok_and(|again| same(&again, &text)) => None,
            Ok(read) => Some(format!("read back as {read:?}")),
            // A message that could only just be parsed before may hold content that cannot be
            // parsed now.
            Err(_) if self.message.is_some() => None,
            Err(error) => Some(format!("not read back: {error}")),
        }
    }
}

fn same(a: &str, b: &str) -> bool {
    canonical(a) == canonical(b)
}

/// The case of the chunks that the message of a case compacts to, if the stream did not continue a
/// message.
fn compacted(case: &Case) -> Option<(Case, Value)> {
    // A written chunk has no place for unknown fields, but a data part preserves them.
    let keeps_unknown = |chunk: &String| match ReceivedChunk::parse(chunk) {
        Ok(ReceivedChunk::Known { chunk: Chunk::Data { .. }, extra }) => !extra.is_empty(),
        _ => false,
    };
    if case.message.is_some() || case.chunks.iter().any(keeps_unknown) {
        return None;
    }
    let (mut reducer, _) = case.reduce(ResetOn::OtherId);
    let message = reducer.message().clone();
    // The test of `reduce` covers messages without a compacted form.
    let chunks = compact(&message).ok()?;
    let chunks = chunks.iter().map(|chunk| serde_json::to_string(chunk).unwrap()).collect();
    let message = canonical(&serde_json::to_string(&message).unwrap());
    Some((Case { message: None, chunks, reads_on: false, client: case.client }, message))
}

/// The number of cases of each kind.
#[derive(Default)]
struct Tally {
    cases: usize,
    continued: usize,
    refused: usize,
    older: usize,
    compacted: usize,
    chunks: usize,
}

impl Tally {
    fn count(&mut self, tried: &Tried) {
        self.cases += 1;
        self.chunks += tried.case.chunks.len();
        self.continued += usize::from(tried.case.message.is_some());
        self.refused += usize::from(tried.case.reduce(ResetOn::OtherId).1.is_some());
        self.older += usize::from(tried.older.is_some());
        self.compacted += usize::from(tried.compacted.is_some());
    }

    fn summary(&self) -> String {
        let Tally { cases, continued, refused, older, compacted, chunks } = self;
        format!(
            "{cases} streams of {chunks} chunks against the real client, {continued} of them \
             continuing a message, {refused} refused; {older} against older clients; {compacted} \
             messages rebuilt from their chunks"
        )
    }
}
