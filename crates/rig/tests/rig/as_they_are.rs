//! The same streams through this package and through `ui-message-stream-openai` give the same events,
//! but for a table of differences.

use std::collections::BTreeMap;

use chat_test_support::browser::{agent, asked, conversation};
use futures::StreamExt;
use rig_agent::AgentBuilder;
use rig_agent::tool::{DynamicTool, ToolOutput};
use rig_core::message::ToolName;
use rig_core::providers::openai::OpenAIConfig;
use rig_core::providers::openai::wire::{Dialect, Quirks};
use serde_json::{Value, json};
use test_support::message_contents::MessageContents;
use test_support::recorded_streams::lines_of;
use test_support::repository;
use ui_message_stream::chunk::Chunk;
use ui_message_stream::event::{AgentEvent, Executor, Source, ToolCall};
use ui_message_stream::id::ToolCallId;
use ui_message_stream::model::{Model, ModelEvent, ModelMessage, ModelRequest};
use ui_message_stream::testing::Conversation;
use ui_message_stream_openai::{ChatCompletions, Endpoint, Responses};
use ui_message_stream_rig::{RigAgent, RigModel};

use super::agents::browser;
use super::provider::{Provider, as_stream, fixture};

const FAILS: &str = "+ error, provider: None";
const NO_TEXT: &[&str] = &["- text It is.", "- finished Stop", FAILS];
const NO_NAME: &[&str] = &["- error, provider: Some(\"Overloaded\")", FAILS];
const NO_CALL: &[&str] =
    &["- call tides {}", "- finished ToolCalls", FAILS, "+ incomplete call tides {}"];
const RUNS: &[&str] = &["- finished Other", "+ finished ToolCalls"];
const NO_CHARACTER: &[&str] = &[
    "- reasoning Hm 😀.",
    "- text It 😀 is\u{fffd}",
    "- call tides {\"at\":\"😀\"}",
    "- finished ToolCalls",
    FAILS,
];

