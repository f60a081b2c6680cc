//! The page that Prometheus reads, after a conversation with an approval and a denial.

use axum::body::Body;
use axum::http::{Request, StatusCode};
use axum::{Extension, Router};
use chat_test_support::model_double::{ModelDouble, text, tool_call};
use metrics_exporter_prometheus::PrometheusBuilder;
use schemars::JsonSchema;
use serde::Deserialize;
use tower::ServiceExt;
use ui_message_stream::approval::Principal;
use ui_message_stream::chunk::FinishReason;
use ui_message_stream::model::{Model, ModelEvent, ModelMessage, Usage};
use ui_message_stream::testing::Conversation;
use ui_message_stream_agent::{Agent, Tool, ToolError};
use ui_message_stream_chat::axum::chat_routes;

/// A model that deletes, and then says so.
fn deletes() -> impl Model {
    let model = ModelDouble::new(|request, _| {
        let event = match request.messages.last() {
            Some(ModelMessage::Tool { .. }) => text("As you wish."),
            _ => {
                let id = format!("call_{}", request.messages.len());
                tool_call(&id, "delete", r#"{"path":"notes.txt"}"#)
            }
        };
        let mut usage = Usage::default();
        (usage.input_tokens, usage.output_tokens) = (40, 7);
        vec![event, ModelEvent::Usage(usage), ModelEvent::Finished(FinishReason::Stop)]
    });
    model.with_name("scripted")
}

#[derive(Deserialize, JsonSchema)]
struct File {
    path: String,
}

#[tokio::test(start_paused = true)]
async fn prometheus_reads_requests_first_bytes_approvals_and_tokens() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let page = recorder.handle();
    let _installed = metrics::set_default_local_recorder(&recorder);

    let delete = async |file: File| Ok::<_, ToolError>(format!("{} is gone", file.path));
    let agent = Agent::new(deletes()).tool(Tool::new("delete", delete).needs_approval());
    let routes = Router::new().nest("/api/chat", chat_routes(agent.into_chat_server()));
    let app = routes.clone().layer(Extension(Principal::new("ada")));
    let service = async |request: Request<String>| app.clone().oneshot(request).await;
    let mut browser = Conversation::with_service("/api/chat", service);
    browser.send("Delete my notes").await;
    browser.approve("delete").await;
    browser.send("Delete them again").await;
    browser.deny("call_5", "I need them").await;

    let invented = Request::builder().method("INVENTED").uri("/api/chat");
    let response = app.clone().oneshot(invented.body(Body::empty()).unwrap()).await.unwrap();
    assert_eq!(response.status(), StatusCode::METHOD_NOT_ALLOWED);
    let without_user = Request::get("/api/chat").body(Body::empty()).unwrap();
    assert_eq!(routes.oneshot(without_user).await.unwrap().status(), StatusCode::UNAUTHORIZED);

    let page = page.render();
    let mut series: Vec<&str> = page
        .lines()
        .filter(|line| line.starts_with("ui_message_stream") && !line.contains("quantile"))
        .filter(|line| !line.starts_with("ui_message_stream_first_byte_seconds_sum"))
        .collect();
    series.sort_unstable();
    assert_eq!(
        series,
        [
            r#"ui_message_stream_approvals_total{event="approved"} 1"#,
            r#"ui_message_stream_approvals_total{event="denied"} 1"#,
            r#"ui_message_stream_approvals_total{event="executed"} 1"#,
            r#"ui_message_stream_approvals_total{event="requested"} 2"#,
            r#"ui_message_stream_first_byte_seconds_count{method="POST"} 4"#,
            "ui_message_stream_live_runs 0",
            "ui_message_stream_readers 0",
            r#"ui_message_stream_requests_total{method="GET",status="401"} 1"#,
            r#"ui_message_stream_requests_total{method="POST",status="200"} 4"#,
            r#"ui_message_stream_requests_total{method="other",status="405"} 1"#,
            r#"ui_message_stream_tokens_total{provider="unknown",model="scripted",type="input"} 160"#,
            r#"ui_message_stream_tokens_total{provider="unknown",model="scripted",type="output"} 28"#,
        ],
        "{page}"
    );
}
