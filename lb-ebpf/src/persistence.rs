//! Persistence: a client's new connections go where its last one went (`ip_vs_sched_persist`, `ip_vs_check_template`).
//!
//! A template is an entry of `connections` under the client's network. Its clock starts anew with each new connection. When
//! it runs out while connections of it are open, it goes on by 60 seconds at a time, as IPVS's timer does, and keeps that as
//! its timeout. Connections find their template by key; a random number in both tells one from a later one.
//!
//! Services of an affinity group have [another kind](crate::affinity) of template.

use aya_ebpf::{bindings::BPF_NOEXIST, helpers::bpf_get_prandom_u32};
use lb_common::{
    address::{Address, Port},
    layout::{
        Connection, ConnectionKey, ConnectionState, Control, DESTINATION_AVAILABLE, KEY_TEMPLATE, SERVICE_ALL_PORTS,
        SERVICE_MARKED, SERVICE_PERSISTENT, SETTING_EXPIRE_QUIESCENT, Service,
    },
};

use crate::{
    affinity,
    atomic::Word,
    connections::Entry,
    maps::{CONNECTIONS, DESTINATIONS_MAP},
    schedule::Request,
    settings::settings,
};

/// How long a template goes on that has run out while its connections are open, in milliseconds (`ip_vs_conn_expire`).
const EXTENSION_MS: u32 = 60_000;
const NS_PER_MS: u64 = 1_000_000;

/// Key of the template of a connection with this key, service and control word.
#[inline(always)]
fn template_key(key: &ConnectionKey, service: u32, control: Control) -> ConnectionKey {
    let marked = control.has(Control::MARKED);
    ConnectionKey {
        source: key.source.network(control.prefix()),
        destination: if marked { Address { words: [0, 0, 0, service] } } else { key.destination },
        source_port: Port(0),
        destination_port: if marked || control.has(Control::ALL_PORTS) { Port(0) } else { key.destination_port },
        protocol: if marked { 0 } else { key.protocol },
        kind: KEY_TEMPLATE,
        pad: [0; 2],
    }
}

/// The control word of a service's connections, of no generation.
#[inline(always)]
fn control_of(service: &Service) -> Control {
    let mut flags = 0;
    if service.flags & SERVICE_ALL_PORTS != 0 {
        flags |= Control::ALL_PORTS;
    }
    if service.flags & SERVICE_MARKED != 0 {
        flags |= Control::MARKED;
    }
    Control::new(service.persistence_prefix, flags, 0)
}

/// The server that a client is to keep; 0 if there is none, or the service lets none keep theirs. Neither weight nor
/// threshold is looked at.
#[inline(never)]
pub fn recall(service: &Service, key: &ConnectionKey, request: &mut Request) -> u32 {
    if service.flags & SERVICE_PERSISTENT == 0 {
        return 0;
    }
    if affinity::is_of_group(service) { affinity::recall(service, key, request) } else { own(service, key, request) }
}

/// The server of a client's template; 0 if it has none that is valid.
#[inline(never)]
fn own(service: &Service, key: &ConnectionKey, request: &mut Request) -> u32 {
    let control = control_of(service);
    request.control = 0;
    let template_key = template_key(key, service.id, control);
    let Some(template) = Entry::find(&template_key) else { return 0 };
    let server = template.value().server;
    if !extend(&template, request.now) || !is_valid(service, server) {
        let _ = CONNECTIONS.remove(template_key);
        return 0;
    }
    template.touch(request.now);
    request.control = control.0 | u32::from(template.value().source_port.0) << 16;
    server
}

/// Lets a client keep the server that a persistent service found it.
#[inline(never)]
pub fn remember(service: &Service, key: &ConnectionKey, server: u32, request: &mut Request) -> u32 {
    if service.flags & SERVICE_PERSISTENT == 0 || server == 0 {
        return 0;
    }
    if affinity::is_of_group(service) {
        affinity::bind(service, key, server, request.now)
    } else {
        make(service, key, server, request)
    }
}

/// Makes a client's template.
#[inline(never)]
fn make(service: &Service, key: &ConnectionKey, server: u32, request: &mut Request) -> u32 {
    let control = control_of(service);
    let template_key = template_key(key, service.id, control);
    // SAFETY: the helper takes no arguments and has no preconditions.
    let generation = unsafe { bpf_get_prandom_u32() } as u16;
    let template = Connection {
        source_port: Port(generation),
        server,
        service: service.id,
        state: ConnectionState::TEMPLATE,
        last_seen: request.now,
        timeout: service.persistence_timeout,
        ..Connection::default()
    };
    // Another CPU may have been faster: then the connection is of no template, and its server the one chosen here. Full:
    // likewise, and the connection itself will not find room.
    if CONNECTIONS.insert(template_key, template, u64::from(BPF_NOEXIST)).is_ok() {
        request.control = control.0 | u32::from(generation) << 16;
    }
    0
}

/// A connection of the template was opened.
#[inline(never)]
pub fn hold(key: &ConnectionKey, service: u32, control: u32) -> u32 {
    if let Some(template) = find(key, service, control) {
        children(&template).add(1);
    }
    0
}

/// A connection of the template is over.
#[inline(never)]
pub fn release(key: &ConnectionKey, service: u32, control: u32, now: u64) -> u32 {
    if let Some(template) = find(key, service, control) {
        extend(&template, now);
        children(&template).add(u32::MAX);
    }
    0
}

/// A connection of the template was established.
#[inline(never)]
pub fn assure(key: &ConnectionKey, service: u32, control: u32) -> u32 {
    if let Some(template) = find(key, service, control) {
        template.set_assured();
    }
    0
}

/// False if a template has run out and none of its connections is open; else it goes on.
#[inline(always)]
pub fn extend(template: &Entry, now: u64) -> bool {
    let value = template.value();
    let end = value.last_seen + u64::from(value.timeout) * NS_PER_MS;
    let over = now.wrapping_sub(end);
    if over as i64 <= 0 {
        return true;
    }
    if children(template).load() == 0 {
        return false;
    }
    let step = u64::from(EXTENSION_MS) * NS_PER_MS;
    template.restart(end + over / step * step, EXTENSION_MS);
    true
}

#[inline(always)]
fn find(key: &ConnectionKey, service: u32, control: u32) -> Option<Entry> {
    let control = Control(control);
    let template = Entry::find(&template_key(key, service, control))?;
    if template.value().source_port.0 == control.generation() { Some(template) } else { None }
}

#[inline(always)]
fn children(template: &Entry) -> Word<u32> {
    template.control_cell()
}

#[inline(always)]
fn is_valid(service: &Service, server: u32) -> bool {
    let (Some(destination), Some(settings)) = (DESTINATIONS_MAP.get(server), settings()) else { return false };
    server != 0
        && destination.service == service.id
        && destination.flags & DESTINATION_AVAILABLE != 0
        && (destination.weight != 0 || settings.switches & SETTING_EXPIRE_QUIESCENT == 0)
}
