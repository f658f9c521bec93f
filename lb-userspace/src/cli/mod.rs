//! `bpvs`: arguments, and which part of the library answers them.

mod cluster;
mod kube_proxy;
mod observe;
mod run;
mod servers;
mod timeouts;
mod values;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};

pub use run::RunArgs;

/// Where maps and links are pinned unless `--pin-path` says otherwise.
pub const DEFAULT_PIN_PATH: &str = "/sys/fs/bpf/bpvs";

/// IPVS's schedulers for Linux nodes, in eBPF.
#[derive(Debug, Parser)]
#[command(name = "bpvs", version, about, long_about = None, arg_required_else_help = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the agent of this node: programs services from rules, manifests or an API server
    #[command(version)]
    Run(Box<RunArgs>),
    /// List virtual services and their real servers, as `ipvsadm -Ln`
    #[command(visible_alias = "ls")]
    List(observe::ListArgs),
    /// List connections, as `ipvsadm -Lcn`
    #[command(visible_alias = "conns")]
    Connections(observe::OutputArgs),
    /// Print the running services as rules, as `ipvsadm -S -n`: for `bpvs run --ipvs-rules` and `ipvsadm -R`
    Save(PinArgs),
    /// Set how long connections live, as `ipvsadm --set`; each takes it from its next packet on
    SetTimeouts(timeouts::TimeoutArgs),
    /// Show size, use and memory of each map
    Maps(observe::OutputArgs),
    /// Say what this node lacks to run bpvs
    Check(run::CheckArgs),
    /// Remove everything that bpvs made on this node: links, filters, maps
    Cleanup(observe::CleanupArgs),
}

/// Where the pins are.
#[derive(Debug, Clone, clap::Args)]
pub struct PinArgs {
    /// Directory of pinned maps and links, on a BPF file system
    #[arg(long, value_name = "DIR", default_value = DEFAULT_PIN_PATH, env = "BPVS_PIN_PATH")]
    pub pin_path: PathBuf,
}

/// How rows are printed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Output {
    /// Columns.
    Text,
    /// JSON with stable field names.
    Json,
}

/// Runs the program: arguments from the command line, result as exit code.
///
/// 0: done. 1: an error, in one line on standard error. 2: wrong usage. 3: something foreign was left by `cleanup`.
pub fn main() -> ExitCode {
    let cli = Cli::parse_from(std::env::args_os().map(dashed));
    start_logging();
    let result = match cli.command {
        Command::Run(args) => run::run(*args),
        Command::List(args) => observe::list(&args),
        Command::Connections(args) => observe::connections(&args),
        Command::Save(args) => observe::save(&args),
        Command::SetTimeouts(args) => timeouts::set(&args),
        Command::Maps(args) => observe::maps(&args),
        Command::Check(args) => run::check(&args),
        Command::Cleanup(args) => observe::cleanup(&args),
    };
    match result {
        Ok(code) => code,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", one_line(&error));
            ExitCode::FAILURE
        }
    }
}

/// `--cluster_cidr=x` is `--cluster-cidr=x`, as for kube-proxy (CL-2). No flag of ours has an underscore.
fn dashed(argument: OsString) -> OsString {
    match argument.to_str() {
        Some(text) if text.starts_with("--") => {
            let (name, value) = text.split_at(text.find('=').unwrap_or(text.len()));
            (name.replace('_', "-") + value).into()
        }
        _ => argument,
    }
}

/// Logs go to standard error, so that standard output holds nothing but rows.
fn start_logging() {
    use std::io::IsTerminal;

    // What goes wrong at the API server is told by the source, once for as long as it lasts; kube's client would tell
    // it again at each attempt.
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info,kube_client=off"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .init();
}

/// An error with its causes, on one line, none of them twice.
fn one_line(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain() {
        let text = cause.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
        if !line.contains(&text) {
            if !line.is_empty() {
                line.push_str(": ");
            }
            line.push_str(&text);
        }
    }
    line
}

/// True if whoever read our output has read enough.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_arguments_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn underscores_in_names_of_flags_are_dashes() {
        for (given, expected) in [
            ("--cluster_cidr=a_b", "--cluster-cidr=a_b"),
            ("--cluster_cidr", "--cluster-cidr"),
            ("--", "--"),
            ("a_b", "a_b"),
            ("-v_", "-v_"),
        ] {
            assert_eq!(dashed(given.into()), expected);
        }
    }

    #[test]
    fn an_error_is_one_line_with_every_cause_once() {
        let error = anyhow::anyhow!("no such\nfile").context("cannot open x: no such file").context("cannot start");
        assert_eq!(one_line(&error), "cannot start: cannot open x: no such file");
    }
}
