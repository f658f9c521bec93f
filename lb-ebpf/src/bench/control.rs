//! What `bpvs-bench` tells its programs. This file is compiled into both, so that there is one definition.

/// Room for the headers that are written into each packet: Ethernet, IPv6 and TCP are 74 bytes. The last bytes are
/// never used: they let an offset be bounded by a mask.
pub(crate) const TEMPLATE: usize = 136;

/// Bound of offsets into the template.
pub(crate) const TEMPLATE_MASK: u32 = 127;

/// Value of `bench_control`, one entry.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Control {
    /// Number of the next flow, when they come in order.
    pub(crate) next: u64,
    /// The headers of every packet, but for the client's address and port.
    pub(crate) template: [u8; TEMPLATE],
    /// Bytes of the template in use.
    pub(crate) length: u32,
    /// Where the last four bytes of the client's address stand in the template.
    pub(crate) address_at: u32,
    /// Where the client's port stands.
    pub(crate) port_at: u32,
    /// One of [`IN_ORDER`], [`AT_RANDOM`].
    pub(crate) order: u32,
    /// [`AT_RANDOM`]: how many flows there are, a power of two or not. 1 is one hot flow.
    pub(crate) flows: u32,
    /// Entry of `bench_targets`, or `bench_uplink_targets`, to run.
    pub(crate) target: u32,
}

/// [`Control::order`]: each packet is of the next flow.
pub(crate) const IN_ORDER: u32 = 0;
/// [`Control::order`]: each packet is of any of the flows.
pub(crate) const AT_RANDOM: u32 = 1;

/// Entries of `bench_targets`.
pub(crate) const TARGETS: usize = 4;
