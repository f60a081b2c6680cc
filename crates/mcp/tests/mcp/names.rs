//! The names of a server's tools: as the model reads them, and beside the names of other tools.

use std::sync::Arc;

use chat_test_support::calling_model::{Calls, asked, chunks, outcomes};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use test_support::thread_subscriber::{CapturedLog, captured, subscribe};
use ui_message_stream_agent::{Agent, DynTool, Tool as OwnTool, ToolError};
use ui_message_stream_mcp::McpTool;

use super::server::{Server, read_only_tool, tool};
use super::tools::path_input;

fn name_and_title(tool: &McpTool) -> (&str, Option<String>) {
    (tool.name(), tool.definition().unwrap().title.map(Into::into))
}

#[tokio::test]
async fn names_that_providers_refuse_are_distinct_and_have_the_original_as_title() {
    let long: &'static str = "a".repeat(80).leak();
    let tools = [
        "größe",
        "天気",
        "時間",
        "日本.read_file",
        "files.read",
        long,
        "read",
        "a.b",
        "a/b",
        "a_b",
    ];
    let titled = tool("données").with_title("Données du fichier");
    let tools = tools.map(tool).into_iter().chain([titled]).collect();
    let (server, connected, _running) = Server::start(tools).await;
    let tools = connected.tools().await.unwrap();
    let title = |title: &str| Some(title.to_owned());
    let cut = format!("{}_5143e6d5", "a".repeat(55));
    let expected = [
        ("gr_e_cd38f49a", title("größe")),
        ("tool_de4aced2", title("天気")),
        ("tool_127aafa6", title("時間")),
        ("read_file_85ca6b10", title("日本.read_file")),
        ("files_read_feef3122", title("files.read")),
        (&*cut, title(long)),
        ("read", None),
        ("a_b_108bf50c", title("a.b")),
        ("a_b_3a8e75c1", title("a/b")),
        ("a_b", None),
        ("donn_es_b387a094", title("Données du fichier")),
    ];
    assert_eq!(tools.iter().map(name_and_title).collect::<Vec<_>>(), expected);

    // The hash is of the name on the server, also if there is a prefix.
    let prefixed = |prefix: &str, at: usize| tools[at].clone().with_prefix(prefix);
    let weather = prefixed("files_", 1);
    assert_eq!(name_and_title(&weather), ("files_de4aced2", title("天気")));
    assert_eq!(name_and_title(&prefixed("files_", 6)), ("files_read", None));
    assert_eq!(prefixed(&"p".repeat(62), 6).name(), format!("{}_cedfa3c5", "p".repeat(55)));

    let model = Calls::of(&[("files_de4aced2", path_input())]);
    let page = asked(Agent::new(model).tool(weather.never_needs_approval()), "Go").await;
    let chunks = chunks(&page);
    assert_eq!(outcomes(&chunks), [json!({"ok": true})]);
    assert_eq!(server.called_tools(), ["天気"]);
    let input = chunks.iter().find(|chunk| chunk["type"] == "tool-input-available").unwrap();
    assert_eq!(input["title"], "天気");
}

#[tokio::test]
async fn the_name_of_a_tool_does_not_depend_on_the_other_tools_of_its_server() {
    let names = ["日", "月", "日月"];
    let mut alone = Vec::new();
    for name in names {
        let (_server, connected, _running) = Server::start(vec![tool(name)]).await;
        alone.push(connected.tools().await.unwrap()[0].name().to_owned());
    }
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
        let (_server, connected, _running) =
            Server::start(order.map(|at| tool(names[at])).to_vec()).await;
        let tools = connected.tools().await.unwrap();
        assert_eq!(
            order.map(|at| alone[at].as_str()).to_vec(),
            tools.iter().map(DynTool::name).collect::<Vec<_>>()
        );
    }
}

#[derive(Deserialize, JsonSchema)]
struct Input {}

fn own(name: &str) -> OwnTool<Input> {
    OwnTool::new(name, async |_: Input| Ok::<_, ToolError>("own"))
}

/// Returns the outcome of a call of the tool `read` of an agent, and the warnings while it was built.
async fn call_read(build: impl FnOnce(Agent) -> Agent) -> (Value, String) {
    let log = CapturedLog::default();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(log.writer());
    let agent = {
        let _subscribed = subscribe(subscriber.finish());
        build(Agent::new(Calls::of(&[("read", json!({}))])))
    };
    let page = asked(agent, "Go").await;
    (outcomes(&chunks(&page)).remove(0), log.text())
}

