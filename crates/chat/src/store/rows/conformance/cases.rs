//! [`CASES`]: steps of a partition, and their replies.

use super::checked::{Checked, at};

type Case = (&'static str, fn(&str) -> Vec<Checked>);

pub(super) const CASES: &[Case] = &[
    ("a row has the version and the bytes of its last put", |p| {
        vec![
            at(p).none("a"),
            at(p).put("a", MAX, "x\0\u{ff}").row("a", MAX, "x\0\u{ff}"),
            at(p).put("a", MAX - 1, "").put("b", 1, "y").put("b", 2, "z"),
            at(p).row("b", 2, "z").row("a", MAX - 1, "").none("c").row("b", 2, "z"),
        ]
    }),
    (
        "a step is refused unless each row has the expected version, also by one of the same call",
        |p| {
            vec![
                at(p).expect("a", 1).refused().none("a"),
                at(p).expect("a", 0).put("a", MAX, "x"),
                at(p).expect("a", MAX - 1).put("a", 1, "y").refused().row("a", MAX, "x"),
                at(p).expect("a", 0).put("a", 1, "y").refused().row("a", MAX, "x"),
                at(p).expect("a", MAX).expect("b", 0).put("b", 2, "y"),
                at(p).expect("a", 1).expect("b", 2).refused().row("b", 2, "y"),
                at(p).expect("a", MAX).expect("b", 2).delete("a").none("a"),
                at(p).expect("a", MAX).refused(),
                at(p).expect("a", 0).expect("b", 2),
            ]
        },
    ),
    ("nothing is written by a step that is refused, and its reads are answered", |p| {
        let refused = || {
            let all = at(p).put("a", 2, "y").put("b", 2, "y").push("a", 0, 0, Some(6), "0z");
            all.keep("a", 0, 9, 9).place("l", "m", Some(5), Some(6)).delete("c")
        };
        let read = |step: Checked| {
            let step = step.row("a", 1, "x").none("b").all("a", 0, 5, "0x").row("c", 1, "");
            step.list("l", &[(5, "m")])
        };
        vec![
            at(p).put("a", 1, "x").put("c", 1, "").push("a", 0, 5, None, "0x"),
            at(p).place("l", "m", None, Some(5)),
            read(refused().expect("a", 2).refused()),
            read(refused().push("d", 0, 0, None, "0z").refused()),
            read(refused().push("c", 0, 0, Some(1), "0z").refused()),
        ]
    }),
    ("a step that is refused does not stop the next ones, which run in their order", |p| {
        let other = &format!("{p} other");
        vec![
            at(p).expect("a", 5).put("a", 1, "").refused(),
            at(p).put("a", 2, "x"),
            at(other).push("a", 0, 0, None, "0x").refused().none("a"),
            at(other).put("a", 3, "y"),
            at(p).expect("a", 2).put("a", 4, "z"),
            at(p).expect("a", 2).refused().row("a", 4, "z"),
            at(other).row("a", 3, "y"),
        ]
    }),
    ("a push is refused without its row, unless the step puts it", |p| {
        vec![
            at(p).push("a", 0, 5, None, "0x").refused().none("a").end("a", 0, None),
            at(p).push("a", 0, 5, Some(5), "0x").refused(),
            at(p).push("a", 0, 5, None, "").refused(),
            at(p).put("b", 1, "").push("a", 0, 5, None, "0x").refused().none("b"),
            at(p).put("a", 1, "").push("a", 0, 5, Some(5), "0x").refused().none("a"),
            at(p).put("a", 1, "").push("a", 0, 5, None, "0x").all("a", 0, 5, "0x"),
            at(p).put("a", 2, "").push("a", 0, 5, Some(6), "1y").all("a", 0, 5, "0x 1y"),
        ]
    }),
    ("a push is refused if the sequence does not end where it has to", |p| {
        let push = |first, end, items| at(p).push("a", 1, first, Some(end), items);
        vec![
            at(p).put("a", 1, ""),
            push(5, 0, "0x").refused(),
            push(5, 4, "").refused(),
            push(0, 5, "0x").refused().all("a", 1, 0, ""),
            push(5, 5, "").all("a", 1, 0, ""),
            push(5, 5, "0x 1y").all("a", 1, 5, "0x 1y"),
            push(5, 5, "0z").refused(),
            push(5, 2, "").refused(),
            push(9, 9, "").refused().all("a", 1, 5, "0x 1y"),
            push(9, 7, ""),
            push(0, 7, "2z").all("a", 1, 5, "0x 1y 2z"),
            at(p).keep("a", 1, 6, u64::MAX),
            push(5, 2, "").refused(),
            push(5, 8, "0w").all("a", 1, 6, "1y 2z 0w"),
        ]
    }),
    ("each row has four sequences of its own, which stay when it is put again", |p| {
        let all = |step: Checked| {
            let step = step.all("a", 0, 0, "0x").all("a", 1, MAX - 9, "1\0\u{ff} 2 0y");
            step.all("a", 2, 0, "").all("a", 3, 7, "2z").all("b", 0, 3, "1b").all("b", 3, 0, "")
        };
        let step = at(p).put("a", 1, "").push("a", 0, 0, None, "0x").push("a", 3, 7, None, "2z");
        vec![
            step.push("a", 1, MAX - 9, None, "1\0\u{ff} 2"),
            all(at(p).put("b", 1, "").push("b", 0, 3, None, "1b").push("a", 1, 1, None, "0y")),
            all(at(p).put("a", 2, "x").push("a", 2, 4, None, "")),
        ]
    }),
    ("many items are pushed and read at once", |p| {
        let many = &"0x ".repeat(150);
        vec![
            at(p).put("a", 1, "").push("a", 0, 50, None, many).all("a", 0, 50, many),
            at(p).push("a", 0, 50, None, many).all("a", 0, 50, &many.repeat(2)),
            at(p).keep("a", 0, 200, 348).page(("a", 347), usize::MAX, false, &[(347, "0x")]),
            at(p).all("a", 0, 200, &"0x ".repeat(148)),
        ]
    }),
    ("Keep removes the items before `from` and from `until` on", |p| {
        let push = |first, items| at(p).push("a", 0, first, None, items);
        let keep = |from, until| at(p).keep("a", 0, from, until);
        let none = |from, until| vec![push(5, "0x 0y"), keep(from, until).all("a", 0, 0, "")];
        let steps = vec![
            keep(0, 5).keep("a", 1, 3, 4).none("a"),
            at(p).put("a", 1, "").push("a", 1, 0, None, "0other"),
            keep(0, u64::MAX).keep("a", 2, 3, 4).end("a", 0, None),
            push(5, "0a 1b 0c 0d 2e").keep("a", 0, 0, u64::MAX).all("a", 0, 5, "0a 1b 0c 0d 2e"),
            keep(6, u64::MAX).all("a", 0, 6, "1b 0c 0d 2e"),
            push(5, "0f").all("a", 0, 6, "1b 0c 0d 2e 0f"),
            keep(0, 9).push("a", 0, 5, None, "1g").all("a", 0, 6, "1b 0c 0d 1g"),
            keep(7, 9).all("a", 0, 7, "0c 0d"),
            keep(0, 7).all("a", 0, 0, ""),
            // A sequence without items begins again.
            push(3, "1h").all("a", 0, 3, "1h"),
            keep(4, u64::MAX),
            at(p).push("a", 0, 8, Some(4), "").refused(),
            at(p).push("a", 0, 8, Some(8), "0i").all("a", 0, 8, "0i"),
            keep(u64::MAX, u64::MAX).push("a", 0, 0, None, "0j 0k").all("a", 0, 0, "0j 0k"),
            keep(0, 0),
        ];
        let all = [(0, 0), (0, 5), (7, u64::MAX), (u64::MAX, u64::MAX), (u64::MAX, 0), (6, 6)];
        let none = all.into_iter().flat_map(|(from, until)| none(from, until));
        let last = at(p).all("a", 1, 0, "0other").row("a", 1, "");
        steps.into_iter().chain(none).chain([last]).collect()
    }),
    ("a row is deleted with its sequences", |p| {
        vec![
            at(p).put("a", 1, "x").push("a", 0, 5, None, "0x 1y").push("a", 3, 0, None, "0z"),
            at(p).put("b", 1, "").push("b", 0, 1, None, "0b").delete("missing"),
            at(p).delete("a").none("a").all("a", 0, 0, "").all("a", 3, 0, ""),
            at(p).push("a", 0, 7, None, "0x").refused(),
            at(p).expect("a", 0).put("a", 2, "").all("a", 0, 0, "").all("a", 3, 0, ""),
            at(p).push("a", 0, 9, Some(7), "").refused(),
            at(p).push("a", 0, 9, Some(9), "2z").all("a", 0, 9, "2z").all("b", 0, 1, "0b"),
        ]
    }),
    ("items are read up to a number of bytes, and at least one", |p| {
        let [a, b, c, d, e] = [(3, "0aaa"), (4, "1bb"), (5, "0"), (6, "2cc"), (7, "0d")];
        let page =
            |from, max, expected: &[(u64, &str)]| at(p).page(("a", from), max, false, expected);
        let marked =
            |from, max, expected: &[(u64, &str)]| at(p).page(("a", from), max, true, expected);
        vec![
            at(p).page(("a", 0), usize::MAX, false, &[]),
            at(p).put("a", 1, "").page(("a", 0), usize::MAX, true, &[]),
            at(p).push("a", 0, 3, None, "0aaa 1bb 0 2cc 0d").push("a", 1, 3, None, "1other"),
            page(0, 0, &[a]),
            page(3, 2, &[a]),
            page(3, 4, &[a]),
            page(3, 5, &[a, b, c]),
            page(4, 1, &[b]),
            page(5, 0, &[c]),
            page(5, 2, &[c, d]),
            page(3, 8, &[a, b, c, d, e]),
            page(0, usize::MAX, &[a, b, c, d, e]),
            page(7, usize::MAX, &[e]),
            page(8, usize::MAX, &[]),
            marked(0, 0, &[b]),
            marked(0, 3, &[b]),
            marked(0, 4, &[b, d]),
            marked(5, usize::MAX, &[d]),
            marked(7, usize::MAX, &[]),
        ]
    }),
    ("members are in the order of their places and then of their bytes, in pages", |p| {
        let enter = |(place, member): &(u64, &str)| at(p).place("l", member, None, Some(*place));
        let mut steps: Vec<_> = PLACES.iter().rev().map(enter).collect();
        let last: Vec<_> = PLACES.iter().rev().copied().collect();
        for (all, list) in [(PLACES, ("l", false)), (&last[..], ("l", true))] {
            steps.push(at(p).members(list, None, 3, &all[..3]).members(
                list,
                None,
                usize::MAX,
                all,
            ));
            for (number, after) in all.iter().enumerate() {
                let next: Vec<_> = all.iter().skip(number + 1).take(2).copied().collect();
                steps.push(at(p).members(list, Some(*after), 2, &next));
            }
        }
        steps
    }),
    ("a page of members begins after any place", |p| {
        let all @ [a, b, c] = [(2, "a"), (2, "c"), (u64::MAX >> 1, "b")];
        let (first, last) = (("l", false), ("l", true));
        let place = |step: Checked, (place, member)| step.place("l", member, None, Some(place));
        vec![
            at(p).list("l", &[]).members(last, None, 9, &[]),
            all.into_iter().fold(at(p), place).list("l", &all),
            at(p).members(first, Some((0, "")), 9, &all).members(last, Some((0, "")), 9, &[]),
            at(p).members(first, Some((2, "b")), 9, &[b, c]).members(last, Some((2, "b")), 9, &[a]),
            at(p).members(first, Some((2, "")), 1, &[a]).members(last, Some((3, "")), 1, &[b]),
            at(p).members(first, Some((u64::MAX, "")), 9, &[]),
            at(p).members(last, Some((u64::MAX, "")), 9, &[c, b, a]),
            at(p).members(first, None, 0, &[]).members(last, None, 0, &[]),
        ]
    }),
    ("a member moves, and may have several places", |p| {
        let place = |from, to| at(p).place("l", "m", from, to);
        vec![
            place(None, Some(5)).place("l", "m", None, Some(7)).list("l", &[(5, "m"), (7, "m")]),
            place(None, Some(5)).list("l", &[(5, "m"), (7, "m")]),
            place(Some(5), Some(7)).list("l", &[(7, "m")]),
            place(Some(6), Some(9)).list("l", &[(7, "m"), (9, "m")]),
            place(Some(9), Some(9)).list("l", &[(7, "m"), (9, "m")]),
            place(Some(3), Some(3)).list("l", &[(3, "m"), (7, "m"), (9, "m")]),
            place(Some(3), None).place("l", "m", Some(8), None).list("l", &[(7, "m"), (9, "m")]),
            place(None, Some(1)).place("l", "m", Some(1), Some(2)).place("l", "m", Some(9), None),
            at(p).place("l", "m", Some(7), None).place("l", "m", None, Some(7)),
            at(p).place("l", "n", None, Some(7)).place("k", "m", None, Some(7)),
            place(Some(2), None).list("l", &[(7, "m"), (7, "n")]).list("k", &[(7, "m")]),
            place(Some(7), None).list("l", &[(7, "n")]).list("k", &[(7, "m")]),
        ]
    }),
    ("names of rows are compared by their bytes", |p| {
        let named = || (1..).zip(NAMES);
        let put = |(number, name): (u64, &&str)| {
            at(p).expect(name, 0).put(name, number, name).push(name, 0, number, None, "0x")
        };
        let read = |(number, name): (u64, &&str)| {
            at(p).expect(name, number).row(name, number, name).all(name, 0, number, "0x")
        };
        let delete = |(_, name): (u64, &&str)| at(p).delete(name).none(name).all(name, 0, 0, "");
        let (puts, reads) = (named().map(put), named().map(read));
        puts.chain(reads).chain(named().map(delete)).collect()
    }),
    ("partitions are compared by the bytes of their names, and may have none", |p| {
        let named = || (1..).zip(NAMES).map(|(number, name)| (number, format!("{p}{name}")));
        let put = |(number, name): (u64, String)| {
            let step = at(&name).expect("a", 0).put("a", number, "").push("a", 0, 0, None, "0x");
            step.place("l", &name, None, Some(number))
        };
        let read = |(number, name): (u64, String)| {
            at(&name).row("a", number, "").all("a", 0, 0, "0x").list("l", &[(number, &name)])
        };
        let step = at("").expect(p, 0).put(p, 1, "").push(p, 0, 5, None, "0x");
        let step = step.place("l", p, None, Some(1)).all(p, 0, 5, "0x");
        let none = [step, at("").delete(p).place("l", p, Some(1), None).none(p)];
        named().map(put).chain(named().map(read)).chain(none).collect()
    }),
];

/// The largest version, and more than a position can be.
const MAX: u64 = (1 << 53) - 1;

/// Different names.
const NAMES: &[&str] = &[
    "", "\0", "\0\0", "a", "a\0", "a\0b", "A", "a ", "a:0", "0:a", "{a}", "a%", "a'", "a\\",
    "\u{e9}", "e\u{301}",
];

/// Members in their order.
const PLACES: &[(u64, &str)] = &[
    (0, ""),
    (0, "b"),
    (1, ""),
    (1, "\0"),
    (1, "B"),
    (1, "a"),
    (1, "a\0"),
    (1, "a\0b"),
    (1, "ab"),
    (1, "b"),
    (1, "e\u{301}"),
    (1, "\u{e9}"),
    // The other way round in UTF-16.
    (1, "\u{ffff}"),
    (1, "\u{10000}"),
    (2, "a"),
    (1 << 53, "d"),
    ((1 << 53) + 1, "c"),
    ((1 << 62) + 1, ""),
    ((1 << 63) - 1, ""),
    ((1 << 63) - 1, "a"),
];
