//! Hosts on one link, so that answers have a way past the director:
//!
//! ```text
//!  client .2     director .1     node .3      real .4        10.9.0.0/24, fd00:9::/64
//!     |              |  \           |  \        |
//!     '------------- bridge --------'---------- '
//!                       here        there                    10.1.1.8, 10.1.3.9: pods
//! ```
//!
//! The client sends everything that is not on the link to the director. The bridge knows where each hardware address is and
//! floods nothing: who sees a frame is who it was sent to.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bpvs_tests::namespace::{self, End, Namespace, mac_text, veth_command};
use bpvs_tests::packets::RawSocket;
use bpvs_tests::topology::offload_off;
use bpvs_tests::traffic::Servers;

/// A virtual address of each family, which no host has that is not told to.
pub(crate) const VIRTUAL: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(198, 51, 100, 1)), IpAddr::V6(Ipv6Addr::new(0xfd00, 0xa, 0, 0, 0, 0, 0, 1))];

/// A host of the link, or a pod.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) namespace: Namespace,
    pub(crate) number: u16,
    pub(crate) addresses: [IpAddr; 2],
    pub(crate) mac: [u8; 6],
}

impl Host {
    fn new(role: &str, number: u16) -> Self {
        let namespace = Namespace::new(role).unwrap();
        let quiet = [
            ("ipv6/conf/all/accept_dad", "0"),
            ("ipv6/conf/default/accept_dad", "0"),
            ("ipv6/conf/default/accept_ra", "0"),
            ("ipv4/conf/all/rp_filter", "0"),
            ("ipv4/conf/default/rp_filter", "0"),
            ("ipv4/icmp_ratelimit", "0"),
            ("ipv6/icmp/ratelimit", "0"),
        ];
        namespace.sysctls(&quiet).unwrap();
        let (net, id) = if number < 8 { (9, number) } else { (1, number) };
        let addresses = if number < 8 {
            [Ipv4Addr::new(10, 9, 0, number as u8).into(), Ipv6Addr::new(0xfd00, 9, 0, 0, 0, 0, 0, number).into()]
        } else {
            let nth = if number == HERE { 1 } else { 3 };
            [Ipv4Addr::new(10, 1, nth, id as u8).into(), Ipv6Addr::new(0xfd00, 1, nth.into(), 0, 0, 0, 0, id).into()]
        };
        Self { namespace, number, addresses, mac: [2, net, 0, 0, 0, number as u8] }
    }

    /// Its address of the other one's family.
    pub(crate) fn like(&self, other: IpAddr) -> IpAddr {
        self.addresses[usize::from(other.is_ipv6())]
    }

    /// Whatever arrives from now on.
    pub(crate) fn listen(&self) -> RawSocket {
        RawSocket::open(&self.namespace, "eth0").unwrap()
    }

    fn route(&self) {
        let forward = [
            ("ipv4/ip_forward", "1"),
            ("ipv6/conf/all/forwarding", "1"),
            ("ipv4/conf/all/send_redirects", "0"),
            ("ipv4/conf/default/send_redirects", "0"),
            ("ipv4/conf/eth0/send_redirects", "0"),
        ];
        self.namespace.sysctls(&forward).unwrap();
    }
}

/// Number of the director's pod.
pub(crate) const HERE: u16 = 8;
/// Number of the node's.
pub(crate) const THERE: u16 = 9;

/// All of it. Dropping it removes it.
#[derive(Debug)]
pub(crate) struct Lan {
    pub(crate) servers: Servers,
    pub(crate) director: Host,
    pub(crate) client: Host,
    pub(crate) node: Host,
    pub(crate) real: Host,
    pub(crate) here: Host,
    pub(crate) there: Host,
    _bridge: Namespace,
}

