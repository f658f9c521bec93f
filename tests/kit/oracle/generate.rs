//! Random scripts: by scheduler, seed and number, the same each time.

use lb_common::address::Protocol;
use lb_common::scheduler::Scheduler;

use super::control::Switches;
use super::random::Random;
use super::script::{CLIENTS, Choice, Event, Flow, PLACES, PORTS, Script, Server, Share, Side, Signal};

/// Virtual addresses kept for each scheduler's random scripts.
pub const CASES: u32 = 1 << 17;
/// Number of the first script of the fixed set.
pub const FIXED: u32 = Scheduler::ALL.len() as u32 * CASES;

/// Most servers of a script, and a few that are added later.
const SERVERS: usize = 12;
const MORE: usize = 3;

/// Seconds of `--set` in scripts with waits, and the milliseconds after which all of them are over.
const TIMEOUTS: (u32, u32, u32) = (3, 2, 3);
const WAIT: u32 = 4_500;

/// Kinds of events, of a hundred, that take no server out of the list. twos draws: who chose which server is not known, so
/// nobody knows whose connections a removal meets.
const WITHOUT_LIST_EDITS: usize = 93;

/// Seconds of persistence: longer than a script's waits, so that no template runs out in the tick of its connection.
const PERSISTENCE: u32 = 300;

/// Of so many scripts one is about a firewall mark.
const MARKED: usize = 6;

/// Scripts of a hundred in which time passes: each holds the run up.
const WITH_WAITS: usize = 2;

/// Script `case` of a scheduler.
pub fn script(scheduler: Scheduler, seed: u64, case: u32) -> Script {
    let place = Scheduler::ALL.iter().position(|other| *other == scheduler).unwrap_or(0) as u32;
    let number = place * CASES + case % CASES;
    let mut random = Random::new(seed.wrapping_mul(0x1_0000_0001) ^ (u64::from(number) << 32));
    let protocol = match random.below(100) {
        0..70 => Protocol::Tcp,
        70..90 => Protocol::Udp,
        _ => Protocol::Sctp,
    };
    let v6 = random.percent(30);
    let places = places(seed, number);
    let mut first = choice(&mut random, scheduler, v6);
    let (switches, thresholds) = semantics(&mut random, &mut first, protocol, v6);
    let mut writer = Writer {
        script: Script {
            title: String::new(),
            number,
            protocol,
            v6,
            places,
            choice: first,
            switches,
            steps: Vec::new(),
        },
        random,
        choice: first,
        thresholds,
        weights: Vec::new(),
        flows: Vec::new(),
    };
    writer.write();
    writer.script
}

/// Places of the service, by other numbers than the rest: what happens to it is the same with and without a mark.
fn places(seed: u64, number: u32) -> u16 {
    let mut random = Random::new(seed.wrapping_mul(0x1_0000_0001) ^ (u64::from(number) << 32) ^ 0x6d61_726b);
    if random.below(MARKED) == 0 { random.between(1, PLACES.into()) as u16 } else { 0 }
}

fn choice(random: &mut Random, scheduler: Scheduler, v6: bool) -> Choice {
    let hashes = scheduler.has_flags();
    Choice {
        port: hashes && random.percent(40),
        fallback: hashes && random.percent(40),
        ..Choice::plain(scheduler, v6)
    }
}

/// Adds, to some scripts, what is of the service and its connections rather than of the scheduler. True if servers have
/// thresholds. Not for twos: who has which server is not known.
fn semantics(random: &mut Random, choice: &mut Choice, protocol: Protocol, v6: bool) -> (Switches, bool) {
    if choice.scheduler == Scheduler::TwoChoices || random.percent(40) {
        return (Switches::default(), false);
    }
    if random.percent(40) {
        choice.persistence = PERSISTENCE;
        if random.percent(40) {
            choice.netmask = if v6 { 48 } else { 24 };
        }
    }
    choice.one_packet = protocol == Protocol::Udp && random.percent(30);
    let switches = Switches {
        expire_nodest_conn: random.percent(20),
        expire_quiescent_template: random.percent(20),
        sloppy_tcp: random.percent(10),
    };
    (switches, random.percent(40))
}

fn weight(random: &mut Random) -> i32 {
    match random.below(100) {
        0..10 => 0,
        10..40 => random.between(1, 3) as i32,
        40..90 => random.between(1, 20) as i32,
        90..97 => random.between(100, 300) as i32,
        _ => random.pick(&[1000, 65_535]),
    }
}

struct Writer {
    script: Script,
    random: Random,
    choice: Choice,
    /// Servers have them, most of them.
    thresholds: bool,
    /// Servers in the list with their weights and thresholds.
    weights: Vec<(Server, Share)>,
    /// Connections that were opened.
    flows: Vec<Flow>,
}

