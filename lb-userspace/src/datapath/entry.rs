//! What an entry of `services` says of a service beside its set, table and scheduler.

use std::collections::BTreeSet;

use lb_common::layout::{
    ACCESS_MASQUERADE, ACCESS_MASQUERADE_EXTERNAL, ACCESS_SILENT, ACCESS_SOURCES, ACCESS_SPLIT, SERVICE_ALL_PORTS,
    SERVICE_HASH_FALLBACK, SERVICE_HASH_PORT, SERVICE_MARKED, SERVICE_ONE_PACKET, SERVICE_PERSISTENT,
    SERVICE_THRESHOLDS, SERVICE_TUNNELS, Service,
};

use super::{
    Access, AffinityGroup, ApplyError, DesiredService, Masquerade, Method, Persistence, Scope, Thresholds,
    frontend::{Virtual, bits_before},
    state::Member,
};
use lb_common::{
    address::Protocol,
    scheduler::{Scheduler, maglev},
};

/// Sets the fields that follow from what is asked for and from the list.
pub(super) fn describe(value: Service, service: &Virtual, desired: &DesiredService, list: &[Member]) -> Service {
    let before = bits_before(service.address.is_ipv4());
    let marked = matches!(service.scope, Scope::Mark(_));
    let flags = [
        (desired.hash_port, SERVICE_HASH_PORT),
        (desired.hash_fallback, SERVICE_HASH_FALLBACK),
        (desired.one_packet, SERVICE_ONE_PACKET),
        (desired.persistence.is_some(), SERVICE_PERSISTENT),
        (service.port == 0 && !marked, SERVICE_ALL_PORTS),
        (marked, SERVICE_MARKED),
        (list.iter().any(|member| member.thresholds.upper != 0), SERVICE_THRESHOLDS),
        (list.iter().any(|member| member.method == Method::OwnTunnel), SERVICE_TUNNELS),
    ];
    Service {
        flags: flags.into_iter().filter(|(set, _)| *set).fold(0, |flags, (_, flag)| flags | flag),
        persistence_prefix: desired.persistence.map_or(0, |persistence| before.saturating_add(persistence.netmask)),
        persistence_timeout: desired.persistence.map_or(0, |persistence| persistence.timeout.saturating_mul(1000)),
        access: access_flags(&desired.access),
        affinity_group: desired.persistence.and(desired.affinity).map_or([0; 2], AffinityGroup::words),
        ..value
    }
}

/// [`Service::access`].
fn access_flags(desired: &Access) -> u8 {
    let flags = [
        (desired.split, ACCESS_SPLIT),
        (desired.masquerade == Masquerade::External, ACCESS_MASQUERADE_EXTERNAL),
        (desired.masquerade == Masquerade::Always, ACCESS_MASQUERADE),
        (desired.silent, ACCESS_SILENT),
        (!desired.sources.is_empty(), ACCESS_SOURCES),
    ];
    flags.into_iter().filter(|(set, _)| *set).fold(0, |flags, (_, flag)| flags | flag)
}

/// The access of an entry, without the networks of [`Access::sources`], which stand elsewhere.
pub fn access(value: &Service) -> Access {
    let has = |flag| value.access & flag != 0;
    Access {
        masquerade: if has(ACCESS_MASQUERADE) {
            Masquerade::Always
        } else if has(ACCESS_MASQUERADE_EXTERNAL) {
            Masquerade::External
        } else {
            Masquerade::Never
        },
        split: has(ACCESS_SPLIT),
        silent: has(ACCESS_SILENT),
        sources: BTreeSet::new(),
    }
}

/// The persistence of an entry, in whole seconds.
pub fn persistence(value: &Service, v4: bool) -> Option<Persistence> {
    let before = bits_before(v4);
    (value.flags & SERVICE_PERSISTENT != 0).then(|| Persistence {
        timeout: value.persistence_timeout / 1000,
        netmask: value.persistence_prefix.saturating_sub(before),
    })
}

/// True if templates of this service's clients may name its destinations by their ids.
pub(super) const fn holds_destinations(value: &Service) -> bool {
    value.flags & SERVICE_PERSISTENT != 0 && matches!(value.affinity_group, [0, 0])
}

/// Refuses what the maps cannot hold, or what would be served otherwise than meant.
pub(super) fn check(service: Virtual, desired: &DesiredService, limit: u32) -> Result<(), ApplyError> {
    let (origin, count) = (desired.origin.clone(), desired.destinations.len());
    if count > limit as usize {
        return Err(ApplyError::TooManyDestinations { origin, service, count, limit });
    }
    let cells = maglev::TABLE_LENGTH;
    if desired.scheduler == Scheduler::Maglev && count > cells {
        return Err(ApplyError::TooManyForTable { origin, service, count, cells });
    }
    match problem(&service, desired) {
        Some(problem) => Err(ApplyError::Refused { origin, service, problem }),
        None => Ok(()),
    }
}

fn problem(service: &Virtual, desired: &DesiredService) -> Option<String> {
    let frontend = service.problem();
    let persistence = desired.persistence.and_then(|persistence| persistence_problem(service, persistence));
    let datagrams = service.protocol == Protocol::Udp || matches!(service.scope, Scope::Mark(_));
    let one_packet = (desired.one_packet && !datagrams)
        .then(|| "scheduling of each packet for itself (ipvsadm -o) is for UDP: leave it out".to_owned());
    let thresholds = desired.destinations.iter().find_map(|server| {
        let Thresholds { upper, lower } = server.thresholds;
        let place = std::net::SocketAddr::new(server.address, server.port);
        if lower > upper {
            return Some(format!("{place}: its lower threshold {lower} is above its upper one {upper}"));
        }
        let highest = i32::MAX as u32;
        (upper > highest).then(|| format!("{place}: its upper threshold {upper} is above {highest}, the highest"))
    });
    let family = desired
        .destinations
        .iter()
        .find(|server| server.method != Method::Tunnel && server.address.is_ipv4() != service.address.is_ipv4());
    let family = family.map(|server| {
        format!("{}: a server of another address family is reached in a tunnel only (ipvsadm -i)", server.address)
    });
    frontend.or(persistence).or(one_packet).or(thresholds).or(family)
}

fn persistence_problem(service: &Virtual, Persistence { timeout, netmask }: Persistence) -> Option<String> {
    let longest = Persistence::LONGEST;
    if timeout == 0 || timeout > longest {
        return Some(format!("a persistence timeout of {timeout} s: allowed are 1 to {longest}"));
    }
    // IPVS takes no IPv6 prefix of 0 bits either.
    let (lowest, highest) = if service.address.is_ipv4() { (0, 32) } else { (1, 128) };
    let allowed = (lowest..=highest).contains(&netmask);
    (!allowed).then(|| format!("a persistence netmask of {netmask} bits: allowed are {lowest} to {highest}"))
}
