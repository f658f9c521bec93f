//! Frames on and off an interface.

use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};

use super::verify::{Summary, verify};
use crate::namespace::Namespace;

/// A packet socket on one interface. It keeps what arrives from when it is opened.
#[derive(Debug)]
pub struct RawSocket {
    fd: OwnedFd,
    interface: String,
}

impl RawSocket {
    /// Opens a socket on an interface of a namespace.
    pub fn open(namespace: &Namespace, interface: &str) -> Result<Self> {
        let index = namespace.interface_index(interface)?;
        let fd = namespace.enter(|| {
            let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
            socket(AddressFamily::Packet, SockType::Raw, flags, None::<SockProtocol>)
        });
        let fd = fd.context("opening a packet socket; this needs root")?;
        switch_on(&fd, libc::PACKET_AUXDATA).context("PACKET_AUXDATA")?;
        switch_on(&fd, libc::PACKET_IGNORE_OUTGOING).context("PACKET_IGNORE_OUTGOING")?;
        // SAFETY: sockaddr_ll is plain integers, for which all zeros is a value.
        let mut address: libc::sockaddr_ll = unsafe { zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
        address.sll_ifindex = index as i32;
        // SAFETY: the pointer and length describe `address`, which outlives the call.
        let bound = unsafe {
            libc::bind(fd.as_raw_fd(), (&raw const address).cast(), size_of::<libc::sockaddr_ll>() as libc::socklen_t)
        };
        check(bound).with_context(|| format!("binding to {interface}"))?;
        Ok(Self { fd, interface: format!("{interface} of {}", namespace.name()) })
    }

    /// Sends one frame.
    pub fn send(&self, frame: &[u8]) -> Result<()> {
        // SAFETY: the pointer and length describe `frame`, which outlives the call.
        let sent = unsafe { libc::send(self.fd.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) };
        let sent = check(sent).with_context(|| format!("sending {} bytes on {}", frame.len(), self.interface))?;
        if sent as usize != frame.len() {
            bail!("{sent} of {} bytes sent on {}", frame.len(), self.interface);
        }
        Ok(())
    }

    /// The next frame that the interface received (not one that it sent), VLAN tag in place; `None` at the deadline.
    pub fn receive(&self, deadline: Duration) -> Result<Option<Vec<u8>>> {
        let end = Instant::now() + deadline;
        loop {
            if let Some(frame) = self.read(70_000)? {
                return Ok(Some(frame));
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            let timeout = PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX);
            let mut fds = [PollFd::new(self.fd.as_fd(), PollFlags::POLLIN)];
            match poll(&mut fds, timeout) {
                Ok(_) | Err(nix::errno::Errno::EINTR) => {}
                Err(error) => {
                    return Err(error).with_context(|| format!("waiting on {}", self.interface));
                }
            }
        }
    }

    /// The next received frame if it is there already, up to 2,048 bytes of it.
    pub fn ready(&self) -> Result<Option<Vec<u8>>> {
        self.read(2_048)
    }

    /// The next received frame that is right and `wanted`, with what is in it. Frames of other protocols are passed
    /// over; an IP frame with a wrong checksum is an error.
    pub fn expect(&self, deadline: Duration, wanted: impl Fn(&Summary) -> bool) -> Result<(Vec<u8>, Summary)> {
        let end = Instant::now() + deadline;
        let mut others = Vec::new();
        while let Some(frame) = self.receive(end.saturating_duration_since(Instant::now()))? {
            let kind = frame.get(if frame.get(12..14) == Some(&[0x81, 0]) { 16..18 } else { 12..14 });
            if !matches!(kind, Some([0x08, 0x00] | [0x86, 0xdd])) {
                continue;
            }
            let summary = verify(&frame).with_context(|| format!("received on {}: {frame:02x?}", self.interface))?;
            if wanted(&summary) {
                return Ok((frame, summary));
            }
            others.push(format!("{} -> {} protocol {}", summary.from, summary.to, summary.protocol));
        }
        bail!("the packet did not come to {} within {deadline:?}; others: [{}]", self.interface, others.join(", "))
    }

    fn read(&self, room: usize) -> Result<Option<Vec<u8>>> {
        let mut frame = vec![0_u8; room];
        // Aligned for cmsghdr.
        let mut control = [0_u64; 16];
        // SAFETY: msghdr is plain integers and pointers, for which all zeros is a value.
        let mut message: libc::msghdr = unsafe { zeroed() };
        let mut piece = libc::iovec { iov_base: frame.as_mut_ptr().cast(), iov_len: frame.len() };
        message.msg_iov = &raw mut piece;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control);
        // SAFETY: every pointer in `message` describes a local buffer of the stated length that outlives the call.
        let count = unsafe { libc::recvmsg(self.fd.as_raw_fd(), &raw mut message, 0) };
        let count = match check(count) {
            Ok(count) => count as usize,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                return Ok(None);
            }
            Err(error) => {
                return Err(error).with_context(|| format!("receiving on {}", self.interface));
            }
        };
        frame.truncate(count);
        // SAFETY: recvmsg filled `message`; its control buffer is alive and holds msg_controllen valid bytes.
        if let Some(tag) = unsafe { vlan_tag(&message) } {
            // The kernel takes the tag out of the frame before packet sockets see it.
            let at = 12.min(frame.len());
            frame.splice(at..at, tag);
        }
        Ok(Some(frame))
    }
}

fn switch_on(fd: &OwnedFd, option: libc::c_int) -> io::Result<()> {
    let on: libc::c_int = 1;
    // SAFETY: `fd` is an open socket; pointer and length describe `on`, which outlives the call.
    let set = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_PACKET,
            option,
            (&raw const on).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    check(set).map(drop)
}

/// The four bytes of a VLAN tag, if the message says that one was taken out.
///
/// # Safety
/// `message` was filled by `recvmsg` and its control buffer is still alive.
unsafe fn vlan_tag(message: &libc::msghdr) -> Option<[u8; 4]> {
    // SAFETY: the caller's promise; CMSG_FIRSTHDR and CMSG_NXTHDR return headers inside the control buffer or null.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(message) };
    while !header.is_null() {
        // SAFETY: not null, so a header inside the control buffer.
        let (level, kind) = unsafe { ((*header).cmsg_level, (*header).cmsg_type) };
        if level == libc::SOL_PACKET && kind == libc::PACKET_AUXDATA {
            // SAFETY: the data of this message is a tpacket_auxdata, which the kernel wrote whole.
            let data = unsafe { libc::CMSG_DATA(header).cast::<libc::tpacket_auxdata>().read_unaligned() };
            if data.tp_status & libc::TP_STATUS_VLAN_VALID != 0 {
                let known = data.tp_status & libc::TP_STATUS_VLAN_TPID_VALID != 0;
                let kind = if known { data.tp_vlan_tpid } else { 0x8100 };
                let [a, b] = kind.to_be_bytes();
                let [c, d] = data.tp_vlan_tci.to_be_bytes();
                return Some([a, b, c, d]);
            }
        }
        // SAFETY: as above.
        header = unsafe { libc::CMSG_NXTHDR(message, header) };
    }
    None
}

fn check<T: PartialOrd + From<i8>>(result: T) -> io::Result<T> {
    if result < T::from(0) { Err(io::Error::last_os_error()) } else { Ok(result) }
}
