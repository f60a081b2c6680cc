//! The table of `docs/faults.md` numbers its faults and names tests that exist, and each promise of
//! `docs/promises.md` links its tests.

use std::fs::read_to_string;

use test_support::repository;

#[test]
fn the_table_of_faults_numbers_its_rows_and_names_tests_that_exist() {
    let table = read_to_string(repository().join("docs/faults.md")).unwrap();
    let rows: Vec<&str> = table.lines().filter(|line| line.starts_with("| F")).collect();
    assert!(rows.len() >= NUMBERED, "{rows:?}");
    for (row, number) in rows.into_iter().zip(1..) {
        assert!(row.starts_with(&format!("| F{number} | ")), "not the row of F{number}: {row}");
        let tests = row.rsplit('|').nth(1).unwrap();
        // [`name`](../file), or [words](../file) for a program without named tests.
        let links: Vec<(&str, &str)> = tests
            .split("](../")
            .zip(tests.split("](../").skip(1))
            .map(|(before, after)| {
                (before.rsplit('[').next().unwrap(), after.split(')').next().unwrap())
            })
            .collect();
        assert!(!links.is_empty(), "no test shows this: {row}");
        for (name, file) in links {
            let source = read_to_string(repository().join(file));
            let source = source.unwrap_or_else(|error| panic!("{file}: {error}"));
            if let Some(name) = name.strip_prefix('`').and_then(|name| name.strip_suffix('`')) {
                assert!(source.contains(&format!("fn {name}(")), "{file} has no test {name}");
            }
        }
    }
}

#[test]
fn each_promise_links_a_file_of_tests() {
    let promises = read_to_string(repository().join("docs/promises.md")).unwrap();
    let promises: Vec<&str> = promises.split("\n- **").skip(1).collect();
    assert!(promises.len() >= 10, "{promises:?}");
    for promise in promises {
        let file = promise.split("([tests](../").nth(1).and_then(|link| link.split(')').next());
        let file = file.unwrap_or_else(|| panic!("no tests show this: {promise}"));
        let tests = read_to_string(repository().join(file)).unwrap();
        assert!(tests.contains("#[test]") || tests.contains("#[tokio::test"), "{file}");
    }
}

/// The faults whose numbers others refer to. Further ones follow them.
const NUMBERED: usize = 17;
