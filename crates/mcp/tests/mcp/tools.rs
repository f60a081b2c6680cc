//! The tools of a Model Context Protocol server: their results, their schemas, and that a tool runs
//! only as it was approved.

use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::Duration;

use chat_test_support::calling_model::{
    Calls, asked, chunks, finishes_without_error, outcomes, requests_approval,
};
use rmcp::ServiceExt;
use rmcp::model::{CallToolResult, ContentBlock, ErrorData, Tool, ToolAnnotations};
use serde_json::{Value, json};
use test_support::external_processes::built_example;
use ui_message_stream::UserText;
use ui_message_stream::testing::Conversation;
use ui_message_stream_agent::{Agent, DynTool};
use ui_message_stream_mcp::{McpClient, McpError, McpTool};

use super::reconnecting::AWAY;
use super::server::{
    Listing, Running, Server, read_only_tool, tool, tool_with_schema, written_server,
};

pub(crate) fn path_input() -> Value {
    json!({"path": "notes.txt"})
}

/// Returns the output or the error text of a call of a tool that needs no approval.
async fn outcome(returns: Option<Result<CallToolResult, ErrorData>>) -> Value {
    let (server, connected, _running) = Server::start(vec![read_only_tool("read")]).await;
    *server.0.returns.lock().unwrap() = returns;
    let tools = connected.tools().await.unwrap().into_iter();
    let tools = tools.map(|tool| tool.with_timeout(Duration::from_secs(5)));
    let page = asked(Agent::new(Calls::of(&[("read", path_input())])).tools(tools), "Go").await;
    let chunks = chunks(&page);
    assert!(finishes_without_error(&chunks), "{chunks:#?}");
    assert!(!chunks.iter().any(|chunk| chunk.to_string().contains("secret")));
    assert!(chunks.iter().any(|chunk| chunk["dynamic"] == true));
    outcomes(&chunks).remove(0)
}

