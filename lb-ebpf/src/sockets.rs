//! Sockets of the node's own processes: the server is chosen at connect() or sendmsg(), packets carry its address from
//! the start, and the process sees the frontend all the same.
//!
//! A connected socket counts as one connection from connect to release: active for TCP, inactive for UDP, as IPVS
//! counts UDP. [`scope`] says whose sockets those are, and what is left to the packet path.

mod peer;
mod scope;

use aya_ebpf::{
    EbpfContext,
    bindings::{BPF_ANY, BPF_NOEXIST},
    helpers::{bpf_get_socket_cookie, generated::bpf_set_retval},
    programs::{SockAddrContext, SockContext},
};
use lb_common::{
    address::{Address, Port},
    drops::Drop,
    layout::{
        ACCESS_SILENT, ACCESS_SOURCES, ConnectionKey, ConnectionState, DestinationLoad, KEY_PACKET, SOCKET_FLOW_NEWEST,
        SOCKET_FLOW_REPLY, Service, Settings, SocketConnection, SocketFlow, SocketFlowKey,
    },
};

use crate::{
    connections, count,
    create::server_port,
    lookup::{self, Wanted},
    maps::{DESTINATIONS_MAP, SOCKET_FLOWS, SOCKETS},
    masquerade::is_in,
    persistence,
    schedule::{Request, schedule},
    settings::{node_address, now},
};

pub use peer::{Peer, V4, V6};
use peer::{cookie, port, protocol, set_port};

/// Lets the system call go on.
const ALLOW: i32 = 1;
/// Fails the system call, with the error set before.
const REFUSE: i32 = 0;
const ECONNREFUSED: i32 = 111;
const TCP: u32 = 6;
const UDP: u32 = 17;

/// Copies the service that a process asks for; 0 if it is none.
#[inline(always)]
fn service(ctx: &SockAddrContext, address: Address, port: Port, protocol: u32, place: &mut Service) -> u32 {
    let wanted = Wanted { address, port, protocol: protocol as u8, mark: scope::mark(ctx) };
    // Loopback addresses of a pod are its own.
    if scope::is_of_node(ctx) { lookup::copy_of_process(&wanted, place) } else { lookup::copy(&wanted, place) }
}

/// The server for a process's connection; 0 for none. A client's template holds for the node's own processes too; that it
/// goes on while one of their sockets is open is not promised.
#[inline(always)]
fn choose(service: &Service, request: &mut Request, port: Port, protocol: u32) -> u32 {
    let key = ConnectionKey {
        source: request.client,
        destination: request.destination,
        source_port: Port(0),
        destination_port: port,
        protocol: protocol as u8,
        kind: KEY_PACKET,
        pad: [0; 2],
    };
    if is_unwelcome(service, &request.client) != 0 {
        return 0;
    }
    let mut server = persistence::recall(service, &key, request);
    if server == 0 {
        server = schedule(service, request);
        persistence::remember(service, &key, server, request);
    }
    server
}

/// What a scheduler may see of a process's connection.
#[inline(always)]
fn request(ctx: &SockAddrContext, settings: &Settings, frontend: Address, now: u64) -> Request {
    // The source is not chosen yet, unless the socket is bound: then the kernel would take the node's address.
    let client = *node_address(settings, frontend.is_v4());
    // SAFETY: `sk` is the context's socket; the verifier demands the null check.
    let client_port = unsafe {
        let socket = (*ctx.sock_addr).__bindgen_anon_1.sk;
        if socket.is_null() { 0 } else { (*socket).src_port }
    };
    Request { client, destination: frontend, now, client_port, ends: 0, control: 0, server: 0 }
}

/// Not 0 if the node is none of the clients that the service takes. A number from a function of its own: the verifier
/// would follow what is known of the service on either side of a branch through every scheduler.
#[inline(never)]
fn is_unwelcome(service: &Service, node: &Address) -> u32 {
    (service.access & ACCESS_SOURCES != 0 && !is_in(service.id, node)).into()
}

/// Fails the system call as an ICMP port unreachable on the wire makes a connect() fail, also where a packet would be
/// dropped: a process of the node need not wait to learn it. Packets of other namespaces are answered as packets.
#[inline(never)]
fn refuse<P: Peer>(ctx: &SockAddrContext, service: &Service, settings: &Settings) -> i32 {
    if scope::is_foreign(ctx, settings) {
        return ALLOW;
    }
    // SAFETY: the helper takes a plain number.
    unsafe { bpf_set_retval(-ECONNREFUSED) };
    count::drop(if is_unwelcome(service, node_address(settings, P::address(ctx).is_v4())) != 0 {
        Drop::SourceNotAllowed
    } else if service.access & ACCESS_SILENT != 0 {
        Drop::NoLocalDestination
    } else {
        Drop::NoDestination
    });
    REFUSE
}