/// All differences. The README has them in short.
const DIFFERENCES: &[Difference] = &[
    Difference {
        why: "rig ends a stream at data that is not JSON",
        streams: &[
            ("chat/keep_alives_as_data", NO_TEXT),
            ("responses/keep_alives_as_data", NO_TEXT),
            ("chat/a_character_split_over_two_deltas", NO_CHARACTER),
            ("responses/a_character_split_over_two_deltas", NO_CHARACTER),
            ("chat/an_event_that_is_an_error_in_words", NO_NAME),
            (
                "chat/half_an_event_between_pieces_of_arguments",
                &[
                    "- call tides {\"at\":\"\"}",
                    "- finished Other",
                    FAILS,
                    "+ incomplete call tides {\"at\":\"",
                ],
            ),
        ],
    },
    Difference {
        why: "rig ends a stream of Responses at data without a type, and does not say what it is",
        streams: &[
            ("responses/an_event_that_is_an_error", NO_NAME),
            ("responses/an_error_behind_a_whole_message", NO_NAME),
        ],
    },
    Difference {
        why: "rig leaves out a chunk whose lists have `null`. Without text the answer is a failure, as an empty one is",
        streams: &[("chat/null_among_the_pieces_of_a_call", &["- call tides {}"])],
    },
    Difference {
        why: "rig refuses a body that is not a stream, and does not say what it is",
        streams: &[
            ("chat, an answer as the whole body", NO_TEXT),
            (
                "responses, an answer as the whole body",
                &[
                    "- reasoning Let me think.",
                    "- text It is.",
                    "- call tides {}",
                    "- finished ToolCalls",
                    FAILS,
                ],
            ),
            ("chat, an error as the whole body", NO_NAME),
            ("responses, an error as the whole body", NO_NAME),
        ],
    },
    Difference {
        why: "rig takes an answer without `finish_reason` for one that was cut off, unless the dialect is set to",
        streams: &[
            ("chat/text_without_a_finish_reason", &["- usage 11 9", "- finished Stop", FAILS]),
            (
                "chat/a_call_without_a_finish_reason",
                &[
                    "- call tides {}",
                    "- usage 11 9",
                    "- finished Stop",
                    FAILS,
                    "+ incomplete call tides {}",
                ],
            ),
            (
                "chat/a_call_without_arguments_or_a_finish_reason",
                &[
                    "- call tides {}",
                    "- usage 11 9",
                    "- finished Other",
                    FAILS,
                    "+ incomplete call tides ",
                ],
            ),
        ],
    },
    Difference {
        why: "rig reads no message beside deltas, and of several messages only the last one",
        streams: &[
            ("chat/a_call_only_in_the_message_behind_the_deltas", &["- call tides {}"]),
            ("chat/a_call_repeated_in_the_message_behind_the_deltas", &["- text It is."]),
            ("chat/messages_in_pieces", &["- text It is.", "+ text is."]),
        ],
    },
    Difference {
        why: "rig fails at a finish reason that it does not know, and at a response that was cancelled",
        streams: &[
            ("chat/a_finish_reason_in_capitals", NO_CALL),
            (
                "responses/a_call_of_a_response_that_is_completed_as_cancelled",
                &["- call tides {}", "- finished Other", FAILS, "+ incomplete call tides {}"],
            ),
        ],
    },
    Difference {
        why: "rig runs no call of a response whose item did not end before it",
        streams: &[
            ("responses/arguments_without_an_end", &["- finished Stop", FAILS]),
            ("responses/arguments_without_the_end_of_the_item", NO_CALL),
            ("responses/an_item_behind_the_end", NO_CALL),
        ],
    },
    Difference {
        why: "rig takes each number for a call and leaves out calls without a name. No call of such a response runs",
        streams: &[(
            "chat/a_call_whose_pieces_are_counted",
            &[
                "- call weather {\"city\":\"Tavira\"}",
                "- finished ToolCalls",
                "+ call weather {}",
                "+ finished Other",
            ],
        )],
    },
    Difference {
        why: "rig reads past what is not a piece of an input or not a number, so that a call may run that lacks a piece",
        streams: &[
            (
                "chat/a_fragment_whose_index_is_not_a_number",
                &[
                    "- call tides {\"at\":\"\"}",
                    "- finished Other",
                    "+ call tides {\"at\":\"ebb\"}",
                    "+ finished ToolCalls",
                ],
            ),
            ("responses/a_delta_of_arguments_that_is_missing", RUNS),
            ("responses/a_number_between_deltas_of_arguments", RUNS),
        ],
    },
    Difference {
        why: "rig takes a number between pieces of an input for its digits. The call does not run",
        streams: &[(
            "chat/a_value_between_pieces_of_arguments",
            &["- call tides {\"at\":\"\"}", "+ call tides {\"at\":\"7\"}"],
        )],
    },
    Difference {
        why: "rig takes everything with one number for one call, whose input is then not usable",
        streams: &[(
            "chat/whole_calls_of_one_index",
            &[
                "- call weather {\"city\":\"Porto\"}",
                "- call weather {\"city\":\"Faro\"}",
                "+ call weather {\"city\":\"Porto\"}{\"city\":\"Faro\"}",
            ],
        )],
    },
    Difference {
        why: "rig takes an item that has another id and another number in the last event for another item",
        streams: &[
            (
                "responses/items_that_are_numbered_in_two_ways",
                &["+ reasoning Let me think.", "+ text It is.", "+ refused call tides {}"],
            ),
            ("responses/a_call_whose_name_comes_with_another_id", &["+ call tides {}"]),
        ],
    },
    Difference {
        why: "rig writes arguments that are a JSON value in its own form",
        streams: &[
            (
                "chat/arguments_as_a_json_value",
                &[
                    "- call tides {\"at\": 12345678901234567890, \"height\": 1.10}",
                    "+ call tides {\"at\":12345678901234567890,\"height\":1.1}",
                ],
            ),
            (
                "responses/arguments_as_a_json_value",
                &[
                    "- call tides {\"at\": 12345678901234567890, \"height\": 1.10}",
                    "- approval request mcp.links.shorten {\"at\": 12345678901234567890, \"height\": 1.10}",
                    "+ call tides {\"at\":12345678901234567890,\"height\":1.1}",
                    "+ approval request mcp.links.shorten {\"at\":12345678901234567890,\"height\":1.1}",
                ],
            ),
        ],
    },
    Difference {
        why: "rig reads a count only if it is a whole number",
        streams: &[("chat/fields_of_other_types", &["- usage 11 9"])],
    },
    Difference {
        why: "rig joins the parts of a reasoning summary",
        streams: &[(
            "responses/reasoning_and_a_function_call",
            &[
                "- reasoning **Looking**\n\nThey ask.",
                "- reasoning **Calling**",
                "+ reasoning **Looking**\n\nThey ask.\n\n**Calling**",
            ],
        )],
    },
    Difference {
        why: "rig has no calls of this kind, see `RigModel`",
        streams: &[(
            "responses/tool_search_by_the_client",
            &[
                "- call tool_search {\"goal\":\"weather\"}",
                "- finished ToolCalls",
                "+ finished Stop",
            ],
        )],
    },
    Difference {
        why: "rig does not name a tool of the provider before its item is complete",
        streams: &[
            ("responses/a_picture", &["- begins image_generation"]),
            ("responses/encrypted_reasoning_only_in_the_last_event", &["- begins web_search"]),
            ("responses/code_that_the_provider_runs", &["- begins code_interpreter"]),
            ("responses/mcp_approval_approved", &["- begins mcp.links.shorten"]),
            ("responses/mcp_calls", &["- begins mcp.links.shorten", "- begins mcp.links.shorten"]),
            ("responses/thoughts_around_an_mcp_call", &["- begins mcp.links.shorten"]),
            // rig also has no places of citations: OpenAI does not say in which unit they are.
            (
                "responses/web_search_with_sources",
                &["- begins web_search", "- begins web_search", "- the places of the citations"],
            ),
        ],
    },
];

