//! From the options of a line to a command, with everything checked that one line can tell.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use lb_common::address::Protocol;
use lb_common::scheduler::Scheduler;

use super::words::{Given, Opt, Wrong, options, words};
use crate::model::place::{self, number};
use crate::model::{Frontend, Method, Persistence, RuleOptions, RuleServer, Scope, Thresholds};

/// What a line does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Command {
    AddService(Frontend, RuleOptions),
    EditService(Frontend, RuleOptions),
    DeleteService(Frontend),
    Clear,
    AddServer(Frontend, RuleServer),
    EditServer(Frontend, RuleServer),
    DeleteServer(Frontend, IpAddr, u16),
}

impl Command {
    /// The service that it is about.
    pub(super) fn service(&self) -> Option<Frontend> {
        match *self {
            Self::AddService(service, _)
            | Self::EditService(service, _)
            | Self::DeleteService(service)
            | Self::AddServer(service, _)
            | Self::EditServer(service, _)
            | Self::DeleteServer(service, ..) => Some(service),
            Self::Clear => None,
        }
    }
}

/// A line that does nothing, as it is wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Failure {
    pub(super) wrong: Wrong,
    /// The service that it is about, if that can be told.
    pub(super) service: Option<Frontend>,
    /// True if it would add that service.
    pub(super) adds: bool,
}

/// IPVS's default, and ipvsadm's own: its man page says 300 seconds for the timeout, the program takes 360.
const DEFAULT_SCHEDULER: Scheduler = Scheduler::WeightedLeastConnection;
const DEFAULT_PERSISTENCE: u32 = 360;
/// The longest that ipvsadm takes: 31 days, in seconds.
const LONGEST_PERSISTENCE: u32 = 31 * 86_400;

/// Reads a line. None for one that says nothing.
pub(super) fn read(line: &str) -> Result<Option<Command>, Failure> {
    let mut words = words(line).peekable();
    if words.peek().is_none() {
        return Ok(None);
    }
    let failure = |wrong| Failure { wrong, service: None, adds: false };
    let given = options(words).map_err(failure)?;
    let verb = verb(&given).map_err(failure)?;
    if verb == Opt::Clear {
        let line = Line::new(verb, &given).map_err(failure)?;
        return line.only(&[]).map(|()| Some(Command::Clear)).map_err(failure);
    }
    let service = frontend(&given).map_err(failure)?;
    let failure = |wrong| Failure { wrong, service: Some(service), adds: verb == Opt::AddService };
    Line::new(verb, &given).and_then(|line| line.command(service)).map(Some).map_err(failure)
}

