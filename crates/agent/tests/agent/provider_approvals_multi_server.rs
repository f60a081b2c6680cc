//! Provider-executed calls that need an approval, where several servers receive the decision: one
//! server sends it to the provider, and the other servers return the outcome.

use std::sync::Arc;
use std::time::Duration;

use chat_test_support::answers::questions;
use chat_test_support::log_double::{Answer, Intercepts, LogDouble};
use test_support::requests::{ada, request};
use ui_message_stream_chat::store::ChatStoreError;
use ui_message_stream_chat::store::{AppendLog, AppendResult, InMemoryLogStore, LogStore};
use ui_message_stream_chat::{ChatError, RequestConflict};

use super::provider_double::{Host, NOW, Reply, is_shortened, part};

#[tokio::test(start_paused = true)]
async fn a_retry_at_another_server_does_not_interrupt_the_waiting_server() {
    let host = Host::asked(&[Reply::ApprovalRequest, Reply::Hang]).await;
    let decision_body = host.body_with_decisions(&[("link", true)]).await;
    drop(host.chats.stream_response(&ada(), request(&decision_body)).await.unwrap());
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(host.approvals_sent(), 1);
    let at_other_server = host.post_to(&host.other, decision_body);
    let at_other_server = tokio::time::timeout(Duration::from_secs(60), at_other_server).await;
    assert!(
        at_other_server.is_err(),
        "it waits for the outcome at the other server: {at_other_server:?}"
    );
    host.say_to(&host.other, "m2").await;
    // The new message ends the run of the other server.
    assert_eq!(host.provider_inputs(), ["nothing", "approved", "unknown"]);
    assert_eq!(part(&host.stored_messages().await, "link")["state"], "output-error");
}

#[tokio::test(start_paused = true)]
async fn an_approval_for_an_evicted_chat_is_refused_and_stays_pending() {
    let host = Host::asked(&[Reply::ApprovalRequest]).await;
    let body = host.body_with_decisions(&[("link", true)]).await;
    let empty = host.chats.clone().with_store(Arc::new(InMemoryLogStore::new()));
    let refused = empty.stream_response(&ada(), request(&body)).await;
    let is_conflict =
        matches!(refused, Err(ChatError::Conflict { conflict: RequestConflict::UnknownCalls, .. }));
    assert!(is_conflict, "{refused:?}");
    assert_eq!(questions(&host.chats).await.len(), 1);
    assert_eq!(host.provider_inputs(), ["nothing"]);
}

#[tokio::test(start_paused = true)]
async fn a_retry_does_not_continue_the_turn_while_another_server_runs_a_call() {
    let host = Host::asked(&[Reply::ApprovalRequestAndSlowDelete, Reply::LinkOutput]).await;
    let decision_body = host.body_with_decisions(&[("link", true)]).await;
    assert!(host.decide("link", true).await);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(host.decide("own", true).await);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let retry = host.post_to(&host.other, decision_body);
    let not_ended = async {
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!(host.provider_inputs(), ["nothing"], "the other call has not ended");
    };
    // The retry reads the run of the other server.
    let (retry, ()) = futures::join!(retry, not_ended);
    assert!(is_shortened(&retry), "{retry:?}");
    assert_eq!(host.provider_inputs(), ["nothing", "approved"]);
}

#[tokio::test(start_paused = true)]
async fn a_retry_waits_for_the_server_that_sent_a_long_stored_approval() {
    let host = Host::asked(&[Reply::ApprovalRequestAndDelete, Reply::Hang]).await;
    host.decide_and_wait("link", true).await;
    host.ledger.set_test_time(NOW.after(Duration::from_secs(601)));
    let decision_body = host.body_with_decisions(&[("own", true)]).await;
    drop(host.chats.stream_response(&ada(), request(&decision_body)).await.unwrap());
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(host.approvals_sent(), 1);
    let at_other_server =
        tokio::time::timeout(Duration::from_secs(60), host.post_to(&host.other, decision_body));
    assert!(at_other_server.await.is_err(), "it waits for the run of this server");
    assert_eq!(host.provider_inputs(), ["nothing", "approved"]);
}

#[tokio::test(start_paused = true)]
async fn a_retry_does_not_wait_for_a_run_of_another_message() {
    let host =
        Host::with_replies(&[Reply::Hang, Reply::Hang, Reply::ApprovalRequest, Reply::LinkOutput]);
    host.send_without_reading_to(&host.other, "m00").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    host.send_without_reading("m0").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    host.say("m1").await;
    let decision_body = host.body_with_decisions(&[("link", true)]).await;
    assert!(host.decide("link", true).await);
    // The approval is not sent yet: this server waits for the run of another message.
    let at_other_server =
        tokio::time::timeout(Duration::from_secs(60), host.post_to(&host.other, decision_body));
    assert!(is_shortened(&at_other_server.await.expect("it does not wait for its own run")));
}

#[tokio::test(start_paused = true)]
async fn a_server_returns_the_output_of_an_approval_that_another_server_sent() {
    let host = Host::with_replies(&[Reply::ApprovalRequestAndSlowCall, Reply::LinkOutput]);
    host.send_without_reading("m1").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let decision_body = host.body_with_decisions(&[("link", true)]).await;
    let at_other_server = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        host.post_to(&host.other, decision_body.clone()).await
    };
    let (first, at_other_server) =
        futures::join!(host.post(decision_body.clone()), at_other_server);
    assert!(is_shortened(&at_other_server), "{at_other_server:?}");
    assert!(is_shortened(&first), "{first:?}");
}

/// A store to which nothing can be appended.
#[derive(Debug)]
struct ReadOnly(Arc<InMemoryLogStore>);

impl Intercepts for ReadOnly {
    fn store(&self) -> &dyn LogStore {
        &*self.0
    }

    fn append<'a>(&'a self, _: AppendLog<'a>) -> Answer<'a, AppendResult> {
        Box::pin(async { Err(ChatStoreError::new("read only")) })
    }
}

#[tokio::test(start_paused = true)]
async fn an_approval_that_its_server_could_not_save_is_sent_after_a_late_denial() {
    let host = Host::with_replies(&[Reply::ApprovalRequestAndSlowCall, Reply::LinkOutput]);
    host.send_without_reading("m1").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let approval = host.body_with_decisions(&[("link", true)]).await;
    let denial = host.body_with_decisions(&[("link", false)]).await;
    let read_only = LogDouble(ReadOnly(host.store.clone()));
    let read_only = host.other.clone().with_store(Arc::new(read_only));
    assert!(
        read_only.stream_response(&ada(), request(&approval)).await.is_err(),
        "nothing is saved"
    );
    // The first decision counts.
    let denied = host.post(denial).await;
    assert_eq!(host.provider_inputs(), ["nothing", "approved"]);
    assert!(is_shortened(&denied), "{denied:?}");
}
