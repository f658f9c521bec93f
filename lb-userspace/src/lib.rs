//! The library behind `bpvs`.
