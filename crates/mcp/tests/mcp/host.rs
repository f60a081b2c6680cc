//! What the host decides about the tools of a server, and the effect of the server's annotations if
//! the host decides nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use chat_test_support::calling_model::{Calls, asked, chunks, outcomes, requests_approval};
use rmcp::model::{CallToolResult, ContentBlock, ToolAnnotations};
use serde_json::{Value, json};
use ui_message_stream::Json;
use ui_message_stream::UserText;
use ui_message_stream::approval::Principal;
use ui_message_stream_agent::{Agent, ApprovalContext};
use ui_message_stream_mcp::McpTool;

use super::server::{Server, read_only_tool, tool};
use super::tools::{delete_tool, path_input};

#[tokio::test]
async fn the_annotations_decide_whether_approval_is_requested_unless_the_host_decides() {
    type Decide = fn(McpTool) -> McpTool;
    let as_is: Decide = |tool| tool;
    let hints = ToolAnnotations::new;
    for (annotations, decide, is_requested) in [
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
        let mut page =
            asked(Agent::new(Calls::of(&[("change", path_input())])).tools(tools), "Go").await;
        assert_eq!(requests_approval(&chunks(&page)), is_requested, "{:?}", tool.annotations);
        assert_eq!(server.called_tools().is_empty(), is_requested);
        if is_requested {
            page.approve("change").await;
            assert_eq!(outcomes(&chunks(&page)), [json!({"ok": true})]);
            assert_eq!(server.called_tools(), ["change"]);
        }
    }
}

#[tokio::test]
async fn approval_by_default_applies_to_read_only_tools_unless_the_host_decides() {
    type Decide = fn(McpTool) -> McpTool;
    let as_is: Decide = |tool| tool;
    for (decide, by_default, is_requested) in [
        (as_is, false, false),
        (as_is, true, true),
        (McpTool::never_needs_approval as Decide, true, false),
        (McpTool::needs_approval as Decide, true, true),
    ] {
        let (server, connected, _running) = Server::start(vec![read_only_tool("read")]).await;
        let tools = connected.tools().await.unwrap().into_iter().map(decide);
        let agent = Agent::new(Calls::of(&[("read", path_input())])).tools(tools);
        let page =
            asked(if by_default { agent.require_approval_by_default() } else { agent }, "Go").await;
        assert_eq!(requests_approval(&chunks(&page)), is_requested);
        assert_eq!(server.called_tools().is_empty(), is_requested);
    }
}