/// Streams whose events differ.
struct Difference {
    why: &'static str,
    /// The names, with the events. `-` is an event of `ui-message-stream-openai`, `+` one of this package.
    streams: &'static [(&'static str, &'static [&'static str])],
}

#[tokio::test]
async fn the_same_streams_give_the_same_events() {
    let provider = Provider::default();
    let endpoint = Endpoint::new(&provider.listen().await).unwrap();
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, body) in streams() {
        let respond = || provider.respond_with([body.clone()]);
        respond();
        let (ours, rigs) = match is_chat(&name) {
            true => {
                let ours = Events::of(ChatCompletions::new(endpoint.clone(), "a-model")).await;
                respond();
                (ours, Events::of(RigModel::new(provider.chat())).await)
            }
            false => {
                let ours = Events::of(Responses::new(endpoint.clone(), "a-model")).await;
                respond();
                (ours, Events::of(RigModel::new(provider.responses())).await)
            }
        };
        if ours != rigs {
            found.insert(name, difference(&ours, &rigs));
        }
    }
    for Difference { why, streams } in DIFFERENCES {
        for (name, events) in *streams {
            let found = found.remove(*name).unwrap_or_default();
            assert_eq!(found, *events, "{name}: {why}");
        }
    }
    assert!(found.is_empty(), "these are not in the table: {found:#?}");
}

/// Returns the fixtures of both APIs, and bodies of servers that do not stream.
fn streams() -> Vec<(String, String)> {
    let mut streams = Vec::new();
    for api in ["chat", "responses"] {
        let folder = repository().join("fixtures/providers").join(api);
        for file in std::fs::read_dir(folder).unwrap() {
            let path = file.unwrap().path();
            let name = format!("{api}/{}", path.file_stem().unwrap().to_str().unwrap());
            let body = fixture(&name);
            streams.push((name, body));
        }
        let error = json!({"error": {"message": "Overloaded", "code": 529}}).to_string();
        streams.push((format!("{api}, an error as data"), as_stream(&error)));
        streams.push((format!("{api}, an error as the whole body"), error));
    }
    let last = |name: &str| -> Value {
        serde_json::from_str(lines_of(name).lines().last().unwrap()).unwrap()
    };
    let chat = last("chat/a_message_in_place_of_a_delta");
    streams.push(("chat, an answer as the whole body".to_owned(), chat.to_string()));
    let response = last("responses/output_only_in_the_last_event")["response"].take();
    streams.push(("responses, an answer as the whole body".to_owned(), response.to_string()));
    streams
}

fn is_chat(name: &str) -> bool {
    name.starts_with("chat")
}

/// Returns the lines that only one of the two has: `-` the first, `+` the second.
fn difference(ours: &[String], rigs: &[String]) -> Vec<String> {
    match (ours, rigs) {
        ([our, ours @ ..], [rig, rigs @ ..]) if our == rig => difference(ours, rigs),
        ([our, ours @ ..], _) if !rigs.contains(our) => {
            [vec![format!("- {our}")], difference(ours, rigs)].concat()
        }
        (_, [rig, rigs @ ..]) => [vec![format!("+ {rig}")], difference(ours, rigs)].concat(),
        (ours, []) => ours.iter().map(|line| format!("- {line}")).collect(),
    }
}

