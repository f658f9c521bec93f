//! A director made of `lb-common`'s schedulers and layouts: what BPF does, with the host's loops and maps.

use std::{collections::HashMap, net::IpAddr};

use lb_common::{
    address::{Address, Port},
    layout::{DestinationLoad, DestinationSlot, SERVICE_HASH_FALLBACK, SERVICE_HASH_PORT},
    scheduler::{
        Scheduler,
        cursor::{
            RoundRobinWalk, WeightSteps, WeightedStep, WeightedWalk, rr_after_add, rr_after_delete, wrr_after_change,
            wrr_initial,
        },
        hash,
        locality::{FORGET_NS, REPLICATION_EXPIRY_NS, SetMaximum, SetMinimum, busy},
        maglev::{self, Claim, MaglevWalk},
        scan::{Candidate, Flow, Rule, Scan},
        table::{self, Probe, SourceHashWalk, TABLE_LENGTH, fill_destination_hash, fill_source_hash},
        word::SchedulerWord,
    },
};

use crate::world::SERVER_PORT;

/// What a scheduler may look at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) client: IpAddr,
    pub(crate) client_port: u16,
    pub(crate) destination: IpAddr,
    /// Clock of the memory of lblc and lblcr.
    pub(crate) now: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Server {
    address: Address,
    weight: i32,
    last_weight: i32,
    load: DestinationLoad,
    listed: bool,
}

#[derive(Clone, Debug, Default)]
struct Memory {
    last_used: u64,
    last_modified: u64,
    /// lblc: the last is the server. lblcr: oldest first.
    servers: Vec<u32>,
}

#[derive(Clone, Debug)]
pub(crate) struct Host {
    scheduler: Scheduler,
    flags: u8,
    list: Vec<u32>,
    servers: HashMap<u32, Server>,
    word: SchedulerWord,
    table: [DestinationSlot; TABLE_LENGTH],
    /// mh's table; empty when it has none.
    maglev: Vec<DestinationSlot>,
    memory: HashMap<IpAddr, Memory>,
}

pub(crate) fn flags(port: bool, fallback: bool) -> u8 {
    (if port { SERVICE_HASH_PORT } else { 0 }) | (if fallback { SERVICE_HASH_FALLBACK } else { 0 })
}

impl Host {
    pub(crate) fn new(scheduler: Scheduler, flags: u8) -> Self {
        Self {
            scheduler,
            flags,
            list: Vec::new(),
            servers: HashMap::new(),
            word: SchedulerWord::default(),
            table: [DestinationSlot::default(); TABLE_LENGTH],
            maglev: Vec::new(),
            memory: HashMap::new(),
        }
    }

    fn slot(&self, id: u32) -> DestinationSlot {
        DestinationSlot { destination: id, weight: self.servers[&id].weight }
    }

    fn set(&self) -> Vec<DestinationSlot> {
        self.list.iter().map(|&id| self.slot(id)).collect()
    }

    fn steps(&self) -> WeightSteps {
        WeightSteps::of(self.set().iter().map(|slot| slot.weight))
    }

    fn changed(&mut self) {
        if self.scheduler == Scheduler::WeightedRoundRobin {
            self.word = wrr_after_change(self.word, self.steps());
        }
        self.fill();
    }

    fn fill(&mut self) {
        let set = self.set();
        match self.scheduler {
            Scheduler::DestinationHash => fill_destination_hash(&set, &mut self.table),
            Scheduler::SourceHash => fill_source_hash(&set, &mut self.table),
            Scheduler::Maglev => {
                let claim = |slot: &DestinationSlot| {
                    let server = &self.servers[&slot.destination];
                    Claim::new(*slot, &server.address, Port::new(SERVER_PORT), server.last_weight)
                };
                let mut table = [DestinationSlot::default(); maglev::TABLE_LENGTH];
                let filled = maglev::fill(&mut set.iter().map(claim).collect::<Vec<_>>(), &mut table);
                self.maglev = if filled { table.to_vec() } else { Vec::new() };
            }
            _ => {}
        }
    }

    pub(crate) fn add(&mut self, id: u32, address: IpAddr, weight: i32) {
        let server = self.servers.entry(id).or_default();
        let address = Address::from(address);
        *server = Server { address, weight, last_weight: weight, listed: true, ..*server };
        self.list.insert(0, id);
        self.word = rr_after_add(self.word);
        self.changed();
    }

    pub(crate) fn edit(&mut self, id: u32, weight: i32) {
        let server = self.servers.entry(id).or_default();
        server.weight = weight;
        if weight != 0 {
            server.last_weight = weight;
        }
        self.changed();
    }

    pub(crate) fn delete(&mut self, id: u32) {
        let position = self.list.iter().position(|&other| other == id).expect("only listed servers are deleted");
        self.list.remove(position);
        self.servers.entry(id).or_default().listed = false;
        self.word = rr_after_delete(self.word, position as u32);
        self.changed();
    }

    pub(crate) fn switch(&mut self, scheduler: Scheduler, flags: u8) {
        self.flags = flags;
        if scheduler != self.scheduler {
            self.scheduler = scheduler;
            self.word = wrr_initial(self.steps());
            self.memory.clear();
            self.fill();
        }
    }

    /// As if the service had been deleted and created again, without servers.
    pub(crate) fn recreate(&mut self) {
        self.list.clear();
        self.servers.values_mut().for_each(|server| server.listed = false);
        self.word = SchedulerWord::default();
        self.memory.clear();
        self.fill();
    }

    pub(crate) fn move_load(&mut self, id: u32, difference: u64) {
        let load = &mut self.servers.entry(id).or_default().load;
        load.connections = load.connections.wrapping_add(difference);
    }

