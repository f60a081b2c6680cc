//! Counts what a turn writes: pages, and transactions, each of which is synced to the disk.

use std::sync::Arc;

use chat_test_support::turn_costs::costs_of_ten_turns;

use crate::folder::Folder;

#[tokio::test]
async fn what_a_turn_writes_is_counted() {
    let (folder, store) = Folder::with_store().await;
    let log = folder.file().with_extension("db-wal");
    let written = async || written(&std::fs::read(&log).unwrap());
    let [transactions, pages] = costs_of_ten_turns(Arc::new(store), written).await;
    test_support::external_processes::say(&format!(
        "pages of ten turns: {}",
        pages.iter().sum::<u64>()
    ));
    assert_eq!(transactions[5], 3, "{transactions:?}");
    // Turns differ in how many pages they split.
    assert!((200..=260).contains(&pages.iter().sum::<u64>()), "{pages:?}");
}

/// Returns how many transactions and how many pages a write-ahead log holds.
/// See <https://www.sqlite.org/fileformat2.html#the_write_ahead_log>.
fn written(log: &[u8]) -> [u64; 2] {
    let word = |bytes: &[u8]| u32::from_be_bytes(bytes[..4].try_into().unwrap());
    // The log is much smaller than the one that a checkpoint moves into the file.
    let (header, frames) = log.split_at_checked(32).expect("no checkpoint has emptied the log");
    let page_bytes = usize::try_from(word(&header[8..])).unwrap();
    let salts = &header[16..24];
    let frames = frames.chunks_exact(24 + page_bytes).take_while(|frame| &frame[8..16] == salts);
    // The last page of a transaction holds the size of the database.
    frames.fold([0, 0], |[transactions, pages], frame| {
        [transactions + u64::from(word(&frame[4..]) > 0), pages + 1]
    })
}
