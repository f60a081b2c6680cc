//! The corpora of the fuzz targets, run as ordinary tests.

use std::fs;
use std::path::Path;

use fuzz_targets::{request, sse_decode, translator};

fn run_corpus(target: &str, run: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let mut inputs = 0;
    for entry in fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        println!("{}", path.display());
        run(&fs::read(path).unwrap());
        inputs += 1;
    }
    assert!(inputs > 0, "{} is empty", folder.display());
}

#[test]
fn no_request_of_the_corpus_panics_or_is_read_differently_the_second_time() {
    run_corpus("request", request::run);
}

#[test]
fn every_event_stream_of_the_corpus_decodes_alike_in_any_pieces() {
    run_corpus("sse_decode", sse_decode::run);
}

#[test]
fn every_event_sequence_of_the_corpus_becomes_a_valid_stream() {
    run_corpus("translator", translator::run);
}
