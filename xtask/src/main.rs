//! Development tasks of this repository: gen, check, test, soak, bench.

fn main() {}
