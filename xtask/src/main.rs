//! `cargo xtask`: prepare a machine, build the BPF object, test, show and measure bpvs.
//!
//! One file per task; what several tasks need is below them: `toolchain` (what can build BPF here), `process` (running
//! programs), `progress` (saying how far we are), `workspace` (where things are),
//! `guest` (virtual machines).

mod bench;
mod build_ebpf;
mod demo;
mod guest;
mod host;
mod kernels;
mod lint;
mod oracle;
mod process;
mod progress;
mod setup;
mod test;
mod toolchain;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(bin_name = "cargo xtask", about = "Build, test and measure bpvs", disable_help_subcommand = true)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Prepare this machine: a compiler with the sources of `core`, bpf-linker, the tools that tests and demo call
    Setup,
    /// Build the BPF programs to target/bpf/bpvs.o
    BuildEbpf(build_ebpf::Options),
    /// Show bpvs balancing real traffic in network namespaces (as root)
    Demo(demo::Options),
    /// Run every test: unit, property and integration on the running kernel (as root)
    Test(test::Options),
    /// Check formatting, clippy, licences, file sizes and the links of the documents
    Lint,
    /// Boot the kernels that bpvs supports in virtual machines, and try it on each
    Kernels(kernels::Options),
    /// Compare bpvs with Linux IPVS in virtual machines, decision by decision
    Oracle(oracle::Options),
    /// Measure the cost of a packet, of the agent, and of real traffic (as root)
    Bench(bench::Options),
}

fn main() -> ExitCode {
    let done = match Arguments::parse().task {
        Task::Setup => setup::run(),
        Task::BuildEbpf(options) => build_ebpf::run(&options),
        Task::Demo(options) => demo::run(&options),
        Task::Test(options) => test::run(&options),
        Task::Lint => lint::run(),
        Task::Kernels(options) => kernels::run(&options),
        Task::Oracle(options) => oracle::run(&options),
        Task::Bench(options) => bench::run(&options),
    };
    // Not `Result` as the return value: that prints a backtrace of xtask, which is never what went wrong.
    done.map_or_else(report, |()| ExitCode::SUCCESS)
}

/// What went wrong, and below it each cause.
fn report(error: anyhow::Error) -> ExitCode {
    eprintln!("error: {error}");
    for cause in error.chain().skip(1) {
        eprintln!("  because: {cause}");
    }
    ExitCode::FAILURE
}
