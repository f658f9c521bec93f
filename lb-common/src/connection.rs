//! What a packet does to its connection: the protocol's state machine and IPVS's active and inactive counts, as one
//! function of the packed state (spec 5.1; `ip_vs_set_state`, `set_tcp_state`).

use crate::{
    address::Protocol,
    layout::{Connection, ConnectionState, DestinationLoad},
    packet::Packet,
    sctp,
    tcp::{self, Direction},
};

/// The outcome of a packet: the state to publish, and what to add to the server's load once it is published.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transition {
    /// New packed state.
    pub state: ConnectionState,
    /// What to add to [`DestinationLoad::connections`], wrapping; 0 for no change.
    pub load: u64,
}

/// May a packet of no known connection be scheduled? (spec 2.3)
#[inline(always)]
pub const fn opens(protocol: Protocol, signal: u8) -> bool {
    match protocol {
        Protocol::Tcp => tcp::opens_connection(signal),
        Protocol::Udp => true,
        Protocol::Sctp => sctp::opens_association(signal),
    }
}

/// The state of a new connection after its first packet, and its share in the server's load: IPVS counts it as
/// inactive, then lets the same packet move it.
#[inline(always)]
pub const fn open(protocol: Protocol, packet: &Packet) -> Transition {
    let fresh = ConnectionState(ConnectionState::INACTIVE);
    let moved = advance(protocol, fresh, packet.signal, packet.second_signal, Direction::In);
    Transition { state: moved.state, load: DestinationLoad::ONE_INACTIVE.wrapping_add(moved.load) }
}

/// The effect of one packet on a connection. UDP never changes state.
#[inline(always)]
pub const fn advance(
    protocol: Protocol,
    state: ConnectionState,
    signal: u8,
    second_signal: u8,
    direction: Direction,
) -> Transition {
    let old = state.number();
    let (new, active) = match protocol {
        Protocol::Tcp => {
            let new = tcp::next(old, signal, direction);
            (new, tcp::is_active(new))
        }
        Protocol::Udp => return Transition { state, load: 0 },
        Protocol::Sctp => {
            let second = if second_signal == 255 { None } else { Some(second_signal) };
            let new = sctp::next(old, sctp::event(signal, second), direction);
            (new, sctp::is_active(new))
        }
    };
    let flags = state.0 & !0xff;
    let inactive = state.has(ConnectionState::INACTIVE);
    let next = flags | new as u32;
    if new == old {
        return Transition { state, load: 0 };
    }
    if inactive && active {
        let load = DestinationLoad::ONE_ACTIVE.wrapping_sub(DestinationLoad::ONE_INACTIVE);
        return Transition { state: ConnectionState(next & !ConnectionState::INACTIVE), load };
    }
    if !inactive && !active {
        let load = DestinationLoad::ONE_INACTIVE.wrapping_sub(DestinationLoad::ONE_ACTIVE);
        return Transition { state: ConnectionState(next | ConnectionState::INACTIVE), load };
    }
    Transition { state: ConnectionState(next), load: 0 }
}

/// True in the state in which a connection proves its template (`set_tcp_state`: ESTABLISHED).
#[inline(always)]
pub const fn is_established(protocol: Protocol, state: ConnectionState) -> bool {
    match protocol {
        Protocol::Tcp => state.number() == tcp::State::Established as u8,
        Protocol::Udp => false,
        Protocol::Sctp => state.number() == sctp::State::Established as u8,
    }
}

/// May a packet of no known connection be scheduled although it opens none? (`sloppy_tcp`, `sloppy_sctp`)
#[inline(always)]
pub const fn opens_sloppily(protocol: Protocol, signal: u8) -> bool {
    match protocol {
        Protocol::Tcp => signal & tcp::FLAG_RST == 0,
        Protocol::Udp => true,
        Protocol::Sctp => signal != sctp::CHUNK_ABORT,
    }
}

/// A connection's share in its server's load, as a summand of [`DestinationLoad::connections`].
#[inline(always)]
pub const fn share(state: ConnectionState) -> u64 {
    if state.has(ConnectionState::INACTIVE) { DestinationLoad::ONE_INACTIVE } else { DestinationLoad::ONE_ACTIVE }
}

/// True if a SYN on this connection means a new one: the old is over (IPVS `conn_reuse_mode` 1: TIME_WAIT or CLOSE;
/// SCTP: CLOSED).
#[inline(always)]
pub const fn is_over(protocol: Protocol, state: ConnectionState) -> bool {
    match protocol {
        Protocol::Tcp => state.number() == tcp::State::TimeWait as u8 || state.number() == tcp::State::Close as u8,
        Protocol::Udp => false,
        Protocol::Sctp => state.number() == sctp::State::Closed as u8,
    }
}

/// True if a connection last seen then, with this timeout, is over by now. Clocks in nanoseconds.
#[inline(always)]
pub const fn is_expired(connection: &Connection, last_seen: u64, now: u64) -> bool {
    now.wrapping_sub(last_seen) as i64 > connection.timeout as i64 * 1_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_walk_keeps_the_load_at_the_connections_share() {
        for protocol in Protocol::ALL {
            let mut seed = 1u32;
            let mut state = ConnectionState(ConnectionState::INACTIVE);
            let mut load = DestinationLoad::ONE_INACTIVE;
            for _ in 0..100_000 {
                seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let direction = if seed & 1 << 30 != 0 { Direction::In } else { Direction::Out };
                let transition = advance(protocol, state, (seed >> 16) as u8, (seed >> 8) as u8, direction);
                state = transition.state;
                load = load.wrapping_add(transition.load);
                assert_eq!(load, share(state));
            }
        }
    }
}
