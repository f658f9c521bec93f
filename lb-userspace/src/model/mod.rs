//! What the user stated: Services, EndpointSlices, Nodes and rules, validated. Past this point nothing is malformed.
//!
//! Sources feed [`Change`]s; each source's state is replaced by its lists, never patched by them. The rule for wrong
//! input, object by object: the smallest part that is wrong keeps its last valid value; a part that never had one is
//! left out (object, address, port, endpoint) or default (annotation), so that the rest serves traffic. Everything
//! that is wrong stands in [`Model::problems`] for as long as it is wrong.

pub(crate) mod address;
pub mod affinity;
pub mod exposure;
pub(crate) mod field;
pub mod frontend;
mod index;
mod names;
pub mod node;
pub mod object;
pub(crate) mod place;
pub mod problem;
pub mod rules;
pub mod service;
pub mod service_cidr;
pub mod slice;
mod source_id;
mod store;
mod stored;
pub mod tree;
pub mod weights;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ipnet::IpNet;

pub use affinity::Affinity;
pub use exposure::{Exposure, ServiceType, TrafficPolicy};
pub use frontend::{AffinityGroup, Frontend, Method, Persistence, Scope, Thresholds};
pub use node::Node;
pub use object::{Kind, Object, ObjectKey, Origin, ServiceName};
pub use problem::{Problem, ProblemLog};
pub use rules::{RuleOptions, RuleOrigin, RuleServer, RuleService, Rules};
pub use service::{SchedulerFlags, Service, ServicePort};
pub use service_cidr::ServiceCidr;
pub use slice::{Endpoint, EndpointSlice, Hints, SlicePort, Trigger};
pub use source_id::SourceId;
pub use weights::Weights;

use names::Names;
use store::Store;
use stored::Stored;

/// Everything that a source has.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct List {
    /// The objects.
    pub objects: Vec<Object>,
    /// Objects whose last version stays: their file cannot be read whole at the moment.
    pub kept: Vec<ObjectKey>,
    /// What is wrong outside of any object.
    pub problems: Vec<Problem>,
    /// True if a part could not be read of which no version was ever read: what it holds is unknown.
    pub gaps: bool,
}

/// What a source has to tell.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// A list begins anew: nothing holds of what was told of one that never became whole.
    Begin,
    /// These objects are in the list that is being told. One of very many is told in parts.
    Part(Vec<Object>),
    /// This is all there is, with the parts that were told of it. A source's first one completes it.
    Replace(List),
    /// An object is new or different.
    Upsert(Object),
    /// An object is gone. Unknown ones are no error.
    Delete(ObjectKey),
    /// These are all rules there are. A source's first ones complete it.
    Rules(Rules),
}

/// What is not as it was.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Services that changed, or one of whose slices did.
    pub services: BTreeSet<ServiceName>,
    /// Whether rules did.
    pub rules: bool,
}

/// The state of all sources.
#[derive(Debug, Default)]
pub struct Model {
    sources: BTreeMap<SourceId, Source>,
    names: Names,
    rules_changed: bool,
}

#[derive(Debug, Default)]
struct Source {
    complete: bool,
    gaps: bool,
    problems: Vec<Problem>,
    services: Store<Service>,
    slices: Store<EndpointSlice>,
    nodes: Store<Node>,
    service_cidrs: Store<ServiceCidr>,
    rules: Vec<RuleService>,
}

impl Model {
    /// A model without sources.
    pub fn new() -> Self {
        Self::default()
    }

    /// Announces a source: the model is not complete before its first list.
    pub fn expect(&mut self, source: SourceId) {
        self.sources.entry(source).or_default();
    }

    /// True when every source has delivered its first list. Nothing may be programmed before.
    pub fn is_complete(&self) -> bool {
        self.sources.values().all(|source| source.complete)
    }

    /// The sources that have not delivered their first list.
    pub fn missing(&self) -> Vec<SourceId> {
        self.sources.iter().filter(|(_, source)| !source.complete).map(|(id, _)| *id).collect()
    }

    /// True while a source has parts that it could never read: what an earlier agent programmed from them is unknown,
    /// so services that nobody states must not be deleted yet.
    pub fn has_gaps(&self) -> bool {
        self.sources.values().any(|source| source.gaps || source.unreadable())
    }

