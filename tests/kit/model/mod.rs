//! An independent model of an IPVS virtual service with thirteen of its schedulers, to hold the real ones against.
//!
//! Written from the pseudo-code of the specification (1.3 to 1.5, 3, 4) in the plainest Rust there is, and it shares no
//! code with `lb-common`: a fault would have to be made twice, in two shapes, to go unnoticed. Speed is no aim.
//!
//! Deliberately absent: thresholds (the OVERLOAD flag), persistence, and twos, which is random.
//!
//! | file | idea |
//! |---|---|
//! | `servers` | the list, newest first, with weights, counters and the trash |
//! | `order` | rr, wrr: whose turn it is |
//! | `load` | lc, wlc, sed, nq: who has least to do; fo, ovf: who has the highest weight |
//! | `hash` | dh, sh: tables indexed by a hash |
//! | `maglev` | mh: its table and its hash |
//! | `locality` | lblc, lblcr: caches in front of wlc |

mod hash;
mod load;
mod locality;
mod maglev;
mod order;
mod servers;

use std::net::IpAddr;

pub use hash::{fold, hash_32};
pub use maglev::{CLIENT_KEY, SKIP_KEY, sip_hash};
pub use servers::{Server, Servers};

/// A server's name in a test. It stays with its address and port for good.
pub type Id = u32;

/// Flags of a service that schedulers look at.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Flags {
    /// `sh-port`, `mh-port`: hash the client's port too.
    pub port: bool,
    /// `sh-fallback`, `mh-fallback`: take another server when the hashed one is unusable.
    pub fallback: bool,
}

/// What a scheduler may look at in the packet that opens a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packet {
    /// Source address.
    pub client: IpAddr,
    /// Source port.
    pub client_port: u16,
    /// Destination address as the client wrote it.
    pub destination: IpAddr,
}

/// Why IPVS refuses an edit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// The server is in the list already (EEXIST), or its id or its address belongs to another.
    Exists,
    /// No such server in the list (ENOENT).
    Missing,
    /// A weight below 0 (ERANGE).
    WeightOutOfRange,
    /// No scheduler of that name (ENOENT).
    UnknownScheduler,
}

/// One virtual service.
#[derive(Clone, Debug)]
pub struct Director {
    flags: Flags,
    servers: Servers,
    name: String,
    scheduler: Scheduler,
}

/// A scheduler and what it remembers.
#[derive(Clone, Debug)]
enum Scheduler {
    Rr(order::Rr),
    Wrr(order::Wrr),
    Lc,
    Wlc,
    Sed,
    Nq,
    Fo,
    Ovf,
    Dh(hash::Table),
    Sh(hash::Table),
    Mh(hash::Table),
    Lblc(locality::Lblc),
    Lblcr(locality::Lblcr),
}

/// The schedulers that [`Director`] knows, by IPVS's names.
pub const SCHEDULERS: [&str; 13] =
    ["rr", "wrr", "lc", "wlc", "lblc", "lblcr", "dh", "sh", "sed", "nq", "fo", "ovf", "mh"];

impl Scheduler {
    /// A scheduler that starts with these servers: a new service's, or one that is switched to.
    fn start(name: &str, servers: &Servers) -> Result<Self, Refusal> {
        Ok(match name {
            "rr" => Self::Rr(order::Rr::default()),
            "wrr" => Self::Wrr(order::Wrr::start(servers)),
            "lc" => Self::Lc,
            "wlc" => Self::Wlc,
            "sed" => Self::Sed,
            "nq" => Self::Nq,
            "fo" => Self::Fo,
            "ovf" => Self::Ovf,
            "mh" => Self::Mh(maglev::table(servers)),
            "dh" => Self::Dh(hash::dh_table(servers)),
            "sh" => Self::Sh(hash::sh_table(servers)),
            "lblc" => Self::Lblc(locality::Lblc::default()),
            "lblcr" => Self::Lblcr(locality::Lblcr::default()),
            _ => return Err(Refusal::UnknownScheduler),
        })
    }
}

impl Director {
    /// A service without servers.
    pub fn new(scheduler: &str, flags: Flags) -> Result<Self, Refusal> {
        let servers = Servers::default();
        let started = Scheduler::start(scheduler, &servers)?;
        Ok(Self { flags, servers, name: scheduler.to_owned(), scheduler: started })
    }

    /// Adds a server at the head of the list. One that was deleted comes back with its connections.
    pub fn add(&mut self, id: Id, address: IpAddr, port: u16, weight: i32) -> Result<(), Refusal> {
        self.servers.add(id, address, port, weight)?;
        match &mut self.scheduler {
            Scheduler::Wrr(wrr) => wrr.changed(&self.servers),
            Scheduler::Dh(table) => *table = hash::dh_table(&self.servers),
            Scheduler::Sh(table) => *table = hash::sh_table(&self.servers),
            Scheduler::Mh(table) => *table = maglev::table(&self.servers),
            _ => {}
        }
        Ok(())
    }

