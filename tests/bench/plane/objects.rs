//! Services and slices, as many as wanted.

use std::fmt;
use std::net::Ipv4Addr;

use anyhow::Result;
use lb_userspace::model::{Kind, Object, Origin};
use serde_json::{Value, json};

/// How many there are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) services: u32,
    /// Of each.
    pub(super) endpoints: u32,
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} x {}", self.services, self.endpoints)
    }
}

impl Shape {
    /// Services and their slices, as they are before a source has read them.
    pub(super) fn objects(self) -> Result<(Vec<Object>, Vec<Object>)> {
        let services = (0..self.services).map(|number| object(Kind::Service, self.service(number)));
        let slices = (0..self.services).map(|number| object(Kind::EndpointSlice, self.slice(number, 0)));
        Ok((services.collect::<Result<_>>()?, slices.collect::<Result<_>>()?))
    }

    /// A slice with another first endpoint, for the change of this number: spread over all.
    pub(super) fn changed(self, number: u32) -> Result<Object> {
        object(Kind::EndpointSlice, self.slice(self.spread(number), 1 + number))
    }

    /// Which Service the change of a number is of.
    pub(super) fn spread(self, number: u32) -> u32 {
        (u64::from(number) * 7919 % u64::from(self.services)) as u32
    }

    pub(super) fn service(self, number: u32) -> Value {
        let address = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 96, 0, 0)) + 1 + number).to_string();
        json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"namespace": format!("team-{}", number % 100), "name": format!("service-{number}"),
                         "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"type": "ClusterIP", "clusterIP": address, "clusterIPs": [address], "ipFamilies": ["IPv4"],
                     "ports": [{"name": "web", "port": 80, "protocol": "TCP"}]},
        })
    }

    /// With another first endpoint in each version from 1 on.
    pub(super) fn slice(self, number: u32, version: u32) -> Value {
        let first = u32::from(Ipv4Addr::new(10, 128, 0, 0)) + number * self.endpoints;
        let replaced = u32::from(Ipv4Addr::new(11, 0, 0, 0)) + version;
        let endpoints: Vec<Value> = (0..self.endpoints)
            .map(|place| {
                let address = if place == 0 && version > 0 { replaced } else { first + place };
                json!({"addresses": [Ipv4Addr::from(address).to_string()],
                       "conditions": {"ready": true, "serving": true, "terminating": false},
                       "nodeName": format!("node-{}", address % 1000), "zone": format!("zone-{}", address % 3),
                       "targetRef": {"kind": "Pod", "namespace": format!("team-{}", number % 100),
                                     "name": format!("service-{number}-5d8f7c9b6-{place:05}")}})
            })
            .collect();
        let name = format!("service-{number}");
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"namespace": format!("team-{}", number % 100), "name": format!("{name}-abcde"),
                         "labels": {"kubernetes.io/service-name": name}},
            "ports": [{"name": "web", "port": 8080, "protocol": "TCP"}], "endpoints": endpoints,
        })
    }
}

fn object(kind: Kind, tree: Value) -> Result<Object> {
    Object::identify(kind, tree.into(), Origin::default()).map_err(|problem| anyhow::anyhow!("{problem}"))
}
