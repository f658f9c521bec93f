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

/// Hundreds of thousands of small objects come and go: musl's allocator, which the static binary would have, and glibc's take
/// several times as long, and keep more.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;
