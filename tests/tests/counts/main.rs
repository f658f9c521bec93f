//! What `bpvs list` and `bpvs connections` say, against what is open and what was sent.

mod active;
mod expiry;
mod shown;
mod sockets;
mod traffic;
