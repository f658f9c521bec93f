//! The connection table: two keys, one life.
//!
//! The request entry owns the state. Whoever sets [`ConnectionState::CLOSING`] on it removes both entries, and the two
//! of a masqueraded connection's second half, and gives the server's count back, exactly once.

use core::ptr::NonNull;

use lb_common::{
    address::Protocol,
    connection::{self, Transition},
    layout::{Connection, ConnectionKey, ConnectionState, DESTINATION_AVAILABLE, KEY_PACKET},
    packet::Packet,
    tcp::{self, Direction},
    timeouts::Timeouts,
};

use crate::{
    atomic::Word,
    count,
    maps::{CONNECTIONS, DESTINATIONS_MAP},
    masquerade, persistence,
    settings::now,
};

/// Tries of a compare-and-swap before a transition is given up: the next packet makes it again.
const TRIES: u32 = 4;

/// An entry of the table, for as long as the program runs.
#[derive(Clone, Copy)]
pub struct Entry(NonNull<Connection>);

impl Entry {
    /// The entry with this key.
    #[inline(always)]
    pub fn find(key: &ConnectionKey) -> Option<Self> {
        CONNECTIONS.get_ptr_mut(key).and_then(NonNull::new).map(Self)
    }

    /// Wraps a value that the kernel showed to a callback.
    ///
    /// # Safety
    /// `value` must point to a value of `connections` and be valid for the rest of the program.
    pub unsafe fn from_raw(value: NonNull<Connection>) -> Self {
        Self(value)
    }

    /// Its value now. Fields that change are read again where it matters.
    #[inline(always)]
    pub fn value(&self) -> &Connection {
        // SAFETY: map values stay mapped while the program runs. Concurrent writers change `state`, `last_seen` and
        // `timeout` word by word; the translation never changes while the key is in the table. The kernel may give a
        // deleted element to the next insert at once, under another key: what must not be done to a stranger is
        // checked where it is done (`close`).
        unsafe { self.0.as_ref() }
    }

    #[inline(always)]
    fn state_cell(&self) -> Word<u32> {
        // SAFETY: aligned, valid as in `value`, and accessed atomically by everyone.
        unsafe { Word::new(&raw mut (*self.0.as_ptr()).state) }
    }

    #[inline(always)]
    fn last_seen_cell(&self) -> Word<u64> {
        // SAFETY: as for `state_cell`.
        unsafe { Word::new(&raw mut (*self.0.as_ptr()).last_seen) }
    }

    /// The packed state.
    #[inline(always)]
    pub fn state(&self) -> ConnectionState {
        ConnectionState(self.state_cell().load())
    }

    /// The control word, or a template's count of connections.
    #[inline(always)]
    pub fn control_cell(&self) -> Word<u32> {
        // SAFETY: as for `state_cell`.
        unsafe { Word::new(&raw mut (*self.0.as_ptr()).control) }
    }

    /// Starts a template's clock as of then, with another timeout.
    #[inline(always)]
    pub fn restart(&self, last_seen: u64, timeout: u32) {
        self.last_seen_cell().store(last_seen);
        // SAFETY: as in `value`; a plain word that only lookups of the template set, to this one timeout.
        unsafe { (*self.0.as_ptr()).timeout = timeout };
    }

    /// Notes that a connection of this template was established.
    #[inline(always)]
    pub fn set_assured(&self) {
        let state = self.state();
        if !state.has(ConnectionState::ASSURED) {
            self.state_cell().store(state.0 | ConnectionState::ASSURED);
        }
    }

    /// Notes that packets with this key go by the stack from now on, by the flag of the hook that found it: it asks for their
    /// route no more.
    #[inline(always)]
    pub fn leave_to_stack(&self, flag: u32) {
        let state = self.state();
        // Another CPU's packet moved the state meanwhile: the next packet tries again.
        let _ = self.state_cell().replace(state.0, state.0 | flag);
    }

    /// Notes a packet. True if it is not the first one of this instant.
    #[inline(always)]
    pub fn touch(&self, now: u64) -> bool {
        let cell = self.last_seen_cell();
        let busy = cell.load() == now;
        if !busy {
            cell.store(now);
        }
        busy
    }

    /// Key of the other entry of this connection: packets of the other direction, as they arrive.
    #[inline(always)]
    pub fn other_key(&self, protocol: u8) -> ConnectionKey {
        let value = self.value();
        ConnectionKey {
            source: value.destination,
            destination: value.source,
            source_port: value.destination_port,
            destination_port: value.source_port,
            protocol,
            kind: KEY_PACKET,
            pad: [0; 2],
        }
    }

    /// True if a request entry has seen no packet in either direction for its timeout.
    #[inline(always)]
    pub fn is_expired(&self, protocol: u8, now: u64) -> bool {
        let value = self.value();
        if !connection::is_expired(value, value.last_seen, now) {
            return false;
        }
        if self.state().has(ConnectionState::DIRECT_RETURN) {
            return true;
        }
        match Self::find(&self.other_key(protocol)) {
            Some(reply) => connection::is_expired(value, reply.value().last_seen, now),
            None => true,
        }
    }

