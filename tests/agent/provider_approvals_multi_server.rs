//! Calls that the provider runs once a person approved them, where several servers hear of the answer:
//! one of them tells the provider, and the others say what came of it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde_json::json;
use ui_message_stream::ChatRequest;
use ui_message_stream::chat::store::{
    BoxFuture, ChatStore, ChatStoreError, InMemoryChatStore, VersionedChat,
};
use ui_message_stream::chat::{Chat, ChatServer};
use ui_message_stream::id::ChatId;
use ui_message_stream::request::Limits;

use super::provider_double::{Host, NOW, Says, ada, is_shortened, part, said};

#[tokio::test(start_paused = true)]
async fn a_retry_at_another_server_takes_nothing_from_the_one_that_listens() {
    let host = Host::that(&[Says::Asks, Says::Hangs]);
    host.say("m1").await;
    let page = host.answering(&[("link", true)]).await;
    let body = page.to_string();
    let request = ChatRequest::parse(body.as_bytes(), &Limits::default()).unwrap();
    drop(host.chats.stream_response(&ada(), request).await.unwrap());
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(host.yeses(), 1);
    let there = host.post_to(&host.other, page);
    let there = tokio::time::timeout(Duration::from_secs(60), there).await;
    assert!(there.is_err(), "it waits for what the other one hears: {there:?}");
    host.post_to(&host.other, json!({"id": "chat", "messages": [said("m2")]})).await;
    assert_eq!(host.told(), ["nothing", "yes", "unknown"], "the other one is still listening");
    assert_eq!(part(&host.kept().await, "link")["state"], "approval-responded");
}

#[tokio::test(start_paused = true)]
async fn a_yes_that_one_server_keeps_is_told_by_the_one_that_goes_on() {
    let host = Host::that(&[Says::Hangs, Says::Asks, Says::Shortened]);
    host.say_and_leave("m0").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    host.say("m1").await;
    let page = host.answering(&[("link", true)]).await;
    // This server has heard the yes, and waits for what runs there.
    assert!(host.decide("link", true).await);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(host.yeses(), 0);
    let there = host.post_to(&host.other, page).await;
    assert!(is_shortened(&there), "{there:?}");
    host.chats.stop(&ada(), &"chat".into()).await.unwrap();
    host.settles().await;
    assert_eq!(host.told(), ["nothing", "nothing", "yes"], "and nobody calls the model again");
}

#[tokio::test(start_paused = true)]
async fn a_yes_in_a_history_that_was_forgotten_is_answered() {
    let host = Host::that(&[Says::Asks]);
    host.say("m1").await;
    let page = host.answering(&[("link", true)]).await;
    let forgotten = host.chats.clone().with_store(Arc::new(InMemoryChatStore::new()));
    let answer = host.post_to(&forgotten, page).await;
    assert!(answer.iter().any(|chunk| chunk["delta"] == "Done"), "{answer:?}");
}

#[tokio::test(start_paused = true)]
async fn a_retry_of_one_answer_does_not_go_on_while_the_other_runs_elsewhere() {
    let host = Host::that(&[Says::AsksAndCallsSlowly, Says::Shortened]);
    host.say("m1").await;
    let page = host.answering(&[("link", true)]).await;
    assert!(host.decide("link", true).await);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(host.decide("own", true).await);
    tokio::time::sleep(Duration::from_secs(1)).await;
    host.post_to(&host.other, page).await;
    assert_eq!(host.told(), ["nothing"], "the other one has not ended");
    host.settles().await;
    assert_eq!(host.told(), ["nothing", "yes"]);
}

#[tokio::test(start_paused = true)]
async fn who_tells_a_yes_that_was_kept_for_long_is_waited_for_as_any_other() {
    let host = Host::that(&[Says::AsksAndCalls, Says::Hangs]);
    host.say("m1").await;
    assert!(host.decide("link", true).await);
    host.settles().await;
    host.ledger.set_test_time(NOW.after(Duration::from_secs(601)));
    let page = host.answering(&[("own", true)]).await;
    let request = ChatRequest::parse(page.to_string().as_bytes(), &Limits::default()).unwrap();
    drop(host.chats.stream_response(&ada(), request).await.unwrap());
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(host.yeses(), 1);
    let there = tokio::time::timeout(Duration::from_secs(60), host.post_to(&host.other, page));
    assert!(there.await.is_err(), "it waits for what is said here");
    assert_eq!(host.told(), ["nothing", "yes"]);
}

#[tokio::test(start_paused = true)]
async fn a_retry_at_another_server_is_not_kept_by_what_runs_there_for_another_message() {
    let host = Host::that(&[Says::Hangs, Says::Hangs, Says::Asks, Says::Shortened]);
    host.say_and_leave_at(&host.other, "m00").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    host.say_and_leave("m0").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    host.say("m1").await;
    let page = host.answering(&[("link", true)]).await;
    assert!(host.decide("link", true).await);
    // Kept: here the run of another message is waited for.
    let there = tokio::time::timeout(Duration::from_secs(60), host.post_to(&host.other, page));
    assert!(is_shortened(&there.await.expect("it waits for nothing of its own")));
}

