//! The same packets through both directors.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use anyhow::{Context, Result, bail, ensure};
use bpvs_tests::oracle::network::{Network, Outcome};
use bpvs_tests::oracle::script::{Side, Signal};
use bpvs_tests::oracle::signals;
use bpvs_tests::packets::Packet;
use lb_common::address::Protocol;
use lb_common::scheduler::Scheduler;

use super::directors::Networks;

/// Services whose connections get into every state that a listing can show; `ipvsadm -R` and `bpvs run` read the same text.
const RULES: &str = "\
-A -t 10.64.0.1:80 -s rr
-a -t 10.64.0.1:80 -r 10.20.0.1:8080 -m -w 1
-a -t 10.64.0.1:80 -r 10.20.0.2:8080 -m -w 1
-a -t 10.64.0.1:80 -r 10.20.0.3:8080 -m -w 0
-A -u 10.64.0.1:53 -s wrr
-a -u 10.64.0.1:53 -r 10.20.0.1:5353 -m -w 3
-a -u 10.64.0.1:53 -r 10.20.0.2:5353 -m -w 1
-A --sctp-service 10.64.0.1:36412 -s wlc
-a --sctp-service 10.64.0.1:36412 -r 10.20.0.1:36412 -m -w 1
-a --sctp-service 10.64.0.1:36412 -r 10.20.0.2:36412 -m -w 2
-A -t [fd64::1]:80 -s wlc
-a -t [fd64::1]:80 -r [fd20::1]:8080 -m -w 10 -x 2 -y 1
-a -t [fd64::1]:80 -r [fd20::2]:8080 -m -w 1 -x 100
-A -u [fd64::1]:53 -s lc
-a -u [fd64::1]:53 -r [fd20::1]:5353 -m -w 1
-A --sctp-service [fd64::1]:36412 -s rr
-a --sctp-service [fd64::1]:36412 -r [fd20::1]:36412 -m -w 1
-A -t 10.64.0.2:443 -s sh -p 600 -M 255.255.255.0 -b sh-port
-a -t 10.64.0.2:443 -r 10.20.0.1:8443 -m -w 1
-a -t 10.64.0.2:443 -r 10.20.0.2:8443 -m -w 1
-A -u 10.64.0.2:53 -s rr -o
-a -u 10.64.0.2:53 -r 10.20.0.1:5353 -m -w 1
-a -u 10.64.0.2:53 -r 10.20.0.2:5353 -m -w 1
-A -t 10.64.0.3:0 -s rr -p 360
-a -t 10.64.0.3:0 -r 10.20.0.1:0 -m -w 1
-a -t 10.64.0.3:0 -r 10.20.0.2:0 -m -w 1
-A -t [fd64::2]:443 -s mh -p 600 -M 64 -b mh-fallback
-a -t [fd64::2]:443 -r [fd20::1]:8443 -m -w 1
-a -t [fd64::2]:443 -r [fd20::2]:8443 -m -w 1
-A -f 7 -s rr -p 300
-a -f 7 -r 10.20.0.1:0 -m -w 1
-a -f 7 -r 10.20.0.2:0 -m -w 1
-A -f 8 -6 -s rr -p 300 -M 48
-a -f 8 -6 -r [fd20::1]:0 -m -w 1
-a -f 8 -6 -r [fd20::2]:0 -m -w 1
-A -f 10 -s rr -p 300
-a -f 10 -r 10.20.0.1:8080 -m -w 1
-A -f 9 -s wlc
-a -f 9 -r 10.20.0.1:8080 -m -w 1
-A -t 10.64.0.4:80 -s rr
-A -t 10.64.0.5:80 -s rr
-a -t 10.64.0.5:80 -r 10.20.0.1:8080 -m -w 0
";

/// What is marked: mark, protocol of the filter, address.
pub(crate) const MARKS: [(u32, &str, &str); 4] =
    [(7, "ip", "10.64.0.7"), (8, "ipv6", "fd64::8"), (9, "ip", "10.64.0.9"), (10, "ip", "10.64.0.10")];

