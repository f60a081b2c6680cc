//! The tools of a Model Context Protocol server: who is asked, what comes back, and that nothing
//! runs that is not what was approved.

use std::process::{Command, Stdio};
use std::time::Duration;

use rmcp::ServiceExt;
use rmcp::model::{CallToolResult, ContentBlock, ErrorData, Tool, ToolAnnotations};
use serde_json::{Value, json};
use test_support::calling_model::{Calls, asks, chunks, ends_well, outcomes, page};
use test_support::external_processes::built_example;
use ui_message_stream::agent::{Agent, DynTool};
use ui_message_stream::approval::REVOKED;
use ui_message_stream::testing::Conversation;
use ui_message_stream_mcp::{McpClient, McpError, McpTool};

use super::server::{Listing, Running, Server, reads, tool, tool_of};

pub(crate) fn path() -> Value {
    json!({"path": "notes.txt"})
}

/// What a call of a tool that asks nobody becomes.
async fn outcome(returns: Option<Result<CallToolResult, ErrorData>>) -> Value {
    let (server, connected, _running) = Server::start(vec![reads("read")]).await;
    *server.0.returns.lock().unwrap() = returns;
    let tools = connected.tools().await.unwrap().into_iter();
    let tools = tools.map(|tool| tool.with_timeout(Duration::from_secs(5)));
    let mut page = page(Agent::new(Calls::of(&[("read", path())])).tools(tools));
    page.send("Go").await;
    let chunks = chunks(&page);
    assert!(ends_well(&chunks), "{chunks:#?}");
    assert!(!chunks.iter().any(|chunk| chunk.to_string().contains("secret")));
    assert!(chunks.iter().any(|chunk| chunk["dynamic"] == true));
    outcomes(&chunks).remove(0)
}