#[tokio::test(start_paused = true)]
async fn who_heard_a_yes_that_another_told_says_what_came_of_it() {
    let host = Host::that(&[Says::AsksAndCallsSlow, Says::Shortened]);
    host.say_and_leave("m1").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let page = host.answering(&[("link", true)]).await;
    let there = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        host.post_to(&host.other, page.clone()).await
    };
    let (first, there) = futures::join!(host.post(page.clone()), there);
    assert!(is_shortened(&there), "{there:?}");
    assert!(is_shortened(&first), "{first:?}");
}

/// A store on whose way back, once a yes was taken out to be told, the person presses Stop.
#[derive(Debug, Default)]
struct StoppedOnTheWay {
    store: InMemoryChatStore,
    chats: OnceLock<ChatServer>,
}

impl ChatStore for StoppedOnTheWay {
    fn load<'a>(
        &'a self,
        tenant: Option<&'a str>,
        id: &'a ChatId,
    ) -> BoxFuture<'a, Result<Option<VersionedChat>, ChatStoreError>> {
        self.store.load(tenant, id)
    }

    fn save<'a>(
        &'a self,
        chat: &'a Chat,
        revision: Option<u64>,
    ) -> BoxFuture<'a, Result<bool, ChatStoreError>> {
        Box::pin(async move {
            let before = self.store.load(chat.owner.tenant(), &chat.id).await?;
            let kept_a_yes = before.is_some_and(|kept| !kept.chat.for_provider.is_empty());
            let saved = self.store.save(chat, revision).await?;
            if kept_a_yes && chat.for_provider.is_empty() {
                self.chats.get().unwrap().stop(&ada(), &chat.id).await.unwrap();
            }
            Ok(saved)
        })
    }
}

#[tokio::test(start_paused = true)]
async fn a_yes_that_was_taken_out_by_a_run_that_is_stopped_is_put_back() {
    let mut host = Host::that(&[Says::AsksAndCalls, Says::Shortened]);
    let store = Arc::new(StoppedOnTheWay::default());
    host.chats = host.chats.clone().with_store(store.clone());
    store.chats.set(host.chats.clone()).unwrap();
    host.say("m1").await;
    assert!(host.decide("link", true).await);
    host.settles().await;
    assert!(host.decide("own", true).await);
    host.settles().await;
    assert_eq!(host.told(), ["nothing"], "it was stopped on its way");
    let kept = host.chats.chat(&ada(), &"chat".into()).await.unwrap();
    assert_eq!(kept.for_provider.len(), 1);
    assert_eq!(part(&host.kept().await, "link")["state"], "approval-responded");
    assert_eq!(host.deleted.load(Ordering::SeqCst), 1);
}

/// A store that cannot be read once it is told so.
#[derive(Debug)]
struct Unreadable {
    store: Arc<InMemoryChatStore>,
    now: AtomicBool,
}

impl ChatStore for Unreadable {
    fn load<'a>(
        &'a self,
        tenant: Option<&'a str>,
        id: &'a ChatId,
    ) -> BoxFuture<'a, Result<Option<VersionedChat>, ChatStoreError>> {
        match self.now.load(Ordering::SeqCst) {
            true => Box::pin(async { Err(ChatStoreError::new("it cannot be read")) }),
            false => self.store.load(tenant, id),
        }
    }

    fn save<'a>(
        &'a self,
        chat: &'a Chat,
        revision: Option<u64>,
    ) -> BoxFuture<'a, Result<bool, ChatStoreError>> {
        self.store.save(chat, revision)
    }
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_seen_of_another_server_is_not_waited_for_for_ever() {
    let host = Host::that(&[Says::Asks, Says::Hangs]);
    host.say("m1").await;
    let page = host.answering(&[("link", true)]).await;
    assert!(host.decide("link", true).await);
    host.settles().await;
    assert_eq!(host.told(), ["nothing", "yes"]);
    let store = Arc::new(Unreadable { store: host.store.clone(), now: AtomicBool::new(false) });
    let there = host.other.clone().with_store(store.clone());
    let goes_dark = async {
        tokio::time::sleep(Duration::from_secs(10)).await;
        store.now.store(true, Ordering::SeqCst);
    };
    let waits = tokio::time::timeout(Duration::from_secs(3600), host.post_to(&there, page));
    let (answer, ()) = futures::join!(waits, goes_dark);
    let answer = answer.expect("it comes to its end");
    assert!(answer.iter().any(|chunk| chunk["type"] == "error"), "{answer:?}");
}
