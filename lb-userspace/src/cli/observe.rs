//! The verbs that look, and the one that cleans up. None of them needs a running agent.

use std::io::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;

use super::{Output, PinArgs};
use crate::kernel::{cleanup, interfaces, lock, namespace, object, pins::Pins, sizes::Sizes};
use crate::render::list::{self, Columns, Style};
use crate::render::{json, save, text};
use crate::view::filter::Filter;
use crate::view::pinned::Pinned;
use crate::view::tables::Tables;
use crate::view::{connections, maps, order, services};

#[derive(Debug, Args)]
pub(super) struct OutputArgs {
    /// Format
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
    #[command(flatten)]
    pins: PinArgs,
}

#[derive(Debug, Args)]
pub(super) struct ListArgs {
    /// Only this service: [tcp/|udp/|sctp/]ADDRESS[:PORT]
    service: Option<Filter>,
    #[command(flatten)]
    columns: ColumnArgs,
    /// Show large numbers of packets and bytes in full
    #[arg(long)]
    exact: bool,
    /// Show servers as they stand in the list of their service, the newest first, and services in no order
    #[arg(long)]
    nosort: bool,
    /// Show how long connections live, and nothing else
    #[arg(long, conflicts_with_all = ["service", "output", "exact", "nosort"])]
    timeout: bool,
    /// Numbers instead of names, which there are none of: for the fingers that type -n
    #[arg(short, long, hide = true)]
    numeric: bool,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, Args)]
#[group(multiple = false, conflicts_with = "timeout")]
struct ColumnArgs {
    /// Show connections, packets and bytes since the start
    #[arg(long)]
    stats: bool,
    /// Show connections, packets and bytes per second, measured over one second
    #[arg(long)]
    rate: bool,
    /// Show upper and lower thresholds
    #[arg(long)]
    thresholds: bool,
    /// Show how many clients keep each server (persistence)
    #[arg(long)]
    persistent_conn: bool,
    /// Show the type of tunnels
    #[arg(long)]
    tun_info: bool,
}

impl ColumnArgs {
    fn columns(&self) -> Columns {
        match self {
            Self { stats: true, .. } => Columns::Totals,
            Self { rate: true, .. } => Columns::Rates,
            Self { thresholds: true, .. } => Columns::Thresholds,
            Self { persistent_conn: true, .. } => Columns::Persistent,
            Self { tun_info: true, .. } => Columns::Tunnels,
            _ => Columns::Connections,
        }
    }
}

#[derive(Debug, Args)]
pub(super) struct CleanupArgs {
    /// Also while an agent runs (which then works on maps that nobody sees: stop it)
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    pins: PinArgs,
}

/// How long `--rate` measures.
const SAMPLE: Duration = Duration::from_secs(1);

pub(super) fn list(args: &ListArgs) -> Result<ExitCode> {
    let tables = Pinned::open(&Pins::new(&args.output.pins.pin_path))?;
    if args.timeout {
        return print(&text::timeouts(&tables.settings()?));
    }
    let columns = args.columns.columns();
    let totals = matches!(columns, Columns::Totals | Columns::Rates) || args.output.output == Output::Json;
    let read = || services::unsorted(&tables, args.service.as_ref(), totals);
    let mut rows = read()?;
    let mut traffic = json::Traffic::Totals;
    if columns == Columns::Rates {
        let start = Instant::now();
        std::thread::sleep(SAMPLE);
        let after = read()?;
        let seconds = start.elapsed().as_secs_f64();
        rows = services::rates(&rows, after, seconds);
        traffic = json::Traffic::Rates(seconds);
    }
    if columns == Columns::Persistent {
        services::count_persistent(&tables, &mut rows)?;
    }
    if !args.nosort {
        order::sort(&mut rows);
    }
    if args.service.is_some() && rows.is_empty() {
        anyhow::bail!("no such service: `bpvs list` shows all there are");
    }
    let size = tables.service_capacity();
    print(&match args.output.output {
        Output::Text => {
            list::services(&rows, args.service.is_none().then_some(size), Style { columns, exact: args.exact })
        }
        Output::Json => json::services(&rows, size, traffic),
    })
}

/// `bpvs save`.
pub(super) fn save(pins: &PinArgs) -> Result<ExitCode> {
    let tables = Pinned::open(&Pins::new(&pins.pin_path))?;
    let rows = services::services(&tables, None)?;
    let left_out = rows.iter().filter(|row| !save::is_stated_by_rules(row)).count();
    if left_out > 0 {
        eprintln!(
            "bpvs save: {left_out} virtual services of node ports and of external clients are left out: rules have no word for \
             them, Kubernetes states them"
        );
    }
    print(&save::rules(&rows))
}

pub(super) fn connections(args: &OutputArgs) -> Result<ExitCode> {
    let tables = Pinned::open(&Pins::new(&args.pins.pin_path))?;
    let rows = connections::connections(&tables, namespace::monotonic_now())?;
    print(&match args.output {
        Output::Text => text::connections(&rows),
        Output::Json => json::connections(&rows),
    })
}

pub(super) fn maps(args: &OutputArgs) -> Result<ExitCode> {
    let rows = maps::maps(&Pins::new(&args.pins.pin_path))?;
    print(&match args.output {
        Output::Text => text::maps(&rows),
        Output::Json => json::maps(&rows),
    })
}

pub(super) fn cleanup(args: &CleanupArgs) -> Result<ExitCode> {
    let pins = Pins::new(&args.pins.pin_path);
    let _lock = match pins.root().exists().then(|| lock::acquire(pins.root())).transpose() {
        Ok(lock) => lock,
        Err(error) if args.force && error.is::<lock::Held>() => {
            tracing::warn!("{error}: cleaning up all the same");
            None
        }
        Err(error) if error.is::<lock::Held>() => {
            return Err(error).context("nothing was removed: stop the agent first, or give --force");
        }
        Err(error) => return Err(error),
    };
    let maps = object::expected_maps(&Sizes::default())?;
    let names: Vec<&str> = maps.keys().map(String::as_str).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let interfaces = runtime.block_on(async {
        let (connection, handle, _) = rtnetlink::new_connection().context("cannot open a netlink socket")?;
        tokio::spawn(connection);
        interfaces::interfaces(&handle).await
    })?;
    let report = cleanup::cleanup(&pins, &names, &interfaces)?;
    let mut lines: String = report.removed.iter().map(|what| format!("removed {what}\n")).collect();
    if report.removed.is_empty() {
        lines = format!("nothing of bpvs at {}\n", pins.root().display());
    }
    print(&lines)?;
    for path in &report.foreign {
        eprintln!("warning: {} is not of bpvs: left where it is", path.display());
    }
    Ok(if report.foreign.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(3) })
}

/// Writes to standard output at once, and passes a closed pipe on as an error.
pub(super) fn print(text: &str) -> Result<ExitCode> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}
