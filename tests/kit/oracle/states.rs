//! IPVS's connection states as `ip_vs_proto_tcp.c` and `ip_vs_proto_sctp.c` tabulate them, for the model: it shares nothing
//! with `lb-common`'s state machines.

use lb_common::address::Protocol;

use super::script::{Side, Signal};
use super::signals::{sctp_chunk, tcp_flags};
use crate::packets::flags;

/// State, seconds to live, active; next state on SYN, FIN, ACK, RST from the client; the same from the server.
const TCP: &str = "
    NO   2 - SR CL ES CL SS TW ES CL
    ES 900 a ES CW ES CL ES FW ES CL
    SS 120 a ES SS SS CL SS SS SS SS
    SR  60 a SR TW ES SR SR TW ES CL
    FW 120 - SR TW FW CL SS FW FW CL
    TW 120 - SR TW TW CL SS TW TW TW
    CL  10 - SR CL CL CL SS CL CL CL
    CW  60 - SR CW CW CL SS TW CW CL
";

/// Likewise, on DATA, INIT, INIT ACK, COOKIE ECHO, COOKIE ACK, SHUTDOWN, SHUTDOWN ACK, SHUTDOWN COMPLETE, ERROR, ABORT.
const SCTP: &str = "
    NO   2 - ES I1 CW CR ES SR CL CL CL CL ES CW CS CE ES SS SA CL CL CL
    I1   4 - I1 IN CW IN I1 I1 IN CL I1 CL I1 CW CS CE ES SS SA I1 CL RJ
    IN  61 - IN IN CW IN IN IN IN CL IN CL IN CW CS CE ES SS SA IN CL CL
    CS  61 - CS CS CS CR CS CS CS CS CS CL CS CW CS CE ES SS SA CS CL CL
    CR  61 - CR CR CR CR CR CR CR CR CR CL CR CW CR CE ES SS SA CR CL CL
    CW  61 - CW CW CO CW CW CW CW CW CW RJ CW CW CW CE ES SS CW CW CW CL
    CO  61 - CO CO CO CO CO CO CO CO CO CL CO CW CO CE ES SS CO CO CO CL
    CE  61 - CE CE CE CE ES CE CE CE CL CL CE CW CE CE ES SS CE CE CE CL
    ES 900 a ES ES ES ES ES SR ES ES ES CL ES ES ES ES ES SS ES ES ES CL
    SS  61 - SS SS SS SS SS SS CL SS SS CL SS CW SS SS SS SS SA SS SS CL
    SR  61 - SR SR SR SR SR SR SR SR SR CL SR CW SR SR SR SR SA SR SR CL
    SA  61 - SA SA SA SA SA SA CL CL SA CL SA CW SA SA SA SA SA SA SA CL
    RJ   4 - RJ IN RJ RJ RJ RJ RJ RJ RJ CL RJ CW RJ RJ RJ RJ RJ RJ RJ CL
    CL  61 - CL IN CL CL CL CL CL CL CL CL CL CW CL CL CL CL CL CL CL CL
";

/// Chunk types in the order of the columns.
const CHUNKS: [u8; 10] = [0, 1, 2, 10, 11, 7, 8, 14, 9, 6];

/// A state by its name; [`State::NONE`] before the first packet, and always for UDP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct State(&'static str);

impl State {
    /// Before the first packet.
    pub const NONE: Self = Self("NO");

    fn cells(self, table: &'static str) -> Vec<&'static str> {
        let lines = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let found = lines.into_iter().find(|cells| cells.first() == Some(&self.0));
        found.unwrap_or_else(|| panic!("the table has no state {}", self.0))
    }

    /// Seconds that a connection in this state lives, by default.
    pub fn seconds(self, protocol: Protocol) -> u32 {
        let table = match protocol {
            Protocol::Tcp => TCP,
            Protocol::Sctp => SCTP,
            Protocol::Udp => return 300,
        };
        self.cells(table)[1].parse().expect("the second column is a number")
    }

    /// True if connections in this state count as active.
    pub fn is_active(self, protocol: Protocol) -> bool {
        match protocol {
            Protocol::Tcp => self.cells(TCP)[2] == "a",
            Protocol::Sctp => self.cells(SCTP)[2] == "a",
            Protocol::Udp => false,
        }
    }

    /// True if what opens a connection begins a new one here: `conn_reuse_mode` 1.
    pub fn is_over(self, protocol: Protocol) -> bool {
        match protocol {
            Protocol::Tcp => ["TW", "CL"].contains(&self.0),
            Protocol::Sctp => self.0 == "CL",
            Protocol::Udp => false,
        }
    }

    /// TCP's ESTABLISHED and FIN_WAIT, which `--set` changes.
    pub fn is_settable(self) -> Option<usize> {
        ["ES", "FW"].iter().position(|name| *name == self.0)
    }

    /// After a TCP segment with these flags.
    pub fn after_segment(self, from: Side, tcp_flags: u8) -> Self {
        let order = [flags::RST, flags::SYN, flags::FIN, flags::ACK];
        let Some(first) = order.iter().position(|flag| tcp_flags & flag != 0) else { return Self("CL") };
        self.next(TCP, 4, [3, 0, 1, 2][first], from)
    }

    /// After a packet.
    pub fn after(self, protocol: Protocol, from: Side, signal: Signal) -> Self {
        match protocol {
            Protocol::Udp => self,
            Protocol::Tcp => self.after_segment(from, tcp_flags(from, signal)),
            Protocol::Sctp => {
                let chunk = sctp_chunk(from, signal);
                let column = CHUNKS.iter().position(|known| *known == chunk).unwrap_or(0);
                self.next(SCTP, CHUNKS.len(), column, from)
            }
        }
    }

    /// What a table of so many columns a side says.
    fn next(self, table: &'static str, columns: usize, column: usize, from: Side) -> Self {
        Self(self.cells(table)[3 + column + if from == Side::Client { 0 } else { columns }])
    }
}
