#![no_main]

mod run;

libfuzzer_sys::fuzz_target!(|data: &[u8]| run::request::run(data));
