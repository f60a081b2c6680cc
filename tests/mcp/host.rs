//! What the host decides about the tools of a server, and what the server's claims do where it says
//! nothing.

use rmcp::model::ToolAnnotations;
use serde_json::json;
use ui_message_stream::agent::Agent;
use ui_message_stream::mcp::McpTool;

use super::chat::{Calls, asks, chunks, outcomes, page};
use super::path;
use super::server::{Server, reads, tool};

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
        (None, McpTool::needs_no_approval as Decide, false),
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
        (McpTool::needs_no_approval as Decide, true, false),
        (McpTool::needs_approval as Decide, true, true),
    ] {
        let (server, connected, _running) = Server::start(vec![reads("read")]).await;
        let tools = connected.tools().await.unwrap().into_iter().map(decide);
        let agent = Agent::new(Calls::of(&[("read", path())])).tools(tools);
        let mut page = page(if by_default { agent.with_approval_by_default() } else { agent });
        page.send("Go").await;
        assert_eq!(asks(&chunks(&page)), asked);
        assert_eq!(server.called().is_empty(), asked);
    }
}
