//! The SCTP association state machine of IPVS (`ip_vs_proto_sctp.c`, `sctp_states`; spec 5.4) as a pure function.
//!
//! Built as [`crate::tcp`] is: tables of a power of two rows and columns, masked indices, unknown numbers read as
//! [`State::None`] and [`Chunk::Data`].

pub use crate::tcp::Direction;

/// What a packet's first chunks mean to the state machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Chunk {
    /// DATA, and every chunk that changes nothing: SACK, HEARTBEAT, ECNE, CWR and unknown ones.
    Data = 0,
    /// INIT.
    Init = 1,
    /// INIT ACK.
    InitAck = 2,
    /// COOKIE ECHO.
    CookieEcho = 3,
    /// COOKIE ACK.
    CookieAck = 4,
    /// SHUTDOWN.
    Shutdown = 5,
    /// SHUTDOWN ACK.
    ShutdownAck = 6,
    /// SHUTDOWN COMPLETE.
    ShutdownComplete = 7,
    /// ERROR.
    Error = 8,
    /// ABORT.
    Abort = 9,
}

/// Chunk type INIT (RFC 9260, 3.2).
const TYPE_INIT: u8 = 1;
/// Chunk type ABORT.
pub const CHUNK_ABORT: u8 = 6;
/// Every chunk type, so that a byte needs no bounds check (the compiler would drop a mask behind one, and the
/// verifier lose the bound with it).
const TYPES: usize = 256;

/// State of an SCTP association, numbered as IPVS numbers them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum State {
    /// No packet seen yet; also what an unknown number reads as.
    None = 0,
    /// First INIT from the client.
    Init1 = 1,
    /// INIT repeated.
    Init = 2,
    /// INIT ACK, with its cookie, sent by the server.
    CookieSent = 3,
    /// COOKIE ECHO from the client.
    CookieReplied = 4,
    /// The server opens: its INIT seen.
    CookieWait = 5,
    /// The server opens: INIT ACK from the client.
    Cookie = 6,
    /// The server opens: its COOKIE ECHO seen.
    CookieEchoed = 7,
    /// Association up.
    Established = 8,
    /// SHUTDOWN by the server.
    ShutdownSent = 9,
    /// SHUTDOWN by the client.
    ShutdownReceived = 10,
    /// SHUTDOWN ACK by the server.
    ShutdownAckSent = 11,
    /// Refused with ABORT.
    Rejected = 12,
    /// Ended.
    Closed = 13,
}

impl State {
    /// Every state, by number.
    pub const ALL: [Self; 14] = [
        Self::None,
        Self::Init1,
        Self::Init,
        Self::CookieSent,
        Self::CookieReplied,
        Self::CookieWait,
        Self::Cookie,
        Self::CookieEchoed,
        Self::Established,
        Self::ShutdownSent,
        Self::ShutdownReceived,
        Self::ShutdownAckSent,
        Self::Rejected,
        Self::Closed,
    ];

    /// The state of a number; [`State::None`] for numbers above 13.
    pub const fn from_number(number: u8) -> Self {
        if (number as usize) < Self::ALL.len() { Self::ALL[number as usize] } else { Self::None }
    }

    /// The state's name in `ipvsadm -Lcn` and `bpvs connections`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "NONE",
            Self::Init1 => "INIT1",
            Self::Init => "INIT",
            Self::CookieSent => "C-SENT",
            Self::CookieReplied => "C-REPLIED",
            Self::CookieWait => "C-WAIT",
            Self::Cookie => "COOKIE",
            Self::CookieEchoed => "C-ECHOED",
            Self::Established => "ESTABLISHED",
            Self::ShutdownSent => "S-SENT",
            Self::ShutdownReceived => "S-RECEIVED",
            Self::ShutdownAckSent => "S-ACK-SENT",
            Self::Rejected => "REJECTED",
            Self::Closed => "CLOSED",
        }
    }

    /// True if an association in this state counts as active on its server.
    pub const fn is_active(self) -> bool {
        is_active(self as u8)
    }
}

