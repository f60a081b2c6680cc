//! A chat server at the limits of a store that evicts nothing.

use chat_test_support::test_server::{Client, Host};
use test_support::requests::user_message;
use ui_message_stream::approval::Principal;
use ui_message_stream_chat::ChatLimits;

use crate::folder::Folder;

#[tokio::test]
async fn a_new_chat_beyond_the_limit_of_its_user_is_refused_with_the_setting_until_one_is_deleted()
{
    let (_folder, store) = Folder::with_store().await;
    let limits = ChatLimits::default().with_max_user_chats(2).with_max_user_runs(1);
    let host = Host::new().with_store(store).with_limits(limits);
    let (mut one, mut two) = (Client::new("alice", "one"), Client::new("alice", "two"));
    one.say(&host, "hello").await;
    two.say(&host, "delete notes.txt").await;
    let begin = async |user: &str| {
        let mut three = Client::new(user, "three");
        three.messages.push(user_message("m1", "hello"));
        host.chat(user, three.body().to_string()).await
    };
    // A refused request leaves no run: the second one would be refused for that.
    for _ in 0..2 {
        let refused = begin("alice").await;
        let text = "you have 2 chats or more: delete one before you begin another; \
                    `ChatLimits::with_max_user_chats` allows more";
        assert_eq!((refused.status.as_u16(), &*refused.text), (413, text));
    }
    assert_eq!(host.get("alice", "/api/chat/three").await.status, 404);
    // The chats that exist, and other users, go on.
    one.say(&host, "hello").await;
    two.answer(&host, true).await;
    assert_eq!(host.tools.effects().len(), 1);
    assert_eq!(begin("bob").await.status, 200);
    host.chats.delete(&Principal::new("alice"), &"one".into()).await.unwrap();
    assert_eq!(begin("alice").await.status, 200);
}
