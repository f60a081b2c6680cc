//! What a turn writes: pages, and transactions, each of which is synced to the disk.

use std::sync::Arc;

use chat_test_support::turn_costs::costs_of_ten_turns;

use crate::folder::Folder;

#[tokio::test]
async fn a_turn_writes_3_transactions_and_26_pages_at_most() {
    let folder = Folder::new();
    let store = folder.open().await;
    let log = folder.file().with_extension("db-wal");
    let written = async || written(&std::fs::read(&log).unwrap());
    let costs = costs_of_ten_turns(Arc::new(store), written).await;
    // Operations that wait at the same time share one.
    let transactions: u64 = costs.iter().map(|[transactions, _]| transactions).sum();
    assert!((1..=30).contains(&transactions), "{costs:?}");
    // The ids are random, so turns differ in how many pages they split.
    let pages: u64 = costs.iter().map(|[_, pages]| pages).sum();
    assert!((1..=260).contains(&pages), "{costs:?}");
}

/// Returns how many transactions and how many pages a write-ahead log holds.
/// See <https://www.sqlite.org/fileformat2.html#the_write_ahead_log>.
fn written(log: &[u8]) -> [u64; 2] {
    let word = |bytes: &[u8]| u32::from_be_bytes(bytes[..4].try_into().unwrap());
    let (header, frames) = log.split_at(32);
    let page_bytes = usize::try_from(word(&header[8..])).unwrap();
    let salts = &header[16..24];
    let frames = frames.chunks_exact(24 + page_bytes).take_while(|frame| &frame[8..16] == salts);
    // The last page of a transaction holds the size of the database.
    frames.fold([0, 0], |[transactions, pages], frame| {
        [transactions + u64::from(word(&frame[4..]) > 0), pages + 1]
    })
}
