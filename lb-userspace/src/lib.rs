//! The library behind `bpvs`.

pub mod datapath;
