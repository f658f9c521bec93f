//! The rules of kube-proxy's nftables mode, as `nft -f` reads them, in several transactions: the kernel looks through all of
//! a transaction for each map without a name (`__nft_set_trans_bind`), and every Service has one.

use std::fmt::Write;
use std::net::SocketAddrV4;

use super::{Cluster, Port, Service, digits, endpoints};

/// Ports of Services in one transaction, and elements that are added by one command.
const AT_ONCE: usize = 500;

/// Base chains, maps and chains that every cluster has. Priorities are kube-proxy's.
const BASE: &str = r#"
	comment "rules for kube-proxy";

	set cluster-ips { type ipv4_addr; comment "Active ClusterIPs"; }
	map no-endpoint-services { type ipv4_addr . inet_proto . inet_service : verdict; }
	map no-endpoint-nodeports { type inet_proto . inet_service : verdict; }
	map firewall-ips { type ipv4_addr . inet_proto . inet_service : verdict; }
	map service-ips { type ipv4_addr . inet_proto . inet_service : verdict; }
	map service-nodeports { type inet_proto . inet_service : verdict; }

	chain mark-for-masquerade { mark set mark or 0x4000; }
	chain masquerading {
		mark and 0x4000 == 0 return
		mark set mark xor 0x4000
		masquerade fully-random
	}
	chain reject-chain { reject; }
	chain cluster-ips-check { ip daddr @cluster-ips reject comment "Reject traffic to invalid ports of ClusterIPs"; }
	chain firewall-check { ip daddr . meta l4proto . th dport vmap @firewall-ips; }
	chain service-endpoints-check { ip daddr . meta l4proto . th dport vmap @no-endpoint-services; }
	chain nodeport-endpoints-check {
		fib daddr type local ip daddr != 127.0.0.0/8 meta l4proto . th dport vmap @no-endpoint-nodeports
	}
	chain services {
		ip daddr . meta l4proto . th dport vmap @service-ips
		fib daddr type local ip daddr != 127.0.0.0/8 meta l4proto . th dport vmap @service-nodeports
	}

	chain filter-prerouting-pre-dnat {
		type filter hook prerouting priority dstnat - 10;
		ct state new jump firewall-check
	}
	chain filter-output-pre-dnat {
		type filter hook output priority -110;
		ct state new jump firewall-check
	}
	chain filter-input {
		type filter hook input priority filter;
		ct state new jump nodeport-endpoints-check
		ct state new jump service-endpoints-check
	}
	chain filter-forward {
		type filter hook forward priority filter;
		ct state new jump service-endpoints-check
		ct state new jump cluster-ips-check
	}
	chain filter-output {
		type filter hook output priority filter;
		ct state new jump service-endpoints-check
		ct state new jump cluster-ips-check
	}
	chain nat-prerouting {
		type nat hook prerouting priority dstnat;
		jump services
	}
	chain nat-output {
		type nat hook output priority -100;
		jump services
	}
	chain nat-postrouting {
		type nat hook postrouting priority srcnat;
		jump masquerading
	}
"#;

/// Table `ip kube-proxy`: what to give to `nft -f`, one after the other. Nothing is reached before the last.
pub fn rules(cluster: &Cluster) -> Vec<String> {
    let mut transactions = vec![format!("table ip kube-proxy {{{BASE}}}\n")];
    let ports: Vec<_> = cluster.ports().collect();
    for some in ports.chunks(AT_ONCE) {
        let mut out = "table ip kube-proxy {\n".to_owned();
        for (service, port, name) in some {
            write_port(cluster, service, port, name, &mut out).expect("writing to a String does not fail");
        }
        transactions.push(out + "}\n");
    }
    let addresses = cluster.services.iter().map(|service| service.address.to_string()).collect();
    let services = ports.iter().map(|(service, port, name)| {
        let protocol = port.protocol.name();
        format!("{} . {protocol} . {} : goto {}", service.address, port.port, chain("service", name))
    });
    let node_ports = ports.iter().filter_map(|(_, port, name)| {
        Some(format!("{} . {} : goto {}", port.protocol.name(), port.node_port?, chain("external", name)))
    });
    let maps: [(_, Vec<String>); 3] =
        [("cluster-ips", addresses), ("service-ips", services.collect()), ("service-nodeports", node_ports.collect())];
    let mut last = String::new();
    for (of, elements) in maps {
        for some in elements.chunks(AT_ONCE) {
            last += &format!("add element ip kube-proxy {of} {{ {} }}\n", some.join(", "));
        }
    }
    transactions.push(last);
    transactions
}

