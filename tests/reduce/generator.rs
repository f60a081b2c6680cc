//! Random streams: most chunks fit what came before, some do not, and some are broken.

use ui_message_stream::message::Part;
use ui_message_stream::{Json, UiMessage};

use crate::case::Case;
use crate::dice::Dice;

/// The case of this number.
pub(crate) fn case(seed: u64, number: u64) -> Case {
    let mut dice = Dice::new(seed, number);
    let message = dice.chance(35).then(|| message(&mut dice)).flatten();
    let mut stream = Stream::new(dice, message.as_deref());
    let most = if stream.dice.chance(20) { 60 } else { 20 };
    let length = 1 + stream.dice.below(most);
    let mut chunks: Vec<Fields> = (0..length).map(|_| stream.chunk()).collect();
    let mut dice = stream.dice;
    if dice.chance(25) {
        for _ in 0..=dice.below(2) {
            break_something(&mut dice, &mut chunks);
        }
    }
    let reads_on = dice.chance(50);
    Case { message, chunks: chunks.iter().map(Fields::to_text).collect(), reads_on }
}

/// The JSON document of this number, spaced in any way, and now and then not quite JSON.
pub(crate) fn document(seed: u64, number: u64) -> String {
    let mut dice = Dice::new(seed, number);
    let mut text = String::new();
    for word in 0..=dice.below(3) {
        if word > 0 {
            text.push_str(if dice.chance(90) { "," } else { dice.pick(INPUT_PIECES) });
        }
        let length = dice.below(3);
        let key = dice.escaped(length);
        let value = match dice.below(5) {
            0 => dice.escaped(3),
            1 => dice.object(),
            _ => dice.json(),
        };
        let space = dice.pick(&["", "", " ", "\n\t", "  "]);
        text.push_str(&format!("{space}{key}{space}:{space}{value}{space}"));
    }
    match dice.below(10) {
        0 => format!("[{}]", dice.json()),
        1 => dice.json(),
        3 => (0..12).map(|_| dice.pick(INPUT_PIECES)).collect(),
        2 => format!("[{{{text}}},{{{text}}}]"),
        _ => format!("{{{text}}}"),
    }
}

/// An object as its fields, each a name and JSON.
#[derive(Debug, Clone, Default)]
struct Fields(Vec<(String, String)>);

impl Fields {
    fn of(kind: &str) -> Self {
        Fields::default().with_text("type", kind)
    }

    fn with(mut self, name: &str, json: impl Into<String>) -> Self {
        self.0.push((name.to_owned(), json.into()));
        self
    }

    fn with_text(self, name: &str, text: &str) -> Self {
        self.with(name, Json::string(text).as_str())
    }

    /// Adds a field sometimes.
    fn may(
        self,
        dice: &mut Dice,
        percent: usize,
        name: &str,
        json: impl FnOnce(&mut Dice) -> String,
    ) -> Self {
        if !dice.chance(percent) {
            return self;
        }
        let json = json(dice);
        self.with(name, json)
    }

    fn to_text(&self) -> String {
        // What is no object any more stands under no name.
        if let [(name, text)] = &self.0[..]
            && name.is_empty()
        {
            return text.clone();
        }
        let field = |(name, json): &(String, String)| format!("{}:{json}", Json::string(name));
        format!("{{{}}}", self.0.iter().map(field).collect::<Vec<_>>().join(","))
    }
}

/// A stream as it is made: what is open, and which calls there are.
struct Stream {
    dice: Dice,
    id: String,
    texts: Vec<String>,
    reasonings: Vec<String>,
    inputs: Vec<String>,
    calls: Vec<String>,
}

/// Makes one chunk.
type Maker = fn(&mut Stream) -> Fields;

impl Stream {
    fn new(dice: Dice, message: Option<&str>) -> Self {
        let mut stream = Stream {
            dice,
            id: String::new(),
            texts: Vec::new(),
            reasonings: Vec::new(),
            inputs: Vec::new(),
            calls: Vec::new(),
        };
        let Some(message) = message.map(|message| UiMessage::parse(message).unwrap()) else {
            return stream;
        };
        stream.id = message.id.to_string();
        for part in &message.parts {
            match part {
                Part::StepStart { .. } => stream.inputs.clear(),
                Part::Tool(part) => {
                    stream.calls.push(part.tool_call_id.to_string());
                    if part.state.as_str() == "input-streaming" {
                        stream.inputs.push(part.tool_call_id.to_string());
                    }
                }
                _ => {}
            }
        }
        stream
    }

