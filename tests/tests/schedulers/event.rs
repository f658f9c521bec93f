//! What can happen, in words: one line of a history.

use std::fmt;

use lb_common::scheduler::Scheduler;

/// A scheduler with its flags.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Choice {
    pub(crate) scheduler: Scheduler,
    pub(crate) port: bool,
    pub(crate) fallback: bool,
}

/// One event. Services, addresses and servers go by number.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Event {
    /// A segment from a client to a virtual address.
    Request { service: usize, address: usize, client: usize, port: u16, flags: u8 },
    /// A segment from the server of the connection of this client.
    Reply { service: usize, address: usize, client: usize, port: u16, flags: u8 },
    /// A server's weight is set.
    Weight { service: usize, server: u32, weight: i32 },
    /// A server is added.
    Add { service: usize, server: u32, weight: i32 },
    /// A server is deleted.
    Delete { service: usize, server: u32 },
    /// The scheduler or its flags change.
    Switch { service: usize, choice: Choice },
    /// All at once: scheduler, deletions, weights and additions in one plan.
    Replace { service: usize, choice: Choice, servers: Vec<(u32, i32)> },
    /// The service is removed, then created again with the same servers.
    Recreate { service: usize },
    /// Connections get older, and a sweep runs.
    Wait { seconds: u64, recount: bool },
    /// What lblc and lblcr remember gets older.
    Forget { seconds: u64 },
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let port = if self.port { " port" } else { "" };
        let fallback = if self.fallback { " fallback" } else { "" };
        write!(f, "{}{port}{fallback}", self.scheduler.name())
    }
}

fn named(flags: u8) -> String {
    let names = [(2, "SYN"), (1, "FIN"), (4, "RST"), (16, "ACK")];
    let set: Vec<_> = names.iter().filter(|(bit, _)| flags & bit != 0).map(|(_, name)| *name).collect();
    if set.is_empty() { "no flags".to_owned() } else { set.join("+") }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Request { service, address, client, port, flags } => {
                write!(f, "client {client}:{port} -> service {service} address {address}: {}", named(*flags))
            }
            Self::Reply { service, address, client, port, flags } => {
                write!(f, "client {client}:{port} <- service {service} address {address}: {}", named(*flags))
            }
            Self::Weight { service, server, weight } => write!(f, "service {service}: weight of {server} = {weight}"),
            Self::Add { service, server, weight } => write!(f, "service {service}: add {server} weight {weight}"),
            Self::Delete { service, server } => write!(f, "service {service}: delete {server}"),
            Self::Switch { service, choice } => write!(f, "service {service}: switch to {choice}"),
            Self::Replace { service, choice, servers } => {
                write!(f, "service {service}: now {choice} with {servers:?}")
            }
            Self::Recreate { service } => write!(f, "service {service}: removed and created again"),
            Self::Wait { seconds, recount } => write!(f, "{seconds} s pass, sweep, recount {recount}"),
            Self::Forget { seconds } => write!(f, "{seconds} s pass for lblc and lblcr"),
        }
    }
}
