//! Devices that sum each packet (`CHECKSUM_COMPLETE`): the sum that the kernel keeps beside a packet must follow every
//! change of its bytes, or the packet is taken for damaged. The kernel itself compares the two after a test run.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
};

use aya::programs::SchedClassifier;
use bpvs_tests::{
    datapath::Hook,
    packets::{IcmpError, Packet},
};
use nix::libc;

use crate::{
    shapes::{Around, Inside},
    world::{CHANGED, HAIRPIN, SAME, SERVER_PORT, World},
};

/// Command and flag of `bpf(2)`.
const BPF_PROG_TEST_RUN: libc::c_long = 10;
const BPF_F_TEST_SKB_CHECKSUM_COMPLETE: u32 = 1 << 2;

/// The part of `union bpf_attr` that belongs to the command.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    program: u32,
    verdict: u32,
    size_in: u32,
    size_out: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
    context_size_in: u32,
    context_size_out: u32,
    context_in: u64,
    context_out: u64,
    flags: u32,
    cpu: u32,
    batch: u32,
    pad: u32,
}

/// Runs a program over a frame that a device has summed; an error if the sum is another's afterwards.
fn run(program: BorrowedFd<'_>, frame: &[u8]) -> io::Result<u32> {
    let mut out = vec![0_u8; frame.len() + 2048];
    let mut attributes = Attributes {
        program: program.as_raw_fd() as u32,
        size_in: frame.len() as u32,
        size_out: out.len() as u32,
        data_in: frame.as_ptr() as u64,
        data_out: out.as_mut_ptr() as u64,
        repeat: 1,
        flags: BPF_F_TEST_SKB_CHECKSUM_COMPLETE,
        ..Attributes::default()
    };
    // SAFETY: the attributes have the layout and size that are passed; the buffers that they point to outlive the call.
    let result = unsafe {
        libc::syscall(libc::SYS_bpf, BPF_PROG_TEST_RUN, &raw mut attributes, std::mem::size_of::<Attributes>())
    };
    if result == 0 { Ok(attributes.verdict) } else { Err(io::Error::last_os_error()) }
}

impl World {
    /// Runs a frame with its sum.
    fn summed(&self, what: &str, hook: Hook, frame: &[u8]) {
        let program: &SchedClassifier = self.datapath.object().program(hook.program()).unwrap().try_into().unwrap();
        let result = run(program.fd().unwrap().as_fd(), frame);
        let family = if self.v6 { "IPv6" } else { "IPv4" };
        match result {
            Ok(_) => {}
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                panic!("this kernel does not compare sums: {error}")
            }
            Err(error) => panic!("{what}, {hook:?}, {family}: {error}: the sum did not follow"),
        }
    }
}

#[test]
fn the_sum_of_a_device_follows_every_translation() {
    for world in World::both() {
        let mut port = 20_000;
        for &around in Around::all(world.v6) {
            for (frontend, server_port) in [(CHANGED, SERVER_PORT), (SAME, SAME), (HAIRPIN, SERVER_PORT)] {
                for opening in [Inside::Syn, Inside::Udp, Inside::UdpUnchecked, Inside::Init] {
                    if world.v6 && opening == Inside::UdpUnchecked {
                        continue;
                    }
                    port += 1;
                    let (client, vip, server) = (world.client(port), world.vip(frontend), world.server(server_port));
                    let name = |what: &str| format!("{what}: {opening:?}, {around:?}, port {frontend}");
                    let (answer, more) = (opening.answer(), opening.following());
                    world.summed(&name("new"), Hook::Ingress, &around.frame(client, vip, opening));
                    world.summed(&name("known"), Hook::Ingress, &around.frame(client, vip, more));
                    if frontend == HAIRPIN {
                        let (myself, node) = (world.client(SERVER_PORT), world.node(port));
                        world.summed(&name("reply"), Hook::Ingress, &around.frame(myself, node, answer));
                        continue;
                    }
                    world.summed(&name("reply"), Hook::Egress, &around.frame(server, client, answer));
                    for (hook, from, to, about) in [
                        (Hook::Egress, server, client, (client, server, opening)),
                        (Hook::Ingress, client, vip, (vip, client, answer)),
                    ] {
                        let (outer, inner) = (Packet::new(from, to), Packet::new(about.0, about.1));
                        let quoted = inner.ip(&about.2.transport(&inner));
                        let error = outer.frame(&outer.icmp_error(IcmpError::HostUnreachable, &quoted));
                        world.summed(&name("error"), hook, &error);
                    }
                }
            }
        }
    }
}

#[test]
fn the_sum_of_a_device_follows_every_fragment() {
    for world in World::both() {
        for (from, to, hook) in [
            (world.client(4000), world.vip(CHANGED), Hook::Ingress),
            (world.server(SERVER_PORT), world.client(4000), Hook::Egress),
        ] {
            let packet = Packet::new(from, to);
            for frame in packet.fragments(&packet.udp(&[7; 3000]), 1200) {
                world.summed("fragment", hook, &frame);
            }
        }
    }
}
