//! `bpvs-guest ipvs SCHEDULER,...`: can this kernel's IPVS be told and asked as the comparison with it needs? What it was
//! told is read back through the real `ipvsadm`. The schedulers are those that the kernel has.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use bpvs_tests::namespace::Namespace;
use bpvs_tests::oracle::control::{Director, RealServer, Switches, VirtualKey, VirtualService};
use bpvs_tests::oracle::ipvs::{Ipvs, Refusal, threshold_rule};
use lb_common::address::Protocol;
use lb_common::scheduler::Scheduler;

/// What the steps share: IPVS in a namespace, and what `ipvsadm -S -n` has to print.
pub(crate) struct Bench {
    namespace: Namespace,
    ipvs: Ipvs,
    present: Vec<Scheduler>,
    saved: Vec<String>,
}

/// A step of this mode.
pub(crate) type Step = fn(&mut Bench) -> Result<String>;

/// After the namespace and IPVS in it.
pub(crate) const STEPS: [(&str, Step); 8] = [
    ("schedulers", schedulers),
    ("kinds", kinds),
    ("ipvsadm", ipvsadm),
    ("timeouts", timeouts),
    ("switches", switches),
    ("connections", connections),
    ("errors", errors),
    ("thresholds", |_| Ok(format!("{:?}", threshold_rule()?))),
];

impl Bench {
    /// IPVS with nothing in it.
    pub(crate) fn new(names: &str) -> Result<Self> {
        let scheduler = |name| Scheduler::from_name(name).with_context(|| format!("`{name}` is no scheduler"));
        let present = names.split(',').map(scheduler).collect::<Result<_>>()?;
        let namespace = Namespace::new("director")?;
        let ipvs = Ipvs::open(&namespace)?;
        Ok(Self { namespace, ipvs, present, saved: Vec::new() })
    }

    /// What the first line of this mode says.
    pub(crate) fn describe(&mut self) -> Result<String> {
        Ok(format!("IPVS {}", self.ipvs.version()?))
    }

    /// Adds a service, which `ipvsadm` shows as `saved`, and its real servers.
    fn add(&mut self, service: &VirtualService, saved: &str, servers: &[(RealServer, &str)]) -> Result<()> {
        self.ipvs.add_service(service)?;
        let (name, _) = saved.split_once(" -s ").context("what is saved names a scheduler")?;
        self.saved.push(format!("-A {saved}"));
        for (server, text) in servers {
            self.ipvs.add_server(&service.key, server)?;
            self.saved.push(format!("-a {name} -r {text}"));
        }
        Ok(())
    }

