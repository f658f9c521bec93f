//! A script: a virtual service, what happens to it, and what the one who was asked answered.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use lb_common::address::Protocol;
use lb_common::scheduler::Scheduler;

use super::control::{Switches, VirtualKey, VirtualService};
use super::marks;

/// Port of every virtual service; of a service by mark the first one.
pub const VIRTUAL_PORT: u16 = 80;
/// Most places that the clients of a service by mark ask for.
pub const PLACES: u16 = 32;
/// Most virtual addresses: scripts are numbered below this.
pub const NUMBERS: u32 = 1 << 22;
/// Clients of a script: `a` to `z`.
pub const CLIENTS: u8 = 26;
/// Ports of each client of a script.
pub const PORTS: u16 = 60;
/// Servers of a script: 1 to this.
pub const SERVERS: u16 = 250;

/// A server by its number.
pub type Server = u16;

/// Scheduler, flags and properties of the service: what `-A` and `-E` state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Scheduler.
    pub scheduler: Scheduler,
    /// `sh-port`, `mh-port`.
    pub port: bool,
    /// `sh-fallback`, `mh-fallback`.
    pub fallback: bool,
    /// Persistence in seconds; 0 for none.
    pub persistence: u32,
    /// Prefix that clients share a template by.
    pub netmask: u8,
    /// One-packet scheduling.
    pub one_packet: bool,
}

impl Choice {
    /// A scheduler without flags.
    pub const fn plain(scheduler: Scheduler, v6: bool) -> Self {
        let netmask = if v6 { 128 } else { 32 };
        Self { scheduler, port: false, fallback: false, persistence: 0, netmask, one_packet: false }
    }

    /// The service that this makes of a key.
    pub const fn service(self, key: VirtualKey) -> VirtualService {
        VirtualService {
            key,
            scheduler: self.scheduler,
            hash_port: self.port,
            hash_fallback: self.fallback,
            persistence: self.persistence,
            netmask: self.netmask,
            one_packet: self.one_packet,
        }
    }
}

/// Weight and thresholds of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Share {
    /// Weight.
    pub weight: i32,
    /// Upper threshold; 0 for none.
    pub upper: u32,
    /// Lower threshold.
    pub lower: u32,
}

/// A client's end of a connection: the same client and port are the same 5-tuple each time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Flow {
    /// Client, from 0 (`a`).
    pub client: u8,
    /// Its port, counted from 0.
    pub port: u16,
}

/// Who sends a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The client, to the virtual address.
    Client,
    /// The server of the connection, to the client.
    Server,
}

/// What a packet says. Of UDP all are datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Signal {
    /// TCP: SYN, from the server SYN+ACK. SCTP: INIT, from the server INIT ACK.
    Open,
    /// TCP: ACK. SCTP: COOKIE ECHO, from the server COOKIE ACK.
    Accept,
    /// TCP: ACK with data. SCTP: DATA.
    Data,
    /// TCP: FIN+ACK. SCTP: SHUTDOWN.
    Finish,
    /// TCP: RST. SCTP: ABORT.
    Abort,
    /// TCP: none of SYN, FIN, ACK and RST. SCTP: SHUTDOWN COMPLETE.
    Nothing,
    /// TCP: RST+ACK. SCTP: SHUTDOWN ACK.
    Finished,
    /// The other side's [`Signal::Open`].
    Crossed,
}

impl Signal {
    /// All, with the letter of each in a client's packets.
    pub const ALL: [(Self, char); 8] = [
        (Self::Open, 's'),
        (Self::Accept, 'a'),
        (Self::Data, 'd'),
        (Self::Finish, 'f'),
        (Self::Abort, 'r'),
        (Self::Nothing, 'n'),
        (Self::Finished, 'k'),
        (Self::Crossed, 'x'),
    ];

    /// Its letter.
    pub fn letter(self) -> char {
        Self::ALL.into_iter().find(|(signal, _)| *signal == self).map_or('?', |(_, letter)| letter)
    }
}

/// One event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A packet.
    Packet {
        /// Connection.
        flow: Flow,
        /// Who sends it.
        from: Side,
        /// What it says.
        signal: Signal,
    },
    /// A server is added, at the head of the list (`-a`).
    Add(Server, Share),
    /// A server's weight or thresholds are set (`-e`).
    Edit(Server, Share),
    /// A server is removed (`-d`).
    Remove(Server),
    /// The service is edited (`-E`).
    Service(Choice),
    /// The service is deleted and added again, without servers (`-D`, `-A`).
    Renew,
    /// `--set tcp tcpfin udp`, in seconds; 0 keeps.
    Timeouts(u32, u32, u32),
    /// So many milliseconds pass.
    Wait(u32),
    /// The list is looked at.
    Look,
}

/// What came of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Nothing that could be seen: an edit, a wait.
    Done,
    /// A client's packet reached this server, translated.
    Server(Server),
    /// It reached this server at the port that the client asked for, and the server has one of its own.
    Kept(Server),
    /// The client got an ICMP error.
    Unreachable,
    /// The client got a RST.
    Reset,
    /// Nothing came of the packet.
    Silence,
    /// The client got the server's packet, in the virtual service's name.
    Reply,
    /// The client got the server's packet with the server's own address.
    Bare,
    /// Not sent: the connection has no server that could send it, or what it does is not compared
    /// ([`super::differences`]).
    Void,
    /// The list, newest first.
    List(Vec<Listed>),
}

/// A server in a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Server.
    pub server: Server,
    /// Active connections.
    pub active: u32,
    /// Inactive connections.
    pub inactive: u32,
    /// Persistence templates; 0 where they are not compared ([`super::differences`]).
    pub persistent: u32,
}

