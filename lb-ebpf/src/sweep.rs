//! The sweep: expired connections leave, and the counts are checked against what is there.
//!
//! Run by the agent as a program over the maps, so that nothing is copied to user space. A recount is compared only
//! for destinations whose counts did not move while it ran, and so corrects nothing that is right.

use core::{
    ffi::{c_long, c_void},
    ptr::NonNull,
};

use aya_ebpf::helpers::bpf_for_each_map_elem;
use lb_common::{
    connection,
    layout::{
        Connection, ConnectionKey, ConnectionState, DestinationLoad, KEY_AFFINITY, KEY_TEMPLATE, Recount,
        SETTING_EXPIRE_NODEST, SOCKET_FLOW_REPLY, SOCKET_LOST, SocketConnection, SocketFlow, SocketFlowKey,
        SweepResult,
    },
};

use crate::{
    affinity,
    atomic::Word,
    connections::{self, Entry},
    count,
    maps::{CONNECTIONS, DESTINATION_LOAD, DESTINATIONS_MAP, SOCKET_FLOWS, SOCKETS, SWEEP_RECOUNT, SWEEP_RESULT},
    masquerade, persistence,
    schedule::{forget, repeat},
    settings::{now, settings},
};

const UDP: u32 = 17;

struct Sweep {
    now: u64,
    entries: u64,
    expired: u64,
    orphans: u64,
    corrections: u64,
    udp_timeout: u32,
    recount: u32,
    expire_nodest: u32,
    lost_sockets: u64,
}

/// The program.
#[inline(always)]
pub fn run() -> i32 {
    let Some(settings) = settings() else { return 1 };
    let Some(result) = SWEEP_RESULT.get_ptr_mut(0) else { return 1 };
    // SAFETY: the only value of an array map; the agent runs one sweep at a time.
    let result: &mut SweepResult = unsafe { &mut *result };
    let mut sweep = Sweep {
        now: now(),
        entries: 0,
        expired: 0,
        orphans: 0,
        corrections: 0,
        udp_timeout: settings.timeouts.udp,
        recount: (result.recount_asked != 0) as u32,
        expire_nodest: settings.switches & SETTING_EXPIRE_NODEST,
        lost_sockets: 0,
    };
    if sweep.recount != 0 {
        repeat(settings.max_destinations, begin_recount, &mut sweep);
    }
    for_each(&CONNECTIONS, visit_connection as *mut c_void, &mut sweep);
    for_each(&SOCKET_FLOWS, visit_flow as *mut c_void, &mut sweep);
    for_each(&SOCKETS, visit_socket as *mut c_void, &mut sweep);
    if sweep.recount != 0 {
        repeat(settings.max_destinations, finish_recount, &mut sweep);
        result.recounts += 1;
        result.recount_asked = 0;
    }
    result.entries = sweep.entries;
    result.lost_sockets = sweep.lost_sockets;
    result.expired += sweep.expired;
    result.orphans += sweep.orphans;
    result.corrections += sweep.corrections;
    0
}

#[inline(always)]
fn for_each<M>(map: &'static M, callback: *mut c_void, sweep: &mut Sweep) {
    forget(sweep);
    // SAFETY: `map` is a map definition that the loader replaced by the map; the callback has the type that the
    // helper expects for it and gets `sweep`, valid during the call.
    unsafe {
        bpf_for_each_map_elem(
            core::ptr::from_ref(map).cast_mut().cast(),
            callback,
            core::ptr::from_mut(sweep).cast(),
            0,
        );
    }
}

unsafe extern "C" fn begin_recount(id: u32, _: *mut Sweep) -> c_long {
    let changes = match DESTINATION_LOAD.get(id) {
        Some(load) => load.changes,
        None => 0,
    };
    if let Some(recount) = SWEEP_RECOUNT.get_ptr_mut(id) {
        // SAFETY: array values stay mapped; only the sweep writes them.
        unsafe { *recount = Recount { connections: 0, changes, pad: 0 } };
    }
    0
}

unsafe extern "C" fn finish_recount(id: u32, sweep: *mut Sweep) -> c_long {
    // SAFETY: bpf_loop passes the pointer that `repeat` gave it.
    let sweep = unsafe { &mut *sweep };
    let (Some(recount), Some(load)) = (SWEEP_RECOUNT.get(id), DESTINATION_LOAD.get_ptr_mut(id)) else { return 0 };
    // SAFETY: array values stay mapped; both words are aligned and changed atomically by everyone.
    let (changes, connections) =
        unsafe { (Word::new(&raw mut (*load).changes), Word::new(&raw mut (*load).connections)) };
    // In this order: `count::load` announces a change before it makes it.
    let counted = connections.load();
    // The flag stays where thresholds can have set it; elsewhere it is a sign of what is to be corrected.
    let flag = match DESTINATIONS_MAP.get(id) {
        Some(destination) if destination.upper != 0 => counted & DestinationLoad::OVERLOADED,
        _ => 0,
    };
    let right = recount.connections | flag;
    if changes.load() == recount.changes && counted != right {
        // A difference is added, not the value stored: a connection that comes this instant stays counted.
        connections.add(right.wrapping_sub(counted));
        sweep.corrections += 1;
    }
    0
}

#[inline(always)]
fn recounted(server: u32, share: u64) {
    if let Some(recount) = SWEEP_RECOUNT.get_ptr_mut(server) {
        // SAFETY: as in `begin_recount`.
        unsafe { (*recount).connections += share };
    }
}

