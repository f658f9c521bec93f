//! BPF programs of somebody else: they let everything pass and are there, to see that bpvs leaves them alone; or they do
//! what bpvs leaves to others, as setting marks.
//!
//! Written as instructions and loaded by `bpf(2)` itself, so that they share nothing with how bpvs loads its own.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use bytemuck::{Pod, Zeroable};
use nix::libc;

use crate::cleanup::{self, Guard};

const PROG_LOAD: libc::c_int = 5;
const OBJ_PIN: libc::c_int = 6;
const LINK_CREATE: libc::c_int = 28;
const SCHED_CLS: u32 = 3;
const XDP: u32 = 6;
const CGROUP_SOCK_ADDR: u32 = 18;
/// `BPF_CGROUP_INET4_CONNECT`.
const CONNECT4: u32 = 10;
/// `BPF_TCX_INGRESS`.
const TCX_INGRESS: u32 = 46;

/// `BPF_XDP`.
const XDP_HOOK: u32 = 37;

/// `struct bpf_insn`: `r0 = number`, then `exit`.
fn instructions(number: i32) -> [u64; 2] {
    let number = u64::from(number as u32) << 32;
    [0xb7 | number, 0x95]
}

#[derive(Clone, Copy, Default, Pod, Zeroable)]
#[repr(C)]
struct Load {
    kind: u32,
    count: u32,
    instructions: u64,
    licence: u64,
    log: [u32; 4],
    kernel: u32,
    flags: u32,
    name: [u8; 16],
    interface: u32,
    expected_attach_type: u32,
}

#[derive(Clone, Copy, Default, Pod, Zeroable)]
#[repr(C)]
struct Link {
    program: u32,
    target: u32,
    attach_type: u32,
    flags: u32,
    rest: [u64; 4],
}

#[derive(Clone, Copy, Default, Pod, Zeroable)]
#[repr(C)]
struct Pin {
    path: u64,
    object: u32,
    flags: u32,
}

fn call<A: Pod>(command: libc::c_int, mut attributes: A) -> io::Result<libc::c_long> {
    // SAFETY: the pointer and size describe `attributes`; what it points to is alive during the call in each caller.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut attributes, size_of::<A>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn descriptor(number: libc::c_long) -> OwnedFd {
    // SAFETY: the kernel has just made this descriptor for us, and nobody else owns it.
    unsafe { OwnedFd::from_raw_fd(number as i32) }
}

fn load(kind: u32, expected_attach_type: u32, code: &[u64]) -> Result<OwnedFd> {
    let attributes = Load {
        kind,
        count: code.len() as u32,
        instructions: code.as_ptr() as u64,
        licence: c"GPL".as_ptr() as u64,
        name: *b"foreign\0\0\0\0\0\0\0\0\0",
        expected_attach_type,
        ..Load::default()
    };
    call(PROG_LOAD, attributes).map(descriptor).context("loading a foreign program")
}

fn link(program: BorrowedFd<'_>, target: u32, attach_type: u32) -> Result<OwnedFd> {
    let program = program.as_raw_fd() as u32;
    let attributes = Link { program, target, attach_type, ..Link::default() };
    call(LINK_CREATE, attributes).map(descriptor).context("attaching a foreign program")
}

/// Attaches a program to connect() of IPv4 sockets of a cgroup that lets every call go on. The link lives as long as
/// the descriptor.
pub fn on_cgroup(cgroup: &Path) -> Result<OwnedFd> {
    let program = load(CGROUP_SOCK_ADDR, CONNECT4, &instructions(1))?;
    let cgroup = File::open(cgroup).with_context(|| format!("opening cgroup {}", cgroup.display()))?;
    link(program.as_fd(), cgroup.as_raw_fd() as u32, CONNECT4)
}

/// Attaches a program to what an interface of the caller's namespace receives, which leaves packets to the next one.
/// Fails before Linux 6.6.
pub fn on_tcx(interface: u32) -> Result<OwnedFd> {
    on_tcx_with(interface, &instructions(-1))
}

/// [`on_tcx`] with a program of other instructions (`struct bpf_insn`). Programs run in the order in which they came.
pub fn on_tcx_with(interface: u32, code: &[u64]) -> Result<OwnedFd> {
    link(load(SCHED_CLS, TCX_INGRESS, code)?.as_fd(), interface, TCX_INGRESS)
}

/// Attaches a program to XDP of an interface of the caller's namespace, in the driver, which lets every packet go up.
pub fn on_xdp(interface: u32) -> Result<OwnedFd> {
    link(load(XDP, XDP_HOOK, &instructions(2))?.as_fd(), interface, XDP_HOOK)
}

/// A pinned program: of tc, for `tc filter add ... bpf object-pinned`, or of XDP.
#[derive(Debug)]
pub struct Pinned {
    path: PathBuf,
    _guard: Guard,
}

impl Pinned {
    /// Pins it at a path that nobody uses.
    pub fn classifier(path: PathBuf) -> Result<Self> {
        Self::classifier_with(path, &instructions(-1))
    }

    /// [`Self::classifier`] with a program of other instructions (`struct bpf_insn`).
    pub fn classifier_with(path: PathBuf, code: &[u64]) -> Result<Self> {
        Self::pin(path, &load(SCHED_CLS, 0, code)?)
    }

    /// An XDP program that lets every packet go up, for `ip link set ... xdp pinned`.
    pub fn xdp(path: PathBuf) -> Result<Self> {
        Self::pin(path, &load(XDP, 0, &instructions(2))?)
    }

    fn pin(path: PathBuf, program: &OwnedFd) -> Result<Self> {
        let text = CString::new(path.as_os_str().as_bytes())?;
        let attributes = Pin { path: text.as_ptr() as u64, object: program.as_raw_fd() as u32, flags: 0 };
        let undone = path.clone();
        let make = || call(OBJ_PIN, attributes).with_context(|| format!("pinning {}", path.display()));
        // Somebody may have removed it; nothing else can be wrong with a file of ours.
        let (_, guard) = cleanup::create(format!("pin {}", path.display()), make, move || {
            let _gone = std::fs::remove_file(undone);
        })?;
        Ok(Self { path, _guard: guard })
    }

    /// Where it is pinned.
    pub fn path(&self) -> &Path {
        &self.path
    }
}
