//! What both sides of the kernel boundary share.
//!
//! `no_std`, no allocation, no I/O: pure functions over plain data that run unchanged inside the BPF programs
//! (`lb-ebpf`) and on the host (`lb-userspace`, tests).
//!
//! | module | idea |
//! |---|---|
//! | [`address`] | addresses and ports as the maps hold them |
//! | [`layout`] | keys and values of every BPF map |
//! | [`scheduler`] | the IPVS schedulers, as steps over destinations and tables |
//! | [`tcp`], [`sctp`] | connection state machines |
//! | [`timeouts`] | how long a connection lives in each state |
//! | [`packet`] | parsing, over any source of bytes |
//! | [`connection`] | what a packet does to its connection and to the counts |
//! | [`nat`] | translations as values, and their checksums |
//! | [`tunnel`] | packets inside of other packets |
//! | [`drops`] | the name of every way a packet can end |
#![no_std]

pub mod address;
pub mod connection;
pub mod drops;
pub mod layout;
pub mod nat;
pub mod packet;
pub mod scheduler;
pub mod sctp;
pub mod tcp;
pub mod timeouts;
pub mod tunnel;
