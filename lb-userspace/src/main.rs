//! bpvs. 
fn main() {}
