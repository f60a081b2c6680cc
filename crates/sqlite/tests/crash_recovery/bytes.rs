//! How many bytes the store writes for a response of many deltas.

use chat_test_support::kill_trials::block_on;
use chat_test_support::long_answer::stream_long_answer;

use crate::file::File;

pub(crate) fn a_long_answer_is_written_about_once() -> String {
    let file = File::new();
    let Some(before) = written_bytes() else { return "not counted on this system".to_owned() };
    let answer = block_on(async { stream_long_answer(file.store().await).await });
    file.empty_log();
    let written = written_bytes().unwrap() - before;
    assert!(written <= answer.permitted_bytes(), "{written} bytes written for {answer:?}");
    format!("{written} bytes written for {answer:?}")
}

/// Returns how many bytes this process has passed to the system.
fn written_bytes() -> Option<usize> {
    let counts = std::fs::read_to_string("/proc/self/io").ok()?;
    let written = counts.lines().find_map(|line| line.strip_prefix("wchar: "))?;
    written.parse().ok()
}