#[tokio::test(start_paused = true)]
async fn what_a_tool_returns_is_its_output_and_what_it_says_of_a_failure_is_told() {
    let success = |blocks| Some(Ok(CallToolResult::success(blocks)));
    let text = |text: &str| ContentBlock::text(text);
    let structured = CallToolResult::structured(json!({"size": 3}));
    assert_eq!(outcome(Some(Ok(structured))).await, json!({"size": 3}));
    assert_eq!(outcome(success(vec![text("one"), text("two")])).await, "one\ntwo");
    assert_eq!(outcome(success(vec![])).await, "");
    assert_eq!(
        outcome(success(vec![text("one"), ContentBlock::image("AA==", "image/png")])).await,
        json!([
            {"type": "text", "text": "one"},
            {"type": "image", "data": "AA==", "mimeType": "image/png"},
        ])
    );
    let failed = |text: &str| Some(Ok(CallToolResult::error(vec![ContentBlock::text(text)])));
    assert_eq!(outcome(failed("there is no such file")).await, "there is no such file");
    assert_eq!(outcome(failed("")).await, "The tool failed.");
    let long = outcome(failed(&"long ".repeat(1_000_000))).await;
    assert!(long.as_str().unwrap().len() <= 2000);
    let masked = ErrorData::internal_error("postgres://user:secret@host", None);
    assert_eq!(outcome(Some(Err(masked))).await, "The tool failed.");
    let proto = serde_json::from_str(r#"{"__proto__":"secret"}"#).unwrap();
    assert_eq!(outcome(Some(Ok(CallToolResult::structured(proto)))).await, "The tool failed.");
    let large = success(vec![text(&"x".repeat(10 * 1024 * 1024))]);
    assert_eq!(outcome(large).await, "The tool returned more than can be shown.");
    assert_eq!(
        outcome(None).await,
        "The tool took too long and was stopped. What it did until then is not known."
    );
}

#[tokio::test]
async fn pictures_and_sounds_are_for_the_person_and_the_model_is_told_of_them() {
    let (server, connected, _running) = Server::start(vec![reads("look")]).await;
    server.returns(CallToolResult::success(vec![
        ContentBlock::text("the harbour"),
        ContentBlock::image("AAAA", "image/png"),
    ]));
    let model = Calls::of(&[("look", path())]);
    let agent = Agent::new(model.clone()).tools(connected.tools().await.unwrap());
    let mut page = page(agent);
    page.send("Look").await;
    assert!(outcomes(&chunks(&page))[0].to_string().contains("AAAA"));
    let read = model.read();
    assert!(!read.contains("AAAA") && read.contains("the harbour"), "{read}");
    assert!(read.contains("(image of type image/png, which is not shown here)"), "{read}");
}

#[tokio::test]
async fn a_name_that_no_model_provider_takes_is_spelled_and_cut_and_none_is_left_out() {
    let long: &'static str = "a".repeat(80).leak();
    let tools = ["files.read", long, "\u{1F600}", ""].map(reads).to_vec();
    let (_server, connected, _running) = Server::start(tools).await;
    let agent = Agent::new(Calls::of(&[])).tools(connected.tools().await.unwrap());
    let agent = format!("{agent:?}");
    assert!(agent.contains("files_read") && agent.contains(long), "{agent}");
}

/// What a person is asked about.
pub(crate) fn deletes() -> Tool {
    tool("delete").with_title("Delete").annotate(ToolAnnotations::new().destructive(false))
}

fn hints(claim: fn(ToolAnnotations) -> ToolAnnotations) -> Option<ToolAnnotations> {
    Some(claim(ToolAnnotations::new()))
}

/// A page on which somebody is asked about a tool, and the server.
async fn asked() -> (Server, Running, McpClient, Conversation<'static>, Calls) {
    let (server, connected, running) = Server::start(vec![deletes()]).await;
    let calls = Calls::of(&[("delete", path())]);
    let agent = Agent::new(calls.clone()).tools(connected.tools().await.unwrap());
    let mut page = page(agent);
    page.send("Go").await;
    assert!(asks(&chunks(&page)));
    (server, running, connected, page, calls)
}

#[tokio::test]
async fn what_is_another_tool_by_the_time_of_the_answer_does_not_run() {
    let changed = |change: fn(&mut Tool)| {
        let mut tool = deletes();
        change(&mut tool);
        vec![tool]
    };
    let deletes_all = || changed(|tool| tool.description = Some("Deletes every file.".into()));
    let destroys = || changed(|tool| tool.annotations = hints(|hints| hints.destructive(true)));
    for (changed, says_so) in [
        (deletes_all(), false),
        (deletes_all(), true),
        (changed(|tool| tool.input_schema = tool_of("delete", json!({})).input_schema), false),
        (destroys(), false),
        (destroys(), true),
        (changed(|tool| tool.annotations = hints(|hints| hints.read_only(true))), false),
        (changed(|tool| tool.annotations = None), false),
        (changed(|tool| tool.title = Some("Look".to_owned())), false),
        (changed(|tool| tool.title = None), false),
        (vec![tool("another")], false),
        (vec![], false),
    ] {
        let (server, running, _connected, mut page, _) = asked().await;
        server.set_tools(changed.clone());
        if says_so {
            running.peer().notify_tool_list_changed().await.unwrap();
        }
        page.approve("delete").await;
        let chunks = chunks(&page);
        assert_eq!(outcomes(&chunks), [REVOKED], "{changed:?}");
        assert!(ends_well(&chunks));
        assert!(server.called().is_empty());
    }
    let (server, _running, _connected, mut page, _) = asked().await;
    // What says nothing about what the tool does is no change of it.
    server.set_tools(vec![tool("new"), deletes()]);
    page.approve("delete").await;
    assert_eq!(outcomes(&chunks(&page)), [json!({"ok": true})]);
    assert_eq!(server.called(), ["delete"]);
}

#[tokio::test(start_paused = true)]
async fn what_a_server_does_not_say_any_more_is_not_taken_for_what_it_said() {
    let (server, _running, _connected, mut page, _) = asked().await;
    *server.0.listing.lock().unwrap() = Listing::Silent;
    page.approve("delete").await;
    assert_eq!(outcomes(&chunks(&page)), [REVOKED]);
    assert!(server.called().is_empty());
}

#[tokio::test]
async fn a_changed_tool_asks_again_and_the_model_reads_what_it_is_now() {
    let (server, connected, running) = Server::start(vec![reads("read"), reads("other")]).await;
    let tools = connected.tools().await.unwrap();
    let read = tools[0].clone().never_needs_approval();
    let calls = Calls::of(&[("read", json!({"file": "notes.txt"})), ("other", path())]);
    let agent = Agent::new(calls.clone()).tools([read.clone(), tools[1].clone()]);
    let schema = json!({"type": "object", "required": ["file"]});
    let changed = tool_of("read", schema).annotate(ToolAnnotations::new().read_only(true));
    server.set_tools(vec![changed, tool("slipped_in")]);
    running.peer().notify_tool_list_changed().await.unwrap();
    while !read.definition().unwrap().model.input_schema.as_str().contains("file") {
        tokio::task::yield_now().await;
    }
    let mut page = page(agent);
    page.send("Go").await;
    let first = chunks(&page);
    assert!(asks(&first));
    assert_eq!(outcomes(&first), ["there is no tool named \"other\""]);
    let offered = calls.offered();
    assert_eq!(offered.len(), 1);
    let schema: Value = offered[0].input_schema.decode().unwrap();
    assert_eq!(schema, json!({"type": "object", "required": ["file"]}));
    page.approve("read").await;
    assert_eq!(outcomes(&chunks(&page)), [json!({"ok": true})]);
    assert_eq!(server.called(), ["read"]);
}

#[tokio::test]
async fn tools_that_nobody_can_call_are_left_out() {
    let (server, connected, _running) = Server::start(vec![
        tool("files/read"),
        tool("files.read"),
        tool("files/read"),
        tool_of("no_schema", json!({"type": 5})),
        tool_of("elsewhere", json!({"$ref": "http://127.0.0.1:9/schema"})),
        with_pattern("no_pattern", "^(/"),
        tool_of("prototype", serde_json::from_str(r#"{"__proto__":{}}"#).unwrap()),
        tool_of("endless", json!({"$ref": "#"})),
        tool_of("endless_too", json!({"allOf": [{"$ref": "#"}]})),
        tool_of(
            "endless_in_turn",
            json!({
                "anyOf": [{"$ref": "#/$defs/a"}],
                "$defs": {"a": {"not": {"$ref": "#/$defs/b"}}, "b": {"not": {"$ref": "#/$defs/a"}}},
            }),
        ),
    ])
    .await;
    let tools = connected.tools().await.unwrap();
    let names: Vec<&str> = tools.iter().map(DynTool::name).collect();
    assert_eq!(names, ["files_read", "endless", "endless_too", "endless_in_turn"]);
    // Whatever is held against them, the process lives.
    let calls = [("endless", path()), ("endless_too", path()), ("endless_in_turn", path())];
    let mut page = page(Agent::new(Calls::of(&calls)).tools(tools));
    page.send("Go").await;
    assert!(ends_well(&chunks(&page)));

    *server.0.listing.lock().unwrap() = Listing::Endless;
    assert!(matches!(connected.tools().await, Err(McpError::TooMany)));
}

/// A tool whose path fits a pattern.
fn with_pattern(name: &'static str, pattern: &str) -> Tool {
    let path = json!({"type": "string", "pattern": pattern});
    tool_of(name, json!({"type": "object", "properties": {"path": path}}))
}

#[tokio::test]
async fn an_input_of_any_length_is_held_against_a_pattern_to_its_end() {
    for pattern in ["^(a+)+$", "^(a|aa)*$", "^(.*)*b$", "^((?!a*b)a)+$", r"^(a*)*(?!\1)b$"] {
        let (server, connected, _running) =
            Server::start(vec![with_pattern("read", pattern)]).await;
        let long = "a".repeat(10_000);
        let calls = [("read", json!({"path": format!("{long}!")})), ("read", json!({"path": 1}))];
        let tools = connected.tools().await.unwrap();
        let mut page = page(Agent::new(Calls::of(&calls)).tools(tools));
        page.send("Go").await;
        let said = outcomes(&chunks(&page));
        assert_eq!(said.len(), 2, "{said:#?}");
        for (said, why) in said.iter().zip(["/path: ", "/path: 1 is not of type"]) {
            let said = said.as_str().unwrap();
            assert!(said.starts_with("the input does not fit the schema: "), "{said}");
            assert!(said.contains(why) && said.len() < 500, "{said}");
        }
        assert!(ends_well(&chunks(&page)) && server.called().is_empty());
    }
}

/// As a server in TypeScript says that something is an e-mail address.
#[tokio::test]
async fn a_pattern_that_looks_ahead_is_one() {
    let mail = r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$";
    let (server, connected, _running) = Server::start(vec![with_pattern("read", mail)]).await;
    let long =
        "a-rather-long-name-of-somebody+with.a.tag@mail.some-department.an-institute.example";
    let calls = [
        ("read", json!({"path": long})),
        ("read", json!({"path": "a..b@example.com"})),
        ("read", json!({"path": "nobody"})),
    ];
    let tools = connected.tools().await.unwrap().into_iter().map(McpTool::never_needs_approval);
    let mut page = page(Agent::new(Calls::of(&calls)).tools(tools));
    page.send("Go").await;
    let said = outcomes(&chunks(&page));
    assert_eq!(said.iter().filter(|said| **said == json!({"ok": true})).count(), 1, "{said:#?}");
    assert_eq!(server.called(), ["read"]);
}

#[tokio::test]
async fn two_servers_may_have_tools_of_one_name() {
    let (here, one, _one) = Server::start(vec![reads("read")]).await;
    let (there, other, _other) = Server::start(vec![reads("read")]).await;
    let prefixed = |tools: Vec<McpTool>, prefix: &'static str| {
        tools.into_iter().map(move |tool| tool.with_prefix(prefix))
    };
    let agent = Agent::new(Calls::of(&[("there.read", path()), ("there_read", path())]))
        .tools(prefixed(one.tools().await.unwrap(), "here_"))
        .tools(prefixed(other.tools().await.unwrap(), "there."));
    let mut page = page(agent);
    page.send("Go").await;
    let said = outcomes(&chunks(&page));
    assert_eq!(said, [json!("there is no tool named \"there.read\""), json!({"ok": true})]);
    assert_eq!((here.called().len(), there.called()), (0, vec!["read".to_owned()]));
}

#[tokio::test]
async fn a_server_that_is_gone_has_no_tools() {
    let (_server, running, connected, mut page, calls) = asked().await;
    running.cancel().await.unwrap();
    page.approve("delete").await;
    let chunks = chunks(&page);
    assert_eq!(outcomes(&chunks), [REVOKED]);
    assert!(ends_well(&chunks));
    assert!(calls.offered().is_empty());
    assert!(matches!(connected.tools().await, Err(McpError::List(_))));
}

#[tokio::test]
async fn a_connection_that_is_kept_elsewhere_has_tools_like_any_other() {
    let server = Server::default();
    server.set_tools(vec![reads("read"), deletes()]);
    server.returns(CallToolResult::structured(json!({"ok": true})));
    let (client, end) = tokio::io::duplex(1 << 16);
    let serving = tokio::spawn(server.clone().serve(end));
    let kept = ().serve(client).await.unwrap();
    let _running = serving.await.unwrap().unwrap();
    let connected = McpClient::from_peer(kept.peer().clone());
    let tools = connected.tools().await.unwrap();
    let read = tools[0].clone();
    let agent = Agent::new(Calls::of(&[("read", path()), ("delete", path())])).tools(tools);
    let mut page = page(agent);
    page.send("Go").await;
    assert!(asks(&chunks(&page)));
    assert_eq!(outcomes(&chunks(&page)), [json!({"ok": true})]);
    assert_eq!(server.called(), ["read"]);

    // What the server has become is known once it was asked: because whoever keeps the connection says
    // so, and in any case before an approved call.
    let is_known = || read.definition().unwrap().model.input_schema.as_str().contains("pattern");
    server.set_tools(vec![with_pattern("read", "^[a-z]+$"), deletes()]);
    assert!(!is_known());
    connected.refresh().await.unwrap();
    assert!(is_known());
    server.set_tools(vec![reads("read"), tool("delete")]);
    page.approve("delete").await;
    assert_eq!(outcomes(&chunks(&page)), [REVOKED]);
    assert!(!is_known());
    assert_eq!(server.called(), ["read"]);

    // It ends when whoever keeps it says so, and not before.
    drop((page, connected));
    assert!(!kept.is_closed() && read.definition().is_some());
    kept.cancel().await.unwrap();
    assert!(read.definition().is_none());
}

/// The example as it runs, with a server in a process of its own.
#[test]
fn the_example_asks_before_it_deletes() {
    let program = built_example("mcp_tools", &["--package", "ui-message-stream-mcp"]);
    for (answer, left) in [("y\n", r#""output":"plan.txt""#), ("n\n", "tool-output-denied")] {
        let mut example =
            Command::new(&program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        std::io::Write::write_all(&mut example.stdin.take().unwrap(), answer.as_bytes()).unwrap();
        let output = example.wait_with_output().unwrap();
        let printed = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{printed}");
        assert!(printed.contains(r#"May "delete_file" run with {"name":"notes.txt"}?"#));
        assert!(printed.contains(left), "{printed}");
        assert!(printed.contains("That was that."), "{printed}");
    }
}
