//! Session affinity of Kubernetes' kind: the services of a group, which are the frontends of one Service port, share what
//! is remembered of a client.
//!
//! A template names the real server by address and port, since each service has a destination of its own for it. It binds
//! a client only while the server is in the set of the service that is asked, and while that service's timeout since the
//! client's last new connection is not over: both are what they are now, not what they were when the client was bound.
//! Connections neither hold a template nor prolong it.

use core::ffi::c_long;

use aya_ebpf::bindings::BPF_ANY;
use lb_common::{
    address::{Address, Port},
    layout::{
        Connection, ConnectionKey, ConnectionState, DESTINATION_AVAILABLE, Destination, KEY_AFFINITY, PositionHint,
        SETTING_EXPIRE_QUIESCENT, Service,
    },
};

use crate::{
    connections::Entry,
    maps::{AFFINITY_TIMEOUTS, CONNECTIONS, DESTINATION_SLOTS, DESTINATIONS_MAP},
    schedule::{Request, repeat},
    settings::settings,
};

const NS_PER_MS: u64 = 1_000_000;

/// True if a service shares its templates.
#[inline(always)]
pub fn is_of_group(service: &Service) -> bool {
    service.affinity_group[0] | service.affinity_group[1] != 0
}

#[inline(always)]
fn template_key(service: &Service, key: &ConnectionKey) -> ConnectionKey {
    let [high, low] = service.affinity_group;
    ConnectionKey {
        source: key.source.network(service.persistence_prefix),
        destination: Address { words: [0, 0, high, low] },
        source_port: Port(0),
        destination_port: Port(0),
        protocol: key.protocol,
        kind: KEY_AFFINITY,
        pad: [0; 2],
    }
}

/// A real server that is looked for in a set.
struct Search {
    address: Address,
    port: u32,
    base: u32,
    found: u32,
    position: u32,
}

impl Search {
    #[inline(always)]
    fn is(&self, destination: &Destination) -> bool {
        destination.address == self.address && u32::from(destination.port.0) == self.port
    }

    /// Looks at one position; true if the server is there.
    #[inline(always)]
    fn look(&mut self, position: u32) -> bool {
        let Some(slot) = DESTINATION_SLOTS.get(self.base.wrapping_add(position)) else { return false };
        let id = slot.destination;
        match DESTINATIONS_MAP.get(id) {
            Some(destination) if id != 0 && self.is(destination) => {
                self.found = id;
                self.position = position;
                true
            }
            _ => false,
        }
    }
}

unsafe extern "C" fn look(position: u32, search: *mut Search) -> c_long {
    // SAFETY: bpf_loop passes the pointer that `repeat` gave it.
    let search = unsafe { &mut *search };
    search.look(position).into()
}

/// The server that the group remembers of a client, if this service has it; else 0.
#[inline(never)]
pub fn recall(service: &Service, key: &ConnectionKey, request: &Request) -> u32 {
    let Some(template) = Entry::find(&template_key(service, key)) else { return 0 };
    let value = template.value();
    if is_over(value, service.persistence_timeout, request.now) {
        return 0;
    }
    let mut search = Search {
        address: value.destination,
        port: u32::from(value.destination_port.0),
        base: service.set_base,
        found: 0,
        position: 0,
    };
    let (server, hint) = (value.server, PositionHint(value.control));
    if is_ours(service, server, &search) {
        search.found = server;
    } else if hint.position() >= service.set_length || !search.look(hint.position()) {
        repeat(service.set_length, look, &mut search);
        if search.found != 0 {
            // In one step and from what only such a template has there: the element may be another entry's by now.
            let _ = template.control_cell().replace(hint.0, PositionHint::new(search.position).0);
        }
    }
    if search.found == 0 || is_drained(search.found) {
        return 0;
    }
    template.touch(request.now);
    search.found
}

/// True if a service's destination with this id is the one that is looked for, and in the set.
#[inline(always)]
fn is_ours(service: &Service, server: u32, search: &Search) -> bool {
    match DESTINATIONS_MAP.get(server) {
        Some(destination) => {
            destination.service == service.id
                && destination.flags & DESTINATION_AVAILABLE != 0
                && search.is(destination)
        }
        None => false,
    }
}

/// True if a server takes no new connections, and its clients are to leave it.
#[inline(always)]
fn is_drained(server: u32) -> bool {
    match (DESTINATIONS_MAP.get(server), settings()) {
        (Some(destination), Some(settings)) => {
            destination.weight == 0 && settings.switches & SETTING_EXPIRE_QUIESCENT != 0
        }
        _ => true,
    }
}

/// Binds a client to the server that it got, whatever it was bound to: that was over, or not to be had here.
#[inline(never)]
pub fn bind(service: &Service, key: &ConnectionKey, server: u32, now: u64) -> u32 {
    let Some(destination) = DESTINATIONS_MAP.get(server) else { return 0 };
    let template = Connection {
        destination: destination.address,
        destination_port: destination.port,
        server,
        service: service.id,
        state: ConnectionState::TEMPLATE,
        last_seen: now,
        timeout: service.persistence_timeout,
        control: PositionHint::new(0).0,
        ..Connection::default()
    };
    // Full: the connection itself will not find room.
    let _ = CONNECTIONS.insert(template_key(service, key), template, u64::from(BPF_ANY));
    0
}

/// True if no service of the group goes by this template any more, as far as the one knows that made it.
#[inline(always)]
pub fn is_forgotten(key: &ConnectionKey, template: &Connection, now: u64) -> bool {
    let timeout = match AFFINITY_TIMEOUTS.get(template.service) {
        Some(affinity) if affinity.timeout != 0 && affinity.group == key.destination.words[3] => affinity.timeout,
        _ => template.timeout,
    };
    is_over(template, timeout, now)
}

/// True if a client's last new connection was longer ago. Another CPU's, or a sweep's, clock may be behind.
#[inline(always)]
fn is_over(template: &Connection, timeout: u32, now: u64) -> bool {
    now.wrapping_sub(template.last_seen) as i64 > (u64::from(timeout) * NS_PER_MS) as i64
}