/// IPVS's life of an association after its last packet, in milliseconds, by state number; unused numbers have IPVS's
/// 2 s of an unused slot.
pub const TIMEOUTS_MS: [u32; 16] = [
    2_000, 4_000, 61_000, 61_000, 61_000, 61_000, 61_000, 61_000, 900_000, 61_000, 61_000, 61_000, 4_000, 61_000,
    2_000, 2_000,
];

/// True if an association in this state counts as active on its server: ESTABLISHED alone does. Looks at the low four
/// bits of `state`.
#[inline(always)]
pub const fn is_active(state: u8) -> bool {
    state & 15 == State::Established as u8
}

/// True if a packet of no known association may be scheduled: its first chunk is INIT (spec 2.3), which an ABORT never
/// is.
#[inline(always)]
pub const fn opens_association(first_chunk_type: u8) -> bool {
    first_chunk_type == TYPE_INIT
}

/// The event ([`Chunk`]) of a packet that begins with these chunk types. A second chunk counts only as ABORT bundled
/// with a COOKIE ECHO or COOKIE ACK.
#[inline(always)]
pub const fn event(first_chunk_type: u8, second_chunk_type: Option<u8>) -> u8 {
    let first = EVENTS[first_chunk_type as usize];
    let cookie = first == Chunk::CookieEcho as u8 || first == Chunk::CookieAck as u8;
    if cookie && matches!(second_chunk_type, Some(CHUNK_ABORT)) { Chunk::Abort as u8 } else { first }
}

/// The state after a packet whose [`event`] is `event`, in state `state`; of both the low four bits count.
#[inline(always)]
pub const fn next(state: u8, event: u8, direction: Direction) -> u8 {
    // A table for each direction, for the verifier's sake: see `tcp::next`.
    let table = match direction {
        Direction::In => &IN,
        Direction::Out => &OUT,
        Direction::InOnly => &IN_ONLY,
    };
    // Two indices, which are added to the table's address one after the other: the verifier of Linux 6.1 forgets every
    // bound in an OR of the two.
    table[event as usize & 15][state as usize & 15]
}

// `static`, not `const`: a constant array indexed at run time may be copied to the 512-byte BPF stack first.

/// Event of each chunk type of RFC 9260, 3.2; all others count as DATA.
static EVENTS: [u8; TYPES] = {
    const KNOWN: [(usize, Chunk); 9] = [
        (1, Chunk::Init),
        (2, Chunk::InitAck),
        (6, Chunk::Abort),
        (7, Chunk::Shutdown),
        (8, Chunk::ShutdownAck),
        (9, Chunk::Error),
        (10, Chunk::CookieEcho),
        (11, Chunk::CookieAck),
        (14, Chunk::ShutdownComplete),
    ];
    let mut events = [Chunk::Data as u8; TYPES];
    let mut index = 0;
    while index < KNOWN.len() {
        events[KNOWN[index].0] = KNOWN[index].1 as u8;
        index += 1;
    }
    events
};

/// Next state by event (4 bits) and state (4 bits).
type Table = [[u8; 16]; 16];
static IN: Table = table(Direction::In);
static OUT: Table = table(Direction::Out);
static IN_ONLY: Table = table(Direction::InOnly);

const fn table(direction: Direction) -> Table {
    let mut table: Table = [[State::None as u8; 16]; 16];
    let mut cell = 0;
    while cell < 16 * 16 {
        let (event, state) = (cell >> 4, cell & 15);
        let row = if state < ROWS.len() { &ROWS[state] } else { &ROWS[0] };
        table[event][state] = row[direction as usize][if event < 10 { event } else { Chunk::Data as usize }];
        cell += 1;
    }
    table
}

