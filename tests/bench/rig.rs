//! The real programs behind the driver, and what a packet costs in them.

use std::net::SocketAddr;

use anyhow::{Context, Result, bail, ensure};
use aya::{Ebpf, programs::SchedClassifier};
use bpvs_tests::datapath::{Datapath, Hook, NEXT, Sizes};
use lb_common::{
    address::Protocol,
    layout::{DestinationLoad, Traffic},
    scheduler::Scheduler,
};
use lb_userspace::{
    datapath::MapStore,
    plan::{DesiredDestination, DesiredService, Frontend, Plan},
};

use crate::{
    control::{AT_RANDOM, Control, IN_ORDER, TEMPLATE},
    driver::{self, median},
    packets::Template,
};

const EMPTY: u32 = 0;
const INGRESS: u32 = 1;
const EGRESS: u32 = 2;

/// Which flows packets belong to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Flows {
    /// Each packet to the next one, from this number on.
    Fresh(u64),
    /// Any of the first so many; 1 is one hot flow.
    Any(u32),
}

/// How often to measure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    /// Measurements, of which the median counts.
    pub(crate) batches: u32,
    /// Runs in each.
    pub(crate) runs: u32,
}

impl Effort {
    /// Runs of all batches.
    pub(crate) fn total(self) -> u32 {
        self.batches * self.runs
    }
}

/// Loaded programs with the driver in front of them.
pub(crate) struct Rig {
    datapath: Datapath,
    bench: Ebpf,
}

impl Rig {
    /// Loads everything, with room for so many connections.
    pub(crate) fn load(connections: u32) -> Result<Self> {
        let datapath = Datapath::load(Sizes {
            connections: connections * 2,
            slots: 1 << 20,
            destinations: 1 << 17,
            services: 1 << 10,
            service_ids: 1 << 11,
            ..Sizes::default()
        })?;
        let mut bench = driver::open(&[])?;
        driver::load(&mut bench, "bench_packet")?;
        let empty = driver::load(&mut bench, "bench_empty")?.fd()?.try_clone()?;
        driver::set_target(&mut bench, EMPTY, &empty)?;
        for (target, hook) in [(INGRESS, Hook::Ingress), (EGRESS, Hook::Egress)] {
            driver::set_target(&mut bench, target, driver::program(datapath.object(), hook.program())?.fd()?)?;
        }
        Ok(Self { datapath, bench })
    }

    /// The object of bpvs.
    pub(crate) fn object(&self) -> &Ebpf {
        self.datapath.object()
    }

    /// Instructions that the verifier went through for a program.
    pub(crate) fn verified(&self, name: &str) -> Result<u32> {
        for object in [self.object(), &self.bench] {
            if object.program(name).is_some() {
                let program: &SchedClassifier = driver::program(object, name)?;
                return program.info()?.verified_instruction_count().context("needs Linux 5.16 to tell");
            }
        }
        bail!("there is no program {name}")
    }

