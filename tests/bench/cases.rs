//! What is measured of the real programs, and how it is shown.

use std::net::SocketAddr;

use anyhow::{Result, ensure};
use bpvs_tests::{datapath::Hook, packets::flags};
use lb_common::{
    address::Protocol,
    packet::Family,
    scheduler::{Scheduler, maglev},
};

use crate::{
    machine,
    packets::{Direction, Template, address, template},
    report::{self, Figure, cell},
    rig::{Effort, Flows, Rig, Served},
};

/// Flows in the table while known connections are measured.
const KNOWN_FLOWS: u32 = 200_000;
/// Connections that the table has room for then: both protocols' known ones, half full as hash tables like it.
const ROOM: u32 = 4 * KNOWN_FLOWS;
/// Connections that the table has room for while new ones are measured: as shipped.
const ROOM_AS_SHIPPED: u32 = 131_072;
/// Destinations that a scheduler chooses among.
const DESTINATIONS: [u32; 4] = [4, 64, 1_024, 4_096];
const FAMILIES: [(Family, &str); 2] = [(Family::V4, "IPv4"), (Family::V6, "IPv6")];

/// Case: a table of the shipped size with nothing in it but what is being opened. It was used before, so that its free
/// entries lie anywhere in memory, as they do in life.
const EMPTY_TABLE: &str = "new connection";
/// Case: the same table when nothing has ever been in it, and its free entries lie in a row.
const UNUSED_TABLE: &str = "new connection, table never used";
/// Case: beside the known connections, in memory that no cache holds.
const USED_TABLE: &str = "new connection, beside 400000 known";

/// Case: [`UNUSED_TABLE`] by XDP.
const UNUSED_UPLINK: &str = "XDP, new connection, table never used";
/// Case: [`EMPTY_TABLE`] by XDP.
const EMPTY_UPLINK: &str = "XDP, new connection";

const PORT: u16 = 80;
const SERVER_PORT: u16 = 8080;

/// The programs that a connection's packets go by, and what its rows are called.
#[derive(Clone, Copy)]
struct Way {
    request: Hook,
    reply: Hook,
    name: &'static str,
}

const TC: Way = Way { request: Hook::Ingress, reply: Hook::Egress, name: "" };
/// In and out at one program: translated, routed, and sent.
const XDP: Way = Way { request: Hook::Uplink, reply: Hook::Uplink, name: "XDP, " };

/// Measures and prints everything.
pub(crate) fn run(quick: bool) -> Result<Vec<Figure>> {
    let part = if quick { 10 } else { 1 };
    let known_effort = Effort { batches: 25, runs: 40_000 / part };
    let new_effort = Effort { batches: 25, runs: 800 / part };
    let (mut figures, mut uplink) = (Vec::new(), None);
    for (family, name) in FAMILIES {
        let mut rig = Rig::load(ROOM)?;
        let mut bench = Bench { rig: &mut rig, family, name, figures: &mut figures };
        bench.misses(TC, known_effort)?;
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            bench.known(TC, protocol, known_effort)?;
        }
        bench.new_connections(USED_TABLE, Hook::Ingress, Scheduler::RoundRobin, DESTINATIONS[0], new_effort)?;
        let mut rig = Rig::load_uplink(ROOM)?;
        bench.rig = &mut rig;
        bench.misses(XDP, known_effort)?;
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            bench.known(XDP, protocol, known_effort)?;
        }
        let mut rig = Rig::load_uplink(ROOM_AS_SHIPPED)?;
        bench.rig = &mut rig;
        for case in [UNUSED_UPLINK, EMPTY_UPLINK] {
            bench.new_connections(case, Hook::Uplink, Scheduler::RoundRobin, DESTINATIONS[0], new_effort)?;
        }
        if matches!(family, Family::V6) {
            uplink = Some((Hook::Uplink.program(), bench.rig.verified(Hook::Uplink.program())?));
        }
        let mut rig = Rig::load(ROOM_AS_SHIPPED)?;
        bench.rig = &mut rig;
        bench.new_connections(UNUSED_TABLE, Hook::Ingress, Scheduler::RoundRobin, DESTINATIONS[0], new_effort)?;
        for scheduler in Scheduler::ALL {
            for destinations in DESTINATIONS {
                bench.new_connections(EMPTY_TABLE, Hook::Ingress, scheduler, destinations, new_effort)?;
            }
        }
        if matches!(family, Family::V6) {
            print_packets(&figures);
            print_new(&figures);
            print_programs(&rig, uplink)?;
            report::print_memory(&machine::map_memory(rig.object())?);
        }
    }
    Ok(figures)
}

