//! The TCP states of IPVS as the specification prints them (5.2): the model's half of the state machine, which shares
//! nothing with `lb-common`'s.

use bpvs_tests::packets::flags;

/// Name, seconds to live, counted as active; next state on SYN, FIN, ACK, RST from the client; the same from the server.
const STATES: &str = "
    NO   2 - SR CL ES CL SS TW ES CL
    ES 900 a ES CW ES CL ES FW ES CL
    SS 120 a ES SS SS CL SS SS SS SS
    SR  60 a SR TW ES SR SR TW ES CL
    FW 120 - SR TW FW CL SS FW FW CL
    TW 120 - SR TW TW CL SS TW TW TW
    CL  10 - SR CL CL CL SS CL CL CL
    CW  60 - SR CW CW CL SS TW CW CL
";

/// A state by its name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct State(&'static str);

impl State {
    /// Before the first packet.
    pub(crate) const NONE: Self = Self("NO");

    fn cells(self) -> Vec<&'static str> {
        let lines = STATES.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let found = lines.into_iter().find(|cells| cells.first() == Some(&self.0));
        found.unwrap_or_else(|| panic!("the table has no state {}", self.0))
    }

    pub(crate) fn seconds(self) -> u64 {
        self.cells()[1].parse().expect("the second column is a number")
    }

    pub(crate) fn is_active(self) -> bool {
        self.cells()[2] == "a"
    }

    /// TIME_WAIT or CLOSE: a SYN begins a new connection.
    pub(crate) fn is_over(self) -> bool {
        ["TW", "CL"].contains(&self.0)
    }

    /// After a packet.
    pub(crate) fn after(self, tcp_flags: u8, from_client: bool) -> Self {
        let order = [flags::RST, flags::SYN, flags::FIN, flags::ACK];
        let column = order.iter().position(|flag| tcp_flags & flag != 0).map(|first| [3, 0, 1, 2][first]);
        match column {
            Some(column) => Self(self.cells()[column + if from_client { 3 } else { 7 }]),
            None => Self("CL"),
        }
    }
}
