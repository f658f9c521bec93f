//! Runs the sweep: a program over the connection table, in the kernel, without a copy to user space.

use anyhow::{Context, Result};
use aya::Ebpf;
use aya::programs::{Program, TestRun, TestRunOptions};

/// Runs `bpvs_sweep` once and returns what it returned.
pub fn run(ebpf: &Ebpf) -> Result<u32> {
    let Some(Program::SchedClassifier(program)) = ebpf.program("bpvs_sweep") else {
        anyhow::bail!("the BPF object has no classifier `bpvs_sweep`");
    };
    // The kernel wants a packet with an Ethernet header; the program does not look at it.
    let packet = [0_u8; 64];
    let options = TestRunOptions { data_in: Some(&packet), ..TestRunOptions::new() };
    Ok(program.test_run(options).context("cannot run the sweep")?.return_value)
}
