//! The library behind `bpvs`.

pub mod agent;
pub mod cli;
pub mod datapath;
pub mod health;
pub mod kernel;
pub mod kube_proxy;
pub mod metrics;
pub mod model;
pub mod notices;
pub mod plan;
pub mod render;
pub mod serving;
pub mod source;
pub mod view;