/// Connections: protocol, client, virtual address, and what is said, in the letters of scripts: a client's small, a
/// server's large.
const PACKETS: [(Protocol, &str, &str, &str); 62] = {
    use Protocol::{Sctp, Tcp, Udp};
    [
        (Tcp, "10.8.0.1:1001", "10.64.0.1:80", "s"),
        (Tcp, "10.8.0.1:1002", "10.64.0.1:80", "sS"),
        (Tcp, "10.8.0.1:1003", "10.64.0.1:80", "sSadDdDaA"),
        (Tcp, "10.8.0.1:1004", "10.64.0.1:80", "sSadf"),
        (Tcp, "10.8.0.1:1005", "10.64.0.1:80", "sSaF"),
        (Tcp, "10.8.0.1:1006", "10.64.0.1:80", "sSafAF"),
        (Tcp, "10.8.0.1:1007", "10.64.0.1:80", "sSaFaf"),
        (Tcp, "10.8.0.1:1008", "10.64.0.1:80", "sSafAFa"),
        (Tcp, "10.8.0.1:1009", "10.64.0.1:80", "sSaFafA"),
        (Tcp, "10.8.0.1:1010", "10.64.0.1:80", "sSar"),
        (Tcp, "10.8.0.1:1011", "10.64.0.1:80", "sR"),
        (Tcp, "10.8.0.1:1012", "10.64.0.1:80", "ss"),
        (Tcp, "10.8.0.1:1013", "10.64.0.1:80", "sx"),
        (Tcp, "10.8.0.1:1014", "10.64.0.1:80", "sX"),
        (Tcp, "10.8.0.1:1020", "10.64.0.1:80", "sSaFX"),
        (Tcp, "10.8.0.1:1015", "10.64.0.1:80", "sSadDdD"),
        // No connection: a service without servers, one without usable ones, strays.
        (Tcp, "10.8.0.1:1016", "10.64.0.4:80", "s"),
        (Tcp, "10.8.0.1:1017", "10.64.0.5:80", "s"),
        (Tcp, "10.8.0.1:1018", "10.64.0.1:80", "a"),
        (Tcp, "10.8.0.1:1019", "10.64.0.1:80", "r"),
        (Udp, "10.8.0.1:1001", "10.64.0.1:53", "d"),
        (Udp, "10.8.0.1:1002", "10.64.0.1:53", "dD"),
        (Udp, "10.8.0.2:1003", "10.64.0.1:53", "dDdDD"),
        (Tcp, "[fd08::1]:1001", "[fd64::1]:80", "sSadD"),
        (Tcp, "[fd08::1]:1002", "[fd64::1]:80", "sSaf"),
        (Tcp, "[fd08::2]:1003", "[fd64::1]:80", "sSadD"),
        (Tcp, "[fd08::2]:1004", "[fd64::1]:80", "sSadDr"),
        (Udp, "[fd08::1]:1001", "[fd64::1]:53", "dD"),
        (Udp, "[fd08::1]:1002", "[fd64::1]:53", "d"),
        // Persistence: two clients of one network, one of another, a connection that did not get far.
        (Tcp, "10.8.1.1:1001", "10.64.0.2:443", "sSadD"),
        (Tcp, "10.8.1.2:1002", "10.64.0.2:443", "sSaf"),
        (Tcp, "10.8.2.1:1003", "10.64.0.2:443", "s"),
        (Tcp, "10.8.3.1:1001", "10.64.0.3:80", "sSa"),
        (Tcp, "10.8.3.1:1002", "10.64.0.3:8080", "sSadD"),
        (Tcp, "10.8.3.2:1001", "10.64.0.3:80", "sSaF"),
        (Tcp, "[fd08:0:0:1::1]:1001", "[fd64::2]:443", "sSa"),
        (Tcp, "[fd08:0:0:1::2]:1002", "[fd64::2]:443", "sSa"),
        (Tcp, "[fd08:0:0:2::1]:1003", "[fd64::2]:443", "s"),
        // Marks.
        (Tcp, "10.8.4.1:1001", "10.64.0.7:80", "sSadD"),
        (Udp, "10.8.4.1:1001", "10.64.0.7:53", "dD"),
        (Tcp, "10.8.4.2:1002", "10.64.0.7:81", "s"),
        (Tcp, "[fd08:0:1::1]:1001", "[fd64::8]:80", "sSadD"),
        (Tcp, "[fd08:0:1::2]:1002", "[fd64::8]:81", "sSaf"),
        (Udp, "10.8.4.1:1002", "10.64.0.9:53", "dD"),
        (Tcp, "10.8.4.1:1003", "10.64.0.10:80", "sSadD"),
        // One-packet scheduling.
        (Udp, "10.8.5.1:1001", "10.64.0.2:53", "ddd"),
        (Udp, "10.8.5.1:1002", "10.64.0.2:53", "d"),
        (Sctp, "10.8.0.1:1002", "10.64.0.1:36412", "sS"),
        (Sctp, "10.8.0.1:1003", "10.64.0.1:36412", "sSa"),
        (Sctp, "10.8.0.1:1004", "10.64.0.1:36412", "sSaAdD"),
        (Sctp, "10.8.0.1:1005", "10.64.0.1:36412", "sSaAdf"),
        (Sctp, "10.8.0.1:1006", "10.64.0.1:36412", "sSaAdfK"),
        (Sctp, "10.8.0.1:1009", "10.64.0.1:36412", "sSaAF"),
        (Sctp, "[fd08::1]:1001", "[fd64::1]:36412", "sSaAdD"),
        (Sctp, "10.8.0.2:1001", "10.64.0.1:36412", "sX"),
        (Sctp, "10.8.0.2:1002", "10.64.0.1:36412", "sXx"),
        (Sctp, "10.8.0.2:1003", "10.64.0.1:36412", "sSR"),
        // States of a few seconds.
        (Sctp, "10.8.0.1:1001", "10.64.0.1:36412", "s"),
        (Sctp, "10.8.0.1:1007", "10.64.0.1:36412", "sSaAdfKn"),
        (Sctp, "10.8.0.1:1008", "10.64.0.1:36412", "sSaAr"),
        (Sctp, "10.8.0.2:1011", "10.64.0.1:36412", "ss"),
        (Sctp, "10.8.0.2:1012", "10.64.0.1:36412", "sR"),
    ]
};

