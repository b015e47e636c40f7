//! Builds the crate again when a migration is added: the macro that embeds them sees only those that it knew.

fn main() {
    println!("cargo:rerun-if-changed=../../migrations");
}
