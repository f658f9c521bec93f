//! The host's answer: the same `lb-common` code over a slice and plain memory, with none of BPF's helpers and maps.
//!
//! It knows connections, fragments and errors. Its world has no service for what is sent to it and nothing in it times
//! out, so that a miss always passes by.

use std::collections::HashMap;

use bpvs_tests::datapath::{DROPPED, Hook, NEXT, REDIRECTED};
use lb_common::{
    address::Protocol,
    connection,
    layout::{Connection, ConnectionKey, ConnectionState, FragmentKey, FragmentPorts, KEY_PACKET},
    nat::{self, Rewrite, SliceEditor},
    packet::{self, Kind, Packet},
    tcp::{self, Direction},
};

use crate::shapes::turned;

/// The tables.
#[derive(Clone, Default)]
pub(crate) struct Host {
    pub(crate) connections: HashMap<ConnectionKey, Connection>,
    pub(crate) fragments: HashMap<FragmentKey, FragmentPorts>,
    /// Active and inactive connections of the one server, packed.
    pub(crate) load: u64,
    /// Packets that could not be written to.
    pub(crate) rewrite_failed: u64,
}

impl Host {
    /// What a program does with a frame.
    pub(crate) fn run(&mut self, hook: Hook, frame: &[u8]) -> (i32, Vec<u8>) {
        let mut out = frame.to_vec();
        let verdict = match Packet::parse(frame) {
            Err(_) => NEXT,
            Ok(packet) if packet.kind == Kind::IcmpError => self.error(hook, &mut out, &packet),
            Ok(packet) => self.transport(hook, &mut out, packet),
        };
        if verdict == REDIRECTED {
            out = turned(&out);
        }
        (verdict, out)
    }

    fn transport(&mut self, hook: Hook, frame: &mut [u8], mut packet: Packet) -> i32 {
        let later = packet.kind == Kind::LaterFragment;
        if later && !self.recall(&mut packet) {
            return NEXT;
        }
        let protocol = Protocol::from_number(packet.key.protocol).expect("the parser lets no other through");
        let Some(entry) = self.connections.get(&packet.key).copied() else { return NEXT };
        let state = ConnectionState(entry.state);
        let (reply, hairpin) = (state.has(ConnectionState::REPLY), state.has(ConnectionState::HAIRPIN));
        if match hook {
            Hook::Ingress => reply && !hairpin,
            Hook::Egress => !reply || hairpin,
            Hook::Uplink => unreachable!("the host is a model of tc"),
        } {
            return NEXT;
        }
        if !reply && connection::opens(protocol, packet.signal) && connection::is_over(protocol, state) {
            self.close(&packet.key);
            return NEXT;
        }
        if reply {
            self.reply(protocol, &packet, &entry);
        } else if !later {
            self.advance(&packet.key, protocol, &packet, Direction::In);
        }
        if packet.kind == Kind::FirstFragment {
            let (source_port, destination_port) = (packet.key.source_port, packet.key.destination_port);
            self.fragments.insert(fragment_key(&packet), FragmentPorts { source_port, destination_port });
        }
        let result = nat::apply(&mut SliceEditor { frame }, &packet, &Rewrite::of(&entry));
        self.verdict(result, hairpin)
    }

    fn error(&mut self, hook: Hook, frame: &mut [u8], packet: &Packet) -> i32 {
        let mut quoted = Packet::default();
        if packet::parse_quoted(frame, packet, &mut quoted).is_err() {
            return NEXT;
        }
        let Some(entry) = self.connections.get(&nat::quoted_key(&quoted)) else { return NEXT };
        let state = ConnectionState(entry.state);
        let (reply, hairpin) = (state.has(ConnectionState::REPLY), state.has(ConnectionState::HAIRPIN));
        let ours = match hook {
            Hook::Ingress => !reply || hairpin,
            Hook::Egress => reply && !hairpin,
            Hook::Uplink => unreachable!("the host is a model of tc"),
        };
        if !ours {
            return NEXT;
        }
        let onward = Rewrite::of(entry);
        let source = if reply || hairpin { onward.source } else { packet.key.source };
        let mut editor = SliceEditor { frame };
        let result = nat::apply_embedded(&mut editor, packet, source, onward.destination, &quoted, &onward.reversed());
        self.verdict(result, hairpin)
    }

    fn verdict(&mut self, result: Result<(), nat::Refused>, hairpin: bool) -> i32 {
        match result {
            Ok(()) if hairpin => REDIRECTED,
            Ok(()) => NEXT,
            Err(nat::Refused) => {
                self.rewrite_failed += 1;
                DROPPED
            }
        }
    }

    /// A reply moves the request entry's state, unless the reply entry knows that nothing can move.
    fn reply(&mut self, protocol: Protocol, packet: &Packet, entry: &Connection) {
        let flags = tcp::FLAG_SYN | tcp::FLAG_FIN | tcp::FLAG_RST | tcp::FLAG_ACK;
        let settled = ConnectionState(entry.state).has(ConnectionState::SETTLED);
        if packet.kind == Kind::LaterFragment
            || protocol == Protocol::Udp
            || protocol == Protocol::Tcp && settled && packet.signal & flags == tcp::FLAG_ACK
        {
            return;
        }
        let request = other_key(entry, packet.key.protocol);
        if !self.connections.contains_key(&request) {
            return;
        }
        self.advance(&request, protocol, packet, Direction::Out);
        let state = ConnectionState(self.connections[&request].state);
        let established = protocol == Protocol::Tcp && state.number() == tcp::State::Established as u8;
        let reply = self.connections.get_mut(&packet.key).expect("found before");
        reply.state &= !ConnectionState::SETTLED;
        reply.state |= if established { ConnectionState::SETTLED } else { 0 };
    }

    fn advance(&mut self, key: &ConnectionKey, protocol: Protocol, packet: &Packet, direction: Direction) {
        let entry = self.connections.get_mut(key).expect("found before");
        let state = ConnectionState(entry.state);
        let moved = connection::advance(protocol, state, packet.signal, packet.second_signal, direction);
        entry.state = moved.state.0;
        self.load = self.load.wrapping_add(moved.load);
    }

    fn close(&mut self, key: &ConnectionKey) {
        let entry = self.connections.remove(key).expect("found before");
        self.connections.remove(&other_key(&entry, key.protocol));
        self.load = self.load.wrapping_sub(connection::share(ConnectionState(entry.state)));
    }

    fn recall(&self, packet: &mut Packet) -> bool {
        let named = packet.key.protocol;
        let candidates = match Protocol::from_number(named) {
            Some(protocol) => vec![protocol],
            None => Protocol::ALL.to_vec(),
        };
        for protocol in candidates {
            packet.key.protocol = protocol as u8;
            if let Some(ports) = self.fragments.get(&fragment_key(packet)) {
                packet.key.source_port = ports.source_port;
                packet.key.destination_port = ports.destination_port;
                return true;
            }
        }
        packet.key.protocol = named;
        false
    }
}

fn fragment_key(packet: &Packet) -> FragmentKey {
    FragmentKey {
        source: packet.key.source,
        destination: packet.key.destination,
        identification: packet.identification,
        protocol: packet.key.protocol,
        pad: [0; 3],
    }
}

/// The key of a connection's other entry: packets of the other direction, as they arrive.
fn other_key(entry: &Connection, protocol: u8) -> ConnectionKey {
    ConnectionKey {
        source: entry.destination,
        destination: entry.source,
        source_port: entry.destination_port,
        destination_port: entry.source_port,
        protocol,
        kind: KEY_PACKET,
        pad: [0; 2],
    }
}
