//! The tc programs on interfaces, for packets that come by wire.

use anyhow::{Context, Result};
use aya::{
    programs::{
        SchedClassifier, TcAttachType,
        tc::{TcError, qdisc_add_clsact},
    },
    util::KernelVersion,
};
use nix::libc;

use super::{Datapath, Hook};
use crate::namespace::Namespace;

impl Datapath {
    /// Puts the programs on interfaces of a namespace, until the datapath is dropped.
    pub fn attach(&mut self, namespace: &Namespace, interfaces: &[&str]) -> Result<()> {
        namespace.enter(|| {
            for interface in interfaces {
                self.attach_here(interface).with_context(|| format!("attaching to {interface}"))?;
            }
            Ok(())
        })
    }

    fn attach_here(&mut self, interface: &str) -> Result<()> {
        // TCX came with Linux 6.6; before it, programs need a qdisc.
        if KernelVersion::current()? < KernelVersion::new(6, 6, 0) {
            match qdisc_add_clsact(interface) {
                Ok(()) => {}
                Err(TcError::NetlinkError(error)) if error.raw_os_error() == Some(libc::EEXIST) => {}
                Err(error) => return Err(error).context("adding a clsact qdisc"),
            }
        }
        for (hook, place) in [(Hook::Ingress, TcAttachType::Ingress), (Hook::Egress, TcAttachType::Egress)] {
            let name = hook.program();
            let program = self.object.program_mut(name).with_context(|| format!("no program {name}"))?;
            let program: &mut SchedClassifier = program.try_into()?;
            program.attach(interface, place).context(name)?;
        }
        Ok(())
    }
}
