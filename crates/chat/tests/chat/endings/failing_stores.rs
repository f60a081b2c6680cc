//! What requests and readers get while a store fails, loses replies or panics.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use axum::{Extension, Router};
use chat_test_support::answers::{follow, post, server_of, stored};
use chat_test_support::log_double::LogDouble;
use futures::{StreamExt, stream};
use metrics_exporter_prometheus::PrometheusBuilder;
use test_support::eventually;
use test_support::requests::{ada, say};
use test_support::thread_subscriber::captured;
use tower::ServiceExt;
use ui_message_stream::AgentEvent;
use ui_message_stream::event::ToolCall;
use ui_message_stream::json::Json;
use ui_message_stream::response::ResponseOutcome;
use ui_message_stream_chat::Turn;
use ui_message_stream_chat::axum::chat_routes;

use crate::endings::faults::{Faults, asked, server, text_of};

#[tokio::test(start_paused = true)]
async fn a_save_whose_reply_is_lost_is_compared_with_the_chat_and_the_run_goes_on() {
    for lost in [1, 2] {
        let server = server();
        server.permits.add_permits(1);
        server.faults.lost_appends.store(lost, Ordering::SeqCst);
        let response = post(&server.chats, "m1", "Hi").await;
        assert!(text_of(response).await.contains("answer"));
        assert_eq!(server.calls.load(Ordering::SeqCst), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_message_whose_save_never_has_a_reply_is_refused_and_can_be_sent_again() {
    let server = server();
    server.permits.add_permits(2);
    server.faults.lost_appends.store(3, Ordering::SeqCst);
    let mut refused = server.chats.stream_response(&ada(), say("chat", "m1", "Hi")).await;
    // A save can arrive without its reply. The run that it names is not driven.
    for _ in 0..3 {
        if let Ok(response) = refused {
            assert!(text_of(response).await.contains("answer"));
            return;
        }
        refused = server.chats.stream_response(&ada(), say("chat", "m1", "Hi")).await;
    }
    panic!("the message is not answered: {:?}", refused.err());
}

#[tokio::test(start_paused = true)]
async fn a_store_that_fails_is_counted_and_logged_with_its_cause() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let page = recorder.handle();
    let _installed = metrics::set_default_local_recorder(&recorder);
    let (log, _guard) = captured();
    let server = server();
    let routes = Router::new().nest("/api/chat", chat_routes(server.chats.clone()));
    let app = routes.layer(Extension(ada()));

    server.faults.failing_appends.store(3, Ordering::SeqCst);
    assert!(server.chats.stream_response(&ada(), say("chat", "m1", "Hi")).await.is_err());
    server.faults.is_unreadable.store(true, Ordering::SeqCst);
    let history = Request::get("/api/chat/chat").body(Body::empty()).unwrap();
    let response = app.oneshot(history).await.unwrap();
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);

    let (log, page) = (log.text(), page.render());
    let cause = "the chat store failed: no connection";
    for (level, message) in [
        ("WARN", "a chat may not have been written"),
        ("ERROR", "a turn has failed"),
        ("WARN", "a request is rejected status=503"),
    ] {
        let is_it =
            |line: &str| line.contains(level) && line.contains(message) && line.contains(cause);
        assert!(log.lines().any(is_it), "{message}: {log}");
    }
    let failures = r#"ui_message_stream_store_failures_total{operation="append"} 3"#;
    assert!(page.contains(failures), "{page}");
}

#[tokio::test(start_paused = true)]
async fn a_turn_gives_up_half_a_minute_after_its_store_has_begun_to_hang() {
    let (server, response) = asked().await;
    drop(response);
    server.agent_runs().await;
    let hangs_since = tokio::time::Instant::now();
    server.faults.hangs.store(true, Ordering::SeqCst);
    server.permits.add_permits(1);
    // The turn saves its message.
    assert_eq!(server.chats.shut_down(Duration::from_secs(600)).await, 0);
    let seconds = hangs_since.elapsed().as_secs();
    assert!((20..=40).contains(&seconds), "{seconds} s");
}

#[tokio::test(start_paused = true)]
async fn an_answer_goes_on_after_its_store_was_away_for_longer_than_the_lease() {
    for outage in (11_000..16_000).step_by(100).map(Duration::from_millis) {
        let (server, response) = asked().await;
        let other = server.other();
        let open = async |chats| text_of(follow(chats).await).await;
        let repeat = async |chats| text_of(post(chats, "m1", "Hi").await).await;
        let read = open(&other);
        let opened_again = async {
            tokio::time::sleep(Duration::from_millis(1_500)).await;
            server.faults.be_away(outage).await;
            let go_on = async {
                tokio::time::sleep(Duration::from_secs(4)).await;
                server.permits.add_permits(1);
            };
            tokio::join!(
                open(&server.chats),
                open(&other),
                repeat(&server.chats),
                repeat(&other),
                go_on
            )
        };
        let (text, read, again) = tokio::join!(text_of(response), read, opened_again);
        for text in [text, read, again.0, again.1, again.2, again.3] {
            assert!(text.contains(r#""delta":"answer""#), "{outage:?}: {text}");
            assert!(text.ends_with("data: [DONE]\n\n"), "{outage:?}: {text}");
        }
    }
}

/// The agent is quiet, so the run has nothing to append but the renewal of its lease.
#[tokio::test(start_paused = true)]
async fn an_answer_goes_on_although_its_store_has_refused_writes_until_the_lease_had_passed() {
    for outage in (6_000..9_000).step_by(100).map(Duration::from_millis) {
        let (server, response) = asked().await;
        let (_other, read) = server.read_elsewhere().await;
        let go_on = async {
            tokio::time::sleep(Duration::from_secs(3)).await;
            server.faults.is_unwritable.store(true, Ordering::SeqCst);
            tokio::time::sleep(outage).await;
            server.faults.is_unwritable.store(false, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_secs(6)).await;
            server.permits.add_permits(1);
        };
        let (text, read, ()) = tokio::join!(text_of(response), text_of(read), go_on);
        for text in [text, read] {
            assert!(text.contains(r#""delta":"answer""#), "{outage:?}: {text}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_goes_on_while_its_servers_shut_down_although_its_store_was_away() {
    let (server, response) = asked().await;
    let (other, read) = server.read_elsewhere().await;
    let go_on = async {
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        server.faults.be_away(Duration::from_secs(12)).await;
        tokio::time::sleep(Duration::from_secs(4)).await;
        server.permits.add_permits(1);
    };
    let grace = Duration::from_secs(60);
    let (text, read, ended, ended_other, ()) = tokio::join!(
        text_of(response),
        text_of(read),
        server.chats.shut_down(grace),
        other.shut_down(grace),
        go_on
    );
    assert_eq!((ended, ended_other), (0, 0));
    for text in [text, read] {
        assert!(text.contains(r#""delta":"answer""#), "{text}");
        assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_shuts_down_hands_a_run_over_although_its_store_fails_twice() {
    let (server, response) = asked().await;
    server.faults.failing_appends.store(2, Ordering::SeqCst);
    let (stopped, begun) =
        tokio::join!(server.chats.shut_down(Duration::from_secs(1)), text_of(response));
    assert_eq!(stopped, 1);
    assert_eq!(server.faults.failing_appends.load(Ordering::SeqCst), 0);
    let other = server.other();
    let last = begun.lines().rev().find_map(|line| line.strip_prefix("id: "));
    let asked_at = tokio::time::Instant::now();
    let rest = other.resume_stream(&ada(), &"chat".into(), last).await.unwrap().unwrap();
    assert!(text_of(rest).await.ends_with("data: [DONE]\n\n"));
    // The clock is paused. The lease has ten seconds.
    assert!(asked_at.elapsed() < Duration::from_secs(2), "{:?}", asked_at.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_reader_of_a_run_whose_task_has_panicked_gets_the_end_of_the_response() {
    let (server, response) = asked().await;
    server.agent_runs().await;
    // The run renews its lease at the next third of it.
    server.faults.panics.store(true, Ordering::SeqCst);
    let renewed_at = tokio::time::Instant::now();
    let text = text_of(response).await;
    assert!(text.contains("An ") && text.contains("The server was interrupted."), "{text}");
    // The clock is paused. The lease of ten seconds was renewed at most a third of it later.
    let seconds = renewed_at.elapsed().as_secs_f64();
    assert!((10.0..10.0 / 3.0 + 14.0).contains(&seconds), "{seconds} s");
    assert_eq!(stored(&server.chats).await.messages.len(), 2, "what the run has written is kept");
    assert_eq!(server.chats.run_counts().lapsed, 1);

    // A page that has lost this response repeats its request.
    let text = text_of(post(&server.chats, "m1", "Hi").await).await;
    assert!(text.contains("An ") && text.contains("The server was interrupted."), "{text}");
    let again = server.chats.complete_response(&ada(), say("chat", "m1", "Hi")).await.unwrap();
    assert_eq!(again.outcome, ResponseOutcome::Failed);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_repeated_after_its_run_was_stopped_gets_an_abort() {
    let (server, response) = asked().await;
    server.agent_runs().await;
    server.chats.stop(&ada(), &"chat".into()).await.unwrap();
    let again = post(&server.chats, "m1", "Hi").await;
    for response in [response, again] {
        let text = text_of(response).await;
        assert!(text.contains(r#"{"type":"abort"}"#) && text.contains("[DONE]"), "{text}");
    }
    let again = server.chats.complete_response(&ada(), say("chat", "m1", "Hi")).await.unwrap();
    assert_eq!(again.outcome, ResponseOutcome::Aborted);
}

/// The agent calls a tool in its first step. Its second step never ends, or, in a second run, at once.
#[tokio::test(start_paused = true)]
async fn a_response_goes_on_when_its_run_is_lost_between_two_steps() {
    let (faults, calls) = (Arc::new(LogDouble::<Faults>::default()), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&calls);
    let agent = move |_: Turn| {
        let first = [
            AgentEvent::tool_input(ToolCall::new("c1", "look"), Json::parse("{}").unwrap()),
            AgentEvent::tool_output("c1", Json::string("seen")),
            AgentEvent::StepFinish,
            AgentEvent::StepStart,
        ];
        match counted.fetch_add(1, Ordering::SeqCst) {
            0 => stream::iter(first).chain(stream::pending()).boxed(),
            _ => stream::iter([AgentEvent::text("All of it.")]).boxed(),
        }
    };
    let chats = server_of(agent).with_store(faults.clone());
    let response = post(&chats, "m1", "Hi").await;
    eventually(async || calls.load(Ordering::SeqCst) > 0).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    // The run renews its lease at the next third of it.
    faults.panics.store(true, Ordering::SeqCst);
    let text = text_of(response).await;
    let count = |part: &str| text.matches(part).count();
    assert_eq!((count(r#""type":"start","#), count("[DONE]")), (1, 1), "{text}");
    assert!(text.contains("seen") && text.contains("All of it."), "{text}");
    assert!(!text.contains("error") && !text.contains("abort"), "{text}");
    assert_eq!(calls.load(Ordering::SeqCst), 2);
    let json = serde_json::to_value(&stored(&chats).await.messages[1]).unwrap();
    let parts: Vec<_> =
        json["parts"].as_array().unwrap().iter().map(|part| &part["type"]).collect();
    assert_eq!(parts, ["step-start", "tool-look", "step-start", "text"]);

    // A client that was cut before the server was lost goes on in the same way.
    let cut = text.lines().position(|line| line.contains("seen")).unwrap();
    let last = text.lines().nth(cut - 1).unwrap().strip_prefix("id: ").unwrap();
    let rest = chats.resume_stream(&ada(), &"chat".into(), Some(last)).await.unwrap().unwrap();
    assert_eq!(text_of(rest).await, text[text.find("seen").unwrap() + "seen\"}\n\n".len()..]);
}

#[tokio::test(start_paused = true)]
async fn a_run_goes_on_although_no_append_of_its_steps_has_a_reply() {
    let faults = Arc::new(LogDouble::<Faults>::default());
    let lost = Arc::clone(&faults);
    let agent = move |_: Turn| {
        lost.lost_appends.store(20, Ordering::SeqCst);
        let steps = stream::iter(0..25).then(|step| async move {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let text = AgentEvent::text(format!("Step {step}."));
            stream::iter([text, AgentEvent::StepFinish, AgentEvent::StepStart])
        });
        steps.flatten().chain(stream::once(async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            AgentEvent::text("All of it.")
        }))
    };
    let chats = server_of(agent).with_store(faults.clone());
    let text = text_of(post(&chats, "m1", "Hi").await).await;
    assert!(text.contains("All of it.") && text.contains("[DONE]"), "{text}");
    assert_eq!(faults.lost_appends.load(Ordering::SeqCst), 0, "each append has lost its reply");
    let chat = stored(&chats).await;
    assert!(serde_json::to_string(&chat.messages[1]).unwrap().contains("All of it."));
}
