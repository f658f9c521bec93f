//! The TCP connection state machine of IPVS (`ip_vs_proto_tcp.c`, `tcp_states`; spec 5.2) as a pure function.
//!
//! Tables of a power of two rows and columns and masked indices: the BPF verifier sees each bound, no path can panic, and a
//! state number that no table knows behaves as [`State::None`].

/// Flag FIN of the TCP header's thirteenth byte.
pub const FLAG_FIN: u8 = 0x01;
/// Flag SYN, likewise.
pub const FLAG_SYN: u8 = 0x02;
/// Flag RST, likewise.
pub const FLAG_RST: u8 = 0x04;
/// Flag ACK, likewise.
pub const FLAG_ACK: u8 = 0x10;

/// Which side a packet comes from, as the state machines of TCP and SCTP tell them apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Direction {
    /// From the client to the service.
    In = 0,
    /// From the server to the client.
    Out = 1,
    /// From the client, where replies do not come by here (IPVS's `NOOUTPUT`: direct routing and tunnels).
    InOnly = 2,
}

/// State of a TCP connection, numbered as IPVS numbers them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum State {
    /// No packet seen yet; also what an unknown number reads as.
    None = 0,
    /// Handshake done.
    Established = 1,
    /// SYN from the server's side.
    SynSent = 2,
    /// SYN from the client.
    SynReceived = 3,
    /// The server closes first.
    FinWait = 4,
    /// Both have closed.
    TimeWait = 5,
    /// Reset, or a packet that carries none of the four flags.
    Close = 6,
    /// The client closes first.
    CloseWait = 7,
    /// Last acknowledgement outstanding. No transition leads here.
    LastAck = 8,
    /// Waiting for a connection. No transition leads here: IPVS's FTP helper alone sets it.
    Listen = 9,
    /// SYN answered under `secure_tcp`. No transition of the ordinary table leads here.
    SynAck = 10,
}

impl State {
    /// Every state, by number.
    pub const ALL: [Self; 11] = [
        Self::None,
        Self::Established,
        Self::SynSent,
        Self::SynReceived,
        Self::FinWait,
        Self::TimeWait,
        Self::Close,
        Self::CloseWait,
        Self::LastAck,
        Self::Listen,
        Self::SynAck,
    ];

    /// The state of a number; [`State::None`] for numbers above 10.
    pub const fn from_number(number: u8) -> Self {
        if (number as usize) < Self::ALL.len() { Self::ALL[number as usize] } else { Self::None }
    }

    /// The state's name in `ipvsadm -Lcn` and `bpvs connections`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "NONE",
            Self::Established => "ESTABLISHED",
            Self::SynSent => "SYN_SENT",
            Self::SynReceived => "SYN_RECV",
            Self::FinWait => "FIN_WAIT",
            Self::TimeWait => "TIME_WAIT",
            Self::Close => "CLOSE",
            Self::CloseWait => "CLOSE_WAIT",
            Self::LastAck => "LAST_ACK",
            Self::Listen => "LISTEN",
            Self::SynAck => "SYNACK",
        }
    }

    /// True if a connection in this state counts as active on its server.
    pub const fn is_active(self) -> bool {
        is_active(self as u8)
    }
}

/// IPVS's life of a connection after its last packet, in milliseconds, by state number; unused numbers have IPVS's
/// 2 s of an unused slot.
pub const TIMEOUTS_MS: [u32; 16] = [
    2_000, 900_000, 120_000, 60_000, 120_000, 120_000, 10_000, 60_000, 30_000, 120_000, 120_000, 2_000, 2_000, 2_000,
    2_000, 2_000,
];

/// True if a connection in this state counts as active on its server. Looks at the low four bits of `state`.
#[inline(always)]
pub const fn is_active(state: u8) -> bool {
    const ACTIVE: u32 = 1 << State::Established as u8
        | 1 << State::SynSent as u8
        | 1 << State::SynReceived as u8
        | 1 << State::SynAck as u8;
    (ACTIVE >> (state & 15)) & 1 != 0
}

/// True if a segment of no known connection may be scheduled: it carries SYN, and not RST (spec 2.3). SYN with ACK
/// counts as SYN, as in IPVS.
#[inline(always)]
pub const fn opens_connection(flags: u8) -> bool {
    flags & (FLAG_SYN | FLAG_RST) == FLAG_SYN
}