struct Bench<'a> {
    rig: &'a mut Rig,
    family: Family,
    name: &'static str,
    figures: &'a mut Vec<Figure>,
}

impl Bench<'_> {
    fn frontend(&self) -> SocketAddr {
        SocketAddr::new(address(self.family, 96, 1), PORT)
    }

    fn server(&self, number: u16) -> SocketAddr {
        SocketAddr::new(address(self.family, 64, number), SERVER_PORT)
    }

    fn serve(&mut self, protocol: Protocol, scheduler: Scheduler, destinations: u32) -> Result<Served> {
        // mh cannot serve three of the most destinations: its table has 4093 cells.
        let most = if scheduler == Scheduler::Maglev { maglev::TABLE_LENGTH as u32 } else { u32::MAX };
        let servers: Vec<_> = (1..=destinations.min(most)).map(|number| self.server(number as u16)).collect();
        self.rig.serve(self.frontend(), protocol, scheduler, servers.into_iter())
    }

    fn record(&mut self, case: String, hook: Hook, choice: Option<(Scheduler, u32)>, ns: f64) -> Result<()> {
        self.figures.push(Figure {
            case,
            family: Some(self.name),
            scheduler: choice.map(|(scheduler, _)| scheduler.name()),
            destinations: choice.map(|(_, destinations)| destinations),
            ns,
            verified_insns: self.rig.verified(hook.program())?,
        });
        Ok(())
    }

    /// Packets that no service wants.
    fn misses(&mut self, way: Way, effort: Effort) -> Result<()> {
        let stranger = SocketAddr::new(address(self.family, 97, 1), PORT);
        let packet = template(Direction::Request, Protocol::Tcp, stranger, flags::ACK);
        let overhead = self.rig.overhead(way.request, &packet, effort)?;
        self.figures.push(Figure {
            case: format!("{}driver and empty program", way.name),
            family: Some(self.name),
            scheduler: None,
            destinations: None,
            ns: overhead,
            verified_insns: 0,
        });
        let misses: &[(&str, Hook, Direction)] = match way.request {
            Hook::Uplink => &[("XDP, miss", Hook::Uplink, Direction::Request)],
            _ => &[("miss, ingress", way.request, Direction::Request), ("miss, egress", way.reply, Direction::Reply)],
        };
        for &(case, hook, direction) in misses {
            let packet = template(direction, Protocol::Tcp, stranger, flags::ACK);
            let ns = self.rig.cost_of_miss(hook, &packet, effort)?;
            self.record(case.to_owned(), hook, None, ns)?;
        }
        Ok(())
    }

    /// Packets of connections in the table, both ways.
    fn known(&mut self, way: Way, protocol: Protocol, effort: Effort) -> Result<()> {
        let served = self.serve(protocol, Scheduler::RoundRobin, 1)?;
        let request = |bits| template(Direction::Request, protocol, self.frontend(), bits);
        let reply = |bits| template(Direction::Reply, protocol, self.server(1), bits);
        let (first, answer) = (request(flags::SYN), reply(flags::SYN | flags::ACK));
        let (request, reply) = (request(flags::ACK), reply(flags::ACK));
        // A handshake on each, and a reply after it: from then on nothing about the connection changes.
        let steps: [(Hook, &Template); 4] =
            [(way.request, &first), (way.reply, &answer), (way.request, &request), (way.reply, &reply)];
        for (hook, packet) in steps {
            self.rig.send_all(hook, packet, KNOWN_FLOWS)?;
        }
        let opened = self.rig.traffic(&served)?;
        ensure!(
            opened.connections == u64::from(KNOWN_FLOWS) && opened.out_packets == 2 * u64::from(KNOWN_FLOWS),
            "{KNOWN_FLOWS} connections were to be opened, with two replies each: {opened:?}"
        );
        for (direction, hook, packet) in [("request", way.request, &request), ("reply", way.reply, &reply)] {
            for (flows, of) in [(1, "one flow".to_owned()), (KNOWN_FLOWS, format!("any of {KNOWN_FLOWS}"))] {
                let before = self.rig.traffic(&served)?;
                let ns = self.rig.cost(hook, packet, Flows::Any(flows), effort)?;
                let after = self.rig.traffic(&served)?;
                let counted = after.in_packets - before.in_packets + after.out_packets - before.out_packets;
                ensure!(
                    counted == u64::from(effort.total()) && after.connections == before.connections,
                    "{} packets of known connections were sent, {counted} were translated",
                    effort.total()
                );
                let case = format!("{}known {direction}, {}, {of}", way.name, protocol.name());
                self.record(case, hook, None, ns)?;
            }
        }
        Ok(())
    }

    /// First packets of connections.
    fn new_connections(
        &mut self,
        case: &str,
        hook: Hook,
        scheduler: Scheduler,
        destinations: u32,
        effort: Effort,
    ) -> Result<()> {
        let served = self.serve(Protocol::Tcp, scheduler, destinations)?;
        self.rig.spread_load(&served)?;
        let before = self.rig.traffic(&served)?;
        let packet = template(Direction::Request, Protocol::Tcp, self.frontend(), flags::SYN);
        let ns = self.rig.cost(hook, &packet, Flows::Fresh(u64::from(KNOWN_FLOWS)), effort)?;
        let opened = self.rig.traffic(&served)?.connections - before.connections;
        ensure!(
            opened == u64::from(effort.total()),
            "{} connections were to be opened by {} among {destinations}: {opened} were",
            effort.total(),
            scheduler.name()
        );
        self.rig.forget()?;
        self.record(case.to_owned(), hook, Some((scheduler, destinations)), ns)
    }
}

