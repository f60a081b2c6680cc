//! A run or a response that ends at a limit is logged, with the id of the run or of the chat, and without content.

use std::time::Duration;

use chat_test_support::answers::server_of;
use futures::{StreamExt, stream};
use test_support::requests::{ada, say};
use test_support::thread_subscriber::captured;
use ui_message_stream::AgentEvent;
use ui_message_stream_chat::ChatLimits;
use ui_message_stream_chat::{ChatError, ChatServer, ChatStream, Turn};

/// A server whose agent says something and then nothing more.
fn server(limits: ChatLimits) -> ChatServer {
    let agent = |_: Turn| {
        stream::iter([AgentEvent::text("a secret")]).chain(stream::pending::<AgentEvent>())
    };
    server_of(agent).with_limits(limits)
}

async fn post(chats: &ChatServer, chat: &str) -> Result<ChatStream, ChatError> {
    chats.stream_response(&ada(), say(chat, "m1", "a secret")).await
}

/// Runs a test, and returns the lines that are logged about limits.
async fn logged(test: impl Future) -> Vec<String> {
    let (log, _guard) = captured();
    test.await;
    let text = log.text();
    assert!(!text.contains("a secret"), "{text}");
    text.lines().filter(|line| line.contains("limit=")).map(str::to_owned).collect()
}

/// Checks that one line of this level holds these texts.
fn check(lines: &[String], level: &str, texts: &[&str]) {
    let [line] = lines else { panic!("{lines:#?}") };
    assert!(line.contains(level) && texts.iter().all(|text| line.contains(text)), "{line}");
}

fn check_end_of_run(lines: &[String], limit: &str) {
    check(lines, "WARN", &["a run ends", r#"run_id="run_"#, limit]);
}

#[tokio::test(start_paused = true)]
async fn a_run_whose_log_is_full_is_logged_with_the_limit() {
    let lines = logged(async {
        let chats = server(ChatLimits::default().with_max_log_bytes(10));
        let mut response = post(&chats, "chat").await.unwrap();
        response.next().await.unwrap().unwrap();
        response.for_each(async |_| {}).await;
    });
    check_end_of_run(&lines.await, r#"limit="max_log_bytes" value=10"#);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_nobody_reads_is_logged_with_the_limit() {
    let lines = logged(async {
        let time = Duration::from_secs(90);
        let chats = server(ChatLimits::default().with_max_unread_time(time));
        post(&chats, "chat").await.unwrap().next().await.unwrap().unwrap();
        tokio::time::sleep(2 * time).await;
    });
    check_end_of_run(&lines.await, r#"limit="max_unread_time" value=90s"#);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_ends_for_another_and_one_that_is_refused_are_logged_with_the_limit() {
    let limits = ChatLimits::default().with_max_user_runs(1);
    let chats = server(limits);
    let mut first = post(&chats, "a").await.unwrap();
    let lines = logged(async {
        first.next().await.unwrap().unwrap();
        let refused = post(&chats, "b").await;
        assert!(matches!(refused, Err(ChatError::TooManyRuns)), "{refused:?}");
    });
    check(&lines.await, "WARN", &["a run was refused", r#"limit="max_user_runs" value=1"#]);

    drop(first);
    let lines = logged(async {
        tokio::time::sleep(Duration::from_secs(31)).await;
        let _second = post(&chats, "b").await.unwrap();
        tokio::time::sleep(Duration::from_secs(10)).await;
    });
    check_end_of_run(&lines.await, r#"limit="max_user_runs" value=1"#);
}

#[tokio::test(start_paused = true)]
async fn a_response_whose_client_does_not_read_is_logged_with_the_limit() {
    let lines = logged(async {
        let time = Duration::from_secs(20);
        let chats = server(ChatLimits::default().with_max_stalled_time(time));
        let mut response = post(&chats, "chat").await.unwrap();
        response.next().await.unwrap().unwrap();
        tokio::time::sleep(time).await;
        assert!(response.next().await.is_none());
    });
    let limit = r#"limit="max_stalled_time" value=20s"#;
    check(&lines.await, "INFO", &["a response ends", r#"chat_id="chat""#, limit]);
}
