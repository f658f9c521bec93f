//! The servers of a service: the list (newest first), and those deleted, which IPVS keeps in its trash (spec 1.3, 1.5).

use std::{collections::HashMap, net::IpAddr};

use super::{Id, Refusal};

/// One server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Server {
    /// Its name in the test.
    pub id: Id,
    /// Its address.
    pub address: IpAddr,
    /// Its port.
    pub port: u16,
    /// Its weight, from 0.
    pub weight: i32,
    /// The weight it was added with, then the last one above 0.
    pub last_weight: i32,
    /// In the list, not in the trash.
    pub available: bool,
    /// Active connections.
    pub active: i32,
    /// Inactive connections.
    pub inactive: i32,
}

/// The list and the trash.
#[derive(Clone, Debug, Default)]
pub struct Servers {
    order: Vec<Id>,
    all: HashMap<Id, Server>,
}

impl Servers {
    /// The list, newest first.
    pub fn list(&self) -> Vec<Server> {
        self.order.iter().map(|id| self.all[id]).collect()
    }

    /// A server, in the list or in the trash.
    ///
    /// IPVS frees a trashed server when nothing refers to it any more. It has no connections then and is in no cache,
    /// so keeping it for ever cannot be told apart.
    pub fn get(&self, id: Id) -> Option<Server> {
        self.all.get(&id).copied()
    }

    /// A server whose connections a test moves.
    pub(super) fn known(&mut self, id: Id) -> &mut Server {
        self.all.get_mut(&id).unwrap_or_else(|| panic!("server {id} was never added"))
    }

    /// The server before this one in the list.
    pub(super) fn before(&self, id: Id) -> Option<Id> {
        let place = self.order.iter().position(|&other| other == id)?;
        if place == 0 { None } else { Some(self.order[place - 1]) }
    }

    pub(super) fn add(&mut self, id: Id, address: IpAddr, port: u16, weight: i32) -> Result<(), Refusal> {
        if weight < 0 {
            return Err(Refusal::WeightOutOfRange);
        }
        for other in self.all.values() {
            let same_place = (other.address, other.port) == (address, port);
            if (other.id == id) != same_place || (other.id == id && other.available) {
                return Err(Refusal::Exists);
            }
        }
        let (active, inactive) = self.get(id).map_or((0, 0), |trashed| (trashed.active, trashed.inactive));
        self.all
            .insert(id, Server { id, address, port, weight, last_weight: weight, available: true, active, inactive });
        self.order.insert(0, id);
        Ok(())
    }

    pub(super) fn edit(&mut self, id: Id, weight: i32) -> Result<(), Refusal> {
        if weight < 0 {
            return Err(Refusal::WeightOutOfRange);
        }
        let server = self.listed(id)?;
        server.weight = weight;
        if weight != 0 {
            server.last_weight = weight;
        }
        Ok(())
    }

    pub(super) fn delete(&mut self, id: Id) -> Result<(), Refusal> {
        self.listed(id)?.available = false;
        self.order.retain(|&other| other != id);
        Ok(())
    }

    fn listed(&mut self, id: Id) -> Result<&mut Server, Refusal> {
        self.all.get_mut(&id).filter(|s| s.available).ok_or(Refusal::Missing)
    }
}