    /// Takes what a source has to tell. Returns the objects of which another version holds now, or none any more.
    pub fn change(&mut self, source: SourceId, change: Change) -> Vec<ObjectKey> {
        match change {
            Change::Begin => {
                self.begin(source);
                Vec::new()
            }
            Change::Part(objects) => {
                self.list(source, objects);
                Vec::new()
            }
            Change::Replace(list) => self.replace(source, list),
            Change::Upsert(object) => {
                let key = object.key.clone();
                self.apply(source, object).then_some(key).into_iter().collect()
            }
            Change::Delete(key) => self.delete(source, &key).then_some(key).into_iter().collect(),
            Change::Rules(rules) => {
                let source = self.sources.entry(source).or_default();
                source.complete = true;
                source.gaps = rules.gaps;
                source.problems = rules.problems;
                self.rules_changed |= source.rules != rules.services;
                source.rules = rules.services;
                Vec::new()
            }
        }
    }

    /// Takes a new or changed object. True if another version holds now.
    pub fn apply(&mut self, source: SourceId, mut object: Object) -> bool {
        self.names.share(&mut object.key.namespace);
        let source = self.sources.entry(source).or_default();
        match object.key.kind {
            Kind::Service => source.services.apply(&object, Service::read, &mut self.names),
            Kind::EndpointSlice => source.slices.apply(&object, EndpointSlice::read, &mut self.names),
            Kind::Node => source.nodes.apply(&object, Node::read, &mut self.names),
            Kind::ServiceCidr => source.service_cidrs.apply(&object, ServiceCidr::read, &mut self.names),
        }
    }

    /// Forgets an object. True if there was one.
    pub fn delete(&mut self, source: SourceId, key: &ObjectKey) -> bool {
        let source = self.sources.entry(source).or_default();
        match key.kind {
            Kind::Service => source.services.delete(key),
            Kind::EndpointSlice => source.slices.delete(key),
            Kind::Node => source.nodes.delete(key),
            Kind::ServiceCidr => source.service_cidrs.delete(key),
        }
    }

    fn begin(&mut self, source: SourceId) {
        let source = self.sources.entry(source).or_default();
        source.services.begin_list();
        source.slices.begin_list();
        source.nodes.begin_list();
        source.service_cidrs.begin_list();
    }

    fn list(&mut self, source: SourceId, objects: Vec<Object>) {
        let (source, names) = (self.sources.entry(source).or_default(), &mut self.names);
        for mut object in objects {
            names.share(&mut object.key.namespace);
            match object.key.kind {
                Kind::Service => source.services.list(&object, Service::read, names),
                Kind::EndpointSlice => source.slices.list(&object, EndpointSlice::read, names),
                Kind::Node => source.nodes.list(&object, Node::read, names),
                Kind::ServiceCidr => source.service_cidrs.list(&object, ServiceCidr::read, names),
            }
        }
    }

    /// Replaces everything that a source had. Returns the objects of which another version holds now, or none any more.
    pub fn replace(&mut self, source: SourceId, list: List) -> Vec<ObjectKey> {
        self.list(source, list.objects);
        let source = self.sources.entry(source).or_default();
        source.complete = true;
        source.gaps = list.gaps;
        source.problems = list.problems;
        let mut changed = Vec::new();
        source.services.end_list(&list.kept, &mut changed);
        source.slices.end_list(&list.kept, &mut changed);
        source.nodes.end_list(&list.kept, &mut changed);
        source.service_cidrs.end_list(&list.kept, &mut changed);
        changed
    }

    /// What has changed since this was asked last.
    pub fn take_changes(&mut self) -> Changes {
        let mut changes = Changes { rules: std::mem::take(&mut self.rules_changed), ..Changes::default() };
        let mut slices = BTreeSet::new();
        for source in self.sources.values_mut() {
            changes.services.append(&mut source.services.take_changed().1);
            let (mut keys, mut services) = source.slices.take_changed();
            slices.append(&mut keys);
            changes.services.append(&mut services);
        }
        // A slice that is gone may have hidden another source's, of another Service.
        let versions = slices.iter().flat_map(|key| self.sources.values().filter_map(|source| source.slices.get(key)));
        changes.services.extend(versions.filter_map(Stored::service));
        changes
    }