    /// Changes a server's weight. An edit that changes nothing is an edit all the same.
    pub fn edit(&mut self, id: Id, weight: i32) -> Result<(), Refusal> {
        self.servers.edit(id, weight)?;
        match &mut self.scheduler {
            Scheduler::Wrr(wrr) => wrr.changed(&self.servers),
            Scheduler::Sh(table) => *table = hash::sh_table(&self.servers),
            Scheduler::Mh(table) => *table = maglev::table(&self.servers),
            _ => {}
        }
        Ok(())
    }

    /// Takes a server out of the list. Its connections live on.
    pub fn delete(&mut self, id: Id) -> Result<(), Refusal> {
        let predecessor = self.servers.before(id);
        self.servers.delete(id)?;
        match &mut self.scheduler {
            Scheduler::Rr(rr) => rr.deleted(id, predecessor),
            Scheduler::Wrr(wrr) => wrr.changed(&self.servers),
            Scheduler::Dh(table) => *table = hash::dh_table(&self.servers),
            Scheduler::Sh(table) => *table = hash::sh_table(&self.servers),
            Scheduler::Mh(table) => *table = maglev::table(&self.servers),
            _ => {}
        }
        Ok(())
    }

    /// Edits the service: the flags always count anew, the scheduler starts anew only if it is another.
    pub fn switch(&mut self, scheduler: &str, flags: Flags) -> Result<(), Refusal> {
        if scheduler != self.name {
            self.scheduler = Scheduler::start(scheduler, &self.servers)?;
            self.name = scheduler.to_owned();
        }
        self.flags = flags;
        Ok(())
    }

    /// The server for a new connection, at `now` seconds of any clock. Counts nothing: see [`Self::connected`].
    pub fn pick(&mut self, packet: Packet, now: u64) -> Option<Id> {
        let servers = &self.servers;
        match &mut self.scheduler {
            Scheduler::Rr(rr) => rr.pick(servers),
            Scheduler::Wrr(wrr) => wrr.pick(servers),
            Scheduler::Lc => load::lc(servers),
            Scheduler::Wlc => load::wlc(servers),
            Scheduler::Sed => load::sed(servers),
            Scheduler::Nq => load::nq(servers),
            Scheduler::Fo => load::fo(servers),
            Scheduler::Ovf => load::ovf(servers),
            Scheduler::Mh(table) => maglev::pick(table, servers, packet, self.flags),
            Scheduler::Dh(table) => hash::dh(table, servers, packet),
            Scheduler::Sh(table) => hash::sh(table, servers, packet, self.flags),
            Scheduler::Lblc(lblc) => lblc.pick(servers, packet.destination, now),
            Scheduler::Lblcr(lblcr) => lblcr.pick(servers, packet.destination, now),
        }
    }

    /// One run of the timer that IPVS starts every 60 s for lblc and lblcr; it forgets idle destinations.
    pub fn sweep(&mut self, now: u64) {
        match &mut self.scheduler {
            Scheduler::Lblc(lblc) => lblc.sweep(now),
            Scheduler::Lblcr(lblcr) => lblcr.sweep(now),
            _ => {}
        }
    }

    /// A connection was bound to the server: it starts as inactive.
    pub fn connected(&mut self, id: Id) {
        self.servers.known(id).inactive += 1;
    }

    /// One of the server's connections went from inactive to active.
    pub fn activate(&mut self, id: Id) {
        let server = self.servers.known(id);
        server.inactive -= 1;
        server.active += 1;
    }

    /// One of the server's connections went from active to inactive.
    pub fn deactivate(&mut self, id: Id) {
        let server = self.servers.known(id);
        server.active -= 1;
        server.inactive += 1;
    }

    /// One of the server's connections is gone; `active` says how it was counted at the end.
    pub fn closed(&mut self, id: Id, active: bool) {
        let server = self.servers.known(id);
        *if active { &mut server.active } else { &mut server.inactive } -= 1;
    }

    /// (active, inactive) connections of a server, deleted or not; (0, 0) for one never seen.
    pub fn counts(&self, id: Id) -> (i32, i32) {
        self.servers.get(id).map_or((0, 0), |s| (s.active, s.inactive))
    }

    /// The servers, newest first.
    pub fn list(&self) -> Vec<Server> {
        self.servers.list()
    }

    /// dh, sh, mh: the cells of the table. Empty with other schedulers, and without servers.
    pub fn table(&self) -> Vec<Id> {
        match &self.scheduler {
            Scheduler::Dh(table) | Scheduler::Sh(table) | Scheduler::Mh(table) => table.clone(),
            _ => Vec::new(),
        }
    }
}