#[tokio::test]
async fn an_own_tool_takes_the_name_of_a_servers_tool_with_a_warning_that_names_both() {
    let tools = [read_only_tool("read"), read_only_tool("other")].to_vec();
    let (server, connected, _running) = Server::start(tools).await;
    let foreign = connected.tools().await.unwrap();
    for is_own_first in [true, false] {
        let (outcome, log) = call_read(|agent| match is_own_first {
            true => agent.tool(own("read")).tools(foreign.clone()),
            false => agent.tools(foreign.clone()).tool(own("read")),
        })
        .await;
        assert_eq!(outcome, "own");
        assert!(log.contains("WARN") && log.contains(r#"tool="read""#), "{log}");
        assert!(log.contains(r#"kept="this agent""#), "{log}");
        assert!(log.contains(r#"left_out="read of the tool server files""#), "{log}");
        assert_eq!(log.lines().count(), 1, "{log}");
    }
    assert!(server.called_tools().is_empty());
}

#[tokio::test]
async fn a_property_that_a_provider_refuses_is_in_the_log_with_its_tool() {
    let (log, _subscribed) = captured();
    let mut search = read_only_tool("search");
    let schema = json!({"type": "object", "properties": {"top": {}, "$filter": {}}});
    search.input_schema = Arc::new(serde_json::from_value(schema).unwrap());
    let tools = [search, read_only_tool("read")].to_vec();
    let (_server, connected, _running) = Server::start(tools).await;
    assert_eq!(connected.tools().await.unwrap().len(), 2);
    let log = log.text();
    assert!(log.contains(r#"tool="search" property="$filter""#), "{log}");
    assert!(!log.contains(r#"tool="read""#), "{log}");
}

#[tokio::test]
async fn a_servers_tool_in_an_agent_that_is_a_tool_gives_way_to_one_with_its_name() {
    let long: &'static str = "a".repeat(64).leak();
    let (_server, connected, _running) = Server::start(vec![tool("read"), tool(long)]).await;
    let foreign = connected.tools().await.unwrap();
    for is_own_first in [true, false] {
        let (outcome, log) = call_read(|agent| {
            let inner = Agent::new(Calls::of(&[])).tools(foreign.clone());
            let inner = inner.as_tool("files", "Reads files.");
            match is_own_first {
                true => agent.tool(own("files__read")).tool(inner).tool(own("read")),
                false => agent.tool(inner).tool(own("files__read")).tool(own("read")),
            }
        })
        .await;
        assert_eq!(outcome, "own");
        assert!(log.contains("WARN") && log.contains(r#"tool="files__read""#), "{log}");
        assert!(log.contains(r#"kept="this agent""#), "{log}");
        assert!(log.contains(r#"left_out="read of the tool server files""#), "{log}");
        assert_eq!(log.lines().count(), 1, "{log}");
    }
    // The agent inside still knows its tool, and no approval is requested for the other one in its place.
    let inner = Agent::new(Calls::of(&[("read", path_input())])).tools(foreign);
    let agent = Agent::new(Calls::of(&[("files", json!({"task": "Read it."}))]));
    let agent = agent.tool(own("files__read")).tool(inner.as_tool("files", "Reads files."));
    let page = asked(agent, "Go").await;
    let chunks = chunks(&page);
    let is_request = |chunk: &&Value| chunk["type"] == "tool-approval-request";
    assert_eq!(chunks.iter().filter(is_request).count(), 0, "{chunks:?}");
}

#[tokio::test]
async fn of_two_servers_tools_with_one_name_the_first_one_is_called() {
    let (first, first_client, _first) = Server::start(vec![read_only_tool("read")]).await;
    let (second, second_client, _second) = Server::start(vec![read_only_tool("read")]).await;
    let tools = [first_client.tools().await.unwrap(), second_client.tools().await.unwrap()];
    let [first_tools, second_tools] = tools;
    let (outcome, log) = call_read(|agent| agent.tools(first_tools).tools(second_tools)).await;
    assert_eq!(outcome, json!({"ok": true}));
    assert_eq!((first.called_tools(), second.called_tools()), (vec!["read".to_owned()], vec![]));
    assert!(log.contains(r#"kept="read of the tool server files""#), "{log}");
}
