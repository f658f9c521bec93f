//! What the kinds of objects have in common: the Service that one may belong to, and names that many state.

use super::names::Names;
use super::{EndpointSlice, Kind, Node, Service, ServiceCidr, ServiceName};

/// An object that may belong to a Service.
pub(super) trait Stored: PartialEq {
    /// Its kind.
    const KIND: Kind;
    /// Whether the Service cannot be told from the object's key, so that an index is kept.
    const INDEXED: bool;

    /// The Service that this version belongs to.
    fn service(&self) -> Option<ServiceName>;

    /// Shares the names that other objects state too.
    fn share(&mut self, _names: &mut Names) {}
}

impl Stored for Service {
    const KIND: Kind = Kind::Service;
    const INDEXED: bool = false;

    fn service(&self) -> Option<ServiceName> {
        Some(ServiceName { namespace: self.namespace.clone(), name: self.name.clone() })
    }

    fn share(&mut self, names: &mut Names) {
        self.ports.iter_mut().for_each(|port| names.share(&mut port.name));
    }
}

impl Stored for EndpointSlice {
    const KIND: Kind = Kind::EndpointSlice;
    const INDEXED: bool = true;

    fn service(&self) -> Option<ServiceName> {
        Some(ServiceName { namespace: self.namespace.clone(), name: self.service.clone() })
    }

    fn share(&mut self, names: &mut Names) {
        self.ports.iter_mut().for_each(|port| names.share(&mut port.name));
        for endpoint in &mut self.endpoints {
            endpoint.node.iter_mut().chain(&mut endpoint.zone).for_each(|name| names.share(name));
            if let Some(hints) = &mut endpoint.hints {
                hints.zones.iter_mut().chain(&mut hints.nodes).for_each(|name| names.share(name));
            }
        }
    }
}

impl Stored for ServiceCidr {
    const KIND: Kind = Kind::ServiceCidr;
    const INDEXED: bool = false;

    fn service(&self) -> Option<ServiceName> {
        None
    }
}

impl Stored for Node {
    const KIND: Kind = Kind::Node;
    const INDEXED: bool = false;

    fn service(&self) -> Option<ServiceName> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Endpoint;

    /// There are tens of thousands of them.
    #[test]
    fn objects_are_no_larger_than_they_were() {
        assert!(size_of::<Service>() <= 176, "Service: {}", size_of::<Service>());
        assert!(size_of::<EndpointSlice>() <= 160, "EndpointSlice: {}", size_of::<EndpointSlice>());
        assert!(size_of::<Endpoint>() <= 80, "Endpoint: {}", size_of::<Endpoint>());
    }
}
