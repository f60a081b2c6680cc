//! Steps over rows.

use ui_message_stream_chat::store::rows::{Found, Item, Read, Rows, Step, Write};

use crate::backend::Backend;

#[tokio::test]
async fn no_step_runs_after_an_error() {
    for backend in Backend::all() {
        let store = backend.connect().await;
        // Of several slots, and of one.
        for partitions in [["a", "b", "c", "d"], ["e"; 4]] {
            let put = |number: usize, row: &str| {
                let put = Write::Put(row.to_owned(), 1, vec![].into());
                of(partitions[number], vec![put], Vec::new())
            };
            let is_stored = async |number: usize, row: &str| {
                let step = of(partitions[number], Vec::new(), vec![Read::Row(row.to_owned())]);
                let found = store.run(vec![step]).await.unwrap().remove(0).found.pop_front();
                matches!(found, Some(Found::Row(Some(_))))
            };
            // Another program has written this row.
            let key = format!("ui-message-stream:{{{}}}:row:damaged", partitions[2]);
            backend.command(&format!("SET {key} text"));
            let mut refused = put(0, "refused");
            refused.expected.push(("missing".to_owned(), 7));
            let steps = vec![refused, put(1, "second"), put(2, "damaged"), put(3, "third")];
            store.run(steps).await.unwrap_err();
            for (number, row, expected) in
                [(0, "refused", false), (1, "second", true), (3, "third", false)]
            {
                assert_eq!(is_stored(number, row).await, expected, "{} {row}", backend.name());
            }
        }
    }
}

#[tokio::test]
async fn items_are_read_up_to_a_number_of_bytes() {
    for backend in Backend::all() {
        let store = backend.connect().await;
        let item =
            |number: usize| Item { kind: (number % 3) as u8, bytes: vec![7; 300 << 10].into() };
        let row = "row".to_owned();
        let items = (0..9).map(item).collect();
        let push = Write::Push { row: row.clone(), sequence: 1, first: 5, at: None, items };
        let put = Write::Put(row.clone(), 1, vec![].into());
        store.run(vec![of("one", vec![put, push], Vec::new())]).await.unwrap();
        for (from, kib, only_marked, expected) in [
            (0, 0, false, &[5][..]),
            (6, 600, false, &[6, 7]),
            (6, 899, false, &[6, 7]),
            (6, 1500, false, &[6, 7, 8, 9, 10]),
            (11, usize::MAX >> 10, false, &[11, 12, 13]),
            (14, 9999, false, &[]),
            (0, 0, true, &[6]),
            (0, 1200, true, &[6, 7, 9, 10]),
            (0, 9999, true, &[6, 7, 9, 10, 12, 13]),
        ] {
            let (row, max_bytes) = (row.clone(), kib << 10);
            let read = Read::Items { row, sequence: 1, from, max_bytes, only_marked };
            let step = of("one", Vec::new(), vec![read]);
            let found = store.run(vec![step]).await.unwrap().remove(0).found.pop_front();
            let Some(Found::Items(found)) = found else { panic!("{found:?}") };
            let positions: Vec<_> = found.iter().map(|(position, _)| *position).collect();
            assert_eq!(positions, expected, "{from} {kib} {only_marked}");
            assert!(found.iter().all(|(position, found)| *found == item(*position as usize - 5)));
        }
    }
}

fn of(partition: &str, writes: Vec<Write>, reads: Vec<Read>) -> Step {
    Step { partition: partition.to_owned(), writes, reads, ..Step::default() }
}
