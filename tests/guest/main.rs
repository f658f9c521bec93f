//! `bpvs-guest`: does bpvs work on the kernel that this runs on? `cargo xtask kernels` boots kernels and runs it in each;
//! it also runs on a host (as root), in namespaces that it removes.
//!
//! Each step that is over prints a line, `step <name> <ok|wrong> <what was found>`; the first line, `steps <names>`, says
//! which there are. The first wrong step is the last: those after it need what it did.
//!
//! `bpvs-guest ipvs SCHEDULER,...` asks the same of the kernel's IPVS, and `bpvs-guest ipvsadm SCHEDULER,...` whether bpvs
//! prints and reads what `ipvsadm` does, in the same form, for `cargo xtask oracle`. `bpvs-guest cost WAY SERVICES,...` says
//! what packets cost, for `cargo xtask bench guest`.

mod cost;
mod ipvs;
mod ipvsadm;
mod lan;
mod load;
mod serve;
mod uplinks;
mod world;

use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use bpvs_tests::agent::{attached, check_clean};
use bpvs_tests::cleanup;
use bpvs_tests::topology::Topology;

use world::World;

/// A step: what it finds in the world that the steps before it made.
type Step = fn(&mut World<'_>) -> Result<String>;

/// What all steps need: network namespaces, veth pairs, routes.
const NETWORK: &str = "network";

/// After that, in this order.
const STEPS: [(&str, Step); 11] = [
    ("check", |_| load::check()),
    ("load", |_| load::verified()),
    ("start", |world| world.start()),
    ("attach", attach),
    ("tcp", serve::tcp),
    ("udp", serve::udp),
    ("schedulers", serve::schedulers),
    ("local", serve::local),
    ("refuse", serve::refuse),
    ("restart", serve::restart),
    ("cleanup", clean_up),
];

/// Before the steps of the mode `ipvs`.
const OPEN: &str = "open";
/// Before the steps of the mode `ipvsadm`.
const DIRECTORS: &str = "directors";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = cleanup::on_signals().and_then(|()| match arguments.as_slice() {
        [] => run(),
        ["ipvs", names] => run_ipvs(names),
        ["ipvsadm", names] => run_ipvsadm(names),
        ["uplinks"] => run_uplinks(""),
        ["uplinks", name] => run_uplinks(name),
        ["cost", way, services] => cost::require_counter().and_then(|()| cost::run(way, services)),
        _ => {
            eprintln!("usage: bpvs-guest [uplinks [STEP]|ipvs|ipvsadm SCHEDULER,...|cost WAY SERVICES,...]");
            bail!("wrong arguments")
        }
    });
    cleanup::wait_if_closing();
    if let (Err(error), Some(&"cost")) = (&done, arguments.first()) {
        println!("cost wrong {error:#}");
    }
    if done.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Says which steps there are.
fn announce<S>(first: &str, steps: &[(&str, S)]) {
    let names: Vec<_> = steps.iter().map(|(name, _)| *name).collect();
    println!("steps {first} {}", names.join(" "));
}

fn run() -> Result<()> {
    announce(NETWORK, &STEPS);
    let build = || Topology::builder().servers(world::SERVERS).build();
    let topology = report(NETWORK, build(), |topology| format!("{} links", topology.node_interfaces().len()))?;
    let mut world = World::new(&topology);
    STEPS.iter().try_for_each(|(name, step)| report(name, step(&mut world), String::clone).map(drop))
}

fn run_ipvs(names: &str) -> Result<()> {
    announce(OPEN, &ipvs::STEPS);
    let open = || -> Result<(ipvs::Bench, String)> {
        let mut bench = ipvs::Bench::new(names)?;
        let found = bench.describe()?;
        Ok((bench, found))
    };
    let (mut bench, _) = report(OPEN, open(), |(_, found)| found.clone())?;
    ipvs::STEPS.iter().try_for_each(|(name, step)| report(name, step(&mut bench), String::clone).map(drop))
}

fn run_ipvsadm(names: &str) -> Result<()> {
    announce(DIRECTORS, &ipvsadm::STEPS);
    let networks = ipvsadm::Networks::new().and_then(|networks| {
        networks.mark(&ipvsadm::MARKS)?;
        Ok(networks)
    });
    let networks = report(DIRECTORS, networks, |_| "a network each".to_owned())?;
    let mut bench = ipvsadm::Bench::new(&networks, names)?;
    ipvsadm::STEPS.iter().try_for_each(|(name, step)| report(name, step(&mut bench), String::clone).map(drop))
}

/// Uplinks of every kind; with a name, one step.
fn run_uplinks(name: &str) -> Result<()> {
    let steps: Vec<_> = uplinks::STEPS.into_iter().filter(|step| name.is_empty() || step.0 == name).collect();
    let (first, rest) = steps.split_first().with_context(|| format!("there is no step `{name}`"))?;
    announce(first.0, rest);
    steps.iter().try_for_each(|(name, step)| report(name, step(), String::clone).map(drop))
}

/// Prints the line of a step.
fn report<T>(name: &str, result: Result<T>, found: impl Fn(&T) -> String) -> Result<T> {
    match &result {
        Ok(value) => println!("step {name} ok {}", found(value)),
        Err(error) => {
            // One line, as for every step; the rest is for who looks at the console.
            let text = format!("{error:#}");
            println!("{text}\nstep {name} wrong {}", text.lines().next().unwrap_or_default());
        }
    }
    result
}

/// The programs are on every interface of the node, on the hook that this kernel should have, and on the cgroup.
fn attach(world: &mut World<'_>) -> Result<String> {
    let (node, agent) = (&world.topology.node, world.agent()?);
    let hook = load::expected_hook()?;
    let hooks = attached(&node.namespace)?;
    for interface in world.topology.node_interfaces() {
        for direction in ["ingress", "egress"] {
            let wanted = format!("{interface} {hook} {direction} bpvs_{direction}");
            ensure!(hooks.contains(&wanted), "no `{wanted}` among {hooks:?}");
        }
    }
    let wanted = 2 * world.topology.node_interfaces().len();
    ensure!(hooks.len() == wanted, "{} programs on interfaces, not {wanted}: {hooks:?}", hooks.len());
    let links = agent.footprint()?.links.len();
    Ok(format!("{} programs by {hook}, {links} pinned links", hooks.len()))
}

/// `bpvs cleanup`, and nothing of bpvs is left in the kernel.
fn clean_up(world: &mut World<'_>) -> Result<String> {
    let (topology, agent) = (world.topology, world.agent()?);
    let before = agent.footprint()?;
    ensure!(!before.is_empty(), "there is nothing to clean up");
    agent.cleanup()?;
    check_clean(agent.pin_path(), &topology.node.namespace, &before).context("after `bpvs cleanup`")?;
    Ok(format!("{} maps and {} programs are gone", before.maps.len(), before.programs.len()))
}
