//! Readers that wait are woken by changes of another store on the same file, as in another process.

use std::task::{Context, Waker};
use std::time::Duration;

use test_support::run_hints::{
    changed, check_appends_and_takes, check_ends_and_deletions, check_many_readers,
};
use test_support::store_requests::{appended, begin, frame, run_key};
use tokio::time::sleep;
use ui_message_stream::approval::Principal;
use ui_message_stream::chat::store::RunStore;

use crate::folder::Folder;

#[tokio::test]
async fn a_reader_is_woken_by_what_another_store_on_the_file_changes() {
    let folder = Folder::new();
    let (writer, reader) = (folder.open().await, folder.open().await);
    check_appends_and_takes(&writer, &reader).await;
}

#[tokio::test]
async fn a_reader_is_woken_when_a_log_ends_or_is_deleted() {
    let folder = Folder::new();
    let (writer, reader) = (folder.open().await, folder.open().await);
    let ada = Principal::new("ada");
    let delete = async { assert!(writer.delete_user(&ada).await.unwrap().runs > 0) };
    check_ends_and_deletions(&writer, &reader, delete).await;
}

#[tokio::test]
async fn many_readers_of_one_store_read_the_whole_log() {
    let folder = Folder::new();
    let store = folder.open().await;
    check_many_readers(&store, &store).await;
}

#[tokio::test]
async fn a_run_without_a_reader_is_forgotten_also_while_others_begin_to_wait_all_the_time() {
    let folder = Folder::new();
    let (writer, reader) = (folder.open().await, folder.open().await);
    let ada = Principal::new("ada");
    let key = run_key(&ada, "run");
    let _ = begin(&writer, &key, 1).await;
    appended(&writer, &key, 0, &[frame("a")], false).await;
    changed(&reader, &key, 0).await;
    // What is known of the run ends the wait at once. A timeout of zero is longer: meanwhile the run may
    // become known again.
    let is_known = || {
        let context = &mut Context::from_waker(Waker::noop());
        reader.changed(&key, 0).as_mut().poll(context).is_ready()
    };
    assert!(is_known());
    for number in 0..200 {
        changed(&reader, &run_key(&ada, &number.to_string()), 0).await;
        sleep(Duration::from_millis(20)).await;
        if !is_known() {
            return;
        }
    }
    panic!("the run is not forgotten");
}
