//! Rules: what they state is what is done, unless a Service has the frontend already.

use super::frontends::{Claim, Field};
use super::{Access, Defaults, DesiredDestination, DesiredService, Method, Options, Problem};
use crate::model::{RuleServer, RuleService};

/// The virtual service that a rule states.
pub(super) fn claim(rule: &RuleService, defaults: &Defaults, problems: &mut Vec<Problem>) -> Claim {
    let limit = defaults.max_destinations_per_service;
    if rule.servers.len() > limit {
        let message = format!(
            "the first {limit} of its {} real servers are used, a service can have no more (max_destinations_per_service)",
            rule.servers.len()
        );
        problems.push(problem(rule, message));
    }
    let servers = rule.servers.iter().take(limit);
    let service = DesiredService {
        origin: rule.origin.to_string(),
        scheduler: rule.options.scheduler,
        hash_port: rule.options.hash_port,
        hash_fallback: rule.options.hash_fallback,
        persistence: rule.options.persistence,
        affinity: None,
        one_packet: rule.options.one_packet,
        destinations: servers
            .map(|server| DesiredDestination {
                address: server.address,
                port: server.port,
                weight: server.weight,
                thresholds: server.thresholds,
                method: method(rule, server, &defaults.options),
            })
            .collect(),
        access: Access::default(),
    };
    Claim { frontend: rule.frontend, field: Field::Rule, at_cluster_address: false, service, external: None }
}

/// At the end of a tunnel, at an address of the node, its packets are unwrapped, and the server is reached as by NAT. A
/// server of another family cannot be: what comes for it is left to a tunnel device of the kernel.
fn method(rule: &RuleService, server: &RuleServer, options: &Options) -> Method {
    let address = server.address.to_canonical();
    let own = || options.addresses.iter().any(|own| own.to_canonical() == address);
    let same_family = server.address.is_ipv4() == rule.frontend.address.is_ipv4();
    match server.method {
        Method::Tunnel if same_family && own() => Method::OwnTunnel,
        method => method,
    }
}

/// True if what rules come to depends on the addresses of the node.
pub(super) fn depends_on_addresses<'a>(mut rules: impl Iterator<Item = &'a RuleService>) -> bool {
    rules.any(|rule| rule.servers.iter().any(|server| server.method == Method::Tunnel))
}

/// That somebody else has its frontend.
pub(super) fn lost(rule: &RuleService, winner: &str) -> Problem {
    problem(rule, format!("belongs to {winner}, which has it until it is deleted, then this rule"))
}

/// That there is no room from this rule on, for so many virtual services.
pub(super) fn no_room(rule: &RuleService, left_out: usize, limit: usize) -> Problem {
    let message = format!(
        "this rule and all after it, {left_out} virtual services, are left out: there is room for {limit} (max_services)"
    );
    problem(rule, message)
}

