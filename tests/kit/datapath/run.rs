//! Packets through one program by `BPF_PROG_TEST_RUN`.

use anyhow::{Context, Result};
use aya::{
    Ebpf,
    programs::{SchedClassifier, TestRun, TestRunOptions, Xdp},
};

/// `TC_ACT_UNSPEC`: the packet goes on, translated or untouched.
pub const NEXT: i32 = -1;
/// `TC_ACT_SHOT`: dropped.
pub const DROPPED: i32 = 2;
/// `TC_ACT_REDIRECT`: sent out of the interface it came in by.
pub const REDIRECTED: i32 = 7;

/// What a program did with a packet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Run {
    /// [`NEXT`], [`DROPPED`], [`REDIRECTED`] or another `TC_ACT_` number; of XDP [`XDP_PASS`] and its kind.
    pub verdict: i32,
    /// The frame as the program left it.
    pub frame: Vec<u8>,
    /// How long it took; of several runs the mean.
    pub nanoseconds: u64,
}

/// How to run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// How often. Each run meets the frame as the one before left it.
    pub repeat: u32,
    /// Index of the interface that the packet is on; 1 is loopback.
    pub interface: u32,
    /// Firewall mark of the packet.
    pub mark: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self { repeat: 1, interface: 1, mark: 0 }
    }
}

/// `XDP_DROP`.
pub const XDP_DROP: i32 = 1;
/// `XDP_PASS`: the packet goes up the stack.
pub const XDP_PASS: i32 = 2;
/// `XDP_TX`: out of the interface it came in by.
pub const XDP_TX: i32 = 3;
/// `XDP_REDIRECT`: out of another interface.
pub const XDP_REDIRECT: i32 = 4;

/// Runs an XDP program over a frame that arrived by an interface of the caller's network namespace.
pub(super) fn run_xdp(object: &Ebpf, name: &str, frame: &[u8], options: Options) -> Result<Run> {
    let program: &Xdp = object
        .program(name)
        .with_context(|| format!("the BPF object has no program {name}"))?
        .try_into()
        .with_context(|| format!("{name} is no XDP program"))?;
    let mut out = vec![0; frame.len() + GROWTH];
    // `struct xdp_md`: data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex.
    let context = [0, frame.len() as u32, 0, options.interface, 0, 0];
    let run = program.test_run(TestRunOptions {
        data_in: Some(frame),
        data_out: Some(&mut out),
        ctx_in: Some(bytemuck::bytes_of(&context)),
        repeat: options.repeat,
        ..TestRunOptions::new()
    });
    let result = run.with_context(|| format!("BPF_PROG_TEST_RUN of {name} over {} bytes", frame.len()))?;
    out.truncate(result.data_size_out as usize);
    Ok(Run { verdict: result.return_value as i32, frame: out, nanoseconds: result.duration.as_nanos() as u64 })
}

/// Room for what a program may add to a frame: an ICMPv6 error's headers and quote.
const GROWTH: usize = 512;
/// `sizeof(struct __sk_buff)` up to and with `gso_size`; the kernel takes a shorter context than its own.
const CONTEXT_BYTES: usize = 176;
/// Offset of `mark` in `struct __sk_buff`.
const CONTEXT_MARK: usize = 8;
/// Offset of `ifindex` in `struct __sk_buff`.
const CONTEXT_INTERFACE: usize = 40;

/// Runs a tc program over a frame.
pub(super) fn run(object: &Ebpf, name: &str, frame: &[u8], options: Options) -> Result<Run> {
    let program: &SchedClassifier = object
        .program(name)
        .with_context(|| format!("the BPF object has no program {name}"))?
        .try_into()
        .with_context(|| format!("{name} is no tc program"))?;
    let mut out = vec![0; frame.len() + GROWTH];
    let mut context = [0; CONTEXT_BYTES];
    context[CONTEXT_INTERFACE..CONTEXT_INTERFACE + 4].copy_from_slice(&options.interface.to_ne_bytes());
    context[CONTEXT_MARK..CONTEXT_MARK + 4].copy_from_slice(&options.mark.to_ne_bytes());
    let run = program.test_run(TestRunOptions {
        data_in: Some(frame),
        data_out: Some(&mut out),
        ctx_in: Some(&context),
        repeat: options.repeat,
        ..TestRunOptions::new()
    });
    let result = run.with_context(|| format!("BPF_PROG_TEST_RUN of {name} over {} bytes", frame.len()))?;
    out.truncate(result.data_size_out as usize);
    Ok(Run { verdict: result.return_value as i32, frame: out, nanoseconds: result.duration.as_nanos() as u64 })
}