    fn chunk(&mut self) -> Fields {
        let weights: [(usize, Maker); 15] = [
            (4, Self::start),
            (6, |_| Fields::of("start-step")),
            (3, Self::finish_step),
            (8, |stream| stream.begin_text("text-start")),
            (12, |stream| stream.go_on_with_text("text")),
            (4, |stream| stream.begin_text("reasoning-start")),
            (6, |stream| stream.go_on_with_text("reasoning")),
            (8, Self::input_start),
            (11, Self::input_delta),
            (8, |stream| stream.whole_input("tool-input-available")),
            (5, |stream| stream.whole_input("tool-input-error")),
            (7, Self::approval_request),
            (16, Self::output),
            (8, Self::data),
            (9, Self::other),
        ];
        let mut throw = self.dice.below(weights.iter().map(|(weight, _)| weight).sum());
        let mut chunk = Fields::default();
        for (weight, make) in weights {
            match throw.checked_sub(weight) {
                Some(rest) => throw = rest,
                None => {
                    chunk = make(self);
                    break;
                }
            }
        }
        chunk.may(&mut self.dice, 2, "later", Dice::json)
    }

    fn start(&mut self) -> Fields {
        let mut chunk = Fields::of("start");
        if self.dice.chance(70) {
            let id = match self.dice.chance(80) {
                true => self.id.clone(),
                false => self.dice.pick(&["m1", "m2", ""]).to_owned(),
            };
            chunk = chunk.with_text("messageId", &id);
            if id != self.id {
                self.id = id;
                for list in
                    [&mut self.texts, &mut self.reasonings, &mut self.inputs, &mut self.calls]
                {
                    list.clear();
                }
            }
        }
        chunk.may(&mut self.dice, 30, "messageMetadata", metadata)
    }

    fn finish_step(&mut self) -> Fields {
        self.texts.clear();
        self.reasonings.clear();
        Fields::of("finish-step")
    }

    fn begin_text(&mut self, kind: &str) -> Fields {
        let id = self.dice.pick(TEXT_IDS).to_owned();
        let open = if kind == "text-start" { &mut self.texts } else { &mut self.reasonings };
        open.retain(|open| *open != id);
        open.push(id.clone());
        Fields::of(kind).with_text("id", &id).may(
            &mut self.dice,
            20,
            "providerMetadata",
            Dice::provider_metadata,
        )
    }

    fn go_on_with_text(&mut self, kind: &str) -> Fields {
        let open = if kind == "text" { &mut self.texts } else { &mut self.reasonings };
        let is_end = self.dice.chance(30);
        let id = if self.dice.chance(1) {
            self.dice.pick(TEXT_IDS).to_owned()
        } else if open.is_empty() {
            return self.begin_text(&format!("{kind}-start"));
        } else {
            let at = self.dice.below(open.len());
            if is_end { open.swap_remove(at) } else { open[at].clone() }
        };
        let word = if is_end { "end" } else { "delta" };
        let mut chunk = Fields::of(&format!("{kind}-{word}")).with_text("id", &id);
        if !is_end {
            chunk = chunk.with("delta", self.dice.string());
        }
        chunk.may(&mut self.dice, 20, "providerMetadata", Dice::provider_metadata)
    }

    /// A call that there is, mostly.
    fn call_of(&mut self, calls: fn(&Self) -> &Vec<String>) -> Option<String> {
        if self.dice.chance(1) {
            return Some(self.dice.pick(CALL_IDS).to_owned());
        }
        let known = calls(self).len();
        let at = self.dice.below(known.max(1));
        calls(self).get(at).cloned()
    }

    /// A chunk that creates or updates a call.
    fn creating(&mut self, kind: &str) -> Fields {
        let id = match self.dice.chance(50) {
            true => self.call_of(|stream| &stream.calls),
            false => None,
        };
        let id = id.unwrap_or_else(|| self.dice.pick(CALL_IDS).to_owned());
        self.calls.push(id.clone());
        if kind == "tool-input-start" {
            self.inputs.push(id.clone());
        }
        let name = self.dice.pick(&["ls", "ls", "rm-rf", ""]);
        Fields::of(kind).with_text("toolCallId", &id).with_text("toolName", name)
    }

