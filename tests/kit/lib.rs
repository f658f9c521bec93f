//! The test kit: network namespaces, a node with servers and clients around it, real traffic, the real agent, raw
//! packets, and what IPVS answers. What it makes is removed when dropped, after a panic too, and by the next run after
//! a SIGKILL.

pub mod agent;
pub mod api_server;
pub mod arguments;
pub mod cleanup;
pub mod control_plane;
pub mod counters;
pub mod datapath;
pub mod exposition;
pub mod foreign;
pub mod http;
pub mod kube_proxy;
pub mod model;
pub mod namespace;
pub mod oracle;
pub mod packets;
pub mod sequences;
pub mod topology;
pub mod traffic;
pub mod world;
