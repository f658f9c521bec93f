//! Real traffic through the real agent: what every client and server sees.

mod bulk;
mod errors;
mod hairpin;
mod identity;
mod netfilter;
mod refused;
mod schedulers;
mod untouched;
