//! Virtual services by what packets must match. Whoever keeps one shares it: the plan, what is programmed, what metrics name.

use std::collections::BTreeMap;
use std::ops::{Deref, Index};
use std::sync::Arc;

use super::{DesiredService, Frontend};

/// Virtual services, each at its frontend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Services(BTreeMap<Frontend, Arc<DesiredService>>);

impl Services {
    /// Takes a service, in place of the one that the frontend had.
    pub fn insert(
        &mut self,
        frontend: Frontend,
        service: impl Into<Arc<DesiredService>>,
    ) -> Option<Arc<DesiredService>> {
        self.0.insert(frontend, service.into())
    }

    /// Takes a service, unless the frontend has one.
    pub fn insert_missing(&mut self, frontend: Frontend, service: &Arc<DesiredService>) {
        self.0.entry(frontend).or_insert_with(|| service.clone());
    }

    /// Gives the service of a frontend away.
    pub fn remove(&mut self, frontend: &Frontend) -> Option<Arc<DesiredService>> {
        self.0.remove(frontend)
    }

    /// Keeps those alone that are to be kept.
    pub fn retain(&mut self, mut keep: impl FnMut(&Frontend, &DesiredService) -> bool) {
        self.0.retain(|frontend, service| keep(frontend, service));
    }

    /// The service of a frontend, to be edited: one that others have too is theirs as it was.
    pub fn get_mut(&mut self, frontend: &Frontend) -> Option<&mut DesiredService> {
        self.0.get_mut(frontend).map(Arc::make_mut)
    }

    /// All services, to be edited: one that others have too is theirs as it was.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut DesiredService> {
        self.0.values_mut().map(Arc::make_mut)
    }

    /// All services with their frontends, likewise.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&Frontend, &mut DesiredService)> {
        self.0.iter_mut().map(|(frontend, service)| (frontend, Arc::make_mut(service)))
    }

    /// After very many changes: without the gaps that they left.
    pub(super) fn compact(&mut self) {
        self.0 = std::mem::take(&mut self.0).into_iter().collect();
    }
}

impl Deref for Services {
    type Target = BTreeMap<Frontend, Arc<DesiredService>>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl Index<&Frontend> for Services {
    type Output = DesiredService;

    fn index(&self, frontend: &Frontend) -> &DesiredService {
        &self.0[frontend]
    }
}

impl<S: Into<Arc<DesiredService>>> Extend<(Frontend, S)> for Services {
    fn extend<I: IntoIterator<Item = (Frontend, S)>>(&mut self, services: I) {
        self.0.extend(services.into_iter().map(|(frontend, service)| (frontend, service.into())));
    }
}

impl<S: Into<Arc<DesiredService>>> FromIterator<(Frontend, S)> for Services {
    fn from_iter<I: IntoIterator<Item = (Frontend, S)>>(services: I) -> Self {
        let mut all = Self::default();
        all.extend(services);
        all
    }
}

impl<S: Into<Arc<DesiredService>>, const N: usize> From<[(Frontend, S); N]> for Services {
    fn from(services: [(Frontend, S); N]) -> Self {
        services.into_iter().collect()
    }
}

impl<'a> IntoIterator for &'a Services {
    type Item = (&'a Frontend, &'a Arc<DesiredService>);
    type IntoIter = std::collections::btree_map::Iter<'a, Frontend, Arc<DesiredService>>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lb_common::address::Protocol;
    use lb_common::scheduler::Scheduler;

    #[test]
    fn a_service_that_is_edited_stays_as_it_was_for_those_who_share_it() {
        let frontend = Frontend::new([10, 0, 0, 1].into(), 80, Protocol::Tcp);
        let mut services: Services = [(frontend, DesiredService::new("web", Scheduler::RoundRobin, Vec::new()))].into();
        let shared = services.clone();
        services.values_mut().for_each(|service| service.hash_port = true);
        assert!(services[&frontend].hash_port && !shared[&frontend].hash_port);
        services.insert_missing(frontend, &shared.0[&frontend]);
        assert!(services[&frontend].hash_port);
    }
}
