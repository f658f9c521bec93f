//! Files of cases: documents of YAML, one after the other.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use lb_common::scheduler::Scheduler;
use lb_userspace::model::tree::Tree;
use lb_userspace::model::{Change, Kind, Model, Object, ObjectKey, Origin, SourceId};
use lb_userspace::plan::{Defaults, Detector, NodePortAddresses, Options, Planner};
use serde::Deserialize;

use crate::text;

/// What a case says besides its objects.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Head {
    /// Name of this node. `n0` if nothing is stated.
    node: Option<String>,
    /// Addresses of its interfaces.
    addresses: Option<Vec<IpAddr>>,
    /// Networks of the cluster's pods.
    cluster_networks: Option<Vec<String>>,
    /// Pods are known by the networks of the Node.
    node_networks: Option<bool>,
    masquerade_all: Option<bool>,
    node_ports: Option<bool>,
    /// Networks, or `primary`.
    node_port_addresses: Option<Vec<String>>,
    external_addresses: Option<bool>,
    /// Node ports are served at loopback addresses.
    localhost_node_ports: Option<bool>,
    /// What stands for the node.
    node_address: Option<IpAddr>,
    /// Scheduler of Services that name none, and whether it hashes the source port.
    scheduler: Option<String>,
    hash_port: Option<bool>,
    max_services: Option<usize>,
    max_destinations: Option<usize>,
    /// Tell of cluster addresses whose other ports are refused.
    cluster_addresses: Option<bool>,
    /// Objects stand in a file, where more is a mistake, not at the API server.
    in_file: Option<bool>,
}

#[derive(Debug, Deserialize)]
struct CommonDocument {
    common: Head,
}

#[derive(Debug, Deserialize)]
struct CaseDocument {
    case: String,
    #[serde(flatten)]
    head: std::collections::BTreeMap<String, serde_json::Value>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExpectDocument {
    expect: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DeleteDocument {
    delete: String,
}

/// One document and the line that it begins on.
struct Document<'a> {
    text: &'a str,
    line: usize,
}

/// Runs all cases of a file: how many expectations were met, or all that were not.
pub(crate) fn run(text: &str) -> Result<usize, String> {
    let (mut common, mut shared) = (Head::default(), Vec::new());
    let mut cases: Vec<Case> = Vec::new();
    for document in documents(text) {
        let told = |error: String| format!("document at line {}: {error}", document.line);
        document.read(&mut common, &mut shared, &mut cases).map_err(told)?;
    }
    if cases.is_empty() {
        return Err("no case".to_owned());
    }
    let mut names = BTreeSet::new();
    let (mut failures, mut met) = (Vec::new(), 0);
    for case in &cases {
        if !names.insert(&case.name) {
            failures.push(format!("case {}: stated twice", case.name));
        }
        match case.run(&common, &shared) {
            Ok(expectations) => met += expectations,
            Err(error) => failures.push(format!("case {}{error}", case.name)),
        }
    }
    if failures.is_empty() { Ok(met) } else { Err(failures.join("\n")) }
}

fn documents(text: &str) -> Vec<Document<'_>> {
    let (mut documents, mut start, mut line, mut first) = (Vec::new(), 0, 1, 1);
    let mut end = 0;
    for content in text.split_inclusive('\n') {
        if content.trim_end() == "---" {
            documents.push(Document { text: &text[start..end], line: first });
            (start, first) = (end + content.len(), line + 1);
        }
        end += content.len();
        line += 1;
    }
    documents.push(Document { text: &text[start..], line: first });
    let says_something = |line: &str| !line.trim_start().starts_with('#') && !line.trim().is_empty();
    documents.retain(|document| document.text.lines().any(says_something));
    documents
}

impl Document<'_> {
    fn read(&self, common: &mut Head, shared: &mut Vec<Step>, cases: &mut Vec<Case>) -> Result<(), String> {
        let tree: Tree = parse(self.text)?;
        if tree.get("case").is_some() {
            let CaseDocument { case: name, head } = parse(self.text)?;
            let head =
                serde_json::to_value(head).and_then(serde_json::from_value).map_err(|error| error.to_string())?;
            cases.push(Case { name, head, steps: Vec::new() });
            return Ok(());
        }
        if tree.get("common").is_some() {
            let CommonDocument { common: stated } = parse(self.text)?;
            *common = stated;
            return Ok(());
        }
        let step = if tree.get("expect").is_some() {
            let ExpectDocument { expect } = parse(self.text)?;
            let lines = text::stated(&expect);
            if lines.is_empty() {
                return Err("an expectation without lines: write `nothing` if that is meant".to_owned());
            }
            Step::Expect { line: self.line, lines }
        } else if tree.get("delete").is_some() {
            let DeleteDocument { delete } = parse(self.text)?;
            Step::Delete(delete)
        } else {
            let (version, kind) = (tree.text("apiVersion"), tree.text("kind"));
            let kind = Kind::of(version.unwrap_or_default(), kind.unwrap_or_default());
            Step::Object(kind.ok_or("no object that is known, and no case, common, expect or delete")?, tree)
        };
        match (cases.last_mut(), &step) {
            (Some(case), _) => case.steps.push(step),
            (None, Step::Object(..)) => shared.push(step),
            (None, _) => return Err("stands before the first case".to_owned()),
        }
        Ok(())
    }
}

fn parse<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, String> {
    serde_saphyr::from_str(text).map_err(|error| error.to_string())
}

