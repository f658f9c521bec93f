//! The frontends of services that were removed before this writer started. The maps hold their destinations, but not
//! what they were called; connections still know.

use std::collections::{BTreeMap, BTreeSet};

use lb_common::layout::{DESTINATION_WIDE, ServiceKey};

use super::{
    MapStore, Writer,
    frontend::{Key, Virtual},
};

impl<S: MapStore> Writer<S> {
    /// True if [`Writer::name_removed`] could find something out.
    pub fn has_unnamed(&self) -> bool {
        self.services.values().any(|state| state.virtual_service.is_none())
    }

    /// Takes what connections say of services: id and frontend, in any order, also of others. A removed service whose
    /// frontend is found out so gets its id, destinations and connections back if it returns. Names that contradict each
    /// other, or that another service bears, are not used, and none for services that take more than one address and port:
    /// their connections tell one of these. Returns how many were. To be called before the first apply.
    pub fn name_removed(&mut self, names: impl IntoIterator<Item = (u32, ServiceKey)>) -> u32 {
        let wide = self.records.values().filter(|record| record.flags & DESTINATION_WIDE != 0);
        let wide: BTreeSet<u32> = wide.map(|record| record.service).collect();
        let mut found: BTreeMap<u32, Option<Virtual>> = BTreeMap::new();
        for (id, key) in names {
            let unnamed = self.services.get(&id).is_some_and(|state| state.virtual_service.is_none());
            if unnamed && !wide.contains(&id) {
                let name = Virtual::from_key(&Key::Service(key));
                found.entry(id).and_modify(|known| *known = known.filter(|_| *known == name)).or_insert(name);
            }
        }
        let mut named = 0;
        for (id, name) in found {
            if let (Some(name), Some(state)) = (name, self.services.get_mut(&id))
                && !self.by_virtual.contains_key(&name)
            {
                state.virtual_service = Some(name);
                self.by_virtual.insert(name, id);
                named += 1;
            }
        }
        named
    }
}
