//! The name of every way a packet can end other than forwarded or untouched.

/// Why a packet was dropped or refused; index into the `drops` map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Drop {
    /// The service has no usable destination; answered with ICMP port unreachable.
    NoDestination = 0,
    /// A segment of a TCP connection to a VIP that is not in the table and does not open one; answered with RST.
    NotSyn = 1,
    /// The connection table is full.
    TableFull = 2,
    /// No free source port for a connection that needs its source rewritten.
    NoSourcePort = 3,
    /// A fragment whose first fragment was not seen.
    OrphanFragment = 4,
    /// The kernel refused to rewrite the packet.
    RewriteFailed = 5,
    /// Expired TTL or another reason not to answer, where an answer was due.
    Unanswerable = 6,
    /// The service has no destination on this node, and its policy allows no other: not answered.
    NoLocalDestination = 7,
    /// The client is in none of the networks that the service takes (`loadBalancerSourceRanges`): not answered.
    SourceNotAllowed = 8,
    /// The address is one that Services get theirs from, and no Service has it: not sent on.
    NoService = 9,
    /// There is no way to a real server that is reached by direct routing or a tunnel; answered with ICMP host unreachable.
    NoRoute = 10,
    /// Too big for the way to such a server; answered with ICMP fragmentation needed, or packet too big.
    TooBig = 11,
    /// The last hop of a packet for such a server; answered with ICMP time exceeded.
    HopsExceeded = 12,
    /// Came out of a tunnel that was congested, and its sender could not be told otherwise (RFC 6040).
    Congestion = 13,
}

impl Drop {
    /// Every reason, by index.
    pub const ALL: [Self; 14] = [
        Self::NoDestination,
        Self::NotSyn,
        Self::TableFull,
        Self::NoSourcePort,
        Self::OrphanFragment,
        Self::RewriteFailed,
        Self::Unanswerable,
        Self::NoLocalDestination,
        Self::SourceNotAllowed,
        Self::NoService,
        Self::NoRoute,
        Self::TooBig,
        Self::HopsExceeded,
        Self::Congestion,
    ];

    /// Its name in listings and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NoDestination => "no-destination",
            Self::NotSyn => "not-syn",
            Self::TableFull => "table-full",
            Self::NoSourcePort => "no-source-port",
            Self::OrphanFragment => "orphan-fragment",
            Self::RewriteFailed => "rewrite-failed",
            Self::Unanswerable => "unanswerable",
            Self::NoLocalDestination => "no-local-destination",
            Self::SourceNotAllowed => "source-not-allowed",
            Self::NoService => "no-service",
            Self::NoRoute => "no-route",
            Self::TooBig => "too-big",
            Self::HopsExceeded => "hops-exceeded",
            Self::Congestion => "congestion",
        }
    }
}