/// A connected socket's share in its server's load.
#[inline(always)]
pub fn share(protocol: u32) -> u64 {
    if protocol & 0xff == TCP { DestinationLoad::ONE_ACTIVE } else { DestinationLoad::ONE_INACTIVE }
}

/// connect().
#[inline(always)]
pub fn connect<P: Peer>(ctx: &SockAddrContext) -> i32 {
    let protocol = protocol(ctx);
    if protocol != TCP && protocol != UDP {
        return ALLOW;
    }
    let Some(settings) = scope::settings_for(ctx) else { return ALLOW };
    let (frontend, frontend_port) = (P::address(ctx), port(ctx));
    let cookie = cookie(ctx);
    // A socket that connects anew gives its last connection back, whatever it connects to.
    forget(cookie);
    let mut service = Service::default();
    if self::service(ctx, frontend, frontend_port, protocol, &mut service) == 0 {
        return ALLOW;
    }
    let service = &service;
    if scope::is_for_packets(ctx, service, protocol == UDP) != 0 {
        return ALLOW;
    }
    let now = now();
    let server = choose(service, &mut request(ctx, settings, frontend, now), frontend_port, protocol);
    let Some(destination) = DESTINATIONS_MAP.get(server) else { return refuse::<P>(ctx, service, settings) };
    if server == 0 || !P::set_address(ctx, &destination.address) {
        return refuse::<P>(ctx, service, settings);
    }
    let server_port = server_port(service, destination, frontend_port);
    set_port(ctx, server_port);
    let connection = SocketConnection {
        frontend,
        server_address: destination.address,
        frontend_port,
        server_port,
        server,
        service: service.id,
        protocol,
        connected: now,
    };
    count::scheduled(server);
    // Full: the connection works, it is only not counted as open and getpeername() shows the server.
    if SOCKETS.insert(cookie, connection, u64::from(BPF_ANY)).is_ok() {
        count::bind(server, destination, share(protocol));
    }
    ALLOW
}

#[inline(always)]
fn forget(cookie: u64) {
    let Some(socket) = SOCKETS.get_ptr(cookie) else { return };
    // SAFETY: copied before the element is given back.
    let (server, protocol) = unsafe { ((*socket).server, (*socket).protocol) };
    if SOCKETS.remove(cookie).is_ok() {
        count::unbind(server, share(protocol));
    }
}

/// The last reference to a socket goes.
#[inline(always)]
pub fn release(ctx: &SockContext) -> i32 {
    // SAFETY: the helper takes this program's context, which is valid.
    let (cookie, protocol) = unsafe { (bpf_get_socket_cookie(ctx.as_ptr()), (*ctx.sock).protocol) };
    if protocol == TCP || protocol == UDP {
        forget(cookie);
    }
    if protocol == UDP {
        end_newest_flow(cookie);
    }
    ALLOW
}

/// Ends the flow that a socket opened last. A resolver opens a socket for each question: flows that outlived them
/// would fill the map.
#[inline(always)]
fn end_newest_flow(cookie: u64) {
    let newest = newest_key(cookie);
    let Some(flow) = SOCKET_FLOWS.get_ptr_mut(newest) else { return };
    // SAFETY: copied before the element is given back.
    let (peer, peer_port) = unsafe { ((*flow).peer, (*flow).peer_port) };
    let _ = SOCKET_FLOWS.remove(newest);
    let key = SocketFlowKey { cookie, peer, peer_port, protocol: UDP as u16, pad: 0 };
    if let Some(flow) = SOCKET_FLOWS.get_ptr_mut(key) {
        // SAFETY: as in `sendmsg`.
        end_flow(&key, unsafe { &*flow });
    }
}

/// The key under which the socket's newest flow is named.
#[inline(always)]
pub fn newest_key(cookie: u64) -> SocketFlowKey {
    SocketFlowKey {
        cookie,
        peer: Address::UNSPECIFIED,
        peer_port: Port(0),
        protocol: UDP as u16 | SOCKET_FLOW_REPLY | SOCKET_FLOW_NEWEST,
        pad: 0,
    }
}

/// sendto() or sendmsg() with an address, on a UDP socket.
#[inline(always)]
pub fn sendmsg<P: Peer>(ctx: &SockAddrContext) -> i32 {
    let Some(settings) = scope::settings_for(ctx) else { return ALLOW };
    let (frontend, frontend_port) = (P::address(ctx), port(ctx));
    let mut service = Service::default();
    if self::service(ctx, frontend, frontend_port, UDP, &mut service) == 0 {
        return ALLOW;
    }
    let service = &service;
    if scope::is_for_packets(ctx, service, false) != 0 {
        return ALLOW;
    }
    let cookie = cookie(ctx);
    // A connected socket may name its peer all the same: it hears its own server and no other.
    // SAFETY: words of a value that is written whole before it is found.
    if let Some(socket) = unsafe { SOCKETS.get(cookie) }
        && socket.frontend == frontend
        && socket.frontend_port.0 == frontend_port.0
        && connections::is_available(socket.server)
    {
        if !P::set_address(ctx, &socket.server_address) {
            return refuse::<P>(ctx, service, settings);
        }
        set_port(ctx, socket.server_port);
        return ALLOW;
    }
    let now = now();
    let key = SocketFlowKey { cookie, peer: frontend, peer_port: frontend_port, protocol: UDP as u16, pad: 0 };
    if let Some(flow) = SOCKET_FLOWS.get_ptr_mut(key) {
        // SAFETY: map values stay mapped while the program runs; words are written whole.
        let flow = unsafe { &mut *flow };
        if flow.service == service.id && connections::is_available(flow.server) {
            flow.last_seen = now;
            if !P::set_address(ctx, &flow.peer) {
                return refuse::<P>(ctx, service, settings);
            }
            set_port(ctx, flow.peer_port);
            return ALLOW;
        }
        end_flow(&key, flow);
    }
    open_flow::<P>(ctx, settings, service, &key, now)
}

