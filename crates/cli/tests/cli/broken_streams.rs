//! The page of frequent mistakes in streams is the table of this test.

use std::fs;

use crate::program::run_with;

/// `RECORD=1` writes the output into the page again; review the difference.
#[test]
fn the_page_of_broken_streams_shows_what_check_says_to_each() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/broken-streams.md");
    let page = fs::read_to_string(path).unwrap();
    let mut sections = page.split("\n## ");
    let mut expected = sections.next().unwrap().to_owned();
    let mut count = 0;
    for section in sections {
        count += 1;
        let (head, commands) = section.split_once("```console\n").unwrap();
        let (_, body) = head.split_once("```text\n").unwrap();
        let (body, _) = body.split_once("```\n").unwrap();
        expected += &format!("\n## {head}");
        let mut has_findings = false;
        for command in commands.split("```console\n") {
            let (command, _) = command.split_once('\n').unwrap();
            let arguments = command.strip_prefix("$ ui-message-stream ").unwrap();
            let arguments: Vec<_> = arguments.split(' ').collect();
            assert_eq!(arguments[0], "check", "{section}");
            let result = run_with(&arguments, body);
            assert_eq!(result.code, i32::from(!result.out.is_empty()), "{section}");
            has_findings |= result.out.len() + result.err.len() > 0;
            expected += &format!("```console\n{command}\n{}{}```\n", result.err, result.out);
            // A blank line stands between two commands, and at the end of a section.
            expected.push('\n');
        }
        expected.pop();
        assert!(has_findings, "{section}");
    }
    assert_eq!(count, 14);
    if std::env::var_os("RECORD").is_some() {
        fs::write(path, &expected).unwrap();
    }
    assert!(page == expected, "expected:\n{expected}");
}