fn of<'a>(figures: &'a [Figure], case: &'a str, family: &'a str) -> impl Iterator<Item = &'a Figure> {
    figures.iter().filter(move |figure| figure.case == case && figure.family == Some(family))
}

fn print_packets(figures: &[Figure]) {
    let head = ["ns per packet, net", "IPv4", "IPv6"].map(str::to_owned);
    let mut rows: Vec<Vec<String>> = Vec::new();
    let shown = |figure: &&Figure| figure.case != EMPTY_TABLE && figure.family == Some(FAMILIES[0].1);
    for figure in figures.iter().filter(shown) {
        let ns =
            FAMILIES.iter().flat_map(|(_, family)| of(figures, &figure.case, family)).map(|figure| cell(figure.ns));
        rows.push([figure.case.clone()].into_iter().chain(ns).collect());
    }
    report::print(&head, &rows);
}

fn print_new(figures: &[Figure]) {
    let mut head = vec!["new connection, ns".to_owned()];
    for (_, family) in FAMILIES {
        head.extend(DESTINATIONS.map(|destinations| format!("{family}/{destinations}")));
        head.push("x".to_owned());
    }
    let rows: Vec<Vec<String>> = Scheduler::ALL.map(|scheduler| row(figures, scheduler)).into();
    report::print(&head, &rows);
    println!("(columns: destinations to choose among; x: cost among the most, as a multiple of that among the fewest;");
    println!(" mh: 4093 instead of 4096, the cells of its table)");
}

fn row(figures: &[Figure], scheduler: Scheduler) -> Vec<String> {
    let mut row = vec![scheduler.name().to_owned()];
    for (_, family) in FAMILIES {
        let ns: Vec<f64> = of(figures, EMPTY_TABLE, family)
            .filter(|figure| figure.scheduler == Some(scheduler.name()))
            .map(|figure| figure.ns)
            .collect();
        row.extend(ns.iter().map(|&ns| cell(ns)));
        if let [first, .., last] = ns[..] {
            row.push(format!("{:.2}", last / first));
        }
    }
    row
}

fn print_programs(rig: &Rig, uplink: Option<(&'static str, u32)>) -> Result<()> {
    let head = ["program", "verified instructions"].map(str::to_owned);
    let mut rows = Vec::new();
    for name in ["bpvs_ingress", "bpvs_egress", "bpvs_sweep"] {
        rows.push(vec![name.to_owned(), rig.verified(name)?.to_string()]);
    }
    rows.extend(uplink.map(|(name, verified)| vec![name.to_owned(), verified.to_string()]));
    report::print(&head, &rows);
    Ok(())
}
