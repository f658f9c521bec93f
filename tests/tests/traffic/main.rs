//! Real traffic through the real agent: what every client and server sees.

mod bulk;
mod datagrams;
mod direct;
mod elsewhere;
mod errors;
mod established;
mod every_frontend;
mod hairpin;
mod health;
mod identity;
mod netfilter;
mod node;
mod node_addresses;
mod node_ports;
mod out_of_window;

mod pods_by_interface;
mod refused;
mod reused;
mod schedulers;
mod silence;
mod slices;
mod takeover;
mod two_uplinks;
mod untouched;
mod zones;
