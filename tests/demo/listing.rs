//! `bpvs list`: read as `ipvsadm -Ln` prints it, waited for, and shown.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bpvs_tests::agent::Agent;

use crate::schedulers::{HeldSet, RANDOM, TCP, addresses};
use crate::screen::Screen;

/// A change of a manifest shows within this time.
const CHANGE: Duration = Duration::from_secs(10);

/// The virtual services of one output.
#[derive(Debug)]
pub(crate) struct Listing {
    services: Vec<Service>,
}

#[derive(Debug)]
pub(crate) struct Service {
    protocol: String,
    address: SocketAddr,
    pub(crate) scheduler: String,
    pub(crate) servers: Vec<Server>,
    text: String,
}

#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) weight: i32,
    active: u32,
}

impl Listing {
    pub(crate) fn read(agent: &Agent<'_>) -> Result<Self> {
        Self::parse(&agent.command(&["list"])?)
    }

    fn parse(text: &str) -> Result<Self> {
        let mut services: Vec<Service> = Vec::new();
        for line in text.lines() {
            let words: Vec<_> = line.split_whitespace().collect();
            match words[..] {
                [protocol @ ("TCP" | "UDP" | "SCTP"), address, scheduler, ..] => services.push(Service {
                    protocol: protocol.to_owned(),
                    address: address.parse().with_context(|| format!("`bpvs list` says {line:?}"))?,
                    scheduler: scheduler.to_owned(),
                    servers: Vec::new(),
                    text: line.to_owned(),
                }),
                ["->", address, _forward, weight, active, _inactive] if address != "RemoteAddress:Port" => {
                    let service = services.last_mut().with_context(|| format!("a server first: {line:?}"))?;
                    let bad = || format!("`bpvs list` says {line:?}");
                    service.servers.push(Server {
                        address: address.parse().with_context(bad)?,
                        weight: weight.parse().with_context(bad)?,
                        active: active.parse().with_context(bad)?,
                    });
                    service.text.push_str(&format!("\n{line}"));
                }
                _ => {}
            }
        }
        Ok(Self { services })
    }

    pub(crate) fn service(&self, protocol: &str, address: SocketAddr) -> Option<&Service> {
        self.services.iter().find(|service| service.protocol == protocol && service.address == address)
    }
}

/// Waits until `bpvs list` shows what is wanted.
pub(crate) fn wait_for(agent: &Agent<'_>, what: &str, wanted: impl Fn(&Listing) -> bool) -> Result<()> {
    let end = Instant::now() + CHANGE;
    loop {
        let listing = Listing::read(agent)?;
        if wanted(&listing) {
            return Ok(());
        }
        if Instant::now() >= end {
            let text = agent.command(&["list"])?;
            bail!("`bpvs list` does not show {what} after {CHANGE:?}; it shows:\n{text}");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Shows the TCP services of IPv4, and holds the active counts of all against the connections that are open.
pub(crate) fn show(agent: &Agent<'_>, held: &HeldSet, screen: &mut Screen) -> Result<()> {
    let listing = Listing::read(agent)?;
    let shown = |service: &&Service| service.protocol == "TCP" && service.address.is_ipv4();
    screen.heading("bpvs list (TCP over IPv4; the same exists for UDP and IPv6)");
    screen.plain("Prot LocalAddress:Port Scheduler Flags");
    screen.plain("  -> RemoteAddress:Port           Forward Weight ActiveConn InActConn");
    for service in listing.services.iter().filter(shown) {
        service.text.lines().for_each(|line| screen.plain(line));
    }
    let mut wrong = Vec::new();
    for scheduler in bpvs_tests::model::SCHEDULERS.into_iter().chain([RANDOM]) {
        let (v4, v6) = addresses(scheduler)?;
        for address in [v4, v6].map(|ip| SocketAddr::new(ip, TCP)) {
            let Some(service) = listing.service("TCP", address) else {
                wrong.push(format!("{address} is missing"));
                continue;
            };
            for (server, id) in service.servers.iter().map(|server| (server, id_of(server.address))) {
                let open = held.iter().filter(|(to, held)| *to == address && Some(held.server) == id).count();
                if server.active as usize != open {
                    wrong.push(format!("{address} -> {}: {} active, {open} are open", server.address, server.active));
                }
            }
        }
    }
    let open = held.len();
    screen.check(wrong.is_empty(), &format!("active counts of the list agree with the {open} open connections"));
    wrong.iter().take(10).for_each(|line| screen.plain(line));
    Ok(())
}

/// Number of the server with this address: its last part.
pub(crate) fn id_of(address: SocketAddr) -> Option<u16> {
    match address {
        SocketAddr::V4(address) => Some(address.ip().octets()[3].into()),
        SocketAddr::V6(address) => address.ip().segments().last().copied(),
    }
}

#[cfg(test)]
mod tests {
    use super::{Listing, id_of};

    #[test]
    fn the_layout_of_ipvsadm_is_read() {
        let text = "\
IP Virtual Server version 1.2.1 (size=4096)
Prot LocalAddress:Port Scheduler Flags
  -> RemoteAddress:Port           Forward Weight ActiveConn InActConn
TCP  10.96.0.11:80 rr
  -> 10.1.1.5:8080                Masq    5      7          3
UDP  [fd00:96::11]:53 wlc
  -> [fd00:1:1::4]:5353           Masq    4      0          12
";
        let listing = Listing::parse(text).unwrap();
        let rr = listing.service("TCP", "10.96.0.11:80".parse().unwrap()).unwrap();
        assert_eq!((rr.scheduler.as_str(), rr.servers.len()), ("rr", 1));
        assert_eq!((rr.servers[0].weight, rr.servers[0].active), (5, 7));
        let wlc = listing.service("UDP", "[fd00:96::11]:53".parse().unwrap()).unwrap();
        assert_eq!(id_of(wlc.servers[0].address), Some(4));
    }
}