impl Lan {
    /// With or without segments that are left to the device.
    pub(crate) fn new(offload: bool) -> Self {
        for name in namespace::reap_leftovers().unwrap() {
            eprintln!("removed {name}, left behind by a killed run");
        }
        let lan = Self {
            servers: Servers::new().unwrap(),
            director: Host::new("director", 1),
            client: Host::new("client", 2),
            node: Host::new("node", 3),
            real: Host::new("real", 4),
            here: Host::new("here", HERE),
            there: Host::new("there", THERE),
            _bridge: Namespace::new("bridge").unwrap(),
        };
        lan.link();
        lan.pod(&lan.director, &lan.here);
        lan.pod(&lan.node, &lan.there);
        lan.routes();
        for host in lan.hosts().into_iter().chain([&lan.here, &lan.there]).filter(|_| !offload) {
            offload_off(&host.namespace, "eth0").unwrap();
        }
        for host in [&lan.director, &lan.node].into_iter().filter(|_| !offload) {
            offload_off(&host.namespace, "pod").unwrap();
        }
        lan.wait_for_links();
        lan
    }

    fn hosts(&self) -> [&Host; 4] {
        [&self.director, &self.client, &self.node, &self.real]
    }

    /// Both agents' namespaces.
    pub(crate) fn routers(&self) -> [&Namespace; 2] {
        [&self.director.namespace, &self.node.namespace]
    }

    fn link(&self) {
        let bridge = &self._bridge;
        bridge.ip(&["link add br0 type bridge".to_owned(), "link set br0 up".to_owned()]).unwrap();
        for host in self.hosts() {
            let port = format!("p{}", host.number);
            let near = End { namespace: bridge, interface: &port, mac: [2, 8, 0, 0, 0, host.number as u8] };
            let far = End { namespace: &host.namespace, interface: "eth0", mac: host.mac };
            namespace::ip(&[veth_command(near, far, 1500)]).unwrap();
            let lines = [
                format!("link set {port} master br0"),
                format!("link set {port} type bridge_slave flood off learning off"),
                format!("link set {port} up"),
            ];
            bridge.ip(&lines).unwrap();
            let mut fdb = Command::new("bridge");
            fdb.args(["fdb", "replace", &mac_text(host.mac), "dev", &port, "master", "static"]);
            bridge.run(&mut fdb).unwrap();
            let [v4, v6] = host.addresses;
            let mut lines = vec![
                "link set eth0 up".to_owned(),
                format!("addr add {v4}/24 dev eth0"),
                format!("addr add {v6}/64 dev eth0 nodad"),
            ];
            for other in self.hosts().into_iter().filter(|other| other.number != host.number) {
                let mac = mac_text(other.mac);
                lines.extend(
                    other
                        .addresses
                        .map(|address| format!("neigh replace {address} lladdr {mac} dev eth0 nud permanent")),
                );
            }
            host.namespace.ip(&lines).unwrap();
        }
    }

    fn pod(&self, router: &Host, pod: &Host) {
        let near = End { namespace: &router.namespace, interface: "pod", mac: [2, 1, 0, 0, 1, pod.number as u8] };
        let far = End { namespace: &pod.namespace, interface: "eth0", mac: pod.mac };
        namespace::ip(&[veth_command(near, far, 1500)]).unwrap();
        let [v4, v6] = pod.addresses;
        let (gateway, mac) = (mac_text(near.mac), mac_text(pod.mac));
        let near = [
            "link set pod up".to_owned(),
            "addr add 169.254.1.1/32 dev pod scope link".to_owned(),
            "addr add fe80::1/64 dev pod nodad".to_owned(),
            format!("route add {v4}/32 dev pod src {}", router.addresses[0]),
            format!("route add {v6}/128 dev pod src {}", router.addresses[1]),
            format!("neigh replace {v4} lladdr {mac} dev pod nud permanent"),
            format!("neigh replace {v6} lladdr {mac} dev pod nud permanent"),
        ];
        router.namespace.ip(&near).unwrap();
        let far = [
            "link set eth0 up".to_owned(),
            format!("addr add {v4}/32 dev eth0"),
            format!("addr add {v6}/128 dev eth0 nodad"),
            format!("neigh replace 169.254.1.1 lladdr {gateway} dev eth0 nud permanent"),
            format!("neigh replace fe80::1 lladdr {gateway} dev eth0 nud permanent"),
            "route add default via 169.254.1.1 dev eth0 onlink".to_owned(),
            "route add ::/0 via fe80::1 dev eth0".to_owned(),
        ];
        pod.namespace.ip(&far).unwrap();
    }

