//! Readers that wait are woken by changes of another store on the same file, as in another process.

use test_support::run_hints::{
    check_appends_and_takes, check_ends_and_deletions, check_many_readers,
};
use ui_message_stream::approval::Principal;

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
