#![no_main]

mod run;

libfuzzer_sys::fuzz_target!(|data: &[u8]| run::translator::run(data));