    /// A slice as a source states it, whether or not another source's holds.
    pub fn slice(&self, source: SourceId, key: &ObjectKey) -> Option<&EndpointSlice> {
        self.sources.get(&source)?.slices.get(key)
    }

    /// All Services, by namespace and name.
    pub fn services(&self) -> impl Iterator<Item = &Service> {
        self.merged(|source| &source.services).into_values()
    }

    /// All EndpointSlices, by namespace and name.
    pub fn slices(&self) -> impl Iterator<Item = &EndpointSlice> {
        self.merged(|source| &source.slices).into_values()
    }

    /// Every Service that is stated, and every one that slices name, in order.
    pub fn service_names(&self) -> BTreeSet<ServiceName> {
        let of_services = self.sources.values().flat_map(|source| source.services.iter());
        let of_slices = self.sources.values().flat_map(|source| source.slices.services_of());
        of_services.filter_map(|(_, service)| service.service()).chain(of_slices.cloned()).collect()
    }

    /// A Service.
    pub fn service(&self, name: &ServiceName) -> Option<&Service> {
        let key = name.key();
        self.sources.values().find_map(|source| source.services.get(&key))
    }

    /// The EndpointSlices of a Service, by namespace and name.
    pub fn slices_of(&self, name: &ServiceName) -> Vec<&EndpointSlice> {
        let mut found = BTreeMap::new();
        for (id, source) in &self.sources {
            for (key, slice) in source.slices.of_service(name) {
                let hidden = self.sources.range(..*id).any(|(_, lower)| lower.slices.get(key).is_some());
                if !hidden {
                    found.insert(key, slice);
                }
            }
        }
        found.into_values().collect()
    }

    /// All rules, source by source, in their order.
    pub fn rules(&self) -> impl Iterator<Item = &RuleService> {
        self.sources.values().flat_map(|source| &source.rules)
    }

    /// What is known of the node with this name.
    pub fn node(&self, name: &str) -> Node {
        let key = ObjectKey { kind: Kind::Node, namespace: Arc::default(), name: name.into() };
        let known = self.sources.values().find_map(|source| source.nodes.get(&key));
        known.cloned().unwrap_or_else(|| Node::named(name))
    }

    /// The networks that addresses of Services are taken from, as far as that is stated.
    pub fn service_networks(&self) -> BTreeSet<IpNet> {
        let cidrs = self.sources.values().flat_map(|source| source.service_cidrs.iter());
        cidrs.flat_map(|(_, cidr)| cidr.networks.iter().map(IpNet::trunc)).collect()
    }

    /// Everything that is wrong now, of all sources.
    pub fn problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        for source in self.sources.values() {
            problems.extend_from_slice(&source.problems);
            problems.extend(source.services.problems().cloned());
            problems.extend(source.slices.problems().cloned());
            problems.extend(source.nodes.problems().cloned());
            problems.extend(source.service_cidrs.problems().cloned());
        }
        self.report_shared(|source| &source.services, |service| &service.origin, &mut problems);
        self.report_shared(|source| &source.slices, |slice| &slice.origin, &mut problems);
        problems
    }

    fn merged<'a, T: Stored + 'a>(
        &'a self,
        store: impl Fn(&'a Source) -> &'a Store<T>,
    ) -> BTreeMap<&'a ObjectKey, &'a T> {
        let mut merged = BTreeMap::new();
        for source in self.sources.values() {
            for (key, object) in store(source).iter() {
                merged.entry(key).or_insert(object);
            }
        }
        merged
    }

    /// Notes the objects that several sources state.
    fn report_shared<T: Stored>(
        &self,
        store: impl Fn(&Source) -> &Store<T>,
        origin: impl Fn(&T) -> &Origin,
        problems: &mut Vec<Problem>,
    ) {
        if self.sources.values().filter(|source| !store(source).is_empty()).count() < 2 {
            return;
        }
        let mut seen: BTreeMap<&ObjectKey, &T> = BTreeMap::new();
        for source in self.sources.values() {
            for (key, object) in store(source).iter() {
                if let Some(first) = seen.get(key) {
                    problems.push(store::stated_twice(key, origin(object), origin(first)));
                } else {
                    seen.insert(key, object);
                }
            }
        }
    }
}

impl Source {
    fn unreadable(&self) -> bool {
        self.services.unreadable() || self.slices.unreadable()
    }
}

#[cfg(test)]
mod tests;
