//! Readers that wait are woken by changes of another store on the same file, as in another process.

use std::task::{Context, Waker};

use chat_test_support::log_hints::{
    changed, check_appends_and_takeovers, check_ends_and_deletions, check_lists, check_many_readers,
};
use chat_test_support::store_requests::{adas, append_at, appended, begin, frame};
use test_support::eventually;
use ui_message_stream::approval::Principal;
use ui_message_stream_chat::store::LogStore;

use crate::folder::Folder;

#[tokio::test]
async fn a_reader_is_woken_by_what_another_store_on_the_file_changes() {
    let folder = Folder::new();
    let (writer, reader) = (folder.open().await, folder.open().await);
    check_appends_and_takeovers(&writer, &reader).await;
    check_lists(&writer, &reader).await;
}

#[tokio::test]
async fn a_reader_is_woken_when_a_run_ends_or_its_log_is_deleted() {
    let folder = Folder::new();
    let (writer, reader) = (folder.open().await, folder.open().await);
    let ada = Principal::new("ada");
    let delete = async { assert!(writer.delete_user(&ada).await.unwrap().chats > 0) };
    check_ends_and_deletions(&writer, &reader, delete).await;
}

#[tokio::test]
async fn many_readers_of_one_store_read_the_whole_log() {
    let (_folder, store) = Folder::with_store().await;
    check_many_readers(&store, &store).await;
}

#[tokio::test]
async fn a_log_without_a_reader_is_forgotten_also_while_others_begin_to_wait_all_the_time() {
    let folder = Folder::new();
    let (writer, reader) = (folder.open().await, folder.open().await);
    let log = adas("chat");
    begin(&writer, &log).await;
    appended(&writer, append_at(&log, 1, &[frame("a")])).await;
    changed(&reader, &log, 1).await;
    // What is known of the log ends the wait at once. A timeout of zero is longer: meanwhile the log may
    // become known again.
    let is_known = || {
        let context = &mut Context::from_waker(Waker::noop());
        reader.changed(&log, 1).as_mut().poll(context).is_ready()
    };
    assert!(is_known());
    let mut number = 0;
    eventually(async || {
        changed(&reader, &adas(&number.to_string()), 0).await;
        number += 1;
        !is_known()
    })
    .await;
}
