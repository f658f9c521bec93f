//! The library behind `bpvs`.

pub mod datapath;
pub mod model;
pub mod plan;
pub mod source;
