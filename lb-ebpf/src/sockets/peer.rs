//! A socket address context: the peer that a process names, and what the socket is.

use aya_ebpf::{EbpfContext, helpers::bpf_get_socket_cookie, programs::SockAddrContext};
use lb_common::address::{Address, Port};

/// The peer in a socket address context, in one family's fields.
pub trait Peer {
    /// The address in the call.
    fn address(ctx: &SockAddrContext) -> Address;
    /// Puts another in its place.
    fn set_address(ctx: &SockAddrContext, address: &Address) -> bool;
}

/// IPv4 sockets.
pub struct V4;

/// IPv6 sockets, v4-mapped peers included.
pub struct V6;

impl Peer for V4 {
    #[inline(always)]
    fn address(ctx: &SockAddrContext) -> Address {
        // SAFETY: the context is valid during the program.
        Address::from_v4_word(unsafe { (*ctx.sock_addr).user_ip4 })
    }

    #[inline(always)]
    fn set_address(ctx: &SockAddrContext, address: &Address) -> bool {
        if !address.is_v4() {
            return false;
        }
        // SAFETY: the kernel lets this program type write the field.
        unsafe { core::ptr::write_volatile(&raw mut (*ctx.sock_addr).user_ip4, address.v4_word()) };
        true
    }
}

impl Peer for V6 {
    #[inline(always)]
    fn address(ctx: &SockAddrContext) -> Address {
        // Volatile: one load a word, at the offsets the verifier knows.
        // SAFETY: the context is valid during the program.
        unsafe {
            let words = &raw const (*ctx.sock_addr).user_ip6;
            let words = words.cast::<u32>();
            Address {
                words: [
                    core::ptr::read_volatile(words),
                    core::ptr::read_volatile(words.add(1)),
                    core::ptr::read_volatile(words.add(2)),
                    core::ptr::read_volatile(words.add(3)),
                ],
            }
        }
    }

    #[inline(always)]
    fn set_address(ctx: &SockAddrContext, address: &Address) -> bool {
        // A tunnel's server may be of the other family. Who asked for an IPv6 address may take no other, and the kernel takes
        // a datagram to none.
        if address.is_v4() != Self::address(ctx).is_v4() {
            return false;
        }
        // SAFETY: the kernel lets this program type write the fields.
        unsafe {
            let words = (&raw mut (*ctx.sock_addr).user_ip6).cast::<u32>();
            core::ptr::write_volatile(words, address.words[0]);
            core::ptr::write_volatile(words.add(1), address.words[1]);
            core::ptr::write_volatile(words.add(2), address.words[2]);
            core::ptr::write_volatile(words.add(3), address.words[3]);
        }
        true
    }
}

/// Port of the peer in the call.
#[inline(always)]
pub(super) fn port(ctx: &SockAddrContext) -> Port {
    // SAFETY: the context is valid during the program.
    Port(unsafe { core::ptr::read_volatile(&raw const (*ctx.sock_addr).user_port) } as u16)
}

/// Puts another port in its place.
#[inline(always)]
pub(super) fn set_port(ctx: &SockAddrContext, port: Port) {
    // SAFETY: the kernel lets this program type write the field.
    unsafe { core::ptr::write_volatile(&raw mut (*ctx.sock_addr).user_port, u32::from(port.0)) };
}

/// The socket's protocol.
#[inline(always)]
pub(super) fn protocol(ctx: &SockAddrContext) -> u32 {
    // SAFETY: the context is valid during the program.
    unsafe { (*ctx.sock_addr).protocol }
}

/// The socket's cookie.
#[inline(always)]
pub(super) fn cookie(ctx: &SockAddrContext) -> u64 {
    // SAFETY: the helper takes this program's context.
    unsafe { bpf_get_socket_cookie(ctx.as_ptr()) }
}
