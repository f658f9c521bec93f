//! A packet of no connection: for a frontend, and then its connection is opened here, or none of our business. What is done
//! with the packet then, and who answers, is the hook's.

use core::ffi::c_void;

use lb_common::{
    address::Protocol,
    connection,
    drops::Drop,
    layout::{
        ACCESS_SILENT, ACCESS_SOURCES, ACCESS_SPLIT, ConnectionState, SETTING_EXPIRE_NODEST, SETTING_SLOPPY_SCTP,
        SETTING_SLOPPY_TCP, Service, Settings,
    },
    packet::{Kind, Packet},
};

use crate::{
    connections::{self, Entry},
    create, lookup,
    maps::Scratch,
    masquerade, persistence,
    settings::{scratch, settings},
    source,
    verdict::{self, NEXT},
};

/// [`open`]: the connection is open, as the scratch space has it, and its packet not yet translated.
pub const OPENED: i32 = -2;
/// [`open`]: there is no server. To be counted as [`Drop::NoDestination`] and answered with ICMP port unreachable.
pub const REFUSED: i32 = -3;
/// [`open`]: a segment that opens nothing. To be counted as [`Drop::NotSyn`] and answered as a host would.
pub const STRAY: i32 = -4;
/// [`open`]: another CPU opened the packet's connection meanwhile.
pub const RACED: i32 = -5;

/// True if this packet begins a new connection although its key is in the table: the old one timed out, is over and a
/// SYN comes again, or lost its server (a SYN, or any datagram; a live TCP stream keeps its removed server, unless
/// `expire_nodest_conn` is on). A connection of a template is not over before it has timed out
/// (`is_new_conn_expected`).
#[inline(always)]
pub fn must_reschedule(packet: &Packet, protocol: Protocol, entry: &Entry, state: ConnectionState, now: u64) -> bool {
    let Some(settings) = settings() else { return false };
    let expire = settings.switches & SETTING_EXPIRE_NODEST != 0;
    let opens = connection::opens(protocol, packet.signal);
    if opens || expire {
        let server = entry.value().server;
        if !connections::is_available(server) {
            return true;
        }
        if opens && entry.value().control == 0 && connection::is_over(protocol, state) {
            return true;
        }
        if opens && expire && !matches!(protocol, Protocol::Udp) && connections::is_quiescent(server) {
            return true;
        }
    }
    entry.is_expired(packet.key.protocol, now)
}

/// Copies the service that a packet is for to the scratch space; 0 if it is for none.
#[inline(always)]
pub fn find_service(packet: &Packet, mark: u32) -> u32 {
    let Some(Scratch { service, wanted, .. }) = scratch() else { return 0 };
    wanted.address = packet.key.destination;
    wanted.port = packet.key.destination_port;
    wanted.protocol = packet.key.protocol;
    wanted.mark = mark;
    lookup::copy(wanted, service)
}

/// A packet for a service, the one in the scratch space, that has no connection, or ends the one that it has (`ends`). A
/// verdict if the packet is dropped.
#[inline(always)]
pub fn open(context: *mut c_void, came_by: u32, packet: &Packet, ends: u32) -> i32 {
    let Some(Scratch { opened, .. }) = scratch() else { return NEXT };
    // Not kept over the choice of a server.
    opened.came_by = came_by;
    admit(context, packet, ends)
}

#[inline(never)]
fn admit(context: *mut c_void, packet: &Packet, ends: u32) -> i32 {
    let Some(protocol) = Protocol::from_number(packet.key.protocol) else { return NEXT };
    if matches!(packet.kind, Kind::LaterFragment) {
        return verdict::drop(Drop::OrphanFragment);
    }
    let (Some(settings), Some(Scratch { service, wanted, request, opened, replaced, .. })) = (settings(), scratch())
    else {
        return NEXT;
    };
    if service.access & ACCESS_SPLIT != 0
        && masquerade::is_pod(&packet.key.source, opened.came_by) == 0
        && lookup::copy_external(wanted, service) == 0
    {
        return verdict::drop(Drop::NoLocalDestination);
    }
    request.ends = ends;
    replaced.server = 0;
    if service.access & ACCESS_SOURCES != 0 && !masquerade::is_in(service.id, &packet.key.source) {
        return verdict::drop(Drop::SourceNotAllowed);
    }
    if !connection::opens(protocol, packet.signal) && !opens_sloppily(settings, protocol, packet.signal) {
        return stray(packet, service, ends);
    }
    let chosen = create::choose(packet, service, request);
    if request.ends != 0 {
        // It is still counted while the server is chosen and gets its connection, as in IPVS, which lets it expire at once;
        // it is gone also if nothing takes its place.
        connections::replace(&packet.key, replaced);
    }
    source::choose(context, packet, service, chosen.server);
    let result = create::open(packet, service, &chosen, opened);
    replaced.unbind();
    match result {
        create::OPENED => {
            if opened.entry.control != 0 {
                persistence::hold(&packet.key, opened.entry.service, opened.entry.control);
            }
            if opened.masqueraded != 0 && masquerade::begin() != masquerade::BEGUN {
                connections::end(&packet.key);
                return verdict::drop(Drop::NoSourcePort);
            }
            OPENED
        }
        create::NO_DESTINATION => refused(service),
        create::EXISTS => RACED,
        create::NO_SOURCE_PORT => verdict::drop(Drop::NoSourcePort),
        _ => verdict::drop(Drop::TableFull),
    }
}

/// True if a packet that opens no connection is to be scheduled all the same.
#[inline(always)]
fn opens_sloppily(settings: &Settings, protocol: Protocol, signal: u8) -> bool {
    let switch = match protocol {
        Protocol::Tcp => SETTING_SLOPPY_TCP,
        Protocol::Sctp => SETTING_SLOPPY_SCTP,
        Protocol::Udp => return false,
    };
    settings.switches & switch != 0 && connection::opens_sloppily(protocol, signal)
}

/// A segment of a connection that is not in the table: as a host without that connection would answer.
#[inline(always)]
fn stray(packet: &Packet, service: &Service, ends: u32) -> i32 {
    if ends != 0 {
        connections::end(&packet.key);
    }
    if service.access & ACCESS_SILENT != 0 && service.set_length == 0 {
        return refused(service);
    }
    STRAY
}

/// A packet for which there is no server.
#[inline(always)]
fn refused(service: &Service) -> i32 {
    if service.access & ACCESS_SILENT != 0 { verdict::drop(Drop::NoLocalDestination) } else { REFUSED }
}
