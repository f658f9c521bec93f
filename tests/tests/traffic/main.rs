//! Real traffic through the real agent: what every client and server sees.

mod bulk;
mod errors;
mod hairpin;
mod health;
mod identity;
mod netfilter;
mod node_ports;
mod refused;
mod schedulers;
mod takeover;
mod untouched;
