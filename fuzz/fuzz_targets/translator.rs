//! Any sequence of events, true and spoilt, through the translator: see `berth_fuzz::session`.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| berth_fuzz::session::run(input));
