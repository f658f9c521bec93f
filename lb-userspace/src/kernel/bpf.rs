//! The few `bpf(2)` commands that aya does not offer: reading a pinned link, replacing the program in it, and a link that is
//! made or not made (aya's XDP falls back to a call that replaces whatever is there).
//!
//! All `unsafe` of the `bpf(2)` boundary is in [`call`].

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use bytemuck::{Pod, Zeroable};
use nix::libc;

const OBJ_PIN: libc::c_int = 6;
const OBJ_GET: libc::c_int = 7;
const OBJ_GET_INFO_BY_FD: libc::c_int = 15;
const PROG_QUERY: libc::c_int = 16;
const LINK_CREATE: libc::c_int = 28;
const LINK_UPDATE: libc::c_int = 29;
const LINK_DETACH: libc::c_int = 34;

/// `BPF_TCX_INGRESS`.
pub const TCX_INGRESS: u32 = 46;
/// `BPF_TCX_EGRESS`.
pub const TCX_EGRESS: u32 = 47;
/// `BPF_LINK_TYPE_CGROUP`.
pub const LINK_CGROUP: u32 = 3;
/// `BPF_LINK_TYPE_XDP`.
pub const LINK_XDP: u32 = 6;
/// `BPF_LINK_TYPE_TCX`.
pub const LINK_TCX: u32 = 11;

/// What a pin in a BPF file system is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A map.
    Map,
    /// A program.
    Program,
    /// A link.
    Link,
}

impl Kind {
    /// Its name in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Map => "map",
            Self::Program => "program",
            Self::Link => "link",
        }
    }
}

/// The head of the kernel's `struct bpf_link_info`, with the three variants that bpvs has.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
struct RawLinkInfo {
    link_type: u32,
    id: u32,
    program: u32,
    pad: u32,
    /// tcx, XDP: interface index; cgroup: low half of the cgroup id.
    target_low: u32,
    /// tcx: attach type; cgroup: high half of the cgroup id.
    target_high: u32,
    /// cgroup: attach type.
    cgroup_attach_type: u32,
    rest: [u32; 9],
}

/// What the kernel says about a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinkInfo {
    /// Link id.
    pub id: u32,
    /// Id of the program in it.
    pub program: u32,
    /// What it is attached to.
    pub target: LinkTarget,
}

/// Where a link is attached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LinkTarget {
    /// tc of an interface; index 0 once the interface is gone.
    Tcx {
        /// Interface index.
        interface: u32,
        /// [`TCX_INGRESS`] or [`TCX_EGRESS`].
        attach_type: u32,
    },
    /// A cgroup, by its id (the inode number of its directory).
    Cgroup {
        /// Cgroup id; 0 once the cgroup is gone.
        id: u64,
    },
    /// XDP of an interface; index 0 once the interface is gone.
    Xdp {
        /// Interface index.
        interface: u32,
    },
    /// A kind of link that bpvs does not make.
    Other(u32),
}

/// Runs a command whose attributes are `attributes`.
fn call<A: Pod>(command: libc::c_int, attributes: &mut A) -> io::Result<libc::c_long> {
    // SAFETY: `attributes` is an initialised value of the size given (Pod, exclusive borrow); the kernel reads and
    // writes no more than that. Every pointer in it was put there by the callers in this file, each of which keeps
    // the buffer that it points to alive across the call and gives its true length.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attributes), std::mem::size_of::<A>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Attributes of `BPF_OBJ_GET` and `BPF_OBJ_PIN`.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct PinAttributes {
    path: u64,
    fd: u32,
    flags: u32,
}

/// [`call`] of a command that answers with a new descriptor.
fn open<A: Pod>(command: libc::c_int, attributes: &mut A) -> io::Result<OwnedFd> {
    let fd = call(command, attributes)? as RawFd;
    // SAFETY: the kernel just returned this descriptor to us, and nothing else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Opens a pinned object of any kind.
pub fn open_pin(path: &Path) -> io::Result<(OwnedFd, Kind)> {
    let name = CString::new(path.as_os_str().as_bytes())?;
    let mut attributes = PinAttributes { path: name.as_ptr() as u64, fd: 0, flags: 0 };
    let fd = open(OBJ_GET, &mut attributes)?;
    let kind = kind_of(fd.as_fd())?;
    Ok((fd, kind))
}

/// The kind of a BPF object, which the kernel tells only by the name of its anonymous inode.
fn kind_of(fd: BorrowedFd<'_>) -> io::Result<Kind> {
    let link = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()))?;
    let name = link.to_string_lossy().replace('_', "-");
    if name.contains("bpf-map") {
        Ok(Kind::Map)
    } else if name.contains("bpf-prog") {
        Ok(Kind::Program)
    } else if name.contains("bpf-link") {
        Ok(Kind::Link)
    } else {
        Err(io::Error::other(format!("unknown BPF object {name}")))
    }
}

