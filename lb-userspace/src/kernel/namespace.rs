//! Facts about this process's place in the kernel that only system calls tell.

use std::io;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::time::Duration;

use nix::libc;

/// `SO_NETNS_COOKIE` (Linux 5.14); not in every libc.
const SO_NETNS_COOKIE: libc::c_int = 71;

/// The cookie of this process's network namespace, as BPF socket programs see it.
pub fn network_namespace_cookie() -> io::Result<u64> {
    let socket = UdpSocket::bind((std::net::Ipv4Addr::UNSPECIFIED, 0))
        .or_else(|_| UdpSocket::bind((std::net::Ipv6Addr::UNSPECIFIED, 0)))?;
    let mut cookie = 0_u64;
    let mut length = std::mem::size_of::<u64>() as libc::socklen_t;
    // SAFETY: `cookie` is eight writable bytes and `length` says so; the descriptor is open for the call's duration.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_NETNS_COOKIE,
            std::ptr::from_mut(&mut cookie).cast(),
            &raw mut length,
        )
    };
    if result == 0 { Ok(cookie) } else { Err(io::Error::last_os_error()) }
}

/// Now on the coarse monotonic clock, the one that BPF stamps connections with.
pub fn monotonic_now() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a writable timespec. The call cannot fail for a clock that Linux has had since 2.6.32; if it
    // did, `time` would keep its valid zeros.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