/// States that have to be among those of the connections.
pub(super) const STATES: [&str; 20] = [
    "NONE",
    "ASSURED",
    "ESTABLISHED",
    "SYN_SENT",
    "SYN_RECV",
    "FIN_WAIT",
    "TIME_WAIT",
    "CLOSE",
    "CLOSE_WAIT",
    "UDP",
    "INIT1",
    "INIT",
    "C-WAIT",
    "C-SENT",
    "C-REPLIED",
    "S-SENT",
    "S-RECEIVED",
    "S-ACK-SENT",
    "REJECTED",
    "CLOSED",
];

/// Edits of these rules: a server that goes, one that comes, other weights, thresholds, and properties of a service.
pub(super) const EDITS: &str = "\
-d -t 10.64.0.1:80 -r 10.20.0.1:8080
-e -t 10.64.0.1:80 -r 10.20.0.2:8080 -m -w 7
-a -t 10.64.0.1:80 -r 10.20.0.4:8080 -m -w 2
-d -u 10.64.0.1:53 -r 10.20.0.2:5353
-e -t [fd64::1]:80 -r [fd20::1]:8080 -m -w 9 -x 50 -y 40
-E -t [fd64::1]:80 -s wrr -p 77
-d -t 10.64.0.2:443 -r 10.20.0.1:8443
-D -u 10.64.0.2:53
";
/// A server that comes back.
pub(super) const RETURN: &str = "-a -t 10.64.0.1:80 -r 10.20.0.1:8080 -m -w 3\n";

