//! [`Stream`]: random chunks, most of which fit the chunks before them.

use test_support::random_messages::fields::Fields;
use test_support::random_messages::values::{CALL_IDS, INPUT_PIECES, RandomValues, metadata};
use test_support::rng::Dice;
use ui_message_stream::message::Part;
use ui_message_stream::{Json, UiMessage};

/// The state of a stream that is being generated: its open parts and its calls.
pub(crate) struct Stream {
    pub(crate) dice: Dice,
    /// For a client of `ai@7`.
    is_v7: bool,
    id: String,
    texts: Vec<String>,
    reasonings: Vec<String>,
    inputs: Vec<String>,
    calls: Vec<String>,
    /// The ids of the approval requests.
    asked: Vec<String>,
}

/// Generates one chunk.
type Maker = fn(&mut Stream) -> Fields;

impl Stream {
    pub(crate) fn new(dice: Dice, message: Option<&str>, is_v7: bool) -> Self {
        let mut stream = Stream {
            dice,
            is_v7,
            id: String::new(),
            texts: Vec::new(),
            reasonings: Vec::new(),
            inputs: Vec::new(),
            calls: Vec::new(),
            asked: Vec::new(),
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

    pub(crate) fn chunk(&mut self) -> Fields {
        let weights: [(usize, Maker); 16] = [
            (4, Self::start),
            (6, |_| Fields::of("start-step")),
            (3, Self::finish_step),
            (8, |stream| stream.start_text("text-start")),
            (12, |stream| stream.continue_text("text")),
            (4, |stream| stream.start_text("reasoning-start")),
            (6, |stream| stream.continue_text("reasoning")),
            (8, Self::input_start),
            (11, Self::input_delta),
            (8, |stream| stream.whole_input("tool-input-available")),
            (5, |stream| stream.whole_input("tool-input-error")),
            (7, Self::approval_request),
            (16, Self::output),
            (8, Self::data),
            (9, Self::other),
            (if self.is_v7 { 14 } else { 0 }, Self::of_v7),
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
        // `ai@7` leaves them open.
        if !self.is_v7 {
            self.texts.clear();
            self.reasonings.clear();
        }
        Fields::of("finish-step")
    }

    fn start_text(&mut self, kind: &str) -> Fields {
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

    fn continue_text(&mut self, kind: &str) -> Fields {
        let open = if kind == "text" { &mut self.texts } else { &mut self.reasonings };
        let is_end = self.dice.chance(30);
        let id = if self.dice.chance(1) {
            self.dice.pick(TEXT_IDS).to_owned()
        } else if open.is_empty() {
            return self.start_text(&format!("{kind}-start"));
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

    /// Usually an existing call.
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

    fn with_call_fields(&mut self, chunk: Fields) -> Fields {
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
        self.with_call_fields(chunk).may(&mut self.dice, 20, "title", Dice::string)
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
        let chunk = self.with_call_fields(chunk).may(&mut self.dice, 20, "title", Dice::string);
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
        let approval_id = self.dice.pick(&["ap1", "ap2", ""]);
        self.asked.push(approval_id.to_owned());
        let mut request = Fields::of("tool-approval-request")
            .with_text("approvalId", approval_id)
            .with_text("toolCallId", &id);
        if self.is_v7 {
            let flag = |dice: &mut Dice| dice.pick(&["true", "false"]).to_owned();
            request = request.may(&mut self.dice, 30, "reason", Dice::string);
            request = request.may(&mut self.dice, 30, "isAutomatic", flag);
        }
        request
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
                self.with_call_fields(output).may(&mut self.dice, 30, "preliminary", flag)
            }
            6 | 7 => {
                let failed = chunk("tool-output-error").with("errorText", self.dice.string());
                self.with_call_fields(failed)
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

    /// A kind that no `ai@6` knows.
    fn of_v7(&mut self) -> Fields {
        let approval_id = match self.asked.last() {
            Some(asked) if self.dice.chance(97) => asked.clone(),
            None if self.dice.chance(97) => return self.approval_request(),
            _ => self.dice.pick(&["ap1", "ap2", ""]).to_owned(),
        };
        let dice = &mut self.dice;
        let flag = |dice: &mut Dice| dice.pick(&["true", "false"]).to_owned();
        match dice.below(6) {
            0 => {
                for list in
                    [&mut self.texts, &mut self.reasonings, &mut self.inputs, &mut self.asked]
                {
                    list.clear();
                }
                Fields::of("reset-step")
            }
            1 => Fields::of("custom").with("kind", dice.string()).may(
                dice,
                50,
                "providerMetadata",
                Dice::provider_metadata,
            ),
            2 => Fields::of("reasoning-file")
                .with("url", dice.string())
                .with("mediaType", dice.string())
                .may(dice, 50, "providerMetadata", Dice::provider_metadata),
            _ => Fields::of("tool-approval-response")
                .with_text("approvalId", &approval_id)
                .with("approved", flag(dice))
                .may(dice, 40, "reason", Dice::string)
                .may(dice, 20, "providerExecuted", flag)
                .may(dice, 20, "providerMetadata", Dice::provider_metadata),
        }
    }

    fn other(&mut self) -> Fields {
        let (dice, is_v7) = (&mut self.dice, self.is_v7);
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
                .may(dice, 60, "finishReason", |dice| {
                    let reasons = [r#""tool-calls""#, r#""interrupted""#];
                    reasons[if is_v7 { dice.below(2) } else { 0 }].to_owned()
                })
                .may(dice, 40, "messageMetadata", metadata),
        }
    }
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
