//! The BPF object on the running kernel: every program is verified within its budget, every map prints named fields.

use std::{collections::BTreeMap, fs, path::PathBuf, process::Command};

use anyhow::{Context, Result, bail, ensure};
use bpvs_tests::{
    agent::PinFolder,
    datapath::{Datapath, Sizes, load_programs, object_path, open},
};
use lb_common::{
    address::Protocol,
    layout::{
        Connection, ConnectionKey, FragmentKey, FragmentPorts, Locality, LocalityChunk, LocalityKey, Service,
        ServiceKey, SocketConnection, SocketFlow, SocketFlowKey,
    },
    scheduler::Scheduler,
};
use lb_userspace::kernel::interfaces::HostAddress;
use lb_userspace::plan::{DesiredService, Frontend, Plan, Scope};
use serde_json::Value;

/// Small, as every entry is printed.
const SIZES: Sizes = Sizes {
    services: 8,
    service_ids: 8,
    slots: 512,
    destinations: 8,
    connections: 64,
    locality: 64,
    fragments: 64,
    sockets: 8,
};

fn budget_file() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("data/verified-instructions.txt")
}

/// Program and its budget, of each line.
fn budgets() -> Result<BTreeMap<String, u32>> {
    let file = budget_file();
    let text = fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'));
    lines
        .map(|(index, line)| budget(line).with_context(|| format!("{}:{}: `{line}`", file.display(), index + 1)))
        .collect()
}

fn budget(line: &str) -> Result<(String, u32)> {
    let (program, budget) = line.split_once(' ').context("a line is a program and a number")?;
    Ok((program.to_owned(), budget.trim().parse().context("the budget is a whole number")?))
}

#[test]
fn every_program_is_verified_within_its_budget() -> Result<()> {
    let mut object = open(&SIZES)?;
    load_programs(&mut object, |_| true)?;
    let mut found = BTreeMap::new();
    for (name, program) in object.programs() {
        let count = program.info()?.verified_instruction_count();
        found.insert(name.to_owned(), count.with_context(|| format!("the kernel does not say for {name} (5.16)"))?);
    }
    let budgets = budgets()?;
    let mut wrong = Vec::new();
    for (name, count) in &found {
        match budgets.get(name) {
            Some(budget) if count <= budget => {}
            Some(budget) => wrong.push(format!("{name}: {count} verified instructions, budget {budget}")),
            None => wrong.push(format!("{name}: {count} verified instructions, no budget")),
        }
    }
    wrong.extend(
        budgets.keys().filter(|name| !found.contains_key(*name)).map(|name| format!("{name}: no such program")),
    );
    let now: Vec<String> = found.iter().map(|(name, count)| format!("{name} {count}")).collect();
    ensure!(
        wrong.is_empty(),
        "{}:\n{}\n\nfound in {}:\n{}",
        budget_file().display(),
        wrong.join("\n"),
        object_path().display(),
        now.join("\n")
    );
    Ok(())
}

/// Fields of a map's values, and of its keys, as `lb-common` declares them. `None`: a plain number.
fn fields(map: &str) -> Result<(Option<&'static str>, Option<&'static str>)> {
    let key = match map {
        "services" => Some("address port protocol kind"),
        "service_prefixes" | "networks" | "source_addresses" => Some("prefix_len data"),
        "connections" => Some("source destination source_port destination_port protocol kind pad"),
        "fragments" => Some("source destination identification protocol pad"),
        "locality" | "locality_sets" => Some("address service chunk"),
        "socket_flows" => Some("cookie peer peer_port protocol pad"),
        _ => None,
    };
    let value = match map {
        "scratch" => Some(
            "packet quoted quote wanted service request opened asked passing replaced onward hop way around passages",
        ),
        "source_addresses" => Some("words"),
        "passages" => Some("number found packet onward server"),
        "recent" => Some("key onward server found changes length seen hop"),
        "services" | "service_prefixes" => Some(
            "id version scheduler flags set_base set_length table_base table_length max_weight weight_step started \
             persistence_prefix access persistence_timeout affinity_group",
        ),
        "destination_slots" => Some("destination weight"),
        "destinations" => Some("address port flags service epoch weight last_weight upper lower"),
        "destination_load" => Some("connections remote_active changes"),
        "destination_traffic" | "service_retired" => Some("connections in_packets out_packets in_bytes out_bytes"),
        "affinity_timeouts" => Some("group timeout"),
        "connections" => {
            Some("source destination source_port destination_port server service state last_seen timeout control")
        }
        "fragments" => Some("source_port destination_port"),
        "locality" => Some("last_used last_modified server length count"),
        "locality_sets" => Some("servers"),
        "sockets" => Some("frontend server_address frontend_port server_port server service protocol connected"),
        "socket_flows" => Some("peer peer_port pad server last_seen state service"),
        "settings" => Some(
            "version max_destinations node_v4 node_v6 namespace_cookie timeouts switches local_ports_first local_ports_last",
        ),
        "sweep_recount" => Some("connections changes pad"),
        "sweep_result" => Some("entries expired orphans corrections recounts lost_sockets recount_asked"),
        "scheduler_state" | "drops" | "lookups" | "networks" | "uplinks" | "direct" | "pod_interfaces"
        | "excluded_cgroups" => None,
        _ => bail!("map `{map}` is new: state its fields here"),
    };
    Ok((key, value))
}

