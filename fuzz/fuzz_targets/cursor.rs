//! Any text as a cursor of the door's journal: no panic, and what is a cursor is written as it was read, but for
//! leading zeroes.

#![no_main]

use berth_wire::door::Cursor;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let Ok(cursor) = text.parse::<Cursor>() else { return };
    let written = cursor.to_string();
    assert_eq!(written.parse().as_ref(), Ok(&cursor));
    let (epoch, seq) = text.split_once('-').expect("a cursor has a dash");
    let seq = seq.trim_start_matches('0');
    assert_eq!(written, format!("{epoch}-{}", if seq.is_empty() { "0" } else { seq }));
});