/// The events of a response, each as a line. Neighbouring deltas are joined, and sources follow the
/// text that they are in. Ids, provider metadata and the words of errors are left out: each package has
/// its own.
#[derive(Default)]
struct Events {
    lines: Vec<String>,
    /// The line of the open text or reasoning, and its kind.
    open: Option<(usize, &'static str)>,
    /// The inputs that were not complete.
    inputs: Vec<(ToolCall, String)>,
}

impl Events {
    async fn of(model: impl Model) -> Vec<String> {
        let request = ModelRequest::new(vec![ModelMessage::user("Go")]);
        let mut stream = model.call(request);
        let mut events = Events::default();
        while let Some(event) = stream.next().await {
            match event {
                Ok(event) => events.push(event),
                Err(error) => {
                    let error = error.to_string();
                    // What the provider says about it.
                    let said = ["Overloaded", "The provider went away", "finish_reason: error"];
                    let said = said.into_iter().find(|said| error.contains(said));
                    events.line(format!("error, provider: {said:?}"));
                }
            }
        }
        for (call, input) in std::mem::take(&mut events.inputs) {
            events.line(format!("incomplete call {} {input}", call.tool_name));
        }
        events.lines
    }

    fn push(&mut self, event: ModelEvent) {
        match event {
            ModelEvent::Event(event) => self.agent_event(event),
            ModelEvent::ToolCall(call, input) => self.call("call", &call, &input),
            ModelEvent::ProviderApprovalRequest(call, input) => {
                self.call("approval request", &call, &input);
            }
            ModelEvent::Usage(usage) => {
                self.line(format!("usage {} {}", usage.input_tokens, usage.output_tokens));
            }
            ModelEvent::Finished(reason) => self.line(format!("finished {reason:?}")),
            event => panic!("{event:?}"),
        }
    }

    fn agent_event(&mut self, event: AgentEvent) {
        match event {
            AgentEvent::TextDelta { delta, .. } => self.delta("text", &delta),
            AgentEvent::ReasoningDelta { delta, .. } => self.delta("reasoning", &delta),
            AgentEvent::TextStart { .. } | AgentEvent::ReasoningStart { .. } => {}
            AgentEvent::TextEnd { .. } | AgentEvent::ReasoningEnd { .. } => self.open = None,
            AgentEvent::ToolInputStart { call } => {
                if call.executed_by == Executor::Provider {
                    self.line(format!("begins {}", call.tool_name));
                }
                self.open = None;
                self.inputs.push((*call, String::new()));
            }
            AgentEvent::ToolInputDelta { tool_call_id, delta } => {
                let input = self.inputs.iter_mut().find(|(call, _)| call.id == tool_call_id);
                input.unwrap().1.push_str(&delta);
            }
            AgentEvent::ToolInput { call, input } => {
                self.call("executed call", &call, input.as_str());
            }
            AgentEvent::ToolInputInvalid { call, input, .. } => {
                self.call("refused call", &call, input.as_str());
            }
            AgentEvent::ToolOutput { output, .. } => self.line(format!("output {output}")),
            AgentEvent::ToolFailed { error, .. } => self.line(format!("failed {error}")),
            AgentEvent::File(file) => self.line(format!("file {} {}", file.media_type, file.url)),
            AgentEvent::Source(source) => match *source {
                Source::Url { url, title, .. } => {
                    self.lines.push(format!("source {url} {}", title.as_deref().unwrap_or("-")));
                }
                source => panic!("{source:?}"),
            },
            AgentEvent::Chunk(chunk) => match *chunk {
                Chunk::TextEnd { citations, .. } => {
                    self.open = None;
                    let places = citations.map(|_| "the places of the citations".to_owned());
                    self.lines.extend(places);
                }
                chunk => panic!("{chunk:?}"),
            },
            event => panic!("{event:?}"),
        }
    }

    fn call(&mut self, kind: &str, call: &ToolCall, input: &str) {
        let is_it = |id: &ToolCallId| *id == call.id;
        if let Some(at) = self.inputs.iter().position(|(begun, _)| is_it(&begun.id)) {
            let (begun, streamed) = self.inputs.remove(at);
            assert_eq!(begun.tool_name, call.tool_name);
            assert!(input.starts_with(&streamed), "{streamed} … {input}");
        }
        // An agent reads no input as an empty one.
        let input = if matches!(input, "" | "null") { "{}" } else { input };
        self.line(format!("{kind} {} {input}", call.tool_name));
    }