/// What the kernel says about an open link.
pub fn link_info(link: BorrowedFd<'_>) -> io::Result<LinkInfo> {
    #[derive(Clone, Copy, Pod, Zeroable)]
    #[repr(C)]
    struct Attributes {
        fd: u32,
        info_length: u32,
        info: u64,
    }
    let mut info = RawLinkInfo::default();
    let mut attributes = Attributes {
        fd: link.as_raw_fd() as u32,
        info_length: std::mem::size_of::<RawLinkInfo>() as u32,
        info: std::ptr::from_mut(&mut info) as u64,
    };
    call(OBJ_GET_INFO_BY_FD, &mut attributes)?;
    let target = match info.link_type {
        LINK_TCX => LinkTarget::Tcx { interface: info.target_low, attach_type: info.target_high },
        LINK_XDP => LinkTarget::Xdp { interface: info.target_low },
        LINK_CGROUP => {
            let id: u64 = bytemuck::cast([info.target_low, info.target_high]);
            LinkTarget::Cgroup { id }
        }
        other => LinkTarget::Other(other),
    };
    Ok(LinkInfo { id: info.id, program: info.program, target })
}

/// Attaches a program to XDP of an interface, in one of the modes; never in the place of another program.
///
/// # Errors
/// `EBUSY` or `EEXIST` where there is a program already, `EOPNOTSUPP` of a driver without native XDP, `EINVAL` or another of a
/// driver that cannot have it as the interface is set up.
pub fn attach_xdp(program: BorrowedFd<'_>, interface: u32, mode: XdpMode) -> io::Result<OwnedFd> {
    /// `BPF_XDP`.
    const ATTACH_TYPE: u32 = 37;
    let mut attributes = [program.as_raw_fd() as u32, interface, ATTACH_TYPE, mode as u32, 0, 0, 0, 0];
    open(LINK_CREATE, &mut attributes)
}

/// Where an XDP program runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum XdpMode {
    /// In the stack, once there is a socket buffer: `XDP_FLAGS_SKB_MODE`.
    Generic = 1 << 1,
    /// In the driver: `XDP_FLAGS_DRV_MODE`.
    Native = 1 << 2,
}

/// Pins a link.
pub fn pin(link: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let name = CString::new(path.as_os_str().as_bytes())?;
    let mut attributes = PinAttributes { path: name.as_ptr() as u64, fd: link.as_raw_fd() as u32, flags: 0 };
    call(OBJ_PIN, &mut attributes).map(drop)
}

/// Puts another program into a link, atomically: each packet sees the old one or the new one.
pub fn update_link(link: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    let mut attributes = [link.as_raw_fd() as u32, program.as_raw_fd() as u32, 0, 0];
    call(LINK_UPDATE, &mut attributes).map(drop)
}

/// Takes a link's program out of its hook, now. (The end of the last pin and descriptor does the same, but later, by a
/// work queue of the kernel.)
pub fn detach_link(link: BorrowedFd<'_>) -> io::Result<()> {
    call(LINK_DETACH, &mut [link.as_raw_fd() as u32]).map(drop)
}

/// Ids of the links at a tcx hook of an interface, in order. `EINVAL` on kernels without TCX (before 6.6).
pub fn tcx_links(interface: u32, attach_type: u32) -> io::Result<Vec<u32>> {
    #[derive(Clone, Copy, Pod, Zeroable)]
    #[repr(C)]
    struct Attributes {
        interface: u32,
        attach_type: u32,
        query_flags: u32,
        attach_flags: u32,
        programs: u64,
        count: u32,
        pad: u32,
        program_flags: u64,
        links: u64,
        link_flags: u64,
        revision: u64,
    }
    // The kernel allows 64 programs at one hook (BPF_MPROG_MAX).
    let mut programs = [0_u32; 64];
    let mut links = [0_u32; 64];
    let mut attributes = Attributes {
        interface,
        attach_type,
        programs: programs.as_mut_ptr() as u64,
        count: programs.len() as u32,
        links: links.as_mut_ptr() as u64,
        ..Attributes::zeroed()
    };
    match call(PROG_QUERY, &mut attributes) {
        Ok(_) => Ok(links[..(attributes.count as usize).min(links.len())].to_vec()),
        // Nothing attached.
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}