    /// Programmes one service and nothing else.
    pub(crate) fn serve(
        &mut self,
        frontend: SocketAddr,
        protocol: Protocol,
        scheduler: Scheduler,
        servers: impl Iterator<Item = SocketAddr>,
    ) -> Result<Served> {
        // A server of ovf takes no more connections than its weight, and one: here they never end.
        let base = if scheduler == Scheduler::Overflow { 1 << 24 } else { 1 };
        let destinations = servers
            .enumerate()
            // Weights differ, but each is within the reach of a few: a wrr with all weights equal is an rr.
            .map(|(number, server)| DesiredDestination::new(server.ip(), server.port(), base + (number % 4) as i32))
            .collect();
        let key = Frontend::new(frontend.ip(), frontend.port(), protocol);
        let desired = DesiredService::new("bench/service", scheduler, destinations);
        let plan = Plan { services: [(key, desired)].into(), ..Plan::default() };
        if let Err(errors) = self.datapath.apply(&plan) {
            bail!("programming {key:?}: {}", errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "));
        }
        let service = self.datapath.service(&key)?.context("the service is not programmed")?;
        let slots = self.datapath.writer().store().slots(service.set_base, service.set_length)?;
        Ok(Served { ids: slots.iter().map(|slot| slot.destination).collect() })
    }

    /// Gives every destination a few active connections, so that schedulers have something to compare and never-queue
    /// finds nobody idle, which is its dear case.
    pub(crate) fn spread_load(&mut self, served: &Served) -> Result<()> {
        for (number, &id) in served.ids.iter().enumerate() {
            let load = DestinationLoad {
                connections: DestinationLoad::ONE_ACTIVE * (1 + number as u64 % 5),
                ..DestinationLoad::default()
            };
            self.datapath.set_destination_load(id, load)?;
        }
        Ok(())
    }

    /// Removes every connection.
    pub(crate) fn forget(&mut self) -> Result<()> {
        for (key, _) in self.datapath.connections()? {
            self.datapath.remove_connection(key)?;
        }
        Ok(())
    }

    /// The traffic of a service.
    pub(crate) fn traffic(&self, served: &Served) -> Result<Traffic> {
        served.ids.iter().try_fold(Traffic::default(), |sum, &id| {
            let one = self.datapath.traffic(id)?;
            Ok(Traffic {
                connections: sum.connections + one.connections,
                in_packets: sum.in_packets + one.in_packets,
                out_packets: sum.out_packets + one.out_packets,
                ..sum
            })
        })
    }

    /// Sends one packet of each of the first `flows` flows.
    pub(crate) fn send_all(&mut self, hook: Hook, template: &Template, flows: u32) -> Result<()> {
        self.batch(target(hook), template, Flows::Fresh(0), flows).map(drop)
    }

    /// What a packet costs in a program, net of the empty one: the difference of medians of batches that alternate.
    pub(crate) fn cost(&mut self, hook: Hook, template: &Template, flows: Flows, effort: Effort) -> Result<f64> {
        let (mut empty, mut full) = (Vec::new(), Vec::new());
        let mut flows = flows;
        for _ in 0..effort.batches {
            empty.push(self.batch(EMPTY, template, flows, effort.runs)?);
            full.push(self.batch(target(hook), template, flows, effort.runs)?);
            if let Flows::Fresh(next) = &mut flows {
                *next += u64::from(effort.runs);
            }
        }
        Ok(median(full) - median(empty))
    }

    /// Nanoseconds of the driver and the empty program, which are in every figure before it is net.
    pub(crate) fn overhead(&mut self, template: &Template, effort: Effort) -> Result<f64> {
        let batches: Result<Vec<_>> =
            (0..effort.batches).map(|_| self.batch(EMPTY, template, Flows::Any(1), effort.runs)).collect();
        Ok(median(batches?))
    }

    fn batch(&mut self, target: u32, template: &Template, flows: Flows, runs: u32) -> Result<f64> {
        let headers = template.headers as usize;
        ensure!(headers < TEMPLATE, "{headers} bytes of headers, room for {TEMPLATE}");
        let mut control = Control {
            next: 0,
            template: [0; TEMPLATE],
            length: template.headers,
            address_at: template.address_at,
            port_at: template.port_at,
            order: IN_ORDER,
            flows: 1,
            target,
        };
        match flows {
            Flows::Fresh(next) => control.next = next,
            Flows::Any(flows) => (control.order, control.flows) = (AT_RANDOM, flows),
        }
        control.template[..headers].copy_from_slice(&template.frame[..headers]);
        driver::set_control(&mut self.bench, &control)?;
        driver::time(&self.bench, "bench_packet", &template.frame, runs, NEXT)
    }
}

fn target(hook: Hook) -> u32 {
    match hook {
        Hook::Ingress => INGRESS,
        Hook::Egress => EGRESS,
    }
}

/// A service as it is programmed.
pub(crate) struct Served {
    ids: Vec<u32>,
}
