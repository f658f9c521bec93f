//! What edits do to the three. One edit is one plan; the plan of several is, to IPVS, a sequence of `ipvsadm` calls:
//! scheduler, deletions in list order, weights ascending by address, additions ascending by address.

use anyhow::{Result, ensure};

use crate::{
    event::{Choice, Event},
    host,
    world::{World, model_flags},
};

impl World {
    pub(crate) fn edit(&mut self, event: &Event) -> Result<()> {
        match event {
            &Event::Weight { service, server, weight } => {
                self.set_weight(service, server, weight);
                self.apply(None)
            }
            &Event::Add { service, server, weight } => {
                self.add(service, server, weight);
                self.apply(None)
            }
            &Event::Delete { service, server } => {
                self.delete(service, server);
                self.apply(None)
            }
            &Event::Switch { service, choice } => {
                self.switch(service, choice);
                self.apply(None)
            }
            Event::Replace { service, choice, servers } => self.replace(*service, *choice, servers),
            &Event::Recreate { service } => self.recreate(service),
            Event::Request { .. } | Event::Reply { .. } | Event::Wait { .. } | Event::Forget { .. } => {
                anyhow::bail!("{event} is no edit")
            }
        }
    }

    fn set_weight(&mut self, service: usize, server: u32, weight: i32) {
        let service = &mut self.services[service];
        // What changes nothing is no edit to the writer.
        if service.servers.insert(server, weight) != Some(weight) {
            service.model.edit(server, weight).expect("the generator edits servers of the list");
            service.host.edit(server, weight);
        }
    }

    fn add(&mut self, service: usize, server: u32, weight: i32) {
        let address = self.server(server);
        let service = &mut self.services[service];
        service.servers.insert(server, weight);
        service.model.add(server, address, crate::world::SERVER_PORT, weight).expect("the generator adds new servers");
        service.host.add(server, address, weight);
    }

    fn delete(&mut self, service: usize, server: u32) {
        let service = &mut self.services[service];
        service.servers.remove(&server);
        service.model.delete(server).expect("the generator deletes servers of the list");
        service.host.delete(server);
    }

    fn switch(&mut self, service: usize, choice: Choice) {
        let service = &mut self.services[service];
        service.choice = choice;
        service.model.switch(choice.scheduler.name(), model_flags(&choice)).expect("the model knows every scheduler");
        service.host.switch(choice.scheduler, host::flags(choice.port, choice.fallback));
    }

    fn replace(&mut self, service: usize, choice: Choice, servers: &[(u32, i32)]) -> Result<()> {
        self.switch(service, choice);
        let wanted = |server| servers.iter().find(|(other, _)| *other == server).map(|(_, weight)| *weight);
        let list: Vec<u32> = self.services[service].model.list().iter().map(|server| server.id).collect();
        for &server in list.iter().filter(|server| wanted(**server).is_none()) {
            self.delete(service, server);
        }
        let mut ascending = servers.to_vec();
        ascending.sort_unstable();
        for &(server, weight) in ascending.iter().filter(|(server, _)| list.contains(server)) {
            self.set_weight(service, server, weight);
        }
        for &(server, weight) in ascending.iter().filter(|(server, _)| !list.contains(server)) {
            self.add(service, server, weight);
        }
        self.apply(None)
    }

    /// Deletes a service and creates it again: the scheduler starts anew, servers return with their connections.
    fn recreate(&mut self, number: usize) -> Result<()> {
        self.apply(Some(number))?;
        let frontend = self.services[number].frontend;
        ensure!(self.datapath.service(&frontend)?.is_none(), "a removed service is still programmed");
        let servers = std::mem::take(&mut self.services[number].servers);
        let service = &mut self.services[number];
        for &server in servers.keys() {
            service.model.delete(server).expect("the model has the same servers");
        }
        // Another scheduler for a moment, so that this one starts anew.
        let name = service.choice.scheduler.name();
        let other = if name == "lc" { "wlc" } else { "lc" };
        for scheduler in [other, name] {
            service.model.switch(scheduler, model_flags(&service.choice)).expect("the model knows every scheduler");
        }
        service.host.recreate();
        for (server, weight) in servers {
            self.add(number, server, weight);
        }
        self.apply(None)
    }
}