    fn line(&mut self, line: String) {
        self.open = None;
        self.lines.push(line);
    }

    fn delta(&mut self, kind: &'static str, delta: &str) {
        match self.open {
            Some((at, open)) if open == kind => self.lines[at].push_str(delta),
            _ => {
                self.open = Some((self.lines.len(), kind));
                self.lines.push(format!("{kind} {delta}"));
            }
        }
    }
}

/// The streams whose message differs if an agent of rig answers: it runs a call that was cut off if another finish
/// reason follows, shows neither a message in place of a delta nor an error beside a choice, and rig fails reasoning that
/// was cut off.
const DIFFERENCES_OF_AGENTS: [&str; 6] = [
    "chat/a_finish_reason_behind_the_one_of_a_cut_off_call",
    "chat/a_message_beside_an_empty_delta",
    "chat/a_message_in_place_of_a_delta",
    "chat/an_error_beside_a_choice",
    "chat/messages_in_pieces",
    "chat/reasoning_that_was_cut_off",
];

#[tokio::test]
async fn an_agent_of_rig_gives_the_same_message_as_a_model_of_rig() {
    let mut different = Vec::new();
    for (name, body) in streams() {
        let then = if is_chat(&name) { "chat/text_is_joined" } else { "responses/text" };
        let provider = Provider::default();
        let model = || if is_chat(&name) { provider.chat() } else { provider.responses() };
        let mut messages = Vec::new();
        let browsers = [conversation(agent(RigModel::new(model()))), browser(rig_agent(model()))];
        for mut browser in browsers {
            provider.respond_with([body.clone(), fixture(then)]);
            browser.send("Go").await;
            messages.push(message(&browser));
        }
        if messages[0] != messages[1] {
            different.push((name, messages));
        }
    }
    different.sort_by(|(one, _), (other, _)| one.cmp(other));
    let names: Vec<&str> = different.iter().map(|(name, _)| &**name).collect();
    assert_eq!(names, DIFFERENCES_OF_AGENTS, "{different:#?}");
}

/// Returns the contents and the error. The errors of calls are left out: rig has words of its own.
fn message(browser: &Conversation<'_>) -> (MessageContents, Option<String>) {
    let mut contents = browser.messages().last().map(MessageContents::of).unwrap_or_default();
    for (.., state, output) in &mut contents.calls {
        if state == "output-error" {
            *output = Value::Null;
        }
    }
    (contents, browser.error().map(str::to_owned))
}

/// Creates an agent of rig that knows the weather and the tides.
fn rig_agent(model: rig_core::DynModel<rig_core::operation::Completion>) -> RigAgent {
    let tool = |name: &str, output: fn(&Value) -> String| {
        let schema = json!({"type": "object", "properties": {}});
        DynamicTool::new(ToolName::new(name).unwrap(), "Says it.", schema, move |input: Value| {
            let output = output(&input);
            Box::pin(async move { Ok(ToolOutput::text(output)) })
        })
    };
    let weather =
        tool("weather", |input| format!("{}: sun", input["city"].as_str().unwrap_or("?")));
    let tides = tool("tides", |_| "low".to_owned());
    let builder = AgentBuilder::new(model).max_tokens(999).default_max_turns(5);
    RigAgent::new(builder.dynamic_tools(vec![weather, tides]).build())
}

#[tokio::test]
async fn a_dialect_can_be_set_to_end_an_answer_without_a_finish_reason() {
    let dialect = Dialect::gateway("a-provider", "http://localhost/v1", "A_PROVIDER_API_KEY")
        .with_quirks(Quirks::openai().done_without_finish_reason());
    for (name, text, calls) in [
        ("chat/text_without_a_finish_reason", "It is.", 0),
        ("chat/a_call_without_a_finish_reason", "The harbour is “calm” — 🚢\ntoday.", 1),
    ] {
        let provider = Provider::with_streams([fixture(name), fixture("chat/text_is_joined")]);
        let config = OpenAIConfig::new("sk-very-secret").with_dialect(&dialect);
        let model = config.connect(provider.clone()).chat("a-model").erase();
        let browser = asked(RigModel::new(model), "Go").await;
        let (contents, error) = message(&browser);
        assert_eq!((&*contents.text, contents.calls.len(), error), (text, calls, None), "{name}");
    }
}
