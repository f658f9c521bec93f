//! bpvs.
fn main() {}