fn problem(rule: &RuleService, message: String) -> Problem {
    Problem {
        object: format!("rule {}", rule.frontend),
        location: Some(rule.origin.to_string()),
        field: String::new(),
        value: String::new(),
        message,
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use lb_common::address::Protocol;
    use lb_common::scheduler::Scheduler;
    use serde_json::json;

    use super::super::{Node, Plan, plan};
    use super::*;
    use crate::model::{
        Change, Frontend, Kind, List, Model, Object, Origin, Persistence, RuleOptions, RuleOrigin, Rules, SourceId,
        Thresholds,
    };

    fn rule(address: &str, line: u32, servers: &[&str]) -> RuleService {
        let server = |address: &&str| RuleServer {
            address: address.parse().unwrap(),
            port: 8080,
            weight: 3,
            thresholds: Thresholds { upper: 9, lower: 2 },
            method: Method::Nat,
        };
        RuleService {
            frontend: Frontend::new(address.parse().unwrap(), 80, Protocol::Tcp),
            origin: RuleOrigin { file: "rules".into(), line },
            options: RuleOptions {
                scheduler: Scheduler::SourceHash,
                hash_port: true,
                hash_fallback: false,
                persistence: Some(Persistence { timeout: 5, netmask: 24 }),
                one_packet: false,
            },
            servers: servers.iter().map(server).collect(),
        }
    }

    fn planned(rules: &[RuleService], service: bool, defaults: &Defaults) -> Plan {
        let mut model = Model::new();
        let rules = Rules { services: rules.to_vec(), ..Rules::default() };
        model.change(SourceId::RULES, Change::Rules(rules));
        if service {
            let tree = json!({"metadata": {"name": "web", "namespace": "demo"},
                              "spec": {"clusterIP": "10.0.0.1", "ports": [{"port": 80}]}});
            let object = Object::identify(Kind::Service, tree.into(), Origin::default()).unwrap();
            model.change(SourceId::MANIFESTS, Change::Replace(List { objects: vec![object], ..List::default() }));
        }
        plan(&model, &Node::named("n0"), defaults)
    }

    #[test]
    fn what_a_rule_states_is_what_is_done_in_the_order_of_its_lines() {
        let plan = planned(&[rule("10.0.0.1", 7, &["10.1.0.3", "10.1.0.1"])], false, &Defaults::default());
        assert_eq!(plan.problems, []);
        let service = plan.services.values().next().unwrap();
        assert_eq!((service.origin.as_str(), service.scheduler), ("rules:7", Scheduler::SourceHash));
        assert!(service.hash_port && !service.hash_fallback && !service.one_packet);
        assert_eq!(service.persistence, Some(Persistence { timeout: 5, netmask: 24 }));
        let servers: Vec<IpAddr> = service.destinations.iter().map(|server| server.address).collect();
        assert_eq!(servers, ["10.1.0.3", "10.1.0.1"].map(|address| address.parse::<IpAddr>().unwrap()));
        let first = service.destinations[0];
        assert_eq!((first.port, first.weight, first.thresholds), (8080, 3, Thresholds { upper: 9, lower: 2 }));
    }

    #[test]
    fn a_tunnel_ends_at_the_addresses_of_the_node() {
        let mut stated = rule("10.0.0.1", 7, &["10.1.0.1", "10.1.0.2", "fd00::1", "10.1.0.3", "10.1.0.4"]);
        for (server, method) in stated.servers.iter_mut().zip([Method::Tunnel; 3]) {
            server.method = method;
        }
        stated.servers[3].method = Method::Route;
        let own = ["10.1.0.1", "fd00::1", "10.1.0.3", "10.1.0.4"];
        let options = Options { addresses: own.map(|own| own.parse().unwrap()).to_vec(), ..Options::default() };
        let plan = planned(&[stated], false, &Defaults { options, ..Defaults::default() });
        assert_eq!(plan.problems, []);
        let servers = &plan.services.values().next().unwrap().destinations;
        assert_eq!(
            servers.iter().map(|server| server.method).collect::<Vec<_>>(),
            [Method::OwnTunnel, Method::Tunnel, Method::Tunnel, Method::Route, Method::Nat]
        );
    }

    #[test]
    fn a_service_of_kubernetes_keeps_its_frontend_from_a_rule() {
        let plan = planned(&[rule("10.0.0.1", 7, &[]), rule("10.0.0.2", 8, &[])], true, &Defaults::default());
        let origins: Vec<&str> = plan.services.values().map(|service| service.origin.as_str()).collect();
        assert_eq!(origins, ["demo/web:80", "rules:8"]);
        let texts: Vec<String> = plan.problems.iter().map(ToString::to_string).collect();
        let expected =
            "rules:7: rule TCP 10.0.0.1:80: belongs to demo/web:80, which has it until it is deleted, then this rule";
        assert_eq!(texts, [expected]);
    }

    #[test]
    fn beyond_a_limit_a_problem_names_the_rule_and_the_rest_works() {
        let rules =
            [rule("10.0.0.1", 1, &["10.1.0.1", "10.1.0.2"]), rule("10.0.0.2", 4, &[]), rule("10.0.0.3", 5, &[])];
        let plan = planned(
            &rules,
            false,
            &Defaults { max_services: 1, max_destinations_per_service: 1, ..Defaults::default() },
        );
        assert_eq!(plan.services.len(), 1);
        assert_eq!(plan.services.values().next().unwrap().destinations.len(), 1);
        let texts: Vec<String> = plan.problems.iter().map(ToString::to_string).collect();
        assert_eq!(texts.len(), 2, "{texts:?}");
        assert!(texts[0].starts_with("rules:1: rule TCP 10.0.0.1:80: the first 1 of its 2 real servers"), "{texts:?}");
        assert!(
            texts[1].starts_with("rules:4: rule TCP 10.0.0.2:80: this rule and all after it, 2 virtual"),
            "{texts:?}"
        );
    }
}