    fn routes(&self) {
        let via = |router: &Host, network: [&str; 2]| {
            [0, 1].map(|family| format!("route add {} via {} dev eth0", network[family], router.addresses[family]))
        };
        let anywhere = ["default", "::/0"];
        self.client.namespace.ip(&via(&self.director, anywhere)).unwrap();
        self.director.namespace.ip(&via(&self.node, ["10.1.3.0/24", "fd00:1:3::/64"])).unwrap();
        self.node.namespace.ip(&via(&self.director, ["10.1.1.0/24", "fd00:1:1::/64"])).unwrap();
        self.director.route();
        self.node.route();
    }

    fn wait_for_links(&self) {
        let end = Instant::now() + Duration::from_secs(5);
        let up = |host: &Host| {
            let output = host.namespace.run(Command::new("ip").args(["-j", "link", "show", "type", "veth"])).unwrap();
            let links: Vec<serde_json::Value> = serde_json::from_slice(&output.stdout).unwrap();
            links.iter().all(|link| link["operstate"] == "UP")
        };
        while !self.hosts().into_iter().all(up) {
            assert!(Instant::now() < end, "the links did not come up in 5 s");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Frames that came to a socket: the kinds of those that are wanted.
fn heard<T: Ord>(socket: &RawSocket, wanted: impl Fn(&[u8]) -> Option<T>) -> BTreeSet<T> {
    let mut found = BTreeSet::new();
    while let Some(frame) = socket.ready().unwrap() {
        found.extend(wanted(&frame));
    }
    found
}

/// Hardware addresses of those that sent packets from an address.
pub(crate) fn senders(socket: &RawSocket, from: IpAddr) -> BTreeSet<[u8; 6]> {
    heard(socket, |frame| {
        let source: IpAddr = match frame.get(12..14)? {
            [0x08, 0x00] => <[u8; 4]>::try_from(frame.get(26..30)?).ok()?.into(),
            [0x86, 0xdd] => <[u8; 16]>::try_from(frame.get(22..38)?).ok()?.into(),
            _ => return None,
        };
        (source == from).then_some(frame.get(6..12)?.try_into().ok()?)
    })
}

/// Whether segments and datagrams from these ports came inside of others, and whether as they are.
pub(crate) fn tunnelled(socket: &RawSocket, ports: impl Fn(u16) -> bool) -> BTreeSet<bool> {
    heard(socket, |frame| {
        let (mut at, mut inside) = (14, false);
        loop {
            let (protocol, length) = match frame.get(at)? >> 4 {
                4 => (frame.get(at + 9)?, 20),
                6 => (frame.get(at + 6)?, 40),
                _ => return None,
            };
            at += length;
            match protocol {
                4 | 41 if !inside => inside = true,
                6 | 17 => break,
                // Neighbours and listeners of IPv6.
                _ => return None,
            }
        }
        ports(u16::from_be_bytes(frame.get(at..at + 2)?.try_into().ok()?)).then_some(inside)
    })
}

/// A UDP server at an address that its host has besides others, from which it answers.
#[derive(Debug)]
pub(crate) struct Datagrams {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Datagrams {
    /// Speaks as the servers of the kit do.
    pub(crate) fn new(host: &Host, at: SocketAddr) -> Self {
        let socket = host.namespace.enter(|| UdpSocket::bind(at)).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let (stop, number) = (Arc::new(AtomicBool::new(false)), host.number);
        let told = Arc::clone(&stop);
        let thread = host.namespace.thread("datagrams", move || {
            let mut buffer = [0; 2048];
            while !told.load(Ordering::Relaxed) {
                match socket.recv_from(&mut buffer) {
                    Ok((count, peer)) => {
                        let greeting = format!("server {number} peer {peer}\n").into_bytes();
                        let _gone = socket.send_to(&[&greeting, &buffer[..count]].concat(), peer);
                    }
                    Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        });
        Self { stop, thread: Some(thread.unwrap()) }
    }
}

impl Drop for Datagrams {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(ended.is_none_or(|ended| ended.is_ok()) || std::thread::panicking());
    }
}
