//! Any bytes, in pieces of any size, through the reader of event streams: see `berth_fuzz::stream`.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| berth_fuzz::stream::run(input));
