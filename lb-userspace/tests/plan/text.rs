//! A plan as lines of text.

use std::net::SocketAddr;

use lb_userspace::model::Problem;
use lb_userspace::plan::{Access, DesiredService, Frontend, Masquerade, Method, NoLocal, Node, Plan, Scope};

const PROBLEM: &str = "problem: ";

/// Everything that a plan says.
pub(crate) fn of(plan: &Plan, node: &Node, problems: &[Problem]) -> Vec<String> {
    let mut lines: Vec<String> = plan.services.iter().map(|(frontend, service)| line(frontend, service)).collect();
    if !plan.node_port_addresses.is_empty() {
        lines.push(format!("node ports at: {}", spaced(&plan.node_port_addresses)));
    }
    if plan.loopback_node_ports {
        lines.push("node ports at loopback".to_owned());
    }
    if !plan.pod_networks.is_empty() {
        lines.push(format!("pods in: {}", spaced(&plan.pod_networks)));
    }
    if !plan.service_networks.is_empty() {
        lines.push(format!("cluster addresses are of: {}", spaced(&plan.service_networks)));
    }
    for ((namespace, name), check) in &plan.health_checks {
        let ready = [("IPv4", check.v4), ("IPv6", check.v6)];
        let ready = ready.into_iter().filter_map(|(family, count)| Some(format!("{family} {}", count?)));
        lines.push(format!(
            "health check {namespace}/{name} at {}: {}",
            check.port,
            ready.collect::<Vec<_>>().join(", ")
        ));
    }
    let NoLocal { internal, external } = plan.no_local();
    let counts = [
        ("internal IPv4", internal[0]),
        ("internal IPv6", internal[1]),
        ("external IPv4", external[0]),
        ("external IPv6", external[1]),
    ];
    let counts: Vec<_> =
        counts.iter().filter(|(_, count)| *count > 0).map(|(of, count)| format!("{of} {count}")).collect();
    if !counts.is_empty() {
        lines.push(format!("ports without an endpoint here: {}", counts.join(", ")));
    }
    if node.known && !node.is_eligible() {
        lines.push("node is not eligible".to_owned());
    }
    lines.extend(problems.iter().chain(&plan.problems).map(|problem| format!("{PROBLEM}{problem}")));
    lines
}

/// Where other ports than those of Services are refused.
pub(crate) fn cluster_addresses(plan: &Plan) -> Option<String> {
    let addresses = &plan.cluster_addresses;
    (!addresses.is_empty()).then(|| format!("other ports are refused at: {}", spaced(addresses)))
}

fn line(frontend: &Frontend, service: &DesiredService) -> String {
    let mut line = format!("{} {}", frontend.protocol.name(), frontend.place());
    let mut add = |word: &str| {
        line.push(' ');
        line.push_str(word);
    };
    match frontend.scope {
        Scope::NodePort => add("node-port"),
        Scope::External => add("external"),
        Scope::ExternalNodePort => add("node-port external"),
        Scope::Address | Scope::Prefix(_) | Scope::Mark(_) => {}
    }
    add(service.scheduler.name());
    let Access { masquerade, split, silent, sources } = &service.access;
    match masquerade {
        Masquerade::Never => {}
        Masquerade::External => add("snat=external"),
        Masquerade::Always => add("snat=all"),
    }
    let flags =
        [(*split, "split"), (*silent, "silent"), (service.one_packet, "one-packet"), (service.hash_port, "hash-port")];
    flags.into_iter().filter(|(on, _)| *on).for_each(|(_, word)| add(word));
    if !sources.is_empty() {
        add(&format!("from={}", spaced(sources).replace(' ', ",")));
    }
    if let Some(persistence) = &service.persistence {
        add(&format!("sticky={}s/{}", persistence.timeout, persistence.netmask));
    }
    add("->");
    if service.destinations.is_empty() {
        add("none");
    }
    for destination in &service.destinations {
        let address = SocketAddr::new(destination.address, destination.port);
        add(&match destination.weight {
            1 => address.to_string(),
            weight => format!("{address}={weight}"),
        });
        match destination.method {
            Method::Nat => {}
            Method::Route => add("by-route"),
            Method::Tunnel => add("by-tunnel"),
            Method::OwnTunnel => add("by-tunnel-here"),
        }
    }
    line
}

fn spaced<T: ToString>(items: impl IntoIterator<Item = T>) -> String {
    items.into_iter().map(|item| item.to_string()).collect::<Vec<_>>().join(" ")
}

/// The lines of an expectation, without comments and needless spaces.
pub(crate) fn stated(expect: &str) -> Vec<String> {
    let lines = expect.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    lines.filter(|line| !line.is_empty() && !line.starts_with('#')).collect()
}

/// What is missing (`-`) and what is too much (`+`), in any order. A problem is expected by a part of its text.
pub(crate) fn difference(expected: &[String], found: &[String]) -> Option<String> {
    let mut found: Vec<&String> = found.iter().collect();
    let mut difference = Vec::new();
    let expected = if expected == ["nothing"] { &[] } else { expected };
    for line in expected {
        let is_it = |other: &&String| match (line.strip_prefix(PROBLEM), other.strip_prefix(PROBLEM)) {
            (Some(part), Some(problem)) => problem.contains(part),
            _ => line == *other,
        };
        match found.iter().position(is_it) {
            Some(index) => {
                found.remove(index);
            }
            None => difference.push(format!("  - {line}")),
        }
    }
    difference.extend(found.iter().map(|line| format!("  + {line}")));
    (!difference.is_empty()).then(|| difference.join("\n"))
}
