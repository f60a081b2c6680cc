//! What a server counts of its runs.

use chat_test_support::answers::server_of;
use chat_test_support::test_server::{Client, Host};
use futures::{StreamExt, stream};
use metrics_exporter_prometheus::PrometheusBuilder;
use test_support::requests::{ada, say};
use ui_message_stream::AgentEvent;
use ui_message_stream::approval::Principal;
use ui_message_stream_chat::ChatLimits;
use ui_message_stream_chat::{ChatError, Turn};

#[tokio::test(start_paused = true)]
async fn live_taken_and_refused_runs_are_counted() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let page = recorder.handle();
    let _installed = metrics::set_default_local_recorder(&recorder);
    let agent = |_: Turn| stream::iter([AgentEvent::text("Hi")]).chain(stream::pending());
    let chats = server_of(agent).with_limits(ChatLimits::default().with_max_user_runs(1));
    let ada = ada();
    let counted = || {
        let counts = chats.run_counts();
        [counts.live, counts.taken, counts.lapsed, counts.refused]
    };
    assert_eq!(counted(), [0, 0, 0, 0]);
    let mut first = chats.stream_response(&ada, say("one", "m1", "Hi")).await.unwrap();
    first.next().await.unwrap().unwrap();
    assert_eq!(counted(), [1, 0, 0, 0]);
    for series in ["ui_message_stream_live_runs 1\n", "ui_message_stream_readers 1\n"] {
        assert!(page.render().contains(series), "{series}");
    }

    let mut second = chats.stream_response(&ada, say("one", "m2", "Hi")).await.unwrap();
    while first.next().await.is_some() {}
    second.next().await.unwrap().unwrap();
    assert_eq!(counted(), [1, 1, 0, 0]);

    let refused = chats.stream_response(&ada, say("two", "m3", "Hi")).await;
    assert!(matches!(refused, Err(ChatError::TooManyRuns)), "{refused:?}");
    assert_eq!(counted(), [1, 1, 0, 1]);

    chats.stop(&ada, &"one".into()).await.unwrap();
    while second.next().await.is_some() {}
    tokio::time::sleep(std::time::Duration::from_secs(30)).await;
    assert_eq!(counted(), [0, 2, 0, 1]);
    drop((first, second));
    let page = page.render();
    for series in [
        "ui_message_stream_live_runs 0",
        "ui_message_stream_readers 0",
        r#"ui_message_stream_refused_appends_total{reason="runs"} 2"#,
        r#"ui_message_stream_runs_total{event="refused"} 1"#,
        r#"ui_message_stream_runs_total{event="taken"} 2"#,
    ] {
        assert!(page.lines().any(|line| line == series), "{series}: {page}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_stopped_run_is_not_live_although_its_tool_goes_on() {
    let host = Host::new();
    let mut client = Client::new("alice", "c");
    client.say(&host, "delete notes.txt").await;
    host.tools.hold(true);
    let approval = client.answered(true).to_string();
    let (_, ()) = tokio::join!(host.chat("alice", approval), async {
        test_support::eventually(async || !host.tools.effects().is_empty()).await;
        assert_eq!(host.chats.run_counts().live, 1);
        host.chats.stop(&Principal::new("alice"), &"c".into()).await.unwrap();
        test_support::eventually(async || host.chats.run_counts().live == 0).await;
        host.tools.hold(false);
    });
}