impl Writer {
    fn write(&mut self) {
        let servers = self.random.between(1, SERVERS);
        let mut order: Vec<Server> = (1..=servers as Server).collect();
        for place in (1..order.len()).rev() {
            order.swap(place, self.random.below(place + 1));
        }
        let waits = self.random.percent(WITH_WAITS);
        if waits {
            self.push(Event::Timeouts(TIMEOUTS.0, TIMEOUTS.1, TIMEOUTS.2));
        }
        order.into_iter().for_each(|server| self.add(server));
        let (groups, mut left) = (self.random.between(10, 60), 2);
        for _ in 0..groups {
            if waits && left > 0 && self.random.percent(6) {
                left -= 1;
                self.push(Event::Wait(WAIT));
                self.push(Event::Look);
            }
            self.group();
        }
        self.push(Event::Look);
    }

    fn push(&mut self, event: Event) {
        self.script.steps.push((event, None));
    }

    fn add(&mut self, server: Server) {
        let weight = weight(&mut self.random);
        let share = self.share(weight);
        self.weights.push((server, share));
        self.push(Event::Add(server, share));
    }

    fn share(&mut self, weight: i32) -> Share {
        if !self.thresholds || self.random.percent(20) {
            return Share { weight, ..Share::default() };
        }
        let upper = self.random.between(1, 6);
        let lower = if self.random.percent(50) { 0 } else { self.random.between(1, upper) };
        Share { weight, upper: upper as u32, lower: lower as u32 }
    }

    fn absent(&mut self) -> Option<Server> {
        let listed = |server: &Server| self.weights.iter().any(|(other, _)| other == server);
        let absent: Vec<Server> = (1..=(SERVERS + MORE) as Server).filter(|server| !listed(server)).collect();
        (!absent.is_empty()).then(|| self.random.pick(&absent))
    }

    /// A few events that belong together.
    fn group(&mut self) {
        let all = if self.script.choice.scheduler == Scheduler::TwoChoices { WITHOUT_LIST_EDITS } else { 100 };
        match self.random.below(all) {
            0..48 => self.open(),
            48..70 => self.go_on(),
            70..79 => self.end(),
            79..87 => self.weigh(),
            87..92 => {
                if let Some(server) = self.absent() {
                    self.add(server);
                }
            }
            92 => self.push(Event::Look),
            93..97 => self.remove(),
            97..99 => self.edit(),
            _ => self.renew(),
        }
    }

    fn packet(&mut self, flow: Flow, from: Side, signal: Signal) {
        self.push(Event::Packet { flow, from, signal });
    }

    fn open(&mut self) {
        // Now and then one that there is, or was.
        let again = self.random.percent(15).then(|| self.known()).flatten();
        let flow = again.unwrap_or_else(|| Flow {
            client: self.random.below(CLIENTS.into()) as u8,
            port: self.random.below(PORTS.into()) as u16,
        });
        if !self.flows.contains(&flow) {
            self.flows.push(flow);
        }
        let first = if self.script.protocol == Protocol::Udp { Signal::Data } else { Signal::Open };
        self.packet(flow, Side::Client, first);
        match self.script.protocol {
            Protocol::Tcp if self.random.percent(70) => {
                self.packet(flow, Side::Server, Signal::Open);
                self.packet(flow, Side::Client, Signal::Accept);
            }
            Protocol::Sctp if self.random.percent(70) => {
                self.packet(flow, Side::Server, Signal::Open);
                self.packet(flow, Side::Client, Signal::Accept);
                self.packet(flow, Side::Server, Signal::Accept);
            }
            Protocol::Udp if self.random.percent(30) => self.packet(flow, Side::Server, Signal::Data),
            _ => {}
        }
    }

    fn known(&mut self) -> Option<Flow> {
        (!self.flows.is_empty()).then(|| self.random.pick(&self.flows))
    }

    /// Any packet of a connection that there is.
    fn go_on(&mut self) {
        let Some(flow) = self.known() else { return self.open() };
        let from = if self.random.percent(60) { Side::Client } else { Side::Server };
        let usual = [Signal::Data, Signal::Accept, Signal::Finish, Signal::Open, Signal::Abort];
        let signal = match self.script.protocol {
            Protocol::Udp => Signal::Data,
            _ if self.random.percent(85) => self.random.pick(&usual),
            _ => self.random.pick(&Signal::ALL).0,
        };
        self.packet(flow, from, signal);
    }

