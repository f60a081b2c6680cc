//! What the host decides about the tools of a server, and what the server's claims do where it says
//! nothing.

use rmcp::model::{CallToolResult, ContentBlock, ToolAnnotations};
use serde_json::{Value, json};
use test_support::calling_model::{Calls, asks, chunks, outcomes, page};
use ui_message_stream::Json;
use ui_message_stream::agent::{Agent, ApprovalContext};
use ui_message_stream::approval::Principal;
use ui_message_stream_mcp::McpTool;

use super::server::{Server, reads, tool};
use super::tools::{deletes, path};

#[tokio::test]
async fn who_is_asked_the_annotations_say_unless_the_host_does() {
    type Decide = fn(McpTool) -> McpTool;
    let as_is: Decide = |tool| tool;
    let hints = ToolAnnotations::new;
    for (annotations, decide, asked) in [
        (None, as_is, true),
        (Some(hints()), as_is, true),
        (Some(hints().read_only(false)), as_is, true),
        (Some(hints().read_only(true)), as_is, false),
        (Some(hints().destructive(true)), as_is, true),
        (Some(hints().destructive(false)), as_is, true),
        (Some(hints().read_only(false).destructive(false)), as_is, true),
        (Some(hints().read_only(true).destructive(false)), as_is, false),
        (Some(hints().read_only(true).destructive(true)), as_is, true),
        (Some(hints().read_only(true)), McpTool::needs_approval as Decide, true),
        (None, McpTool::never_needs_approval as Decide, false),
    ] {
        let mut tool = tool("change");
        tool.annotations = annotations;
        let (server, connected, _running) = Server::start(vec![tool.clone()]).await;
        let tools = connected.tools().await.unwrap().into_iter().map(decide);
        let mut page = page(Agent::new(Calls::of(&[("change", path())])).tools(tools));
        page.send("Go").await;
        assert_eq!(asks(&chunks(&page)), asked, "{:?}", tool.annotations);
        assert_eq!(server.called().is_empty(), asked);
        if asked {
            page.approve("change").await;
            assert_eq!(outcomes(&chunks(&page)), [json!({"ok": true})]);
            assert_eq!(server.called(), ["change"]);
        }
    }
}

#[tokio::test]
async fn what_a_server_says_of_its_tools_is_no_answer_of_the_host() {
    type Decide = fn(McpTool) -> McpTool;
    let as_is: Decide = |tool| tool;
    for (decide, by_default, asked) in [
        (as_is, false, false),
        (as_is, true, true),
        (McpTool::never_needs_approval as Decide, true, false),
        (McpTool::needs_approval as Decide, true, true),
    ] {
        let (server, connected, _running) = Server::start(vec![reads("read")]).await;
        let tools = connected.tools().await.unwrap().into_iter().map(decide);
        let agent = Agent::new(Calls::of(&[("read", path())])).tools(tools);
        let mut page = page(if by_default { agent.require_approval_by_default() } else { agent });
        page.send("Go").await;
        assert_eq!(asks(&chunks(&page)), asked);
        assert_eq!(server.called().is_empty(), asked);
    }
}

#[tokio::test]
async fn the_host_says_what_a_tool_is_called_and_what_is_asked_about_it() {
    type Decide = fn(McpTool) -> McpTool;
    fn about(input: &Json) -> String {
        format!("Delete {}?", input.decode::<Value>().unwrap()["path"])
    }
    fn panics(_: &Json) -> String {
        panic!("it cannot be said")
    }
    for (decide, title, question) in [
        ((|tool| tool) as Decide, "Delete", r#"delete {"path":"notes.txt"}"#),
        (|tool| tool.with_title("Bin"), "Bin", r#"delete {"path":"notes.txt"}"#),
        (|tool| tool.approval_description(about), "Delete", r#"Delete "notes.txt"?"#),
        (|tool| tool.approval_description(panics), "Delete", r#"delete {"path":"notes.txt"}"#),
    ] {
        let (_server, connected, _running) = Server::start(vec![deletes()]).await;
        let tools = connected.tools().await.unwrap().into_iter().map(decide);
        let mut page = page(Agent::new(Calls::of(&[("delete", path())])).tools(tools));
        page.send("Go").await;
        let chunks = chunks(&page);
        let of_type = |kind| chunks.iter().find(|chunk| chunk["type"] == kind).unwrap();
        assert_eq!(of_type("tool-input-available")["title"], title, "{chunks:#?}");
        assert_eq!(of_type("data-approval")["data"]["description"], question, "{chunks:#?}");
    }
}

#[tokio::test]
async fn a_person_is_asked_where_the_hosts_predicate_says_so_and_about_what_changed() {
    type Asks = fn(&Json, &ApprovalContext) -> bool;
    let is_notes: Asks = |input, context| {
        let calls_it = context.tool_call_id.as_str() == "call_0";
        assert!(calls_it && context.principal == Principal::new("ada"));
        input.decode::<Value>().unwrap()["path"] == "notes.txt"
    };
    let panics: Asks = |_, _| panic!("it cannot be said");
    let other = json!({"path": "plan.txt"});
    for (tool, asks_when, input, changes, asked) in [
        (reads("read"), is_notes, path(), false, true),
        (tool("read"), is_notes, other.clone(), false, false),
        (reads("read"), panics, other.clone(), false, true),
        (reads("read"), is_notes, other, true, true),
    ] {
        let (server, connected, _running) = Server::start(vec![tool.clone()]).await;
        let tools = connected.tools().await.unwrap().into_iter();
        let tools = tools.map(|tool| tool.needs_approval_when(asks_when));
        let agent = Agent::new(Calls::of(&[("read", input)])).tools(tools);
        if changes {
            server.set_tools(vec![tool.annotate(ToolAnnotations::new().open_world(true))]);
            connected.refresh().await.unwrap();
        }
        // What the host said of it goes before what the agent does with the others.
        let mut page = page(agent.require_approval_by_default());
        page.send("Go").await;
        assert_eq!(asks(&chunks(&page)), asked);
        assert_eq!(server.called().is_empty(), asked);
    }
}

#[tokio::test]
async fn how_long_an_output_may_be_the_host_says() {
    let too_long = json!("The tool returned more than can be shown.");
    for (bytes, most, is_shown) in [
        (300 * 1024, None, false),
        (300 * 1024, Some(512 * 1024), true),
        (300, Some(200), false),
        (300, None, true),
    ] {
        let (server, connected, _running) = Server::start(vec![reads("read")]).await;
        let text = "x".repeat(bytes);
        server.returns(CallToolResult::success(vec![ContentBlock::text(text.clone())]));
        let tools = connected.tools().await.unwrap().into_iter().map(|tool| match most {
            Some(most) => tool.with_max_output_bytes(most),
            None => tool,
        });
        let mut page = page(Agent::new(Calls::of(&[("read", path())])).tools(tools));
        page.send("Go").await;
        let shown = if is_shown { json!(text) } else { too_long.clone() };
        assert!(outcomes(&chunks(&page)) == [shown], "{bytes} bytes, of {most:?}");
    }
}
