//! Linux IPVS as a [`Director`]: told by generic netlink, as `ipvsadm` tells it.
//!
//! | module | what |
//! |---|---|
//! | [`attributes`] | what messages are made of |
//! | [`socket`] | requests and answers |
//! | [`refusal`] | why IPVS refused |
//! | [`connections`] | what it says of its connections |
//! | [`thresholds`] | which of two rules for thresholds a kernel has |

mod attributes;
mod connections;
mod refusal;
mod socket;
mod thresholds;

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result};
use netlink_packet_core::DecodeError;

pub use connections::Connection;
pub use refusal::Refusal;
pub use thresholds::{ThresholdRule, threshold_rule};

use super::control::{Director, RealServer, RealServerState, Switches, VirtualKey, VirtualService};
use crate::namespace::Namespace;
use attributes::{Attribute, Attributes, Command, command, flags, server, service};
use socket::Socket;

/// Address families (`AF_INET`, `AF_INET6`).
const V4: u16 = nix::libc::AF_INET as u16;
const V6: u16 = nix::libc::AF_INET6 as u16;
/// Forwarding by NAT (`IP_VS_CONN_F_MASQ`).
const NAT: u32 = 0;
/// The switches' files, in the order of [`Switches`].
const SWITCHES: [&str; 3] = ["expire_nodest_conn", "expire_quiescent_template", "sloppy_tcp"];

/// IPVS of a network namespace. Its files and its socket are the namespace's, so any thread may use it; they also keep the
/// namespace alive.
#[derive(Debug)]
pub struct Ipvs {
    socket: Socket,
    switches: [File; 3],
    connections: File,
    listing: File,
}

impl Ipvs {
    /// IPVS of a namespace; an error says so if the kernel has none.
    pub fn open(namespace: &Namespace) -> Result<Self> {
        namespace.enter(Self::open_here).with_context(|| format!("in namespace {}", namespace.name()))
    }

    /// IPVS of the calling thread's namespace.
    fn open_here() -> Result<Self> {
        let socket = Socket::open()?;
        // Not /proc/net: that is the namespace of the process's first thread.
        let read = |name: &str| {
            let path = format!("/proc/thread-self/net/{name}");
            File::open(&path).with_context(|| format!("opening {path}"))
        };
        let switch = |name: &str| {
            let path = format!("/proc/sys/net/ipv4/vs/{name}");
            OpenOptions::new().write(true).open(&path).with_context(|| format!("opening {path}"))
        };
        let [first, second, third] = SWITCHES;
        let switches = [switch(first)?, switch(second)?, switch(third)?];
        Ok(Self { socket, switches, connections: read("ip_vs_conn")?, listing: read("ip_vs")? })
    }

    /// Version of IPVS: 1.2.1 since 2005.
    pub fn version(&mut self) -> Result<String> {
        let answer = self.socket.ask(Command::GetInfo, Vec::new())?;
        let version = answer.word(1).context("the version of IPVS")?;
        Ok(format!("{}.{}.{}", version >> 16 & 0xff, version >> 8 & 0xff, version & 0xff))
    }

    /// `-C`: no services are left; connections stay until their time is over.
    pub fn clear(&mut self) -> Result<()> {
        self.socket.tell(Command::Flush, Vec::new())
    }

    /// `-Z` of all services.
    pub fn zero(&mut self) -> Result<()> {
        self.socket.tell(Command::Zero, Vec::new())
    }

    /// Connections and persistence templates, in no order that means anything.
    pub fn connections(&mut self) -> Result<Vec<Connection>> {
        connections::parse(&read(&mut self.connections).context("reading /proc/net/ip_vs_conn")?)
    }

    /// `/proc/net/ip_vs`: services and real servers, with addresses in hexadecimal digits.
    pub fn listing(&mut self) -> Result<String> {
        read(&mut self.listing).context("reading /proc/net/ip_vs")
    }

    fn tell_service(&mut self, command: Command, service: &VirtualService) -> Result<()> {
        self.socket
            .tell(command, vec![whole_service(service)])
            .with_context(|| format!("{:?} with {}", service.key, service.scheduler.name()))
    }

    fn tell_server(&mut self, command: Command, key: &VirtualKey, server: Attribute) -> Result<()> {
        self.socket.tell(command, vec![named_service(key), server])
    }
}

impl Director for Ipvs {
    fn add_service(&mut self, service: &VirtualService) -> Result<()> {
        self.tell_service(Command::NewService, service)
    }

    fn edit_service(&mut self, service: &VirtualService) -> Result<()> {
        self.tell_service(Command::SetService, service)
    }

    fn delete_service(&mut self, key: &VirtualKey) -> Result<()> {
        self.socket.tell(Command::DeleteService, vec![named_service(key)]).with_context(|| format!("{key:?}"))
    }

    fn add_server(&mut self, key: &VirtualKey, server: &RealServer) -> Result<()> {
        self.tell_server(Command::NewServer, key, whole_server(server))
            .with_context(|| format!("{server:?} of {key:?}"))
    }

    fn edit_server(&mut self, key: &VirtualKey, server: &RealServer) -> Result<()> {
        self.tell_server(Command::SetServer, key, whole_server(server))
            .with_context(|| format!("{server:?} of {key:?}"))
    }

    fn delete_server(&mut self, key: &VirtualKey, address: IpAddr, port: u16) -> Result<()> {
        let server = Attribute::nested(command::SERVER, &named_server(address, port));
        self.tell_server(Command::DeleteServer, key, server).with_context(|| format!("{address}:{port} of {key:?}"))
    }

