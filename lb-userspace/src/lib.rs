//! The library behind `bpvs`.

pub mod agent;
pub mod cli;
pub mod datapath;
pub mod health;
pub mod kernel;
pub mod model;
pub mod plan;
pub mod render;
pub mod source;
pub mod view;