fn write_port(cluster: &Cluster, service: &Service, port: &Port, name: &str, out: &mut String) -> std::fmt::Result {
    let (protocol, mark) = (port.protocol.name(), "jump mark-for-masquerade");
    let chain_of =
        |endpoint: SocketAddrV4| chain("endpoint", &format!("{name}__{}/{}", endpoint.ip(), endpoint.port()));
    for endpoint in endpoints(service, port) {
        writeln!(out, "\tchain {} {{", chain_of(endpoint))?;
        writeln!(out, "\t\tip saddr {} {mark}", endpoint.ip())?;
        writeln!(out, "\t\tmeta l4proto {protocol} dnat to {endpoint}\n\t}}")?;
    }
    writeln!(out, "\tchain {} {{", chain("service", name))?;
    let frontend = format!("ip daddr {} {protocol} dport {}", service.address, port.port);
    writeln!(out, "\t\t{frontend} ip saddr != {} {mark}", cluster.pods)?;
    let verdicts: Vec<String> = endpoints(service, port)
        .enumerate()
        .map(|(place, endpoint)| format!("{place} : goto {}", chain_of(endpoint)))
        .collect();
    writeln!(out, "\t\tnumgen random mod {} vmap {{ {} }}\n\t}}", verdicts.len(), verdicts.join(", "))?;
    if port.node_port.is_some() {
        writeln!(out, "\tchain {} {{\n\t\t{mark}\n\t\tgoto {}\n\t}}", chain("external", name), chain("service", name))?;
    }
    Ok(())
}

/// `service-ABCDEFGH-demo/web/tcp-80`.
fn chain(kind: &str, name: &str) -> String {
    format!("{kind}-{}-{}", digits(name, 8), name.replace(':', "/"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::kube_proxy::tests::cluster;

    /// The rules of a chain.
    fn of_chain<'a>(rules: &'a str, chain: &str) -> Vec<&'a str> {
        let begin = format!("\tchain {chain} {{");
        let after = rules.lines().skip_while(|line| *line != begin).skip(1);
        after.take_while(|line| *line != "\t}").map(str::trim).collect()
    }

    fn verdict(element: &str) -> &str {
        element.split_once(" : goto ").unwrap().1
    }

    #[test]
    fn a_packet_finds_its_endpoint_by_service_and_by_node_port() {
        let rules = rules(&cluster(1)).concat();
        let elements = |of: &str| -> Vec<&str> {
            let begin = format!("add element ip kube-proxy {of} {{ ");
            let line = rules.lines().find_map(|line| line.strip_prefix(&begin)).unwrap();
            line.trim_end_matches(" }").split(", ").collect()
        };
        assert_eq!(elements("cluster-ips"), ["10.96.0.1"]);
        let services = elements("service-ips");
        assert_eq!(services.len(), 2);
        assert!(services[0].starts_with("10.96.0.1 . tcp . 80 : goto service-"), "{services:?}");
        assert!(services[1].starts_with("10.96.0.1 . udp . 53 : goto service-"), "{services:?}");

        let service = of_chain(&rules, verdict(services[0]));
        assert_eq!(service[0], "ip daddr 10.96.0.1 tcp dport 80 ip saddr != 10.1.0.0/16 jump mark-for-masquerade");
        let choices = service[1].strip_prefix("numgen random mod 3 vmap { ").unwrap().trim_end_matches(" }");
        for (place, choice) in choices.split(", ").enumerate() {
            assert!(choice.starts_with(&format!("{place} : goto endpoint-")), "{choice}");
            let number = place + 1;
            assert_eq!(
                of_chain(&rules, verdict(choice)),
                [
                    format!("ip saddr 10.1.1.{number} jump mark-for-masquerade"),
                    format!("meta l4proto tcp dnat to 10.1.1.{number}:8080"),
                ]
            );
        }

        let node_ports = elements("service-nodeports");
        assert_eq!(node_ports.len(), 1);
        assert!(node_ports[0].starts_with("tcp . 30080 : goto external-"), "{node_ports:?}");
        let external = of_chain(&rules, verdict(node_ports[0]));
        assert_eq!(external, ["jump mark-for-masquerade".to_owned(), format!("goto {}", verdict(services[0]))]);
    }

    #[test]
    fn every_chain_that_is_gone_to_is_declared_once_and_before() {
        let rules = rules(&cluster(1_200)).concat();
        let mut declared = BTreeSet::new();
        for line in rules.lines() {
            if let Some(name) = line.strip_prefix("\tchain ") {
                let name = name.split(' ').next().unwrap();
                assert!(declared.insert(name), "{name} is declared twice");
            }
            let used = line.split("goto ").skip(1).map(|rest| rest.split([',', ' ']).next().unwrap());
            for chain in used {
                assert!(declared.contains(chain), "{chain} is not declared before\n{line}");
            }
        }
        assert!(declared.len() > 1_200 * 3);
    }
}