#[tokio::test]
async fn the_host_can_set_the_title_of_a_tool_and_its_approval_description() {
    type Decide = fn(McpTool) -> McpTool;
    fn describe(input: &Json) -> String {
        format!("Delete {}?", input.decode::<Value>().unwrap()["path"])
    }
    fn panics(_: &Json) -> String {
        panic!("no description")
    }
    for (decide, title, description) in [
        ((|tool| tool) as Decide, "Delete", r#"delete {"path":"notes.txt"}"#),
        (|tool| tool.with_title("Bin"), "Bin", r#"delete {"path":"notes.txt"}"#),
        (|tool| tool.with_approval_description(describe), "Delete", r#"Delete "notes.txt"?"#),
        (|tool| tool.with_approval_description(panics), "Delete", r#"delete {"path":"notes.txt"}"#),
    ] {
        let (_server, connected, _running) = Server::start(vec![delete_tool()]).await;
        let tools = connected.tools().await.unwrap().into_iter().map(decide);
        let page =
            asked(Agent::new(Calls::of(&[("delete", path_input())])).tools(tools), "Go").await;
        let chunks = chunks(&page);
        let of_type = |kind| chunks.iter().find(|chunk| chunk["type"] == kind).unwrap();
        assert_eq!(of_type("tool-input-available")["title"], title, "{chunks:#?}");
        assert_eq!(of_type("data-approval")["data"]["description"], description, "{chunks:#?}");
    }
}

#[tokio::test]
async fn approval_is_requested_if_the_predicate_returns_true_or_the_tool_has_changed() {
    type Predicate = fn(&Json, &ApprovalContext) -> bool;
    let is_notes: Predicate = |input, context| {
        let is_first_call = context.tool_call_id.as_str() == "call_0";
        assert!(is_first_call && context.principal == Principal::new("ada"));
        input.decode::<Value>().unwrap()["path"] == "notes.txt"
    };
    let panics: Predicate = |_, _| panic!("no decision");
    let other_path = json!({"path": "plan.txt"});
    for (tool, predicate, input, changes, is_requested) in [
        (read_only_tool("read"), is_notes, path_input(), false, true),
        (tool("read"), is_notes, other_path.clone(), false, false),
        (read_only_tool("read"), panics, other_path.clone(), false, true),
        (read_only_tool("read"), is_notes, other_path, true, true),
    ] {
        let (server, connected, _running) = Server::start(vec![tool.clone()]).await;
        let tools = connected.tools().await.unwrap().into_iter();
        let tools = tools.map(|tool| tool.needs_approval_when(predicate));
        let agent = Agent::new(Calls::of(&[("read", input)])).tools(tools);
        if changes {
            server.set_tools(vec![tool.annotate(ToolAnnotations::new().open_world(true))]);
            connected.refresh().await.unwrap();
        }
        // The predicate of the host takes precedence over the default of the agent.
        let page = asked(agent.require_approval_by_default(), "Go").await;
        assert_eq!(requests_approval(&chunks(&page)), is_requested);
        assert_eq!(server.called_tools().is_empty(), is_requested);
    }
}

#[tokio::test]
async fn the_host_can_set_the_maximum_length_of_an_output() {
    let error = json!("The tool returned more than can be shown.");
    for (bytes, max_bytes, is_shown) in [
        (300 * 1024, None, false),
        (300 * 1024, Some(512 * 1024), true),
        (300, Some(200), false),
        (300, None, true),
    ] {
        let (server, connected, _running) = Server::start(vec![read_only_tool("read")]).await;
        let text = "x".repeat(bytes);
        server.returns(CallToolResult::success(vec![ContentBlock::text(text.clone())]));
        let tools = connected.tools().await.unwrap().into_iter().map(|tool| match max_bytes {
            Some(max_bytes) => tool.with_max_output_bytes(max_bytes),
            None => tool,
        });
        let page = asked(Agent::new(Calls::of(&[("read", path_input())])).tools(tools), "Go").await;
        let shown = if is_shown { json!(text) } else { error.clone() };
        assert!(outcomes(&chunks(&page)) == [shown], "{bytes} bytes, of {max_bytes:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_the_requester_may_not_make_does_not_reach_the_server() {
    type Decide = fn(McpTool) -> McpTool;
    let refused: [Decide; 5] = [
        |tool| tool.authorize(|principal, _| *principal != Principal::new("ada")),
        |tool| tool.authorize(|_, input| *input != Json::parse(r#"{"path":"notes.txt"}"#).unwrap()),
        |tool| tool.authorize(|_, _| panic!("no decision")),
        |tool| tool.authorize_async(async |_, _| Err("the directory is down".into())),
        |tool| tool.authorize_async(async |_, _| std::future::pending().await),
    ];
    for decide in refused {
        for tool in [tool("change"), read_only_tool("change")] {
            let (server, connected, _running) = Server::start(vec![tool]).await;
            let tools = connected.tools().await.unwrap().into_iter().map(decide);
            let page =
                asked(Agent::new(Calls::of(&[("change", path_input())])).tools(tools), "Go").await;
            assert!(!requests_approval(&chunks(&page)));
            assert_eq!(outcomes(&chunks(&page)), [json!(UserText::NotPermitted.text())]);
            assert!(server.called_tools().is_empty());
        }
    }
}

#[tokio::test]
async fn a_call_whose_permission_was_withdrawn_before_the_approval_does_not_reach_the_server() {
    for is_withdrawn in [false, true] {
        let (server, connected, _running) = Server::start(vec![tool("change")]).await;
        let is_permitted = Arc::new(AtomicBool::new(true));
        let tools = connected.tools().await.unwrap().into_iter().map(|tool| {
            let permits = Arc::clone(&is_permitted);
            tool.authorize(move |_, _| permits.load(Ordering::SeqCst))
        });
        let mut page =
            asked(Agent::new(Calls::of(&[("change", path_input())])).tools(tools), "Go").await;
        assert!(requests_approval(&chunks(&page)));
        is_permitted.store(!is_withdrawn, Ordering::SeqCst);
        page.approve("change").await;
        let outcome =
            if is_withdrawn { json!(UserText::Revoked.text()) } else { json!({"ok": true}) };
        assert_eq!(outcomes(&chunks(&page)), [outcome]);
        assert_eq!(server.called_tools().is_empty(), is_withdrawn);
    }
}