/// A row for each state; in it the [`Chunk`]s in order for [`Direction::In`], `Out` and `InOnly`.
#[rustfmt::skip]
const ROWS: [[[u8; 10]; 3]; 14] = {
    const I1: u8 = State::Init1 as u8;
    const IN: u8 = State::Init as u8;
    const CS: u8 = State::CookieSent as u8;
    const CR: u8 = State::CookieReplied as u8;
    const CW: u8 = State::CookieWait as u8;
    const CO: u8 = State::Cookie as u8;
    const CE: u8 = State::CookieEchoed as u8;
    const ES: u8 = State::Established as u8;
    const SS: u8 = State::ShutdownSent as u8;
    const SR: u8 = State::ShutdownReceived as u8;
    const SA: u8 = State::ShutdownAckSent as u8;
    const RJ: u8 = State::Rejected as u8;
    const CL: u8 = State::Closed as u8;
    [
        // none
        [
            [ES, I1, CW, CR, ES, SR, CL, CL, CL, CL],
            [ES, CW, CS, CE, ES, SS, SA, CL, CL, CL],
            [ES, I1, CE, ES, ES, SR, CL, CL, CL, CL],
        ],
        // init1
        [
            [I1, IN, CW, IN, I1, I1, IN, CL, I1, CL],
            [I1, CW, CS, CE, ES, SS, SA, I1, CL, RJ],
            [I1, IN, CE, ES, I1, I1, IN, CL, I1, CL],
        ],
        // init
        [
            [IN, IN, CW, IN, IN, IN, IN, CL, IN, CL],
            [IN, CW, CS, CE, ES, SS, SA, IN, CL, CL],
            [IN, IN, CE, ES, IN, IN, IN, CL, IN, CL],
        ],
        // cookie sent
        [
            [CS, CS, CS, CR, CS, CS, CS, CS, CS, CL],
            [CS, CW, CS, CE, ES, SS, SA, CS, CL, CL],
            [CS, IN, CE, ES, ES, CS, CS, CL, CS, CL],
        ],
        // cookie replied
        [
            [CR, CR, CR, CR, CR, CR, CR, CR, CR, CL],
            [CR, CW, CR, CE, ES, SS, SA, CR, CL, CL],
            [CR, IN, CE, ES, ES, CR, CR, CL, CR, CL],
        ],
        // cookie wait
        [
            [CW, CW, CO, CW, CW, CW, CW, CW, CW, RJ],
            [CW, CW, CW, CE, ES, SS, CW, CW, CW, CL],
            [ES, IN, CE, ES, CW, CW, CW, CW, CW, RJ],
        ],
        // cookie
        [
            [CO, CO, CO, CO, CO, CO, CO, CO, CO, CL],
            [CO, CW, CO, CE, ES, SS, CO, CO, CO, CL],
            [CO, CO, CO, CO, ES, CO, CO, CO, CO, CL],
        ],
        // cookie echoed
        [
            [CE, CE, CE, CE, ES, CE, CE, CE, CL, CL],
            [CE, CW, CE, CE, ES, SS, CE, CE, CE, CL],
            [CE, CE, CE, CE, ES, CE, CE, CE, CE, CL],
        ],
        // established
        [
            [ES, ES, ES, ES, ES, SR, ES, ES, ES, CL],
            [ES, ES, ES, ES, ES, SS, ES, ES, ES, CL],
            [ES, ES, ES, ES, ES, SR, CL, ES, ES, CL],
        ],
        // shutdown sent
        [
            [SS, SS, SS, SS, SS, SS, CL, SS, SS, CL],
            [SS, CW, SS, SS, SS, SS, SA, SS, SS, CL],
            [SS, SS, SS, SS, SS, SS, CL, SS, SS, CL],
        ],
        // shutdown received
        [
            [SR, SR, SR, SR, SR, SR, SR, SR, SR, CL],
            [SR, CW, SR, SR, SR, SR, SA, SR, SR, CL],
            [SR, SR, SR, SR, SR, SR, SR, CL, SR, CL],
        ],
        // shutdown ack sent
        [
            [SA, SA, SA, SA, SA, SA, CL, CL, SA, CL],
            [SA, CW, SA, SA, SA, SA, SA, SA, SA, CL],
            [SA, SA, SA, SA, SA, SA, CL, CL, SA, CL],
        ],
        // rejected
        [
            [RJ, IN, RJ, RJ, RJ, RJ, RJ, RJ, RJ, CL],
            [RJ, CW, RJ, RJ, RJ, RJ, RJ, RJ, RJ, CL],
            [RJ, IN, RJ, RJ, RJ, RJ, RJ, RJ, RJ, CL],
        ],
        // closed
        [
            [CL, IN, CL, CL, CL, CL, CL, CL, CL, CL],
            [CL, CW, CL, CL, CL, CL, CL, CL, CL, CL],
            [CL, IN, CL, CL, CL, CL, CL, CL, CL, CL],
        ],
    ]
};
