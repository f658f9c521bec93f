//! JSON: the rows under one key, with what they need to be read. Field names are stable.

use serde::Serialize;
use serde_json::{Value, json};

use crate::kernel::probe::Probe;
use crate::model::Rules;
use crate::view::connections::ConnectionRow;
use crate::view::maps::MapRow;
use crate::view::services::ServiceRow;

/// What the traffic fields of `bpvs list` are.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Traffic {
    /// Totals since the destination was programmed.
    Totals,
    /// Per second, over this many seconds.
    Rates(f64),
}

/// `bpvs list -o json`.
pub fn services(rows: &[ServiceRow], size: u32, traffic: Traffic) -> String {
    let mut document = json!({ "version": env!("CARGO_PKG_VERSION"), "size": size, "services": rows });
    document["traffic_unit"] = match traffic {
        Traffic::Totals => Value::from("total"),
        Traffic::Rates(seconds) => {
            document["interval_seconds"] = Value::from(seconds);
            Value::from("per_second")
        }
    };
    print(&document)
}

/// `bpvs connections -o json`.
pub fn connections(rows: &[ConnectionRow]) -> String {
    print(&json!({ "connections": rows }))
}

/// `bpvs maps -o json`.
pub fn maps(rows: &[MapRow]) -> String {
    print(&json!({ "maps": rows }))
}

/// `bpvs check -o json`, with what it found in a file of rules.
pub fn check(rows: &[Probe], rules: Option<&Rules>) -> String {
    let mut document = json!({ "features": rows });
    if let Some(rules) = rules {
        let servers: usize = rules.services.iter().map(|service| service.servers.len()).sum();
        let problems: Vec<String> = rules.problems.iter().map(ToString::to_string).collect();
        document["rules"] = json!({ "services": rules.services.len(), "real_servers": servers, "problems": problems });
    }
    print(&document)
}

fn print(document: &impl Serialize) -> String {
    let mut text = serde_json::to_string_pretty(document).unwrap_or_default();
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::testing::{connection_rows, scoped_rows, service_rows};

    #[test]
    fn services_keep_their_field_names() {
        let document: Value = serde_json::from_str(&services(&service_rows(), 65_536, Traffic::Totals)).unwrap();
        assert_eq!(document["size"], 65_536);
        assert_eq!(document["traffic_unit"], "total");
        let service = &document["services"][0];
        assert_eq!(
            (&service["protocol"], &service["address"], &service["port"]),
            (&json!("TCP"), &json!("10.96.0.1"), &json!(80))
        );
        assert_eq!(
            (&service["scheduler"], &service["scheduler_flags"]),
            (&json!("sh"), &json!(["sh-fallback", "sh-port"]))
        );
        assert_eq!(
            service["destinations"][0],
            json!({
                "address": "192.168.60.1", "port": 8080, "forward": "Masq", "weight": 1,
                "thresholds": { "upper": 0, "lower": 0 },
                "active_connections": 2, "inactive_connections": 0,
                "traffic": { "connections": 44, "in_packets": 123_456_789, "out_packets": 7, "in_bytes": 5_000_000_000_u64, "out_bytes": 1 },
            })
        );
    }

    #[test]
    fn options_of_services_have_fields_of_their_own() {
        let document: Value = serde_json::from_str(&services(&scoped_rows(), 1, Traffic::Totals)).unwrap();
        let field = |index: usize, name: &str| document["services"][index][name].clone();
        assert_eq!(field(0, "scope"), json!("address"));
        assert_eq!(field(2, "scope"), json!({ "prefix": 8 }));
        assert_eq!(field(4, "scope"), json!({ "mark": 1 }));
        assert_eq!((field(4, "protocol"), field(5, "address")), (json!("FWM"), json!("::")));
        assert_eq!(field(0, "persistence"), json!({ "timeout_seconds": 360, "netmask": 24 }));
        assert_eq!(field(2, "persistence"), Value::Null);
        assert_eq!((field(0, "one_packet"), field(1, "one_packet")), (json!(false), json!(true)));
        let server = &field(0, "destinations")[0];
        assert_eq!(server["thresholds"], json!({ "upper": 100, "lower": 80 }));
        assert_eq!(server["persistent_connections"], 2);
    }

    #[test]
    fn rates_say_over_which_time_they_were_taken() {
        let document: Value = serde_json::from_str(&services(&[], 1, Traffic::Rates(1.5))).unwrap();
        assert_eq!((&document["traffic_unit"], &document["interval_seconds"]), (&json!("per_second"), &json!(1.5)));
    }

    #[test]
    fn connections_keep_their_field_names() {
        let document: Value = serde_json::from_str(&connections(&connection_rows())).unwrap();
        assert_eq!(
            document["connections"][0],
            json!({
                "protocol": "TCP", "expires_seconds": 897, "state": "ESTABLISHED",
                "source": { "address": "10.1.2.3:1006" }, "virtual_address": "10.96.0.1:80",
                "destination": "192.168.60.1:8080", "inactive": false,
            })
        );
        assert_eq!(document["connections"][1]["source"], json!({ "socket": 77 }));
        assert_eq!(document["connections"][1]["expires_seconds"], Value::Null);
    }
}