    fn command(&self, arguments: &[&str]) -> Result<String> {
        let output = self.namespace.run(Command::new("ipvsadm").args(arguments))?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

fn tcp(address: IpAddr, port: u16) -> VirtualKey {
    VirtualKey::Address { protocol: Protocol::Tcp, address, port }
}

fn service(key: VirtualKey, scheduler: Scheduler) -> VirtualService {
    VirtualService {
        key,
        scheduler,
        hash_port: false,
        hash_fallback: false,
        persistence: 0,
        netmask: 32,
        one_packet: false,
    }
}

fn server(number: u8, weight: i32) -> RealServer {
    RealServer { address: Ipv4Addr::new(10, 1, 0, number).into(), port: 8080, weight, upper: 0, lower: 0 }
}

/// Every scheduler takes three servers, another weight, and a server that goes and comes back at the head; one that the
/// kernel lacks is refused by name.
fn schedulers(bench: &mut Bench) -> Result<String> {
    let mut absent = Vec::new();
    for (number, scheduler) in Scheduler::ALL.into_iter().enumerate() {
        let address = Ipv4Addr::new(10, 96, 0, 10 + u8::try_from(number)?);
        let key = tcp(address.into(), 80);
        if !bench.present.contains(&scheduler) {
            let error = bench.ipvs.add_service(&service(key, scheduler)).err();
            expect(error, "the kernel has no such scheduler (NewService, ENOENT)").context(scheduler.name())?;
            absent.push(scheduler.name());
            continue;
        }
        let saved = format!("-t {address}:80 -s {}", scheduler.name());
        bench.add(&service(key, scheduler), &saved, &[(server(3, 3), "10.1.0.3:8080 -m -w 3")])?;
        let changes = [(server(1, 1), "10.1.0.1:8080 -m -w 1"), (server(2, 0), "10.1.0.2:8080 -m -w 0")];
        bench.saved.extend(changes.map(|(_, text)| format!("-a -t {address}:80 -r {text}")));
        let ipvs = &mut bench.ipvs;
        ipvs.add_server(&key, &server(1, 1))?;
        ipvs.add_server(&key, &server(2, 2))?;
        ipvs.delete_server(&key, server(1, 0).address, 8080)?;
        ipvs.add_server(&key, &server(1, 1))?;
        ipvs.edit_server(&key, &server(2, 0))?;
        let found: Vec<_> = ipvs.servers(&key)?.iter().map(|state| (state.address, state.weight)).collect();
        let wanted = [(1, 1), (2, 0), (3, 3)].map(|(number, weight)| (server(number, 0).address, weight));
        ensure!(found == wanted, "{}: {found:?}, not {wanted:?}", scheduler.name());
    }
    let without = if absent.is_empty() { String::new() } else { format!("; without {}", absent.join(" ")) };
    Ok(format!("{} schedulers{without}", bench.present.len()))
}

/// Every kind of service and server.
fn kinds(bench: &mut Bench) -> Result<String> {
    let plain = |key| service(key, bench.present[0]);
    let name = bench.present[0].name();
    let v4: IpAddr = Ipv4Addr::new(10, 96, 1, 1).into();
    let v6: IpAddr = "fd00:96::1".parse()?;
    let v6_server = RealServer { address: "fd00:1::3".parse()?, port: 8080, weight: 2, upper: 0, lower: 0 };
    let at = |protocol, port| VirtualKey::Address { protocol, address: v4, port };
    let limited = RealServer { upper: 10, lower: 3, ..server(7, 1) };
    let any_port = |v6| if v6 { RealServer { port: 0, ..v6_server } } else { RealServer { port: 0, ..server(7, 1) } };
    let v6_text = format!("[fd00:96::1]:80 -s {name} -p 600 -M 64");
    type Kind<'a> = (VirtualService, String, RealServer, &'a str);
    let mut kinds: Vec<Kind<'_>> = vec![
        (
            VirtualService { one_packet: true, ..plain(at(Protocol::Udp, 53)) },
            format!("-u 10.96.1.1:53 -s {name} -o"),
            server(7, 65_535),
            "10.1.0.7:8080 -m -w 65535",
        ),
        (
            plain(at(Protocol::Sctp, 36_412)),
            format!("--sctp-service 10.96.1.1:36412 -s {name}"),
            limited,
            "10.1.0.7:8080 -m -w 1",
        ),
        (
            VirtualService { persistence: 360, netmask: 24, ..plain(at(Protocol::Tcp, 0)) },
            format!("-t 10.96.1.1:0 -s {name} -p 360 -M 255.255.255.0"),
            any_port(false),
            "10.1.0.7:0 -m -w 1",
        ),
        (
            plain(VirtualKey::Mark { mark: 7, v6: false }),
            format!("-f 7 -s {name}"),
            any_port(false),
            "10.1.0.7:0 -m -w 1",
        ),
        (
            VirtualService { netmask: 128, ..plain(VirtualKey::Mark { mark: 8, v6: true }) },
            format!("-f 8 -6 -s {name}"),
            any_port(true),
            "[fd00:1::3]:0 -m -w 2",
        ),
        (
            VirtualService { persistence: 600, netmask: 64, ..plain(tcp(v6, 80)) },
            format!("-t {v6_text}"),
            v6_server,
            "[fd00:1::3]:8080 -m -w 2",
        ),
    ];
    for (number, scheduler) in (1..).zip([Scheduler::SourceHash, Scheduler::Maglev]) {
        if !bench.present.contains(&scheduler) {
            continue;
        }
        for (hash_port, hash_fallback) in [(true, false), (false, true), (true, true)] {
            let port = 100 * number + 10 * u16::from(hash_port) + u16::from(hash_fallback);
            let [port_name, fallback_name] = scheduler.flag_names();
            let flags = [(hash_fallback, fallback_name), (hash_port, port_name)];
            let flags: Vec<_> = flags.iter().filter(|(set, _)| *set).map(|(_, name)| *name).collect();
            kinds.push((
                VirtualService { hash_port, hash_fallback, ..service(tcp(v4, port), scheduler) },
                format!("-t 10.96.1.1:{port} -s {} -b {}", scheduler.name(), flags.join(",")),
                server(7, 1),
                "10.1.0.7:8080 -m -w 1",
            ));
        }
    }
    let count = kinds.len();
    for (service, saved, server, text) in kinds {
        bench.add(&service, &saved, &[(server, text)]).with_context(|| saved.clone())?;
    }
    Ok(format!("{count} services"))
}