#[inline(always)]
fn end_flow(key: &SocketFlowKey, flow: &SocketFlow) {
    let server = flow.server;
    let reply = reply_key(key, flow);
    let _ = SOCKET_FLOWS.remove(reply);
    if SOCKET_FLOWS.remove(key).is_ok() {
        count::unbind(server, DestinationLoad::ONE_INACTIVE);
    }
}

#[inline(always)]
fn reply_key(key: &SocketFlowKey, flow: &SocketFlow) -> SocketFlowKey {
    SocketFlowKey {
        cookie: key.cookie,
        peer: flow.peer,
        peer_port: flow.peer_port,
        protocol: key.protocol | SOCKET_FLOW_REPLY,
        pad: 0,
    }
}

#[inline(always)]
fn open_flow<P: Peer>(
    ctx: &SockAddrContext,
    settings: &Settings,
    service: &Service,
    key: &SocketFlowKey,
    now: u64,
) -> i32 {
    let server = choose(service, &mut request(ctx, settings, key.peer, now), key.peer_port, UDP);
    let Some(destination) = DESTINATIONS_MAP.get(server) else { return refuse::<P>(ctx, service, settings) };
    if server == 0 || !P::set_address(ctx, &destination.address) {
        return refuse::<P>(ctx, service, settings);
    }
    let server_port = server_port(service, destination, key.peer_port);
    set_port(ctx, server_port);
    let mut flow = SocketFlow {
        peer: destination.address,
        peer_port: server_port,
        pad: 0,
        server,
        last_seen: now,
        state: ConnectionState::INACTIVE,
        service: service.id,
    };
    count::scheduled(server);
    let reply = reply_key(key, &flow);
    // Full: this datagram goes out all the same; its answer would come from the server's own address.
    if SOCKET_FLOWS.insert(key, flow, u64::from(BPF_NOEXIST)).is_ok() {
        count::bind(server, destination, DestinationLoad::ONE_INACTIVE);
        flow.peer = key.peer;
        flow.peer_port = key.peer_port;
        let _ = SOCKET_FLOWS.insert(reply, flow, u64::from(BPF_ANY));
        let _ = SOCKET_FLOWS.insert(newest_key(key.cookie), flow, u64::from(BPF_ANY));
    }
    ALLOW
}

/// recvfrom() or recvmsg(): an answer from a real server comes from the frontend.
#[inline(always)]
pub fn recvmsg<P: Peer>(ctx: &SockAddrContext) -> i32 {
    let cookie = cookie(ctx);
    let (address, port) = (P::address(ctx), port(ctx));
    if show_frontend::<P>(ctx, cookie, &address, port) {
        return ALLOW;
    }
    let key =
        SocketFlowKey { cookie, peer: address, peer_port: port, protocol: UDP as u16 | SOCKET_FLOW_REPLY, pad: 0 };
    if let Some(flow) = SOCKET_FLOWS.get_ptr_mut(key) {
        // SAFETY: as in `sendmsg`.
        let flow = unsafe { &mut *flow };
        flow.last_seen = now();
        if P::set_address(ctx, &flow.peer) {
            set_port(ctx, flow.peer_port);
        }
    }
    ALLOW
}

/// getpeername().
#[inline(always)]
pub fn getpeername<P: Peer>(ctx: &SockAddrContext) -> i32 {
    let (address, port) = (P::address(ctx), port(ctx));
    show_frontend::<P>(ctx, cookie(ctx), &address, port);
    ALLOW
}

/// Shows a connected socket's frontend in place of its server.
#[inline(always)]
fn show_frontend<P: Peer>(ctx: &SockAddrContext, cookie: u64, address: &Address, port: Port) -> bool {
    // SAFETY: words of a value that is written whole before it is found.
    let Some(socket) = (unsafe { SOCKETS.get(cookie) }) else { return false };
    if socket.server_address != *address || socket.server_port.0 != port.0 {
        return false;
    }
    if P::set_address(ctx, &socket.frontend) {
        set_port(ctx, socket.frontend_port);
    }
    true
}