    /// Lets a packet move a request entry's state machine, the server's counts and the timeout with it. `key` is its own.
    #[inline(always)]
    pub fn advance(
        &self,
        key: &ConnectionKey,
        protocol: Protocol,
        packet: &Packet,
        direction: Direction,
        timeouts: &Timeouts,
    ) {
        let mut state = self.state();
        for _ in 0..TRIES {
            if state.has(ConnectionState::CLOSING) {
                return;
            }
            let Transition { state: next, load } =
                connection::advance(protocol, state, packet.signal, packet.second_signal, direction);
            if next == state {
                break;
            }
            match self.state_cell().replace(state.0, next.0) {
                Ok(_) => {
                    if load != 0 {
                        count::load(self.value().server, load);
                    }
                    if matches!(direction, Direction::In) && connection::is_established(protocol, state) {
                        unsettle(key);
                    }
                    if self.value().control != 0 && connection::is_established(protocol, next) {
                        persistence::assure(key, self.value().service, self.value().control);
                    }
                    state = next;
                    break;
                }
                Err(current) => state = ConnectionState(current),
            }
        }
        // SAFETY: as in `value`; a plain word that concurrent packets of this connection set to the same or a newer
        // state's timeout.
        unsafe { (*self.0.as_ptr()).timeout = timeouts.of(protocol, state.number()) };
    }

    /// Marks a reply entry as settled, or not.
    #[inline(always)]
    pub fn set_settled(&self, settled: bool) {
        let state = self.state();
        let next = if settled { state.0 | ConnectionState::SETTLED } else { state.0 & !ConnectionState::SETTLED };
        if next != state.0 {
            self.state_cell().store(next);
        }
    }

    /// Removes the connection of a request entry: both entries and its count. False if another CPU does it, or did.
    #[inline(always)]
    pub fn close(&self, key: &ConnectionKey) -> bool {
        self.take_out(key, None)
    }

    /// [`Self::close`]; with `replaced`, its server and count are noted there, and still counted.
    #[inline(always)]
    fn take_out(&self, key: &ConnectionKey, replaced: Option<&mut Replaced>) -> bool {
        let mut state = self.state();
        let mut claimed = false;
        for _ in 0..TRIES {
            if state.has(ConnectionState::CLOSING) {
                return false;
            }
            match self.state_cell().replace(state.0, state.0 | ConnectionState::CLOSING) {
                Ok(_) => {
                    claimed = true;
                    break;
                }
                Err(current) => state = ConnectionState(current),
            }
        }
        if !claimed {
            return false;
        }
        // Another CPU may have removed the connection, and the element may be another connection's by now. From here
        // on nobody else removes what is under this key.
        if !Self::find(key).is_some_and(|found| core::ptr::eq(found.0.as_ptr(), self.0.as_ptr())) {
            let _ = self.state_cell().replace(state.0 | ConnectionState::CLOSING, state.0);
            return false;
        }
        let reply_key = self.other_key(key.protocol);
        // First, so that a recount, which leaves out what is marked, hardly ever sees the mark without the change.
        match replaced {
            None => count::unbind(self.value().server, connection::share(state)),
            Some(replaced) => {
                *replaced = Replaced { share: connection::share(state), server: self.value().server, pad: 0 };
                count::announce(replaced.server);
            }
        }
        let (service, control) = (self.value().service, self.value().control);
        if control != 0 {
            persistence::release(key, service, control, now());
        }
        if state.has(ConnectionState::MASQUERADED) {
            masquerade::end(&reply_key);
        }
        // Without one: what has that key is another connection's.
        if !state.has(ConnectionState::DIRECT_RETURN) {
            let _ = CONNECTIONS.remove(&reply_key);
        }
        let _ = CONNECTIONS.remove(key);
        true
    }
}

/// A client's packet ended the ESTABLISHED state of the connection with this key: the next answer, were it a plain ACK,
/// looks at the request entry again.
#[inline(never)]
fn unsettle(key: &ConnectionKey) -> u32 {
    if let Some(request) = Entry::find(key)
        && let Some(reply) = Entry::find(&request.other_key(key.protocol))
    {
        reply.set_settled(false);
    }
    0
}

/// [`Entry::close`] of the connection with this key, in a frame of its own.
#[inline(never)]
pub fn end(key: &ConnectionKey) -> u32 {
    match Entry::find(key) {
        Some(entry) => entry.close(key).into(),
        None => 0,
    }
}

/// A connection that another one takes the place of: IPVS lets it expire at once, when the new one is counted already.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Replaced {
    /// What it counts.
    pub share: u64,
    /// Destination id; 0 for none.
    pub server: u32,
    /// Zero.
    pub pad: u32,
}

/// [`Entry::close`] of the connection with this key, which stays counted until [`Replaced::unbind`].
#[inline(never)]
pub fn replace(key: &ConnectionKey, replaced: &mut Replaced) -> u32 {
    match Entry::find(key) {
        Some(entry) => entry.take_out(key, Some(replaced)).into(),
        None => 0,
    }
}

impl Replaced {
    /// Counts it no more.
    #[inline(always)]
    pub fn unbind(&self) {
        if self.server != 0 {
            count::unbind(self.server, self.share);
        }
    }
}

/// True while a destination is in its service's set.
#[inline(always)]
pub fn is_available(server: u32) -> bool {
    match DESTINATIONS_MAP.get(server) {
        Some(destination) => destination.flags & DESTINATION_AVAILABLE != 0,
        None => false,
    }
}

/// True if a destination takes no new connections because its weight is 0.
#[inline(always)]
pub fn is_quiescent(server: u32) -> bool {
    match DESTINATIONS_MAP.get(server) {
        Some(destination) => destination.weight == 0,
        None => false,
    }
}

/// A reply of a settled TCP connection that changes nothing: an ACK alone, or with data.
#[inline(always)]
pub fn is_plain_ack(flags: u8) -> bool {
    flags & (tcp::FLAG_SYN | tcp::FLAG_FIN | tcp::FLAG_RST | tcp::FLAG_ACK) == tcp::FLAG_ACK
}
