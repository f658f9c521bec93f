//! The library behind `bpvs`.

pub mod model;
pub mod plan;
pub mod source;
