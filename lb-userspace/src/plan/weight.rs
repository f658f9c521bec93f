//! Which of the stated weights an endpoint has.

use crate::model::weights::DEFAULT_WEIGHT;
use crate::model::{Endpoint, EndpointSlice, Service};

/// The most specific statement holds: the Service's about the pod, about the node, about the zone, then the slice's,
/// then 1.
pub(super) fn of(service: &Service, slice: &EndpointSlice, endpoint: &Endpoint) -> i32 {
    let (pod, node, zone) = (endpoint.pod.as_deref(), endpoint.node.as_deref(), endpoint.zone.as_deref());
    service.weights.of(pod, node, zone).or(slice.weight).unwrap_or(DEFAULT_WEIGHT)
}
