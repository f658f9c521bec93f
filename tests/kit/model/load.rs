//! lc, wlc, sed and nq: who has least to do (spec 3.3 to 3.6). fo and ovf: who has the highest weight (3.7, 3.8). Ties stay with the first of the list.

use super::{Id, Server, Servers};

/// IPVS's overhead, in 32 bits: an active connection weighs 257 inactive ones since 2026, as 256 of them and one connection
/// more.
pub(super) fn overhead(server: &Server) -> i32 {
    server.active.wrapping_mul(257).wrapping_add(server.inactive)
}

/// True if `challenger` has less to do for its weight than `best`, by the given cost.
pub(super) fn lighter(challenger: &Server, best: &Server, cost: fn(&Server) -> i32) -> bool {
    i64::from(cost(best)) * i64::from(challenger.weight) > i64::from(cost(challenger)) * i64::from(best.weight)
}

fn usable(servers: &Servers) -> Vec<Server> {
    servers.list().into_iter().filter(|s| s.weight > 0).collect()
}

fn lightest(servers: &Servers, cost: fn(&Server) -> i32) -> Option<Id> {
    let usable = usable(servers);
    let mut best = *usable.first()?;
    for server in usable {
        if lighter(&server, &best, cost) {
            best = server;
        }
    }
    Some(best.id)
}

fn shortest_delay(server: &Server) -> i32 {
    server.active.wrapping_add(1)
}

pub(super) fn lc(servers: &Servers) -> Option<Id> {
    let usable = usable(servers);
    let mut best = *usable.first()?;
    for server in usable {
        if (overhead(&server) as u32) < overhead(&best) as u32 {
            best = server;
        }
    }
    Some(best.id)
}

pub(super) fn wlc(servers: &Servers) -> Option<Id> {
    lightest(servers, overhead)
}

pub(super) fn sed(servers: &Servers) -> Option<Id> {
    lightest(servers, shortest_delay)
}

pub(super) fn nq(servers: &Servers) -> Option<Id> {
    match usable(servers).iter().find(|s| s.active == 0) {
        Some(idle) => Some(idle.id),
        None => sed(servers),
    }
}

pub(super) fn fo(servers: &Servers) -> Option<Id> {
    heaviest(usable(servers))
}

pub(super) fn ovf(servers: &Servers) -> Option<Id> {
    heaviest(usable(servers).into_iter().filter(|s| s.active <= s.weight).collect())
}

/// The first of those with the highest weight.
fn heaviest(servers: Vec<Server>) -> Option<Id> {
    let highest = servers.iter().map(|s| s.weight).max()?;
    servers.iter().find(|s| s.weight == highest).map(|s| s.id)
}
