//! Real traffic: servers that say who they are, and clients that say what they got. Every wait has a deadline.
//!
//! A socket belongs to the namespace it was made in, whoever uses it later. So only making it happens inside the
//! namespace; the servers of all namespaces share one runtime.

mod client;
mod hammer;
mod sequence;
mod server;
mod socket;
mod stream;
mod udp;

pub use client::{Dial, DialError, Held};
pub use hammer::{Hammer, HammerReport};
pub use sequence::{OutOfOrder, Sequence, SequenceCheck};
pub use server::{Fault, Servers};
pub use stream::{Stream, StreamReport};
pub use udp::{Answer, UdpClient};

use std::time::Duration;

/// Deadline for one step of traffic when none is given: far above anything but a loss, which TCP repeats after 1 s
/// and 3 s.
pub const DEADLINE: Duration = Duration::from_secs(5);