#[tokio::test(start_paused = true)]
async fn the_result_of_a_tool_is_its_output_and_its_error_text_is_shown() {
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
async fn the_refusal_of_an_input_is_read_by_the_model_and_the_user() {
    let secret = || Some(json!({"backtrace": "secret"}));
    let invalid = |message: &'static str| ErrorData::invalid_params(message, secret());
    let missing = "failed to deserialize parameters: missing field `path`";
    let long: &'static str = "long ".repeat(1_000_000).leak();
    for (error, shown) in [
        (invalid(missing), missing),
        (invalid(""), "The tool failed."),
        (invalid(long), long[..2000].trim()),
        // The server may say anything in these.
        (ErrorData::internal_error("secret", secret()), "The tool failed."),
        (ErrorData::invalid_request("secret", secret()), "The tool failed."),
        (ErrorData::resource_not_found("secret", secret()), "The tool failed."),
    ] {
        let (server, connected, _running) = Server::start(vec![read_only_tool("read")]).await;
        *server.0.returns.lock().unwrap() = Some(Err(error));
        let model = Calls::of(&[("read", json!({}))]);
        let page =
            asked(Agent::new(model.clone()).tools(connected.tools().await.unwrap()), "Go").await;
        assert_eq!(outcomes(&chunks(&page)), [shown]);
        assert!(model.read().contains(shown), "{}", model.read());
        assert!(
            !model.read().contains("secret") && !format!("{:?}", chunks(&page)).contains("secret")
        );
    }
}

#[tokio::test(start_paused = true)]
async fn structured_content_is_shown_with_the_content_that_says_more_than_it() {
    let text = |text: &str| ContentBlock::text(text);
    let image = || ContentBlock::image("AAAA", "image/png");
    let shown_image = json!({"type": "image", "data": "AAAA", "mimeType": "image/png"});
    let shown_text = |text: &str| json!({"type": "text", "text": text});
    let size = json!({"size": 3, "unit": "m"});
    let both = |structured: &Value, content: Value| json!({"structuredContent": structured, "content": content});
    for (structured, content, shown) in [
        (&size, vec![], size.clone()),
        // The same JSON as text, also with other spaces and in another order.
        (&size, vec![text(&size.to_string())], size.clone()),
        (&size, vec![text("{\n  \"unit\": \"m\", \"size\": 3\n}")], size.clone()),
        (&size, vec![text("It is large.")], both(&size, json!("It is large."))),
        (&size, vec![text("one"), text("two")], both(&size, json!("one\ntwo"))),
        (
            &size,
            vec![text(&size.to_string()), text("It is large.")],
            both(&size, json!("It is large.")),
        ),
        (&size, vec![image(), text(&size.to_string())], both(&size, json!([shown_image]))),
        (&size, vec![text("seen"), image()], both(&size, json!([shown_text("seen"), shown_image]))),
        (&size, vec![text("3")], both(&size, json!("3"))),
        // A value that the server has made an object of.
        (&json!({"result": "a\nb"}), vec![text("a\nb")], json!({"result": "a\nb"})),
        (&json!({"result": 3}), vec![text("3")], json!({"result": 3})),
        (&json!({"result": ["a", 1]}), vec![text("a"), text("1")], json!({"result": ["a", 1]})),
        (
            &json!({"result": ["a", "b"]}),
            vec![text("a"), text("c")],
            both(&json!({"result": ["a", "b"]}), json!("a\nc")),
        ),
        (&json!({"result": "a"}), vec![text("b")], both(&json!({"result": "a"}), json!("b"))),
    ] {
        let mut result = CallToolResult::success(content);
        result.structured_content = Some(structured.clone());
        assert_eq!(outcome(Some(Ok(result.clone()))).await, shown, "{result:?}");
    }
}

#[tokio::test]
async fn structured_content_that_is_no_object_is_shown_and_null_is_none() {
    let texts = |texts: &[&str]| {
        let text = |text: &&str| json!({"type": "text", "text": text});
        texts.iter().map(text).collect::<Vec<_>>()
    };
    for (result, shown) in [
        (
            json!({"structuredContent": ["a", "b"], "content": texts(&["a", "b"])}),
            json!(["a", "b"]),
        ),
        (
            json!({"structuredContent": 3, "content": texts(&["three"])}),
            json!({"structuredContent": 3, "content": "three"}),
        ),
        (json!({"structuredContent": null, "content": texts(&["one"])}), json!("one")),
        (json!({"structuredContent": null, "content": []}), Value::Null),
        (json!({"structuredContent": {"a": 1}}), json!({"a": 1})),
    ] {
        let tools = written_server(result.clone()).await.tools().await.unwrap();
        let tools = tools.into_iter().map(McpTool::never_needs_approval);
        let page = asked(Agent::new(Calls::of(&[("read", json!({}))])).tools(tools), "Go").await;
        let output =
            chunks(&page).into_iter().find(|chunk| chunk["type"] == "tool-output-available");
        assert_eq!(output.map(|output| output["output"].clone()), Some(shown), "{result}");
    }
}

#[tokio::test]
async fn the_model_reads_structured_content_and_content_and_images_as_text() {
    let (server, connected, _running) = Server::start(vec![read_only_tool("look")]).await;
    let mut result = CallToolResult::structured(json!({"boats": 3}));
    result.content =
        vec![ContentBlock::text("the harbour"), ContentBlock::image("AAAA", "image/png")];
    server.returns(result);
    let model = Calls::of(&[("look", path_input())]);
    let agent = Agent::new(model.clone()).tools(connected.tools().await.unwrap());
    let page = asked(agent, "Look").await;
    let shown = outcomes(&chunks(&page))[0].to_string();
    assert!(["boats", "the harbour", "AAAA"].iter().all(|part| shown.contains(part)), "{shown}");
    let read = model.read();
    let described = "(image of type image/png, which is not shown here)";
    assert!(["boats", "the harbour", described].iter().all(|part| read.contains(part)), "{read}");
    assert!(!read.contains("AAAA"), "{read}");
}

#[tokio::test]
async fn images_are_shown_to_the_user_and_described_as_text_to_the_model() {
    let (server, connected, _running) = Server::start(vec![read_only_tool("look")]).await;
    server.returns(CallToolResult::success(vec![
        ContentBlock::text("the harbour"),
        ContentBlock::image("AAAA", "image/png"),
    ]));
    let model = Calls::of(&[("look", path_input())]);
    let agent = Agent::new(model.clone()).tools(connected.tools().await.unwrap());
    let page = asked(agent, "Look").await;
    assert!(outcomes(&chunks(&page))[0].to_string().contains("AAAA"));
    let read = model.read();
    assert!(!read.contains("AAAA") && read.contains("the harbour"), "{read}");
    assert!(read.contains("(image of type image/png, which is not shown here)"), "{read}");
}

#[tokio::test]
async fn a_tool_whose_name_is_invalid_for_providers_is_renamed_and_not_left_out() {
    let long: &'static str = "a".repeat(80).leak();
    let tools = ["files.read", long, "\u{1F600}", ""].map(read_only_tool).to_vec();
    let (_server, connected, _running) = Server::start(tools).await;
    let agent = Agent::new(Calls::of(&[])).tools(connected.tools().await.unwrap());
    let agent = format!("{agent:?}");
    assert!(agent.contains("files_read") && agent.contains(long), "{agent}");
}

/// Returns a tool that needs approval.
pub(crate) fn delete_tool() -> Tool {
    tool("delete").with_title("Delete").annotate(ToolAnnotations::new().destructive(false))
}

fn hints(claim: fn(ToolAnnotations) -> ToolAnnotations) -> Option<ToolAnnotations> {
    Some(claim(ToolAnnotations::new()))
}

/// Starts a server and a chat in which an approval request for its tool is pending.
async fn pending_approval() -> (Server, Running, McpClient, Conversation<'static>, Calls) {
    let (server, connected, running) = Server::start(vec![delete_tool()]).await;
    let calls = Calls::of(&[("delete", path_input())]);
    let agent = Agent::new(calls.clone()).tools(connected.tools().await.unwrap());
    let page = asked(agent, "Go").await;
    assert!(requests_approval(&chunks(&page)));
    (server, running, connected, page, calls)
}

#[tokio::test]
async fn an_approved_tool_that_has_changed_does_not_run() {
    let changed = |change: fn(&mut Tool)| {
        let mut tool = delete_tool();
        change(&mut tool);
        vec![tool]
    };
    let other_description =
        || changed(|tool| tool.description = Some("Deletes every file.".into()));
    let destructive = || changed(|tool| tool.annotations = hints(|hints| hints.destructive(true)));
    for (changed, notifies) in [
        (other_description(), false),
        (other_description(), true),
        (
            changed(|tool| tool.input_schema = tool_with_schema("delete", json!({})).input_schema),
            false,
        ),
        (destructive(), false),
        (destructive(), true),
        (changed(|tool| tool.annotations = hints(|hints| hints.read_only(true))), false),
        (changed(|tool| tool.annotations = None), false),
        (changed(|tool| tool.title = Some("Look".to_owned())), false),
        (changed(|tool| tool.title = None), false),
        (vec![tool("another")], false),
        (vec![], false),
    ] {
        let (server, running, _connected, mut page, _) = pending_approval().await;
        server.set_tools(changed.clone());
        if notifies {
            running.peer().notify_tool_list_changed().await.unwrap();
        }
        page.approve("delete").await;
        let chunks = chunks(&page);
        assert_eq!(outcomes(&chunks), [UserText::Revoked.text()], "{changed:?}");
        assert!(finishes_without_error(&chunks));
        assert!(server.called_tools().is_empty());
    }
    let (server, _running, _connected, mut page, _) = pending_approval().await;
    // Another tool in the list is no change of this tool.
    server.set_tools(vec![tool("new"), delete_tool()]);
    page.approve("delete").await;
    assert_eq!(outcomes(&chunks(&page)), [json!({"ok": true})]);
    assert_eq!(server.called_tools(), ["delete"]);
}

#[tokio::test(start_paused = true)]
async fn an_approved_tool_does_not_run_if_the_server_does_not_list_it_in_time() {
    let (server, _running, _connected, mut page, _) = pending_approval().await;
    *server.0.listing.lock().unwrap() = Listing::Silent;
    page.approve("delete").await;
    assert_eq!(outcomes(&chunks(&page)), [AWAY]);
    assert!(server.called_tools().is_empty());
}

#[tokio::test(start_paused = true)]
async fn calls_approved_together_share_the_list_of_a_slow_server_and_all_run() {
    let (server, connected, _running) = Server::start(vec![delete_tool()]).await;
    let calls: Vec<_> = (0..5).map(|_| ("delete", path_input())).collect();
    let agent = Agent::new(Calls::of(&calls)).tools(connected.tools().await.unwrap());
    let mut page = asked(agent, "Go").await;
    *server.0.listing.lock().unwrap() = Listing::Slow;
    let listed_before = server.0.listed.load(Ordering::SeqCst);
    for at in 0..calls.len() {
        page.approve(&format!("call_{at}")).await;
    }
    assert_eq!(outcomes(&chunks(&page)), vec![json!({"ok": true}); 5]);
    assert_eq!(server.called_tools(), ["delete"; 5]);
    assert_eq!(server.0.listed.load(Ordering::SeqCst) - listed_before, 2);
}

#[tokio::test]
async fn a_changed_tool_needs_approval_and_the_model_reads_its_new_schema() {
    let (server, connected, running) =
        Server::start(vec![read_only_tool("read"), read_only_tool("other")]).await;
    let tools = connected.tools().await.unwrap();
    let read = tools[0].clone().never_needs_approval();
    let calls = Calls::of(&[("read", json!({"file": "notes.txt"})), ("other", path_input())]);
    let agent = Agent::new(calls.clone()).tools([read.clone(), tools[1].clone()]);
    let schema = json!({"type": "object", "required": ["file"]});
    let changed = tool_with_schema("read", schema).annotate(ToolAnnotations::new().read_only(true));
    server.set_tools(vec![changed, tool("slipped_in")]);
    running.peer().notify_tool_list_changed().await.unwrap();
    while !read.definition().unwrap().model.input_schema.as_str().contains("file") {
        tokio::task::yield_now().await;
    }
    let mut page = asked(agent, "Go").await;
    let first = chunks(&page);
    assert!(requests_approval(&first));
    assert_eq!(outcomes(&first), ["there is no tool named \"other\""]);
    let offered = calls.offered();
    assert_eq!(offered.len(), 1);
    let schema: Value = offered[0].input_schema.decode().unwrap();
    assert_eq!(schema, json!({"type": "object", "required": ["file"]}));
    page.approve("read").await;
    assert_eq!(outcomes(&chunks(&page)), [json!({"ok": true})]);
    assert_eq!(server.called_tools(), ["read"]);
}

#[tokio::test]
async fn tools_that_cannot_be_called_are_left_out() {
    let (server, connected, _running) = Server::start(vec![
        tool("files/read"),
        tool("files.read"),
        tool("files/read"),
        tool_with_schema("no_schema", json!({"type": 5})),
        tool_with_schema("elsewhere", json!({"$ref": "http://127.0.0.1:9/schema"})),
        tool_with_schema("prototype", serde_json::from_str(r#"{"__proto__":{}}"#).unwrap()),
    ])
    .await;
    let tools = connected.tools().await.unwrap();
    let names: Vec<&str> = tools.iter().map(DynTool::name).collect();
    assert_eq!(names, ["files_read_d2acbc6d", "files_read_feef3122", "elsewhere"]);

    *server.0.listing.lock().unwrap() = Listing::Endless;
    assert!(matches!(connected.tools().await, Err(McpError::TooMany)));
}

/// Returns a tool whose path has to match a pattern.
fn tool_with_pattern(name: &'static str, pattern: &str) -> Tool {
    let path_input = json!({"type": "string", "pattern": pattern});
    tool_with_schema(name, json!({"type": "object", "properties": {"path": path_input}}))
}

/// Returns a schema of less than 1400 bytes that nothing fits. Each definition refers twice to the
/// next one, so a validator would evaluate the last one four million times.
fn expensive_schema() -> Value {
    const DEPTH: u8 = 22;
    let name = |at: u8| char::from(b'a' + at).to_string();
    let next = |at: u8| json!({"$ref": format!("#/$defs/{}", name(at))});
    let mut definitions: serde_json::Map<String, Value> =
        (0..DEPTH).map(|at| (name(at), json!({"allOf": [next(at + 1), next(at + 1)]}))).collect();
    definitions.insert(name(DEPTH), json!({"type": "string"}));
    json!({"type": "object", "properties": {"path": next(0)}, "$defs": definitions})
}

#[tokio::test]
async fn the_schema_of_a_server_is_sent_to_the_model_and_not_evaluated() {
    let schema = expensive_schema();
    assert!(schema.to_string().len() < 1400);
    let input = json!({"path": 1});
    let annotations = || ToolAnnotations::new().read_only(true);
    let tools = vec![
        tool_with_schema("read", schema.clone()).annotate(annotations()),
        tool_with_pattern("find", "^(/").annotate(annotations()),
    ];
    let (server, connected, _running) = Server::start(tools).await;
    let calls = Calls::of(&[("read", input.clone()), ("find", input)]);
    let agent = Agent::new(calls.clone()).tools(connected.tools().await.unwrap());
    let page = asked(agent, "Go").await;
    // The server validates its inputs itself.
    assert_eq!(outcomes(&chunks(&page)), [json!({"ok": true}), json!({"ok": true})]);
    assert_eq!(server.called_tools(), ["read", "find"]);
    let offered: Value = calls.offered()[0].input_schema.decode().unwrap();
    assert_eq!(offered, schema);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_reports_changes_all_the_time_is_listed_once_in_five_seconds() {
    let (server, connected, running) = Server::start(vec![read_only_tool("read")]).await;
    let read = connected.tools().await.unwrap().remove(0);
    let listed_before = server.0.listed.load(Ordering::SeqCst);
    for _ in 0..1000 {
        running.peer().notify_tool_list_changed().await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // At 0, 5, 10, 15 and 20 seconds.
    let listed = server.0.listed.load(Ordering::SeqCst) - listed_before;
    assert!((2..=5).contains(&listed), "listed {listed} times");

    // A change between two listings is in the second one.
    server.set_tools(vec![tool_with_pattern("read", "^[a-z]+$")]);
    running.peer().notify_tool_list_changed().await.unwrap();
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert!(read.definition().unwrap().model.input_schema.as_str().contains("pattern"));
    // Without a further change there is no further listing.
    let listed = server.0.listed.load(Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(server.0.listed.load(Ordering::SeqCst), listed);
}

#[tokio::test]
async fn two_servers_may_have_tools_with_the_same_name() {
    let (first, first_client, _first) = Server::start(vec![read_only_tool("read")]).await;
    let (second, second_client, _second) = Server::start(vec![read_only_tool("read")]).await;
    let prefixed = |tools: Vec<McpTool>, prefix: &'static str| {
        tools.into_iter().map(move |tool| tool.with_prefix(prefix))
    };
    let agent =
        Agent::new(Calls::of(&[("there.read", path_input()), ("there_read", path_input())]))
            .tools(prefixed(first_client.tools().await.unwrap(), "here_"))
            .tools(prefixed(second_client.tools().await.unwrap(), "there."));
    let page = asked(agent, "Go").await;
    let results = outcomes(&chunks(&page));
    assert_eq!(results, [json!("there is no tool named \"there.read\""), json!({"ok": true})]);
    assert_eq!((first.called_tools().len(), second.called_tools()), (0, vec!["read".to_owned()]));
}

#[tokio::test]
async fn the_tools_of_a_closed_server_do_not_run_and_are_not_offered() {
    let (_server, running, connected, mut page, calls) = pending_approval().await;
    let tools = connected.tools().await.unwrap();
    running.cancel().await.unwrap();
    page.approve("delete").await;
    let chunks = chunks(&page);
    assert_eq!(outcomes(&chunks), [AWAY]);
    assert!(finishes_without_error(&chunks));
    assert!(calls.offered().is_empty());
    assert!(matches!(connected.tools().await, Err(McpError::List(_))));
    assert!(!connected.is_connected());
    // Nor is one that the model calls all the same.
    let agent = Agent::new(Calls::of(&[("delete", path_input())])).tools(tools);
    let page = asked(agent, "Go").await;
    assert_eq!(outcomes(&self::chunks(&page)), [AWAY]);
}

#[tokio::test]
async fn a_connection_of_the_host_provides_tools_until_the_host_closes_it() {
    let server = Server::default();
    server.set_tools(vec![read_only_tool("read"), delete_tool()]);
    server.returns(CallToolResult::structured(json!({"ok": true})));
    let (client, server_end) = tokio::io::duplex(1 << 16);
    let serving = tokio::spawn(server.clone().serve(server_end));
    let connection = ().serve(client).await.unwrap();
    let _running = serving.await.unwrap().unwrap();
    let connected = McpClient::from_peer(connection.peer().clone());
    let tools = connected.tools().await.unwrap();
    let read = tools[0].clone();
    let agent =
        Agent::new(Calls::of(&[("read", path_input()), ("delete", path_input())])).tools(tools);
    let mut page = asked(agent, "Go").await;
    assert!(requests_approval(&chunks(&page)));
    assert_eq!(outcomes(&chunks(&page)), [json!({"ok": true})]);
    assert_eq!(server.called_tools(), ["read"]);

    // The client requests the list again when the host calls `refresh`, and before an approved
    // call.
    let has_pattern = || read.definition().unwrap().model.input_schema.as_str().contains("pattern");
    server.set_tools(vec![tool_with_pattern("read", "^[a-z]+$"), delete_tool()]);
    assert!(!has_pattern());
    connected.refresh().await.unwrap();
    assert!(has_pattern());
    server.set_tools(vec![read_only_tool("read"), tool("delete")]);
    page.approve("delete").await;
    assert_eq!(outcomes(&chunks(&page)), [UserText::Revoked.text()]);
    assert!(!has_pattern());
    assert_eq!(server.called_tools(), ["read"]);

    // Only the host closes the connection.
    drop((page, connected));
    assert!(!connection.is_closed() && read.definition().is_some());
    connection.cancel().await.unwrap();
    assert!(read.definition().is_none());
}

/// Runs the example, whose server is a separate process.
#[test]
fn the_example_requests_approval_before_it_deletes() {
    let program = built_example("mcp_tools", &["--package", "ui-message-stream-mcp"]);
    for (decision, expected) in [("y\n", r#""output":"plan.txt""#), ("n\n", "tool-output-denied")] {
        let mut example =
            Command::new(&program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        std::io::Write::write_all(&mut example.stdin.take().unwrap(), decision.as_bytes()).unwrap();
        let output = example.wait_with_output().unwrap();
        let printed = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{printed}");
        assert!(printed.contains(r#"May "delete_file" run with {"name":"notes.txt"}?"#));
        assert!(printed.contains(expected), "{printed}");
        assert!(printed.contains("That was that."), "{printed}");
    }
}
