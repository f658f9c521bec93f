//! The real programs behind the driver, and what a packet costs in them.

use std::net::SocketAddr;

use anyhow::{Context, Result, bail, ensure};
use aya::Ebpf;
use bpvs_tests::datapath::{Datapath, Hook, NEXT, Sizes, XDP_PASS, XDP_TX};
use bpvs_tests::topology::{Topology, UPLINK};
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

/// Where a hook's program is called from: the driver's program, its map of targets, and the entry.
fn place(hook: Hook) -> (&'static str, &'static str, u32) {
    match hook {
        Hook::Ingress => ("bench_packet", "bench_targets", 1),
        Hook::Egress => ("bench_packet", "bench_targets", 2),
        Hook::Uplink => ("bench_uplink", "bench_uplink_targets", 1),
    }
}

/// What a hook's program returns for a packet that it translated, and for one that is none of ours.
pub(crate) fn verdicts(hook: Hook) -> [i32; 2] {
    match hook {
        Hook::Ingress | Hook::Egress => [NEXT, NEXT],
        Hook::Uplink => [XDP_TX, XDP_PASS],
    }
}

/// Verdict of the empty program in front of a hook.
fn nothing(hook: Hook) -> i32 {
    verdicts(hook)[1]
}

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
    /// The network behind an uplink, and the uplink's index.
    node: Option<(Topology, u32)>,
}

impl Rig {
    /// Loads everything, with room for so many connections.
    pub(crate) fn load(connections: u32) -> Result<Self> {
        let mut rig = Self { datapath: Datapath::load(sizes(connections))?, bench: driver::open(&[])?, node: None };
        rig.put_driver(Hook::Ingress, "bench_empty")?;
        rig.put(Hook::Ingress)?;
        rig.put(Hook::Egress)?;
        Ok(rig)
    }

    /// The same with XDP alone, on the uplink of a node that all clients and servers are behind.
    pub(crate) fn load_uplink(connections: u32) -> Result<Self> {
        let topology = Topology::builder().servers(0).clients(0).build()?;
        let (node, gateway) = (&topology.node.namespace, &topology.external);
        node.ip(&[
            format!("route add 10.0.0.0/8 via {} dev {UPLINK}", gateway.v4),
            format!("route add fd00::/16 via {} dev {UPLINK}", gateway.v6),
        ])?;
        let interface = node.interface_index(UPLINK)?;
        let mut datapath = Datapath::load_with_uplink(sizes(connections))?;
        datapath.insert("uplinks", interface, interface)?;
        let mut rig = Self { datapath, bench: driver::open(&[])?, node: Some((topology, interface)) };
        rig.put_driver(Hook::Uplink, "bench_uplink_empty")?;
        rig.put(Hook::Uplink)?;
        Ok(rig)
    }

    /// Loads the driver of a hook's kind of programs, with the empty one as a target.
    fn put_driver(&mut self, hook: Hook, empty: &str) -> Result<()> {
        let (driver, map, _) = place(hook);
        driver::load(&mut self.bench, driver)?;
        let empty = driver::load(&mut self.bench, empty)?.try_clone()?;
        driver::set_target(&mut self.bench, map, EMPTY, &empty)
    }

    /// Makes a hook's program a target.
    fn put(&mut self, hook: Hook) -> Result<()> {
        let (_, map, target) = place(hook);
        driver::set_target(&mut self.bench, map, target, driver::descriptor(self.datapath.object(), hook.program())?)
    }

    /// The object of bpvs.
    pub(crate) fn object(&self) -> &Ebpf {
        self.datapath.object()
    }

    /// Instructions that the verifier went through for a program.
    pub(crate) fn verified(&self, name: &str) -> Result<u32> {
        for object in [self.object(), &self.bench] {
            if object.program(name).is_some() {
                return driver::verified(object, name);
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
        self.batch(hook, Run::Whole, template, Flows::Fresh(0), flows).map(drop)
    }

    /// What a packet costs in a program, net of the empty one: the difference of medians of batches that alternate.
    pub(crate) fn cost(&mut self, hook: Hook, template: &Template, flows: Flows, effort: Effort) -> Result<f64> {
        self.cost_of(hook, Run::Whole, template, flows, effort)
    }

    /// [`Self::cost`] of a packet that is none of ours.
    pub(crate) fn cost_of_miss(&mut self, hook: Hook, template: &Template, effort: Effort) -> Result<f64> {
        self.cost_of(hook, Run::Miss, template, Flows::Any(1), effort)
    }

    fn cost_of(&mut self, hook: Hook, run: Run, template: &Template, flows: Flows, effort: Effort) -> Result<f64> {
        let (mut empty, mut full) = (Vec::new(), Vec::new());
        let mut flows = flows;
        for _ in 0..effort.batches {
            empty.push(self.batch(hook, Run::Empty, template, flows, effort.runs)?);
            full.push(self.batch(hook, run, template, flows, effort.runs)?);
            if let Flows::Fresh(next) = &mut flows {
                *next += u64::from(effort.runs);
            }
        }
        Ok(median(full) - median(empty))
    }

    /// Nanoseconds of the driver and the empty program, which are in every figure before it is net.
    pub(crate) fn overhead(&mut self, hook: Hook, template: &Template, effort: Effort) -> Result<f64> {
        let batches: Result<Vec<_>> =
            (0..effort.batches).map(|_| self.batch(hook, Run::Empty, template, Flows::Any(1), effort.runs)).collect();
        Ok(median(batches?))
    }

    fn batch(&mut self, hook: Hook, run: Run, template: &Template, flows: Flows, runs: u32) -> Result<f64> {
        let (driver, _, target) = place(hook);
        let [translated, passed] = verdicts(hook);
        let (target, verdict) = match run {
            Run::Empty => (EMPTY, nothing(hook)),
            Run::Miss => (target, passed),
            Run::Whole => (target, translated),
        };
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
        match &self.node {
            None => driver::time(&self.bench, driver, &template.frame, runs, verdict, 1),
            Some((topology, interface)) => topology
                .node
                .namespace
                .enter(|| driver::time(&self.bench, driver, &template.frame, runs, verdict, *interface)),
        }
    }
}

/// What runs behind the driver.
#[derive(Clone, Copy)]
enum Run {
    /// The empty program.
    Empty,
    /// The hook's program, which finds that the packet is none of ours.
    Miss,
    /// The hook's program, which translates the packet.
    Whole,
}

fn sizes(connections: u32) -> Sizes {
    Sizes {
        connections: connections * 2,
        slots: 1 << 20,
        destinations: 1 << 17,
        services: 1 << 10,
        service_ids: 1 << 11,
        ..Sizes::default()
    }
}

/// A service as it is programmed.
pub(crate) struct Served {
    ids: Vec<u32>,
}
