//! Which source something came from.

use std::fmt;

/// A source of objects. When two sources state the same object, the lower one's holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceId(pub u8);

impl SourceId {
    /// Manifests.
    pub const MANIFESTS: Self = Self(0);
    /// Services of the API server.
    pub const API_SERVICES: Self = Self(1);
    /// EndpointSlices of the API server.
    pub const API_SLICES: Self = Self(2);
    /// The own Node at the API server.
    pub const API_NODE: Self = Self(3);
    /// Rules as `ipvsadm -S` writes them.
    pub const RULES: Self = Self(4);
    /// ServiceCIDRs of the API server. Old clusters have none: nobody waits for them.
    pub const API_SERVICE_CIDRS: Self = Self(5);
}

/// What messages call it.
impl fmt::Display for SourceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            Self::MANIFESTS => "manifests",
            Self::API_SERVICES => "services of the API server",
            Self::API_SLICES => "endpointslices of the API server",
            Self::API_NODE => "the own node of the API server",
            Self::RULES => "rules",
            Self::API_SERVICE_CIDRS => "servicecidrs of the API server",
            _ => "another source",
        })
    }
}
