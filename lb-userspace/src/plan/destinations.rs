//! From the slices of a Service to the destinations of one of its ports.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::{DesiredDestination, Thresholds, weight};
use crate::model::{Endpoint, EndpointSlice, Service, ServicePort};

/// Destinations of a port for one family: every ready endpoint, or, if there is none, every endpoint that still
/// serves while it terminates (SEL-3).
pub(super) fn of(
    service: &Service,
    port: &ServicePort,
    v4: bool,
    slices: &[&EndpointSlice],
) -> Vec<DesiredDestination> {
    let mut found: BTreeMap<(IpAddr, u16), (&Endpoint, i32)> = BTreeMap::new();
    for slice in slices {
        for slice_port in slice.ports.iter().filter(|other| other.name == port.name && other.protocol == port.protocol)
        {
            for endpoint in slice.endpoints.iter().filter(|endpoint| endpoint.address.is_ipv4() == v4) {
                let candidate = (endpoint, weight::of(service, slice, endpoint));
                let known = found.entry((endpoint.address, slice_port.port)).or_insert(candidate);
                if precedence(candidate.0) >= precedence(known.0) {
                    *known = candidate;
                }
            }
        }
    }
    let select = |wanted: fn(&Endpoint) -> bool| -> Vec<_> {
        let selected = found.iter().filter(|(_, (endpoint, _))| wanted(endpoint));
        selected
            .map(|(&(address, port), &(_, weight))| DesiredDestination {
                address,
                port,
                weight,
                thresholds: Thresholds::default(),
            })
            .collect()
    };
    let ready = select(|endpoint| endpoint.ready);
    if ready.is_empty() { select(|endpoint| endpoint.serving && endpoint.terminating) } else { ready }
}

/// Which of two statements about one address holds: the one that does not terminate (EP-10), then the one that is
/// ready, then the one that serves. Among equals the last slice by name, so that the order of arrival is irrelevant.
fn precedence(endpoint: &Endpoint) -> (bool, bool, bool) {
    (!endpoint.terminating, endpoint.ready, endpoint.serving)
}
