//! Tests of [`Messages`].

use proptest::prelude::*;

use super::*;

fn message(id: u32) -> UiMessage {
    UiMessage::new(format!("m{id}"), Role::User, Vec::new())
}

#[derive(Debug, Clone)]
enum Change {
    Push,
    Insert(usize),
    Replace(usize),
    Update(usize),
    Truncate(usize),
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let change = prop_oneof![
        40 => Just(Change::Push),
        20 => (0_usize..400).prop_map(Change::Insert),
        5 => (0_usize..400).prop_map(Change::Replace),
        5 => (0_usize..400).prop_map(Change::Update),
        1 => (0_usize..400).prop_map(Change::Truncate),
    ];
    proptest::collection::vec(change, 0..400)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn messages_hold_what_a_vec_would_hold(changes in changes()) {
        let mut messages = Messages::default();
        let mut expected = Vec::new();
        for (number, change) in (0..).zip(changes) {
            let before = (messages.clone(), expected.clone());
            match change.clone() {
                Change::Push => {
                    messages.push(message(number));
                    expected.push(message(number));
                }
                Change::Insert(at) => {
                    messages.insert(at, message(number));
                    expected.insert(at.min(expected.len()), message(number));
                }
                Change::Replace(at) => {
                    messages.replace(at, message(number));
                    if let Some(replaced) = expected.get_mut(at) {
                        *replaced = message(number);
                    }
                }
                Change::Update(at) => {
                    messages.update(at, |message| message.role = Role::Assistant);
                    if let Some(updated) = expected.get_mut(at) {
                        updated.role = Role::Assistant;
                    }
                }
                Change::Truncate(len) => {
                    messages.truncate(len);
                    expected.truncate(len);
                }
            }
            prop_assert!(before.0.iter().eq(&before.1), "a change reached a clone");
            let shared = messages.shared_prefix(&before.0);
            prop_assert!(shared <= messages.len() && shared <= before.0.len());
            let pairs = messages.iter().zip(before.0.iter());
            let equal = pairs.take_while(|(one, other)| one == other).count();
            prop_assert!(shared <= equal, "a changed message counts as shared");
            let is_changed_in_place = matches!(change, Change::Replace(_) | Change::Update(_));
            prop_assert!(is_changed_in_place || shared == equal);
        }
        prop_assert!(messages.iter().eq(&expected));
        prop_assert!(messages.iter().rev().eq(expected.iter().rev()));
        for skipped in [1, 63, 64, 65, expected.len() / 2, expected.len(), expected.len() + 1] {
            let rest = messages.iter().skip(skipped);
            prop_assert!(rest.eq(expected.iter().skip(skipped)));
        }
        prop_assert_eq!(messages.len(), expected.len());
        prop_assert_eq!(messages.last(), expected.last());
        let bytes: usize = expected.iter().map(json_len).sum();
        prop_assert_eq!(messages.bytes(), bytes);
        prop_assert!(messages.pages.iter().all(|page| !page.entries.is_empty()));
        for (at, expected) in expected.iter().enumerate() {
            prop_assert_eq!(&messages[at], expected);
            prop_assert_eq!(messages.position(&expected.id), Some(at));
        }
    }
}
