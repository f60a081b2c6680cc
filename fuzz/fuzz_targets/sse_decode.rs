#![no_main]

mod run;

libfuzzer_sys::fuzz_target!(|data: &[u8]| run::sse_decode::run(data));