    /// A connection ends, and often its client's port is used again.
    fn end(&mut self) {
        let Some(flow) = self.known() else { return self.open() };
        let (client, server) = (Side::Client, Side::Server);
        match (self.script.protocol, self.random.below(4)) {
            (Protocol::Udp, _) => self.packet(flow, client, Signal::Data),
            (_, 0) => self.packet(flow, client, Signal::Abort),
            (_, 1) => self.packet(flow, server, Signal::Abort),
            (protocol, way) => {
                let (one, two) = if way == 2 { (client, server) } else { (server, client) };
                self.packet(flow, one, Signal::Finish);
                let answer = if protocol == Protocol::Sctp { Signal::Finished } else { Signal::Finish };
                self.packet(flow, two, answer);
                let last = if protocol == Protocol::Sctp { Signal::Nothing } else { Signal::Accept };
                self.packet(flow, one, last);
            }
        }
        if self.random.percent(40) {
            let first = if self.script.protocol == Protocol::Udp { Signal::Data } else { Signal::Open };
            self.packet(flow, client, first);
        }
    }

    fn weigh(&mut self) {
        if self.weights.is_empty() {
            return;
        }
        let place = self.random.below(self.weights.len());
        let (server, Share { weight: old, .. }) = self.weights[place];
        // An edit that changes nothing is none to bpvs.
        let new = (0..8).map(|_| weight(&mut self.random)).find(|new| *new != old).unwrap_or(old + 1);
        let share = self.share(new);
        self.weights[place].1 = share;
        self.push(Event::Edit(server, share));
    }

    fn remove(&mut self) {
        if self.weights.is_empty() {
            return;
        }
        let place = self.random.below(self.weights.len());
        let (server, share) = self.weights.remove(place);
        self.push(Event::Remove(server));
        if self.random.percent(50) {
            self.open();
            self.weights.push((server, share));
            self.push(Event::Add(server, share));
        }
    }

    /// The scheduler changes, and mostly comes back.
    fn edit(&mut self) {
        let v6 = self.script.v6;
        let others: Vec<Scheduler> =
            Scheduler::ALL.into_iter().filter(|scheduler| *scheduler != Scheduler::TwoChoices).collect();
        let same = self.random.percent(40);
        let scheduler = if same { self.choice.scheduler } else { self.random.pick(&others) };
        let Choice { persistence, netmask, one_packet, .. } = self.choice;
        let mut next = Choice { persistence, netmask, one_packet, ..choice(&mut self.random, scheduler, v6) };
        if self.script.choice.persistence != 0 && self.random.percent(20) {
            next.persistence = if persistence == 0 { PERSISTENCE } else { 0 };
        }
        self.push(Event::Service(next));
        if next.scheduler != self.script.choice.scheduler {
            (0..3).for_each(|_| self.open());
            let Choice { persistence, .. } = next;
            let plain = choice(&mut self.random, self.script.choice.scheduler, v6);
            let back = Choice { persistence, netmask, one_packet, ..plain };
            self.push(Event::Service(back));
            self.choice = back;
        } else {
            self.choice = next;
        }
    }

    fn renew(&mut self) {
        self.push(Event::Renew);
        for (server, share) in self.weights.clone() {
            self.push(Event::Add(server, share));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oracle::script::NUMBERS;

    #[test]
    fn a_script_is_the_same_each_time_and_reads_back() {
        for scheduler in Scheduler::ALL {
            let marked = (0..50).filter(|case| script(scheduler, 7, *case).is_marked()).count();
            assert!((1..25).contains(&marked), "{marked} scripts of {} are about a mark", scheduler.name());
            for case in 0..50 {
                let made = script(scheduler, 7, case);
                assert_eq!(made, script(scheduler, 7, case));
                let read: Script = made.to_string().parse().unwrap();
                assert_eq!(read.to_string(), made.to_string());
                assert!(made.number < FIXED && FIXED < NUMBERS / 2);
            }
        }
    }

    #[test]
    fn no_edit_is_without_effect_and_every_kind_of_event_comes() {
        let mut kinds = std::collections::BTreeSet::new();
        for case in 0..400 {
            let mut weights = std::collections::BTreeMap::new();
            for (event, _) in script(Scheduler::WeightedRoundRobin, 1, case).steps {
                kinds.insert(event.text(false).chars().find(|letter| !letter.is_ascii_digit()).unwrap_or('0'));
                match event {
                    Event::Add(server, share) => drop(weights.insert(server, share.weight)),
                    Event::Edit(server, share) => {
                        assert_ne!(weights.insert(server, share.weight), Some(share.weight), "case {case}");
                    }
                    Event::Remove(server) => assert!(weights.remove(&server).is_some(), "case {case}"),
                    Event::Renew => weights.clear(),
                    _ => {}
                }
            }
        }
        for kind in "+-w!N?~t".chars() {
            assert!(kinds.contains(&kind), "no `{kind}` among {kinds:?}");
        }
    }
}