    pub(crate) fn counts(&self, id: u32) -> (u32, u32) {
        self.servers.get(&id).map_or((0, 0), |server| (server.load.active(), server.load.inactive()))
    }

    fn candidate(&self, id: u32) -> Candidate {
        Candidate::new(id, self.servers[&id].weight, &self.servers[&id].load)
    }

    fn scan(&self, rule: Rule) -> Scan {
        let mut scan = Scan::new(rule);
        for &id in &self.list {
            let candidate = self.candidate(id);
            scan.relax(&candidate);
            if scan.step(rule, &candidate) == Flow::Stop {
                break;
            }
        }
        scan
    }

    /// The server for a new connection; 0 for none.
    pub(crate) fn pick(&mut self, request: &Request) -> u32 {
        match self.scheduler {
            Scheduler::RoundRobin => self.round_robin(),
            Scheduler::WeightedRoundRobin => self.weighted_round_robin(),
            Scheduler::DestinationHash => {
                let slot = self.table[hash::destination_cell(&Address::from(request.destination)) as usize];
                if table::usable(slot, false) { slot.destination } else { 0 }
            }
            Scheduler::SourceHash => self.source_hash(request),
            Scheduler::LocalityLeastConnection => self.single(request),
            Scheduler::LocalityReplicated => self.replicated(request),
            Scheduler::Maglev => self.maglev(request),
            other => self.scan(Rule::of(other).expect("every other scheduler scans")).chosen(),
        }
    }

    fn round_robin(&mut self) -> u32 {
        let walk = RoundRobinWalk::new(self.word, self.list.len() as u32);
        for attempt in 0..self.list.len() as u32 {
            let position = walk.position(attempt);
            let slot = self.slot(self.list[position as usize]);
            if slot.weight > 0 {
                self.word.cursor = position as u16 + 1;
                return slot.destination;
            }
        }
        0
    }

    fn weighted_round_robin(&mut self) -> u32 {
        let mut walk = WeightedWalk::new(self.word, self.steps(), self.list.len() as u32);
        loop {
            match walk.step(0) {
                WeightedStep::Nothing(word) => {
                    self.word = word;
                    return 0;
                }
                WeightedStep::Look(position) => {
                    let slot = self.slot(self.list[position as usize]);
                    if let Some((word, picked)) = walk.offer(slot.weight, false, 0) {
                        self.word = word;
                        return if picked { slot.destination } else { 0 };
                    }
                }
            }
        }
    }

    fn source_hash(&self, request: &Request) -> u32 {
        let mut walk = SourceHashWalk::new(Address::from(request.client), request.client_port, self.flags);
        loop {
            let slot = self.table[walk.cell() as usize];
            match walk.offer(slot, false) {
                Probe::Next => {}
                Probe::Nothing => return 0,
                Probe::Take => return slot.destination,
            }
        }
    }

    fn maglev(&self, request: &Request) -> u32 {
        if self.maglev.is_empty() {
            return 0;
        }
        let walk = MaglevWalk::new(&Address::from(request.client), request.client_port, self.flags);
        for attempt in 0..MaglevWalk::MAX_PROBES {
            let slot = self.maglev[walk.cell(attempt) as usize];
            match walk.offer(slot, false) {
                Probe::Next => {}
                Probe::Nothing => return 0,
                Probe::Take => return slot.destination,
            }
        }
        0
    }

    fn recall(&mut self, request: &Request) -> Option<Memory> {
        let memory = self.memory.get_mut(&request.destination)?;
        if request.now - memory.last_used >= FORGET_NS {
            self.memory.remove(&request.destination);
            return None;
        }
        memory.last_used = request.now;
        Some(memory.clone())
    }

    fn single(&mut self, request: &Request) -> u32 {
        let scan = self.scan(Rule::WeightedLeast);
        if let Some(&id) = self.recall(request).and_then(|memory| memory.servers.last().copied()).as_ref() {
            let server = self.candidate(id);
            if self.servers[&id].listed && server.weight > 0 && !busy(&server, scan.relaxed_exists()) {
                return id;
            }
        }
        if scan.chosen() != 0 {
            let memory = Memory { last_used: request.now, last_modified: request.now, servers: vec![scan.chosen()] };
            self.memory.insert(request.destination, memory);
        }
        scan.chosen()
    }

    fn replicated(&mut self, request: &Request) -> u32 {
        let scan = self.scan(Rule::WeightedLeast);
        let Some(mut memory) = self.recall(request) else {
            if scan.chosen() != 0 {
                let memory =
                    Memory { last_used: request.now, last_modified: request.now, servers: vec![scan.chosen()] };
                self.memory.insert(request.destination, memory);
            }
            return scan.chosen();
        };
        let (mut minimum, mut maximum) = (SetMinimum::default(), SetMaximum::default());
        for (place, &id) in memory.servers.iter().enumerate().rev() {
            minimum.step(&self.candidate(id), self.servers[&id].listed);
            maximum.step(&self.candidate(id), place as u32);
        }
        if memory.servers.len() > 1 && request.now - memory.last_modified > REPLICATION_EXPIRY_NS {
            if let Some(place) = maximum.place() {
                memory.servers.remove(place as usize);
            }
            memory.last_modified = request.now;
        }
        let server = *minimum.chosen();
        let mut chosen = server.destination;
        if chosen == 0 || busy(&server, scan.relaxed_exists()) {
            chosen = scan.chosen();
            if chosen != 0 && !memory.servers.contains(&chosen) {
                memory.servers.push(chosen);
                memory.last_modified = request.now;
            }
        }
        self.memory.insert(request.destination, memory);
        chosen
    }
}