/// `ipvsadm -S -n` prints what IPVS was told, and nothing else; `-Ln` has as many lines.
fn ipvsadm(bench: &mut Bench) -> Result<String> {
    let printed = bench.command(&["-S", "-n"])?;
    let mut found: Vec<_> = printed.lines().map(str::trim_end).map(str::to_owned).collect();
    let mut wanted = bench.saved.clone();
    found.sort();
    wanted.sort();
    let only = |these: &[String], those: &[String]| -> Vec<String> {
        these.iter().filter(|line| !those.contains(line)).cloned().collect()
    };
    let (more, less) = (only(&found, &wanted), only(&wanted, &found));
    ensure!(found == wanted, "ipvsadm -S -n prints {more:#?} and not {less:#?}");
    // ipvsadm 1.31 does not save thresholds.
    let thresholds = bench.command(&["-L", "-n", "--thresholds"])?;
    let limits = |line: &str| line.contains("10.1.0.7:8080") && line.split_whitespace().skip(2).take(2).eq(["10", "3"]);
    ensure!(thresholds.lines().filter(|line| limits(line)).count() == 1, "no thresholds 10 and 3 in\n{thresholds}");
    // Three lines of headings.
    let list = bench.command(&["-L", "-n"])?;
    let lines = list.lines().count();
    ensure!(lines == wanted.len() + 3, "{lines} lines of ipvsadm -Ln, not {}:\n{list}", wanted.len() + 3);
    let file = bench.ipvs.listing()?;
    let same = file.lines().count();
    ensure!(same == lines, "{same} lines of /proc/net/ip_vs, not {lines}:\n{file}");
    let elsewhere = Namespace::new("elsewhere")?;
    ensure!(Ipvs::open(&elsewhere)?.listing()?.lines().count() == 3, "another namespace has services too");
    Ok(format!("{} lines of ipvsadm -S -n are what IPVS was told", wanted.len()))
}

/// Timeouts, of which 0 keeps the one before.
fn timeouts(bench: &mut Bench) -> Result<String> {
    bench.ipvs.set_timeouts(100, 20, 30)?;
    bench.ipvs.set_timeouts(0, 21, 0)?;
    let said = bench.command(&["-L", "--timeout"])?;
    ensure!(said.trim() == "Timeout (tcp tcpfin udp): 100 21 30", "{said}");
    bench.ipvs.set_timeouts(900, 120, 300)?;
    Ok("tcp, tcpfin, udp".to_owned())
}

/// Switches, which are the namespace's.
fn switches(bench: &mut Bench) -> Result<String> {
    let names = ["expire_nodest_conn", "expire_quiescent_template", "sloppy_tcp"];
    let read = |namespace: &Namespace| -> Result<Vec<String>> {
        let file = |name| std::fs::read_to_string(format!("/proc/sys/net/ipv4/vs/{name}"));
        let texts = namespace.enter(|| names.map(file).into_iter().collect::<Result<Vec<_>, _>>())?;
        Ok(texts.iter().map(|text| text.trim().to_owned()).collect())
    };
    let wanted = Switches { expire_nodest_conn: true, expire_quiescent_template: false, sloppy_tcp: true };
    bench.ipvs.set_switches(&wanted)?;
    let (found, elsewhere) = (read(&bench.namespace)?, read(&Namespace::new("elsewhere")?)?);
    ensure!(found == ["1", "0", "1"] && elsewhere == ["0"; 3], "{names:?} are {found:?}, elsewhere {elsewhere:?}");
    bench.ipvs.set_switches(&Switches::default())?;
    ensure!(read(&bench.namespace)? == ["0"; 3], "the switches are not off again");
    Ok(names.join(" "))
}

