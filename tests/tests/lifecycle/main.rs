//! Changes, accidents and restarts while traffic flows, and what bpvs leaves alone.

mod changes;
mod foreign;
mod interfaces;
mod load;
mod removal;
mod repair;
mod restart;
mod rules;
mod uplinks;
