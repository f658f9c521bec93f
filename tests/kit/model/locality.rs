//! lblc and lblcr: each destination address keeps its server, or its set of servers, until they are busy
//! (spec 3.9, 3.10).

use std::{collections::HashMap, net::IpAddr};

use super::{
    Id, Server, Servers,
    hash::{fold, hash_32},
    load::{lighter, overhead, wlc},
};

/// Seconds after which an unused destination is forgotten, and after which an unchanged set of lblcr shrinks
/// (`lblc_expiration`, `lblcr_expiration`).
const EXPIRATION: u64 = 86_400;
/// Seconds that a destination must be idle to be forgotten while the cache is too full.
const IDLE_WHEN_FULL: u64 = 360;
/// Entries above which the cache is too full.
const FULL: usize = 16_384;
const BUCKETS: u32 = 1024;

/// What is known of one destination address.
#[derive(Clone, Debug)]
struct Entry<T> {
    last_use: u64,
    value: T,
}

/// The destinations, and where the 60 s timer stands.
#[derive(Clone, Debug)]
struct Cache<T> {
    entries: HashMap<IpAddr, Entry<T>>,
    runs: u32,
    rover: u32,
}

impl<T> Default for Cache<T> {
    fn default() -> Self {
        Self { entries: HashMap::new(), runs: 1, rover: 0 }
    }
}

impl<T> Cache<T> {
    fn sweep(&mut self, now: u64) {
        if self.runs == 30 {
            self.entries.retain(|_, e| now < e.last_use + EXPIRATION);
            self.runs = 1;
        } else if self.entries.len() <= FULL {
            self.runs += 1;
        } else {
            self.sweep_idle(now);
        }
    }

    /// Bucket by bucket, from where the last such sweep ended, until enough is gone.
    fn sweep_idle(&mut self, now: u64) {
        let goal = ((self.entries.len() - FULL) * 4 / 3).min(8192);
        let before = self.entries.len();
        for _ in 0..BUCKETS {
            self.rover = (self.rover + 1) % BUCKETS;
            let rover = self.rover;
            self.entries.retain(|&address, e| hash_32(fold(address), 10) != rover || now < e.last_use + IDLE_WHEN_FULL);
            if before - self.entries.len() >= goal {
                break;
            }
        }
    }
}

/// True if the server is over its weight while another is not even at half of its own.
fn busy(server: &Server, servers: &Servers) -> bool {
    server.active > server.weight
        && servers.list().iter().any(|other| 2 * i64::from(other.active) < i64::from(other.weight))
}

#[derive(Clone, Debug, Default)]
pub(super) struct Lblc {
    cache: Cache<Id>,
}

impl Lblc {
    pub(super) fn sweep(&mut self, now: u64) {
        self.cache.sweep(now);
    }

    pub(super) fn pick(&mut self, servers: &Servers, destination: IpAddr, now: u64) -> Option<Id> {
        if let Some(entry) = self.cache.entries.get_mut(&destination) {
            entry.last_use = now;
            let server = servers.get(entry.value).expect("a server that was chosen once");
            if server.available && server.weight > 0 && !busy(&server, servers) {
                return Some(server.id);
            }
        }
        let id = wlc(servers)?;
        self.cache.entries.insert(destination, Entry { last_use: now, value: id });
        Some(id)
    }
}

/// The servers of one destination address, newest member first.
#[derive(Clone, Debug)]
struct Set {
    members: Vec<Id>,
    last_change: u64,
}

impl Set {
    fn servers(&self, servers: &Servers) -> Vec<Server> {
        self.members.iter().map(|&id| servers.get(id).expect("a server that was chosen once")).collect()
    }

    fn lightest(&self, servers: &Servers) -> Option<Server> {
        let usable: Vec<_> = self.servers(servers).into_iter().filter(|s| s.available && s.weight > 0).collect();
        let mut best = *usable.first()?;
        for server in usable {
            if lighter(&server, &best, overhead) {
                best = server;
            }
        }
        Some(best)
    }

    /// The one to leave the set. Deleted servers count too.
    fn heaviest(&self, servers: &Servers) -> Option<Id> {
        let weighted: Vec<_> = self.servers(servers).into_iter().filter(|s| s.weight > 0).collect();
        let mut worst = *weighted.first()?;
        for server in weighted {
            if lighter(&worst, &server, overhead) {
                worst = server;
            }
        }
        Some(worst.id)
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Lblcr {
    cache: Cache<Set>,
}

impl Lblcr {
    pub(super) fn sweep(&mut self, now: u64) {
        self.cache.sweep(now);
    }

    pub(super) fn pick(&mut self, servers: &Servers, destination: IpAddr, now: u64) -> Option<Id> {
        let Some(entry) = self.cache.entries.get_mut(&destination) else {
            let id = wlc(servers)?;
            let set = Set { members: vec![id], last_change: now };
            self.cache.entries.insert(destination, Entry { last_use: now, value: set });
            return Some(id);
        };
        entry.last_use = now;
        let set = &mut entry.value;
        let lightest = set.lightest(servers);
        if set.members.len() > 1 && now > set.last_change + EXPIRATION {
            // May be the lightest itself; this connection still goes there.
            if let Some(heaviest) = set.heaviest(servers) {
                set.members.retain(|&id| id != heaviest);
                set.last_change = now;
            }
        }
        if let Some(server) = lightest.filter(|s| !busy(s, servers)) {
            return Some(server.id);
        }
        let id = wlc(servers)?;
        if !set.members.contains(&id) {
            set.members.insert(0, id);
            set.last_change = now;
        }
        Some(id)
    }
}