/// A datagram makes a connection, which is listed and counted.
fn connections(bench: &mut Bench) -> Result<String> {
    let at = |last, port| SocketAddr::from((Ipv4Addr::new(127, 0, 0, last), port));
    let (virtual_address, to) = (at(2, 53), at(3, 5353));
    let key = VirtualKey::Address { protocol: Protocol::Udp, address: virtual_address.ip(), port: 53 };
    bench.ipvs.add_service(&service(key, bench.present[0]))?;
    bench.ipvs.add_server(&key, &RealServer { address: to.ip(), port: to.port(), ..server(0, 1) })?;
    let socket = |to: SocketAddr| bench.namespace.enter(|| UdpSocket::bind(to));
    let (receiver, sender) = (socket(to)?, socket(at(1, 0))?);
    sender.send_to(b"question", virtual_address)?;
    let mut bytes = [0; 16];
    let (length, from) = receiver.recv_from(&mut bytes)?;
    ensure!(&bytes[..length] == b"question", "the server received {:?}", &bytes[..length]);
    let found = bench.ipvs.connections()?;
    let [connection] = found.as_slice() else { bail!("{} connections, not 1: {found:?}", found.len()) };
    ensure!(
        (connection.client, connection.virtual_address, connection.server) == (from, virtual_address, to)
            && connection.protocol == Some(Protocol::Udp)
            && connection.state == "UDP"
            && (1..=300).contains(&connection.expires),
        "{connection:?}"
    );
    let counts: Vec<_> = bench.ipvs.servers(&key)?.iter().map(|state| (state.active, state.inactive)).collect();
    ensure!(counts == [(0, 1)], "the server's active and inactive connections are {counts:?}");
    bench.ipvs.delete_service(&key)?;
    Ok(format!("{} s until it ends", connection.expires))
}

/// Refusals say what was wrong, and `-C` leaves nothing.
fn errors(bench: &mut Bench) -> Result<String> {
    let ipvs = &mut bench.ipvs;
    let key = tcp(Ipv4Addr::new(10, 96, 2, 1).into(), 80);
    let of_service = service(key, bench.present[0]);
    let no_service = |command| format!("there is no such virtual service ({command}, ESRCH)");
    expect(ipvs.edit_service(&of_service).err(), &no_service("SetService"))?;
    expect(ipvs.delete_service(&key).err(), &no_service("DeleteService"))?;
    expect(ipvs.add_server(&key, &server(1, 1)).err(), &no_service("NewServer"))?;
    expect(ipvs.servers(&key).err(), &no_service("GetService"))?;
    ipvs.add_service(&of_service)?;
    expect(ipvs.add_service(&of_service).err(), "the virtual service exists already (NewService, EEXIST)")?;
    let no_server = |command| format!("the service has no such real server ({command}, ENOENT)");
    expect(ipvs.edit_server(&key, &server(1, 1)).err(), &no_server("SetServer"))?;
    expect(ipvs.delete_server(&key, server(1, 1).address, 8080).err(), &no_server("DeleteServer"))?;
    ipvs.add_server(&key, &server(1, 1))?;
    expect(ipvs.add_server(&key, &server(1, 1)).err(), "the real server exists already (NewServer, EEXIST)")?;
    let range = "the weight is negative, or the lower threshold is above the upper one";
    expect(ipvs.edit_server(&key, &server(1, -1)).err(), &format!("{range} (SetServer, ERANGE)"))?;
    let crossed = RealServer { upper: 3, lower: 4, ..server(2, 1) };
    expect(ipvs.add_server(&key, &crossed).err(), &format!("{range} (NewServer, ERANGE)"))?;
    ipvs.zero()?;
    ipvs.clear()?;
    ensure!(bench.command(&["-S", "-n"])?.trim().is_empty(), "services are left");
    Ok("named as they should be".to_owned())
}

/// The error is a refusal that says this.
fn expect(error: Option<anyhow::Error>, wanted: &str) -> Result<()> {
    let error = error.with_context(|| format!("no error, where IPVS should say: {wanted}"))?;
    let refusal = error.downcast_ref::<Refusal>().map(ToString::to_string);
    ensure!(refusal.as_deref() == Some(wanted), "IPVS says `{error:#}`, not `{wanted}`");
    Ok(())
}
