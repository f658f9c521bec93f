//! The library behind `bpvs`.

pub mod agent;
pub mod cli;
pub mod kernel;
pub mod render;
pub mod view;