    fn set_timeouts(&mut self, tcp: u32, tcp_fin: u32, udp: u32) -> Result<()> {
        let timeouts = [(command::TIMEOUT_TCP, tcp), (command::TIMEOUT_TCP_FIN, tcp_fin), (command::TIMEOUT_UDP, udp)];
        let attributes = timeouts.map(|(kind, seconds)| Attribute::word(kind, seconds));
        self.socket.tell(Command::SetConfig, attributes.to_vec()).context("setting timeouts")
    }

    fn set_switches(&mut self, switches: &Switches) -> Result<()> {
        let values = [switches.expire_nodest_conn, switches.expire_quiescent_template, switches.sloppy_tcp];
        for ((file, name), value) in self.switches.iter().zip(SWITCHES).zip(values) {
            let text = if value { b"1" } else { b"0" };
            file.write_all_at(text, 0).with_context(|| format!("setting net.ipv4.vs.{name}"))?;
        }
        Ok(())
    }

    fn servers(&mut self, key: &VirtualKey) -> Result<Vec<RealServerState>> {
        // The dump of a service that does not exist is empty, and no error.
        self.socket.ask(Command::GetService, vec![named_service(key)]).with_context(|| format!("{key:?}"))?;
        let answers = self.socket.dump(Command::GetServer, vec![named_service(key)])?;
        let states = answers.iter().map(|answer| server_state(answer, family(key)));
        states.collect::<Result<_, _>>().with_context(|| format!("the real servers of {key:?}"))
    }
}

/// What names a service.
fn key_attributes(key: &VirtualKey) -> Vec<Attribute> {
    let mut attributes = vec![Attribute::half(service::FAMILY, family(key))];
    match key {
        VirtualKey::Address { protocol, address, port } => attributes.extend([
            Attribute::half(service::PROTOCOL, *protocol as u16),
            Attribute::bytes(service::ADDRESS, &address_bytes(*address)),
            Attribute::port(service::PORT, *port),
        ]),
        VirtualKey::Mark { mark, .. } => attributes.push(Attribute::word(service::MARK, *mark)),
    }
    attributes
}

fn named_service(key: &VirtualKey) -> Attribute {
    Attribute::nested(command::SERVICE, &key_attributes(key))
}

fn whole_service(of: &VirtualService) -> Attribute {
    let wanted = [
        (of.persistence > 0, flags::PERSISTENT),
        (of.one_packet, flags::ONE_PACKET),
        (of.hash_fallback, flags::FALLBACK),
        (of.hash_port, flags::HASH_PORT),
    ];
    let bits = wanted.iter().filter(|(wanted, _)| *wanted).fold(0, |bits, (_, flag)| bits | flag);
    // Flags, and which of them are meant: all.
    let both = [u32::to_ne_bytes(bits), u32::to_ne_bytes(u32::MAX)].concat();
    let mut attributes = key_attributes(&of.key);
    attributes.extend([
        Attribute::text(service::SCHEDULER, of.scheduler.name()),
        Attribute::bytes(service::FLAGS, &both),
        Attribute::word(service::TIMEOUT, of.persistence),
        netmask(of),
    ]);
    Attribute::nested(command::SERVICE, &attributes)
}

/// IPv4's is a mask in network order, IPv6's the length of a prefix in the machine's.
fn netmask(of: &VirtualService) -> Attribute {
    if family(&of.key) == V6 {
        return Attribute::word(service::NETMASK, of.netmask.into());
    }
    let mask = u32::MAX.checked_shl(32 - u32::from(of.netmask.min(32))).unwrap_or(0);
    Attribute::bytes(service::NETMASK, &mask.to_be_bytes())
}

fn named_server(address: IpAddr, port: u16) -> [Attribute; 3] {
    [
        Attribute::half(server::FAMILY, if address.is_ipv4() { V4 } else { V6 }),
        Attribute::bytes(server::ADDRESS, &address_bytes(address)),
        Attribute::port(server::PORT, port),
    ]
}

fn whole_server(of: &RealServer) -> Attribute {
    let mut attributes = named_server(of.address, of.port).to_vec();
    attributes.extend([
        Attribute::word(server::METHOD, NAT),
        Attribute::word(server::WEIGHT, of.weight.cast_unsigned()),
        Attribute::word(server::UPPER, of.upper),
        Attribute::word(server::LOWER, of.lower),
    ]);
    Attribute::nested(command::SERVER, &attributes)
}

fn server_state(answer: &Attributes, of_service: u16) -> Result<RealServerState, DecodeError> {
    let answer = answer.nested(command::SERVER)?;
    let bytes: [u8; 16] = answer.array(server::ADDRESS)?;
    // Kernels before 3.18 do not say; there a server has its service's family.
    let address = match answer.half(server::FAMILY).unwrap_or(of_service) {
        V4 => Ipv4Addr::from([bytes[0], bytes[1], bytes[2], bytes[3]]).into(),
        _ => Ipv6Addr::from(bytes).into(),
    };
    Ok(RealServerState {
        address,
        port: answer.port(server::PORT)?,
        weight: answer.word(server::WEIGHT)?.cast_signed(),
        active: answer.word(server::ACTIVE)?,
        inactive: answer.word(server::INACTIVE)?,
        persistent: answer.word(server::PERSISTENT)?,
    })
}

fn family(key: &VirtualKey) -> u16 {
    let v6 = match key {
        VirtualKey::Address { address, .. } => address.is_ipv6(),
        VirtualKey::Mark { v6, .. } => *v6,
    };
    if v6 { V6 } else { V4 }
}

/// An address in the sixteen bytes of the kernel's union.
fn address_bytes(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V6(v6) => v6.octets(),
        IpAddr::V4(v4) => {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&v4.octets());
            bytes
        }
    }
}

/// A file of /proc, anew.
fn read(file: &mut File) -> Result<String> {
    let mut text = String::new();
    file.rewind()?;
    file.read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests;