/// What bpftool prints of a pinned map.
fn dump(path: &std::path::Path) -> Result<Vec<Value>> {
    let output = Command::new("bpftool").args(["-j", "map", "dump", "pinned"]).arg(path).output();
    let output = output.context("running bpftool: install it with `cargo xtask setup`, or as package `bpftool`")?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "bpftool: {text} {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_str(&text).with_context(|| format!("bpftool printed no list in JSON: {text}"))
}

fn check(found: &Value, expected: Option<&str>, what: &str) -> Result<()> {
    match (expected, found) {
        (None, Value::Number(_)) => Ok(()),
        (Some(expected), Value::Object(fields)) => {
            let missing: Vec<_> = expected.split(' ').filter(|name| !fields.contains_key(*name)).collect();
            ensure!(missing.is_empty(), "{what} has no {missing:?}: {found}");
            ensure!(fields.len() == expected.split(' ').count(), "{what} has more fields than stated here: {found}");
            Ok(())
        }
        _ => bail!("{what} is printed as {found}, expected {expected:?}"),
    }
}

#[test]
fn bpftool_prints_named_fields_of_every_map() -> Result<()> {
    let mut datapath = Datapath::load(SIZES)?;
    // Hash maps print what is in them only.
    datapath.insert("services", ServiceKey::default(), Service::default())?;
    datapath.insert("connections", ConnectionKey::default(), Connection::default())?;
    datapath.insert("fragments", FragmentKey::default(), FragmentPorts::default())?;
    datapath.insert("locality", LocalityKey::default(), Locality::default())?;
    datapath.insert("locality_sets", LocalityKey::default(), LocalityChunk::default())?;
    datapath.insert("excluded_cgroups", 1u64, 1u32)?;
    datapath.insert("sockets", 1u64, SocketConnection::default())?;
    datapath.insert("socket_flows", SocketFlowKey::default(), SocketFlow::default())?;
    datapath.insert("uplinks", 1u32, 1u32)?;
    datapath.insert("direct", 1u32, 1u32)?;
    datapath.insert("pod_interfaces", 1u32, 1u32)?;
    datapath.set_source_addresses(&[HostAddress {
        interface: 1,
        address: "10.1.0.1".parse()?,
        network: "10.1.0.0/16".parse()?,
        secondary: false,
    }])?;
    let network = Frontend { scope: Scope::Prefix(8), ..Frontend::new([10, 0, 0, 0].into(), 80, Protocol::Tcp) };
    let service = DesiredService::new("of a network", Scheduler::RoundRobin, Vec::new());
    datapath
        .apply(&Plan {
            services: [(network, service)].into(),
            pod_networks: ["10.244.0.0/16".parse()?].into(),
            ..Plan::default()
        })
        .map_err(|errors| anyhow::anyhow!("a network's service: {errors:?}"))?;
    let folder = PinFolder::new()?;
    let maps = datapath.pin_maps(folder.path())?;
    ensure!(maps.len() >= 20, "maps are missing: {maps:?}");
    for map in &maps {
        let entries = dump(&folder.path().join(map)).with_context(|| format!("map `{map}`"))?;
        let entry = entries.first().with_context(|| format!("bpftool prints nothing of map `{map}`"))?;
        let entry =
            entry.get("formatted").with_context(|| format!("map `{map}` has no BTF: bpftool prints {entry}"))?;
        let value = match entry.get("values") {
            Some(cpus) => cpus.get(0).and_then(|cpu| cpu.get("value")),
            None => entry.get("value"),
        };
        let (key_fields, value_fields) = fields(map)?;
        check(&entry["key"], key_fields, &format!("key of map `{map}`"))?;
        check(value.unwrap_or(&Value::Null), value_fields, &format!("value of map `{map}`"))?;
    }
    Ok(())
}