    fn said(&mut self, chunk: Fields) -> Fields {
        let flag = |dice: &mut Dice| dice.pick(&["true", "false"]).to_owned();
        chunk
            .may(&mut self.dice, 15, "providerExecuted", flag)
            .may(&mut self.dice, 20, "providerMetadata", Dice::provider_metadata)
            .may(&mut self.dice, 15, "toolMetadata", Dice::plain_object)
            .may(&mut self.dice, 20, "dynamic", flag)
    }

    fn input_start(&mut self) -> Fields {
        let chunk = self.creating("tool-input-start");
        let encoding = |dice: &mut Dice| dice.pick(&[r#""json""#, r#""text""#]).to_owned();
        let chunk = chunk.may(&mut self.dice, 20, "inputEncoding", encoding);
        self.said(chunk).may(&mut self.dice, 20, "title", Dice::string)
    }

    fn input_delta(&mut self) -> Fields {
        let Some(id) = self.call_of(|stream| &stream.inputs) else { return self.input_start() };
        let piece = self.dice.pick(INPUT_PIECES).to_owned();
        let piece = if self.dice.chance(15) { self.dice.text() } else { piece };
        Fields::of("tool-input-delta")
            .with_text("toolCallId", &id)
            .with_text("inputTextDelta", &piece)
    }

    fn whole_input(&mut self, kind: &str) -> Fields {
        let chunk = self.creating(kind);
        let chunk = chunk.may(&mut self.dice, 95, "input", Dice::json);
        let chunk = self.said(chunk).may(&mut self.dice, 20, "title", Dice::string);
        if kind == "tool-input-error" {
            let text = self.dice.string();
            return chunk.with("errorText", text);
        }
        chunk
    }

    fn approval_request(&mut self) -> Fields {
        let Some(id) = self.call_of(|stream| &stream.calls) else {
            return self.whole_input("tool-input-available");
        };
        Fields::of("tool-approval-request")
            .with_text("approvalId", self.dice.pick(&["ap1", "ap2", ""]))
            .with_text("toolCallId", &id)
            .may(&mut self.dice, 20, "approvalDescriptor", Dice::json)
            .may(&mut self.dice, 20, "inputSchemaInput", Dice::json)
            .may(&mut self.dice, 20, "signature", Dice::string)
    }

    fn output(&mut self) -> Fields {
        let Some(id) = self.call_of(|stream| &stream.calls) else {
            return self.whole_input("tool-input-available");
        };
        let chunk = |kind: &str| Fields::of(kind).with_text("toolCallId", &id);
        match self.dice.below(10) {
            0..=5 => {
                let output = chunk("tool-output-available");
                let output = output.may(&mut self.dice, 95, "output", Dice::json);
                let flag = |dice: &mut Dice| dice.pick(&["true", "true", "false"]).to_owned();
                self.said(output).may(&mut self.dice, 30, "preliminary", flag)
            }
            6 | 7 => {
                let failed = chunk("tool-output-error").with("errorText", self.dice.string());
                self.said(failed)
            }
            _ => chunk("tool-output-denied"),
        }
    }

    fn data(&mut self) -> Fields {
        let kind = self.dice.pick(&["data-a", "data-b-c", "data-"]);
        let id = |dice: &mut Dice| Json::string(dice.pick(&["1", "2", ""])).to_string();
        let flag = |dice: &mut Dice| dice.pick(&["true", "false"]).to_owned();
        Fields::of(kind)
            .may(&mut self.dice, 95, "data", Dice::json)
            .may(&mut self.dice, 60, "id", id)
            .may(&mut self.dice, 15, "transient", flag)
            .may(&mut self.dice, 5, "state", Dice::json)
            .may(&mut self.dice, 5, "toolCallId", Dice::json)
            .may(&mut self.dice, 5, "later", Dice::json)
    }

    fn other(&mut self) -> Fields {
        let dice = &mut self.dice;
        match dice.below(12) {
            0..=5 => Fields::of("message-metadata").with("messageMetadata", metadata(dice)),
            6 => Fields::of("source-url")
                .with("sourceId", dice.string())
                .with("url", dice.string())
                .may(dice, 50, "title", Dice::string)
                .may(dice, 30, "providerMetadata", Dice::provider_metadata),
            7 => Fields::of("source-document")
                .with("sourceId", dice.string())
                .with("mediaType", dice.string())
                .with("title", dice.string())
                .may(dice, 50, "filename", Dice::string)
                .may(dice, 30, "providerMetadata", Dice::provider_metadata),
            8 => Fields::of("file")
                .with("mediaType", dice.string())
                .with("url", dice.string())
                .may(dice, 30, "filename", Dice::string)
                .may(dice, 30, "providerMetadata", Dice::provider_metadata),
            9 => Fields::of("error").with("errorText", dice.string()),
            10 => Fields::of("abort").may(dice, 50, "reason", Dice::string),
            _ => Fields::of("finish")
                .may(dice, 60, "finishReason", |_| r#""tool-calls""#.to_owned())
                .may(dice, 40, "messageMetadata", metadata),
        }
    }
}

/// Metadata of a message, nearly always an object.
fn metadata(dice: &mut Dice) -> String {
    if dice.chance(90) { dice.object() } else { dice.json() }
}

const TEXT_IDS: &[&str] = &[
    "0",
    "1",
    "2",
    "r-1",
    "",
    "0",
    "1",
    "2",
    "r-1",
    "",
    "0",
    "1",
    "2",
    "r-1",
    "toString",
    "__proto__",
];
const CALL_IDS: &[&str] =
    &["c1", "c2", "c3", "", "c1", "c2", "c3", "", "c1", "c2", "c3", "", "c1", "c2", "constructor"];

const INPUT_PIECES: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\"",
    "\"a\":",
    "\"b\" : ",
    "\"x\"",
    "{\"path\":\"no",
    "tes.txt\"",
    "1",
    "-",
    ".5",
    "e",
    "E+",
    "tr",
    "ue",
    "false",
    "nul",
    "l",
    " ",
    "\\",
    "\\\"",
    "\\u",
    "00e9",
    "\\ud83d",
    "\\ude00",
    "é",
    "😀",
    "{\"a\":{\"b\":[1,2",
    "]}",
    "\"__proto__\":",
    "\n",
    "x",
];

/// Leaves something out, gives it a wrong type, or puts it elsewhere.
fn break_something(dice: &mut Dice, chunks: &mut Vec<Fields>) {
    let at = dice.below(chunks.len());
    let count = chunks[at].0.len();
    let field = dice.below(count.max(1));
    match dice.below(10) {
        0 if count > 0 => drop(chunks[at].0.remove(field)),
        1 | 2 if count > 0 => {
            let wrong = ["null", "1", r#""x""#, "[]", "{}", "true", r#"{"a":1}"#];
            chunks[at].0[field].1 = dice.pick(&wrong).to_owned();
        }
        3 => {
            let kind = ["tool-call", "reset-step", "custom", "", "text", "tool-approval-response"];
            chunks[at] = Fields::of(dice.pick(&kind));
        }
        4 => {
            let texts =
                ["", "null", "5", "[]", "[DONE]", "[DONE] ", "{", "{\"type\":}", "\"text\""];
            let text = dice.pick(&texts).to_owned();
            // This one the client does not even look at.
            let text = if text == "[DONE]" { "{}".to_owned() } else { text };
            chunks[at] = Fields(vec![(String::new(), text)]);
        }
        5 if count > 0 => {
            let again = (chunks[at].0[field].0.clone(), dice.json());
            let place = dice.below(count + 1);
            chunks[at].0.insert(place, again);
        }
        6 => {
            let chunk = chunks[at].clone();
            chunks.insert(at, chunk);
        }
        7 | 8 => {
            let other = dice.below(chunks.len());
            chunks.swap(at, other);
        }
        _ => drop(chunks.remove(at)),
    }
    if chunks.is_empty() {
        chunks.push(Fields::of("start-step"));
    }
}

/// A message to continue, as far as this crate reads it.
fn message(dice: &mut Dice) -> Option<String> {
    let parts: Vec<_> = (0..dice.below(6)).map(|_| part(dice).to_text()).collect();
    let message = Fields::default()
        .with_text("id", dice.pick(&["m1", "m1", ""]))
        .with_text("role", "assistant")
        .may(dice, 40, "metadata", metadata)
        .with("parts", format!("[{}]", parts.join(",")))
        .may(dice, 10, "later", Dice::json)
        .to_text();
    UiMessage::parse(&message).ok().map(|_| message)
}

fn part(dice: &mut Dice) -> Fields {
    let part = match dice.below(12) {
        0 | 1 => Fields::of("step-start"),
        2 => Fields::of("text")
            .with("text", dice.string())
            .may(dice, 50, "state", |dice| dice.pick(&[r#""done""#, r#""streaming""#]).to_owned()),
        3 => Fields::of("reasoning").with("text", dice.string()).may(dice, 50, "id", Dice::string),
        4 => Fields::of(dice.pick(&["data-a", "data-b-c"])).with("data", dice.json()).may(
            dice,
            70,
            "id",
            |dice| dice.pick(&[r#""1""#, r#""2""#]).to_owned(),
        ),
        5 => Fields::of(dice.pick(&["new-kind", "data"])).with("id", r#""1""#),
        _ => tool_part(dice),
    };
    part.may(dice, 10, "later", Dice::json)
}

fn tool_part(dice: &mut Dice) -> Fields {
    let part = match dice.below(5) {
        0 | 1 => Fields::of("dynamic-tool").with_text("toolName", dice.pick(&["ls", "x"])).may(
            dice,
            20,
            "dynamic",
            |_| "false".to_owned(),
        ),
        _ => Fields::of(dice.pick(&["tool-ls", "tool-rm-rf", "tool-"])),
    };
    let states = [
        "input-streaming",
        "input-available",
        "approval-requested",
        "approval-responded",
        "output-available",
        "output-error",
        "output-denied",
        "later-state",
    ];
    let state = dice.pick(&states);
    let part = part
        .with_text("toolCallId", dice.pick(CALL_IDS))
        .with_text("state", state)
        .may(dice, 80, "input", Dice::json)
        .may(dice, 20, "title", Dice::json)
        .may(dice, 20, "providerExecuted", |_| "true".to_owned())
        .may(dice, 20, "toolMetadata", Dice::plain_object)
        .may(dice, 20, "callProviderMetadata", Dice::provider_metadata)
        .may(dice, 20, "resultProviderMetadata", Dice::provider_metadata);
    let approval = |dice: &mut Dice, is_answered: bool| {
        let mut approval = Fields::default().with_text("id", "ap0");
        if is_answered {
            approval = approval.with("approved", dice.pick(&["true", "false"]));
            approval = approval.may(dice, 30, "reason", Dice::string);
        }
        approval
            .may(dice, 30, "signature", Dice::string)
            .may(dice, 10, "later", Dice::json)
            .to_text()
    };
    // What a state needs, and now and then what it does not have.
    let has = |dice: &mut Dice, states: &[&str], usually: usize| {
        if states.contains(&state) { dice.chance(usually) } else { dice.chance(5) }
    };
    let mut part = part;
    if has(dice, &["input-streaming"], 70) {
        let text = format!("{}{}", dice.pick(INPUT_PIECES), dice.pick(INPUT_PIECES));
        part = part.with_text("rawInput", &text);
    }
    if has(dice, &["input-streaming"], 30) {
        part = part.with("inputEncoding", dice.pick(&[r#""json""#, r#""text""#]));
    }
    if has(dice, &["output-available"], 90) {
        part = part.with("output", dice.json());
    }
    if has(dice, &["output-available"], 30) {
        part = part.with("preliminary", dice.pick(&["true", "false"]));
    }
    if has(dice, &["output-error"], 100) {
        part = part.with("errorText", dice.string());
    }
    let asked = ["approval-requested", "approval-responded"];
    if asked.contains(&state) || dice.chance(15) {
        let is_answered = state != "approval-requested" && (state == asked[1] || dice.chance(60));
        let approval = approval(dice, is_answered);
        part = part.with("approval", approval);
    }
    part
}