/// The state after a segment with these flags (the header's flag byte; other bits are ignored), in state `state`, of
/// which the low four bits count. A segment without RST, SYN, FIN and ACK leads to [`State::Close`], as in IPVS.
#[inline(always)]
pub const fn next(state: u8, flags: u8, direction: Direction) -> u8 {
    let event = EVENTS[(flags & 31) as usize];
    // A table for each direction, not one with the direction in the index: the compiler knows that a `Direction` is at
    // most 2 and drops the mask, but the verifier does not know it of a byte reloaded from the stack or a map.
    let table = match direction {
        Direction::In => &IN,
        Direction::Out => &OUT,
        Direction::InOnly => &IN_ONLY,
    };
    // Two indices, which are added to the table's address one after the other: the verifier of Linux 6.1 forgets every
    // bound in an OR of the two.
    table[event as usize & 7][state as usize & 15]
}

// `static`, not `const`: a constant array indexed at run time may be copied to the 512-byte BPF stack first.

/// Event of each combination of the five low flags: 0 SYN, 1 FIN, 2 ACK, 3 RST, 4 none; RST > SYN > FIN > ACK.
static EVENTS: [u8; 32] = {
    let mut events = [4; 32];
    let mut flags = 0;
    while flags < 32 {
        let set = flags as u8;
        if set & FLAG_RST != 0 {
            events[flags] = 3;
        } else if set & FLAG_SYN != 0 {
            events[flags] = 0;
        } else if set & FLAG_FIN != 0 {
            events[flags] = 1;
        } else if set & FLAG_ACK != 0 {
            events[flags] = 2;
        }
        flags += 1;
    }
    events
};

/// Next state by event (3 bits) and state (4 bits).
type Table = [[u8; 16]; 8];
static IN: Table = table(Direction::In);
static OUT: Table = table(Direction::Out);
static IN_ONLY: Table = table(Direction::InOnly);

const fn table(direction: Direction) -> Table {
    let mut table: Table = [[State::Close as u8; 16]; 8];
    let mut cell = 0;
    while cell < 8 * 16 {
        let (event, state) = (cell >> 4, cell & 15);
        if event < 4 {
            let row = if state < ROWS.len() { &ROWS[state] } else { &ROWS[0] };
            table[event][state] = row[direction as usize * 4 + event];
        }
        cell += 1;
    }
    table
}

/// A row for each state; in it SYN, FIN, ACK, RST for [`Direction::In`], `Out` and `InOnly`.
#[rustfmt::skip]
const ROWS: [[u8; 12]; 11] = {
    const ES: u8 = State::Established as u8;
    const SS: u8 = State::SynSent as u8;
    const SR: u8 = State::SynReceived as u8;
    const FW: u8 = State::FinWait as u8;
    const TW: u8 = State::TimeWait as u8;
    const CL: u8 = State::Close as u8;
    const CW: u8 = State::CloseWait as u8;
    const LA: u8 = State::LastAck as u8;
    const LI: u8 = State::Listen as u8;
    [
        /* none         */ [SR, CL, ES, CL,  SS, TW, ES, CL,  SR, CL, ES, CL],
        /* established  */ [ES, CW, ES, CL,  ES, FW, ES, CL,  ES, FW, ES, CL],
        /* syn sent     */ [ES, SS, SS, CL,  SS, SS, SS, SS,  ES, SS, SS, CL],
        /* syn received */ [SR, TW, ES, SR,  SR, TW, ES, CL,  SR, TW, ES, SR],
        /* fin wait     */ [SR, TW, FW, CL,  SS, FW, FW, CL,  SR, FW, FW, CL],
        /* time wait    */ [SR, TW, TW, CL,  SS, TW, TW, TW,  SR, TW, TW, CL],
        /* close        */ [SR, CL, CL, CL,  SS, CL, CL, CL,  SR, CL, CL, CL],
        /* close wait   */ [SR, CW, CW, CL,  SS, TW, CW, CL,  SR, CW, CW, CL],
        /* last ack     */ [SR, LA, CL, LA,  SS, LA, LA, CL,  SR, LA, CL, LA],
        /* listen       */ [SR, LI, LI, LI,  LI, LI, ES, CL,  SR, LI, LI, LI],
        /* syn ack      */ [SR, TW, ES, SR,  SR, TW, ES, CL,  SR, TW, ES, CL],
    ]
};