/// The one command of a line.
fn verb(given: &[Given<'_>]) -> Result<Opt, Wrong> {
    let mut verbs = given.iter().map(|given| given.option).filter(|option| *option <= Opt::Version);
    let verb = verbs.next().ok_or_else(|| Wrong::line("has no command: must have -A, -a, -E, -e, -D, -d or -C"))?;
    if let Some(other) = verbs.next() {
        return Err(Wrong::option(other, format!("a line has one command, and there is {} already", verb.name())));
    }
    let message = match verb {
        Opt::List => "lists nothing in a file of rules: use `bpvs list`",
        Opt::Zero => "counters cannot be zeroed: leave the line out",
        Opt::Restore => "a file of rules restores no other: put all rules into one file",
        Opt::Save => "saves nothing in a file of rules: use `bpvs save`",
        Opt::Set => "is no rule: use `bpvs set-timeouts`, or the timeout flags of `bpvs run`",
        Opt::StartDaemon | Opt::StopDaemon => "there is no connection synchronization: leave the line out",
        Opt::Help | Opt::Version => "is no rule: leave the line out",
        _ => return Ok(verb),
    };
    Err(Wrong::option(verb, message))
}

/// The service that a line is about.
fn frontend(given: &[Given<'_>]) -> Result<Frontend, Wrong> {
    const SERVICES: [Opt; 4] = [Opt::Tcp, Opt::Udp, Opt::Sctp, Opt::Mark];
    let mut services = given.iter().filter(|given| SERVICES.contains(&given.option));
    let missing = || Wrong::line("names no service: must have -t, -u, --sctp-service or -f");
    let &Given { option, value } = services.next().ok_or_else(missing)?;
    if let Some(other) = services.next() {
        return Err(Wrong::option(
            other.option,
            format!("a line has one service, and there is {} already", option.name()),
        ));
    }
    let value = value.unwrap_or_default();
    let v6 = given.iter().any(|given| given.option == Opt::Ipv6);
    let protocol = match option {
        Opt::Udp => Protocol::Udp,
        Opt::Sctp => Protocol::Sctp,
        _ => Protocol::Tcp,
    };
    if option == Opt::Mark {
        let mark = mark(value).filter(|mark| *mark != 0);
        let wrong = || Wrong::value(option, value, "a firewall mark must be a number from 1 to 4294967295");
        let address = if v6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
        return Ok(Frontend { scope: Scope::Mark(mark.ok_or_else(wrong)?), ..Frontend::new(address, 0, protocol) });
    }
    if v6 {
        return Err(Wrong::option(Opt::Ipv6, "is for firewall marks (-f): the address of a service tells its family"));
    }
    let place = place::parse(value).map_err(|message| Wrong::value(option, value, message))?;
    Ok(Frontend { scope: place.scope, ..Frontend::new(place.address, place.port.unwrap_or(0), protocol) })
}

/// A firewall mark. `ipvsadm -S` writes those from 2147483648 on as negative numbers, which `ipvsadm -R` refuses.
fn mark(text: &str) -> Option<u32> {
    match text.strip_prefix('-') {
        Some(digits) => number::<u32>(digits).filter(|lack| *lack <= 1 << 31).map(u32::wrapping_neg),
        None => number(text),
    }
}

const SERVICE_OPTIONS: [Opt; 6] =
    [Opt::Scheduler, Opt::Persistent, Opt::Netmask, Opt::Engine, Opt::Flags, Opt::OnePacket];
const SERVER_OPTIONS: [Opt; 12] = [
    Opt::Server,
    Opt::Route,
    Opt::Tunnel,
    Opt::Masq,
    Opt::Weight,
    Opt::Upper,
    Opt::Lower,
    Opt::TunnelType,
    Opt::TunnelPort,
    Opt::TunnelNoChecksum,
    Opt::TunnelChecksum,
    Opt::TunnelRemoteChecksum,
];

/// The options of one line, each once.
struct Line<'a> {
    verb: Opt,
    options: BTreeMap<Opt, Option<&'a str>>,
}

impl<'a> Line<'a> {
    fn new(verb: Opt, given: &[Given<'a>]) -> Result<Self, Wrong> {
        let mut options = BTreeMap::new();
        for given in given {
            if options.insert(given.option, given.value).is_some() {
                return Err(Wrong::option(given.option, "stands twice in the line: leave one out"));
            }
        }
        Ok(Self { verb, options })
    }

    fn command(&self, service: Frontend) -> Result<Command, Wrong> {
        match self.verb {
            Opt::AddService | Opt::EditService => {
                self.only(&SERVICE_OPTIONS)?;
                let options = self.service_options(&service)?;
                let add = self.verb == Opt::AddService;
                Ok(if add { Command::AddService(service, options) } else { Command::EditService(service, options) })
            }
            Opt::DeleteService => self.only(&[]).map(|()| Command::DeleteService(service)),
            Opt::DeleteServer => {
                self.only(&[Opt::Server])?;
                let (address, port) = self.server(&service)?;
                Ok(Command::DeleteServer(service, address, port))
            }
            _ => {
                self.only(&SERVER_OPTIONS)?;
                let server = self.server_options(&service)?;
                let add = self.verb == Opt::AddServer;
                Ok(if add { Command::AddServer(service, server) } else { Command::EditServer(service, server) })
            }
        }
    }

    /// Besides the service, the command takes these options only.
    fn only(&self, allowed: &[Opt]) -> Result<(), Wrong> {
        let service: &[Opt] =
            if self.verb == Opt::Clear { &[] } else { &[Opt::Tcp, Opt::Udp, Opt::Sctp, Opt::Mark, Opt::Ipv6] };
        let wrong = |option: &&Opt| **option != self.verb && !service.contains(option) && !allowed.contains(option);
        match self.options.keys().find(wrong) {
            Some(option) => Err(Wrong::option(*option, format!("is no option of {}: leave it out", self.verb.name()))),
            None => Ok(()),
        }
    }

    fn has(&self, option: Opt) -> bool {
        self.options.contains_key(&option)
    }

    fn value(&self, option: Opt) -> Option<&'a str> {
        self.options.get(&option).copied().flatten()
    }

    /// What is read of an option's value; none if it is not given.
    fn read<T>(&self, option: Opt, read: impl FnOnce(&'a str) -> Result<T, String>) -> Result<Option<T>, Wrong> {
        let Some(text) = self.value(option) else { return Ok(None) };
        read(text).map(Some).map_err(|message| Wrong::value(option, text, message))
    }

    fn service_options(&self, service: &Frontend) -> Result<RuleOptions, Wrong> {
        if let Some(engine) = self.value(Opt::Engine) {
            let message = "there are no persistence engines: leave it out, so that clients are known by their address";
            return Err(Wrong::value(Opt::Engine, engine, message));
        }
        let v6 = service.address.is_ipv6();
        let scheduler = self.read(Opt::Scheduler, |name| {
            let allowed = || format!("must be one of {}", Scheduler::ALL.map(Scheduler::name).join(", "));
            Scheduler::from_name(name).ok_or_else(allowed)
        })?;
        let scheduler = scheduler.unwrap_or(DEFAULT_SCHEDULER);
        let [hash_port, hash_fallback] = self.read(Opt::Flags, |text| flags(text, scheduler))?.unwrap_or_default();
        let netmask = self.read(Opt::Netmask, |text| place::netmask(text, v6))?;
        let timeout = self.read(Opt::Persistent, |text| {
            let timeout = number(text).filter(|timeout| (1..=LONGEST_PERSISTENCE).contains(timeout));
            timeout.ok_or_else(|| format!("must be a number of seconds from 1 to {LONGEST_PERSISTENCE}"))
        })?;
        // As in ipvsadm, a netmask alone says nothing.
        let persistence = self.has(Opt::Persistent).then(|| Persistence {
            timeout: timeout.unwrap_or(DEFAULT_PERSISTENCE),
            netmask: netmask.unwrap_or(if v6 { 128 } else { 32 }),
        });
        let marked = matches!(service.scope, Scope::Mark(_));
        if service.port == 0 && !marked && persistence.is_none() {
            let message = "port 0 stands for every port, which needs -p: state a port, or -p";
            return Err(Wrong::option(Opt::Persistent, format!("{service}: {message}")));
        }
        let one_packet = self.has(Opt::OnePacket);
        if one_packet && !marked && service.protocol != Protocol::Udp {
            return Err(Wrong::option(
                Opt::OnePacket,
                "is for UDP services (-u) and firewall marks (-f): leave it out",
            ));
        }
        Ok(RuleOptions { scheduler, hash_port, hash_fallback, persistence, one_packet })
    }

    fn server_options(&self, service: &Frontend) -> Result<RuleServer, Wrong> {
        let (address, mut port) = self.server(service)?;
        let method = self.method()?;
        if address.is_ipv4() != service.address.is_ipv4() && method != Method::Tunnel {
            let family = if service.address.is_ipv4() { "IPv4" } else { "IPv6" };
            let message = format!("must be an {family} address, as the service's is; in a tunnel (-i) it may be any");
            return Err(Wrong::value(Opt::Server, self.value(Opt::Server).unwrap_or_default(), message));
        }
        if method != Method::Nat && !matches!(service.scope, Scope::Mark(_)) {
            // Packets reach it with the port that they have. ipvsadm puts it in place of any other without a word too.
            port = service.port;
        }
        let highest = i32::MAX;
        let up_to = |text: &str| number(text).filter(|number| *number <= highest as u32);
        let weight = self.read(Opt::Weight, |text| {
            up_to(text).ok_or_else(|| format!("must be a number from 0 to {highest} (0 takes no new connections)"))
        })?;
        let threshold = |option| {
            let wrong = || format!("must be a number of connections from 0 to {highest} (0 for none)");
            self.read(option, |text| up_to(text).ok_or_else(wrong)).map(Option::unwrap_or_default)
        };
        let thresholds = Thresholds { upper: threshold(Opt::Upper)?, lower: threshold(Opt::Lower)? };
        if thresholds.lower > thresholds.upper {
            let message = format!("must not be higher than the upper threshold (-x), which is {}", thresholds.upper);
            return Err(Wrong::value(Opt::Lower, &thresholds.lower.to_string(), message));
        }
        Ok(RuleServer { address, port, weight: weight.unwrap_or(1) as i32, thresholds, method })
    }

    /// How packets reach the server. Without a word: direct routing, as in ipvsadm.
    fn method(&self) -> Result<Method, Wrong> {
        const METHODS: [(Opt, Method); 3] =
            [(Opt::Route, Method::Route), (Opt::Tunnel, Method::Tunnel), (Opt::Masq, Method::Nat)];
        let mut given = METHODS.into_iter().filter(|(option, _)| self.has(*option));
        let (first, method) = given.next().unwrap_or((Opt::Route, Method::Route));
        if let Some((other, _)) = given.next() {
            let message = format!("packets reach a server in one way, and there is {} already", first.name());
            return Err(Wrong::option(other, message));
        }
        let others = [Opt::TunnelPort, Opt::TunnelNoChecksum, Opt::TunnelChecksum, Opt::TunnelRemoteChecksum];
        let tunnel = [Opt::TunnelType].into_iter().chain(others).find(|option| self.has(*option));
        if let Some(option) = tunnel.filter(|_| method != Method::Tunnel) {
            return Err(Wrong::option(option, "is for tunnels: state -i, or leave it out"));
        }
        self.read(Opt::TunnelType, |name| match name {
            "ipip" => Ok(()),
            "gue" | "gre" => Err("is not supported: tunnels are of type ipip".to_owned()),
            _ => Err("must be ipip".to_owned()),
        })?;
        match others.into_iter().find(|option| self.has(*option)) {
            Some(option) => {
                Err(Wrong::option(option, "is for tunnels of type gue and gre: those are of type ipip here"))
            }
            None => Ok(method),
        }
    }

    /// The real server, of any family; its port is the service's unless stated.
    fn server(&self, service: &Frontend) -> Result<(IpAddr, u16), Wrong> {
        let missing = || Wrong::option(Opt::Server, "missing: must name the real server");
        let place = self.read(Opt::Server, place::parse)?.ok_or_else(missing)?;
        let wrong =
            |message: String| Err(Wrong::value(Opt::Server, self.value(Opt::Server).unwrap_or_default(), message));
        if place.scope != Scope::Address {
            return wrong("a real server is one address, not a network".to_owned());
        }
        Ok((place.address, place.port.unwrap_or(service.port)))
    }
}

/// Scheduler flags: of the port, of the fallback.
fn flags(text: &str, scheduler: Scheduler) -> Result<[bool; 2], String> {
    let names = scheduler.flag_names();
    let mut flags = [false; 2];
    for name in text.split(',') {
        let generic = ["flag-2", "flag-1"].iter().position(|known| *known == name);
        let Some(index) = names.iter().position(|known| *known == name).or(generic) else {
            let [port, fallback] = names;
            return Err(format!("must be {fallback}, {port} or both, separated by a comma, with {}", scheduler.name()));
        };
        flags[index] = true;
    }
    Ok(flags)
}