/// Clients of each scheduler's service.
const CLIENTS: u16 = 7;

/// The rules, with a service of each of these schedulers.
pub(super) fn rules(schedulers: &[Scheduler]) -> String {
    let mut rules = RULES.to_owned();
    for (number, scheduler) in (1..).zip(schedulers) {
        let name = format!("-t 10.64.1.{number}:80");
        rules.push_str(&format!("-A {name} -s {}\n", scheduler.name()));
        // twos draws: with one server both draw the same.
        let servers = if *scheduler == Scheduler::TwoChoices { 1 } else { 3 };
        for server in 1..=servers {
            rules.push_str(&format!("-a {name} -r 10.20.1.{server}:8080 -m -w {server}\n"));
        }
    }
    rules
}

/// Plays all connections to both. Returns how many packets were sent to each.
pub(super) fn play(networks: &Networks, schedulers: &[Scheduler]) -> Result<usize> {
    let mut connections = Vec::new();
    for number in 1..=schedulers.len() {
        for client in 1..=CLIENTS {
            let from = format!("10.8.{}.{}:{}", 10 + client, client, 2000 + 100 * client + u16::try_from(number)?);
            let said = if client % 3 == 0 { "sSaf" } else { "sSadD" };
            connections.push((Protocol::Tcp, from.parse()?, format!("10.64.1.{number}:80").parse()?, said));
        }
    }
    for (protocol, client, to, said) in PACKETS {
        connections.push((protocol, client.parse()?, to.parse()?, said));
    }
    let mut sent = 0;
    for (protocol, client, to, said) in connections {
        let mut servers = [None; 2];
        for letter in said.chars() {
            let wanted = packet(&networks.ipvs, protocol, client, to, letter, &mut servers[0]);
            let found = packet(&networks.bpvs, protocol, client, to, letter, &mut servers[1]);
            let about = || format!("`{letter}` of `{said}`, {} from {client} to {to}", protocol.name());
            let (wanted, found) = (wanted.with_context(about)?, found.with_context(about)?);
            ensure!(wanted == found, "{}: IPVS made {wanted} of it, bpvs {found}", about());
            sent += 1;
        }
    }
    for network in [&networks.ipvs, &networks.bpvs] {
        ensure!(network.is_quiet()?, "packets came that nothing had caused");
    }
    Ok(sent)
}

/// Sends a packet; says what became of it. `server` is that of the connection, once there is one.
fn packet(
    network: &Network,
    protocol: Protocol,
    client: SocketAddr,
    to: SocketAddr,
    letter: char,
    server: &mut Option<SocketAddr>,
) -> Result<String> {
    let small = letter.to_ascii_lowercase();
    let signal = Signal::ALL.into_iter().find(|(_, known)| *known == small).map(|(signal, _)| signal);
    let known = || server.context("there is no server that could say it");
    let outcome = match (signal, letter) {
        (Some(signal), 'a'..='z') => network.from_client(Packet::new(client, to), |packet| {
            signals::transport(protocol, packet, Side::Client, signal)
        })?,
        (Some(signal), _) => network.from_server(Packet::new(known()?, client), |packet| {
            signals::transport(protocol, packet, Side::Server, signal)
        })?,
        _ => bail!("`{letter}` is no packet"),
    };
    if let (Outcome::ToServer(found), 'a'..='z') = (&outcome, letter) {
        *server = Some(found.to);
    }
    Ok(match outcome {
        Outcome::ToServer(found) => format!("{} to {} (kind {})", found.from, found.to, found.kind),
        Outcome::ToClient(found) => format!("an answer from {} to {} (kind {})", found.from, found.to, found.kind),
        Outcome::Nothing => "nothing".to_owned(),
    })
}

/// The states in a listing of connections.
pub(super) fn states(listing: &str) -> BTreeSet<String> {
    listing.lines().skip(2).filter_map(|line| line.split_whitespace().nth(2)).map(str::to_owned).collect()
}
