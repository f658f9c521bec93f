//! Tests of the connection state machines and their timeouts.

mod sctp;
mod tcp;
mod timeouts;