struct Case {
    name: String,
    head: Head,
    steps: Vec<Step>,
}

enum Step {
    Object(Kind, Tree),
    Delete(String),
    Expect { line: usize, lines: Vec<String> },
}

impl Case {
    /// Runs the steps. An error begins behind the name of the case.
    fn run(&self, common: &Head, shared: &[Step]) -> Result<usize, String> {
        let node = self.head.node.as_ref().or(common.node.as_ref()).map_or("n0", String::as_str);
        let in_file = self.head.in_file.or(common.in_file).unwrap_or(false);
        let defaults = self.head.defaults(common)?;
        let mut model = Model::new();
        let mut keys = BTreeSet::new();
        let mut planner = Planner::new(defaults);
        let (mut met, mut behind) = (0, 0);
        let mut failures = Vec::new();
        for step in shared.iter().chain(&self.steps) {
            behind += 1;
            match step {
                Step::Object(kind, tree) => {
                    let origin = if in_file {
                        Origin { file: Some("objects.yaml".into()), document: 1, first_line: 1, line: 1 }
                    } else {
                        Origin::default()
                    };
                    let object = Object::identify(*kind, tree.clone(), origin);
                    let object = object.map_err(|problem| format!(": {problem}"))?;
                    keys.insert(object.key.clone());
                    model.change(source(*kind, in_file), Change::Upsert(object));
                }
                Step::Delete(name) => {
                    let key = keys.iter().find(|key| key.to_string() == *name).cloned();
                    let key: ObjectKey = key.ok_or_else(|| format!(": there is no {name} to delete"))?;
                    keys.remove(&key);
                    model.change(source(key.kind, in_file), Change::Delete(key));
                }
                Step::Expect { line, lines } => {
                    behind = 0;
                    let node = model.node(node);
                    let changes = model.take_changes();
                    planner.update(&model, &node, &changes);
                    let mut found = text::of(planner.plan(), &node, &model.problems());
                    if self.head.cluster_addresses.or(common.cluster_addresses) == Some(true) {
                        found.extend(text::cluster_addresses(planner.plan()));
                    }
                    match text::difference(lines, &found) {
                        None => met += 1,
                        Some(difference) => failures.push(format!(", expectation at line {line}:\n{difference}")),
                    }
                }
            }
        }
        if met == 0 && failures.is_empty() {
            return Err(": no expectation".to_owned());
        }
        if behind > 0 {
            failures.push(": something stands behind the last expectation, which nobody looks at".to_owned());
        }
        if failures.is_empty() { Ok(met) } else { Err(failures.join(&format!("\ncase {}", self.name))) }
    }
}

fn source(kind: Kind, in_file: bool) -> SourceId {
    match kind {
        _ if in_file => SourceId::MANIFESTS,
        Kind::Service => SourceId::API_SERVICES,
        Kind::EndpointSlice => SourceId::API_SLICES,
        Kind::Node => SourceId::API_NODE,
        Kind::ServiceCidr => SourceId::API_SERVICE_CIDRS,
    }
}

impl Head {
    /// What this says, and where it says nothing what `common` says.
    fn defaults(&self, common: &Self) -> Result<Defaults, String> {
        fn first<T: Clone>(own: &Option<T>, common: &Option<T>) -> Option<T> {
            own.clone().or_else(|| common.clone())
        }
        let detector = match first(&self.cluster_networks, &common.cluster_networks) {
            _ if first(&self.node_networks, &common.node_networks) == Some(true) => Detector::NodeNetworks,
            Some(words) => Detector::ClusterNetworks(networks(&words)?),
            None => Detector::default(),
        };
        let node_port_addresses = match first(&self.node_port_addresses, &common.node_port_addresses) {
            Some(words) if words == ["primary"] => NodePortAddresses::Primary,
            words => NodePortAddresses::Networks(networks(&words.unwrap_or_default())?),
        };
        let (options, defaults) = (Options::default(), Defaults::default());
        let scheduler = match first(&self.scheduler, &common.scheduler) {
            Some(name) => Scheduler::from_name(&name).ok_or_else(|| format!(": no scheduler {name}"))?,
            None => defaults.scheduler,
        };
        Ok(Defaults {
            scheduler,
            hash_port: first(&self.hash_port, &common.hash_port).unwrap_or(defaults.hash_port),
            max_services: first(&self.max_services, &common.max_services).unwrap_or(defaults.max_services),
            max_destinations_per_service: first(&self.max_destinations, &common.max_destinations)
                .unwrap_or(defaults.max_destinations_per_service),
            options: Options {
                detector,
                masquerade_all: first(&self.masquerade_all, &common.masquerade_all).unwrap_or(options.masquerade_all),
                node_ports: first(&self.node_ports, &common.node_ports).unwrap_or(options.node_ports),
                node_port_addresses,
                localhost_node_ports: first(&self.localhost_node_ports, &common.localhost_node_ports)
                    .unwrap_or_default(),
                addresses: first(&self.addresses, &common.addresses).unwrap_or_default(),
                external_addresses: first(&self.external_addresses, &common.external_addresses)
                    .unwrap_or(options.external_addresses),
                node_address: first(&self.node_address, &common.node_address),
            },
        })
    }
}

fn networks(words: &[String]) -> Result<Vec<IpNet>, String> {
    let network = |word: &String| word.parse().map_err(|error| format!(": {word}: {error}"));
    words.iter().map(network).collect()
}