unsafe extern "C" fn visit_connection(
    _map: *mut c_void,
    key: *mut ConnectionKey,
    value: NonNull<Connection>,
    sweep: *mut Sweep,
) -> c_long {
    // SAFETY: the kernel passes the context it was given, and key and value of an element, valid during the call.
    let (sweep, key, entry) = unsafe { (&mut *sweep, *key, Entry::from_raw(value)) };
    sweep.entries += 1;
    let state = entry.state();
    if key.kind == KEY_TEMPLATE {
        // Without its server a template is nobody's; its connections see to themselves.
        if !persistence::extend(&entry, sweep.now)
            || (has_lost_server(sweep, &entry) && entry.control_cell().load() == 0)
        {
            let _ = CONNECTIONS.remove(key);
        }
        return 0;
    }
    if key.kind == KEY_AFFINITY {
        if affinity::is_forgotten(&key, entry.value(), sweep.now) {
            let _ = CONNECTIONS.remove(key);
        }
        return 0;
    }
    if state.has(ConnectionState::PASSING) {
        if connection_idle(&entry, sweep.now) {
            masquerade::sweep(&key, &entry);
        }
        return 0;
    }
    if state.has(ConnectionState::ONE_PACKET) {
        let idle = sweep.now.wrapping_sub(entry.value().last_seen) as i64;
        if idle > i64::from(sweep.udp_timeout) * 1_000_000 {
            let _ = CONNECTIONS.remove(key);
        }
        return 0;
    }
    if state.has(ConnectionState::REPLY) {
        // Its request entry speaks for both, unless that is gone.
        if connection_idle(&entry, sweep.now)
            && Entry::find(&entry.other_key(key.protocol)).is_none()
            && CONNECTIONS.remove(key).is_ok()
        {
            // Only what was still there: the kernel also shows an entry that was removed with the one before it in
            // the same bucket.
            sweep.orphans += 1;
        }
        return 0;
    }
    if (has_lost_server(sweep, &entry) || entry.is_expired(key.protocol, sweep.now)) && entry.close(&key) {
        sweep.expired += 1;
        return 0;
    }
    if sweep.recount != 0 && !state.has(ConnectionState::CLOSING) {
        recounted(entry.value().server, connection::share(state));
    }
    0
}

/// True if an entry's server was removed and `expire_nodest_conn` is on (`ip_vs_expire_nodest_conn_flush`).
#[inline(always)]
fn has_lost_server(sweep: &Sweep, entry: &Entry) -> bool {
    sweep.expire_nodest != 0 && !connections::is_available(entry.value().server)
}

/// Seconds after which a reply entry alone is looked at: its twin is inserted and removed within one program run.
const ORPHAN_NS: i64 = 2_000_000_000;

#[inline(always)]
fn connection_idle(entry: &Entry, now: u64) -> bool {
    // Signed: the sweep's clock stands, and an entry that came meanwhile is from its future.
    now.wrapping_sub(entry.value().last_seen) as i64 > ORPHAN_NS
}

unsafe extern "C" fn visit_flow(
    _map: *mut c_void,
    key: *mut SocketFlowKey,
    value: *mut SocketFlow,
    sweep: *mut Sweep,
) -> c_long {
    // SAFETY: as in `visit_connection`.
    let (sweep, key, flow) = unsafe { (&mut *sweep, *key, *value) };
    if key.protocol & SOCKET_FLOW_REPLY != 0 {
        return 0;
    }
    let reply_key = SocketFlowKey {
        cookie: key.cookie,
        peer: flow.peer,
        peer_port: flow.peer_port,
        protocol: key.protocol | SOCKET_FLOW_REPLY,
        pad: 0,
    };
    let mut last_seen = flow.last_seen;
    // SAFETY: copied at once.
    if let Some(reply) = unsafe { SOCKET_FLOWS.get(reply_key) }
        && reply.last_seen > last_seen
    {
        last_seen = reply.last_seen;
    }
    if sweep.now.wrapping_sub(last_seen) as i64 > i64::from(sweep.udp_timeout) * 1_000_000 {
        let _ = SOCKET_FLOWS.remove(reply_key);
        if SOCKET_FLOWS.remove(key).is_ok() {
            count::unbind(flow.server, DestinationLoad::ONE_INACTIVE);
            sweep.expired += 1;
        }
        // If it names a newer flow, that one times out too.
        let _ = SOCKET_FLOWS.remove(crate::sockets::newest_key(key.cookie));
        return 0;
    }
    if sweep.recount != 0 {
        recounted(flow.server, DestinationLoad::ONE_INACTIVE);
    }
    0
}

unsafe extern "C" fn visit_socket(
    _map: *mut c_void,
    _cookie: *mut u64,
    value: *mut SocketConnection,
    sweep: *mut Sweep,
) -> c_long {
    // SAFETY: as in `visit_connection`.
    let (sweep, socket) = unsafe { (&mut *sweep, *value) };
    if sweep.recount != 0 {
        recounted(socket.server, crate::sockets::share(socket.protocol));
    }
    // Nothing tells a datagram's sender that its server is gone; the agent does. TCP goes on with it.
    let known = socket.protocol & SOCKET_LOST;
    let lost = if socket.protocol & !SOCKET_LOST == UDP && !connections::is_available(socket.server) {
        SOCKET_LOST
    } else {
        0
    };
    if known != lost {
        // SAFETY: as in `visit_connection`; a word that nobody else changes. If the element is another socket's by now, the
        // next sweep puts it right, and the agent looks at the server too.
        unsafe { (*value).protocol = socket.protocol & !SOCKET_LOST | lost };
        sweep.lost_sockets += u64::from(lost != 0);
    }
    0
}