/// A virtual service and its history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    /// What it shows, for fixed ones.
    pub title: String,
    /// Number, below [`NUMBERS`]: makes the virtual address and the clients' ports.
    pub number: u32,
    /// Protocol.
    pub protocol: Protocol,
    /// IPv6.
    pub v6: bool,
    /// 0: the service is one virtual address and port. More: it is a firewall mark, and clients ask for so many places,
    /// which are addresses with two ports each.
    pub places: u16,
    /// The service as it is added.
    pub choice: Choice,
    /// Switches of the director.
    pub switches: Switches,
    /// What happens, and what was answered where that is known.
    pub steps: Vec<(Event, Option<Answer>)>,
}

impl Script {
    /// The service's key.
    pub fn key(&self) -> VirtualKey {
        if self.is_marked() {
            return VirtualKey::Mark { mark: marks::mark(self.number), v6: self.v6 };
        }
        VirtualKey::Address { protocol: self.protocol, address: self.address(), port: VIRTUAL_PORT }
    }

    /// True if the service is a firewall mark.
    pub fn is_marked(&self) -> bool {
        self.places != 0
    }

    /// True if the service is persistent, at some time.
    pub fn is_persistent(&self) -> bool {
        let edited = |event: &Event| matches!(event, Event::Service(choice) if choice.persistence != 0);
        self.choice.persistence != 0 || self.steps.iter().any(|(event, _)| edited(event))
    }

    /// What a client asks for on a connection. By mark its port decides: port n goes to place n, and from the last place to
    /// the first again; places 0 and 1, 2 and 3, and so on are two ports of one address.
    pub fn virtual_address(&self, flow: Flow) -> SocketAddr {
        if !self.is_marked() {
            return SocketAddr::new(self.address(), VIRTUAL_PORT);
        }
        let place = flow.port % self.places;
        SocketAddr::new(marks::address(self.number, place / 2, self.v6), VIRTUAL_PORT + place % 2)
    }

    /// The only virtual address: one for each script, since IPVS remembers what was removed.
    fn address(&self) -> IpAddr {
        let number = self.number % NUMBERS;
        if self.v6 {
            IpAddr::V6(Ipv6Addr::new(0xfd64, 0, 0, 0, 0, 0, (number >> 16) as u16, number as u16))
        } else {
            IpAddr::V4(Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 64, 0, 0)) + number))
        }
    }

    /// A client's end of a connection. Neighbouring scripts use other ports, as replies of a server to one client port
    /// look alike whatever service they belong to.
    pub fn client(&self, flow: Flow) -> SocketAddr {
        // Spread, so that hashes are. Where clients share templates, three of them share a network.
        let grouped = self.choice.netmask != Choice::plain(self.choice.scheduler, self.v6).netmask;
        let network = if grouped { flow.client / 3 } else { flow.client };
        let (high, low) = (network.wrapping_mul(37) % 250, flow.client.wrapping_mul(101) % 250 + 1);
        let ip = if self.v6 {
            Ipv6Addr::new(0xfd08, 0, u16::from(high), 0, 0, 0, 0, u16::from(low)).into()
        } else {
            Ipv4Addr::new(10, 8, high, low).into()
        };
        let first = 1024 + (self.number % 1_000) as u16 * PORTS;
        SocketAddr::new(ip, first + flow.port % PORTS)
    }

    /// A server's address. Servers 1 and 2, 3 and 4, and so on are two ports of one address. By mark each has an address, and
    /// the even ones no port of their own: they take what the client asked for.
    pub fn server(&self, server: Server) -> SocketAddr {
        let host = if self.is_marked() { server } else { server.div_ceil(2) };
        let ip = if self.v6 {
            IpAddr::V6(Ipv6Addr::new(0xfd20, 0, host, 0, 0, 0, 0, 2))
        } else {
            IpAddr::V4(Ipv4Addr::new(10, 20, host as u8, 2))
        };
        SocketAddr::new(ip, if self.is_marked() && server.is_multiple_of(2) { 0 } else { 8000 + server })
    }

    /// The server with an address, if it is one.
    pub fn server_at(&self, address: SocketAddr) -> Option<Server> {
        let server = if self.is_marked() { host(address.ip()) } else { address.port().checked_sub(8000)? };
        ((1..=SERVERS).contains(&server) && self.server(server) == address).then_some(server)
    }

    /// The server that a packet reached at an address, and what that is as an answer. `asked`: the port that the client
    /// asked for.
    pub fn reached(&self, address: SocketAddr, asked: u16) -> Option<(Server, Answer)> {
        if let Some(server) = self.server_at(address) {
            return Some((server, Answer::Server(server)));
        }
        let server = host(address.ip());
        let own = self.server(server);
        let is_kept = self.is_marked() && (own.ip(), asked) == (address.ip(), address.port());
        is_kept.then(|| (server, if own.port() == 0 { Answer::Server(server) } else { Answer::Kept(server) }))
    }

    /// The same script with other answers.
    pub fn answered(&self, answers: &[Answer]) -> Self {
        let with = |((event, _), answer): (&(Event, _), &Answer)| (event.clone(), Some(answer.clone()));
        Self { steps: self.steps.iter().zip(answers).map(with).collect(), ..self.clone() }
    }
}

/// The number that a server's address has among those of its network.
fn host(ip: IpAddr) -> u16 {
    match ip {
        IpAddr::V4(v4) => v4.octets()[2].into(),
        IpAddr::V6(v6) => v6.segments()[2],
    }
}
