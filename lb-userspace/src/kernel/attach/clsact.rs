//! clsact filters, for kernels without TCX: known by name, and replaced in place under the same priority and handle.

use std::io;

use anyhow::{Context, Result, bail};
use aya::programs::SchedClassifier;
use aya::programs::tc::{NlOptions, SchedClassifierLink, TcAttachOptions, TcError, TcHandle, qdisc_add_clsact};
use futures::TryStreamExt;
use nix::libc;
use rtnetlink::packet_route::tc::{TcAttribute, TcFilterBpfOption, TcMessage, TcOption};

use super::Direction;
use super::tcx::Outcome;
use crate::kernel::interfaces::Interface;

/// Our place among the filters of a hook. Behind those of other tools, which take low numbers.
const PRIORITY: u16 = 49_000;
/// Our handle within that priority.
const HANDLE: TcHandle = TcHandle::new(0, 0xb9);

/// A bpf filter at a hook.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Filter {
    priority: u16,
    handle: u32,
    name: String,
    program: u32,
}

/// Makes `program` be at the hook, in place of an older version of itself if there is one.
pub async fn ensure(
    netlink: &rtnetlink::Handle,
    interface: &Interface,
    direction: Direction,
    program: &mut SchedClassifier,
) -> Result<Outcome> {
    let place = || format!("{} ({})", interface.name, direction.name());
    match qdisc_add_clsact(&interface.name) {
        Ok(()) => {}
        Err(TcError::NetlinkError(error)) if error.raw_os_error() == Some(libc::EEXIST) => {}
        Err(_) if has_vanished(interface) => return Ok(Outcome::Vanished),
        Err(error) => {
            return Err(error).with_context(|| {
                format!("cannot add a clsact qdisc to {} (Linux 4.5, NET_SCH_INGRESS)", interface.name)
            });
        }
    }
    let filters = filters(netlink, interface.index, direction).await?;
    let ours = filters.iter().find(|filter| direction.programs().any(|name| name == filter.name));
    let id = program.info()?.id();
    let result = match ours {
        Some(filter) if filter.program == id => return Ok(Outcome::Kept),
        Some(filter) => {
            let link = SchedClassifierLink::attached(
                &interface.name,
                direction.attach_type(),
                filter.priority,
                TcHandle::from(filter.handle),
                None,
            )?;
            program.attach_to_link(link)
        }
        None => {
            if let Some(other) =
                filters.iter().find(|filter| filter.priority == PRIORITY && filter.handle == u32::from(HANDLE))
            {
                bail!(
                    "the tc filter `{}` of {} has the priority {PRIORITY} and handle that bpvs uses: move it",
                    other.name,
                    place()
                );
            }
            let options = NlOptions { priority: PRIORITY, handle: HANDLE, classid: None };
            program.attach_with_options(&interface.name, direction.attach_type(), TcAttachOptions::Netlink(options))
        }
    };
    match result {
        Ok(link) => {
            // Dropping it would remove the filter; it holds no descriptor, so nothing leaks.
            std::mem::forget(program.take_link(link)?);
            Ok(if ours.is_some() { Outcome::Replaced } else { Outcome::Attached })
        }
        Err(_) if has_vanished(interface) => Ok(Outcome::Vanished),
        Err(error) => Err(error).with_context(|| format!("cannot attach the program to {}", place())),
    }
}

/// Removes our filter from a hook. Returns whether there was one.
pub fn remove(interface: &str, direction: Direction) -> Result<bool> {
    let mut removed = false;
    for program in direction.programs() {
        removed |= remove_one(interface, direction, program)?;
    }
    Ok(removed)
}

fn remove_one(interface: &str, direction: Direction, program: &str) -> Result<bool> {
    match aya::programs::tc::qdisc_detach_program(interface, direction.attach_type(), program) {
        Ok(()) => Ok(true),
        Err(TcError::IoError(error)) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        // No clsact qdisc there (EINVAL), or no such interface any more.
        Err(TcError::NetlinkError(error))
            if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOENT | libc::ENODEV)) =>
        {
            Ok(false)
        }
        Err(TcError::IoError(error)) if error.raw_os_error() == Some(libc::ENODEV) => Ok(false),
        Err(error) => Err(error).with_context(|| format!("cannot remove the tc filter of {interface}")),
    }
}

async fn filters(netlink: &rtnetlink::Handle, index: u32, direction: Direction) -> Result<Vec<Filter>> {
    let request = netlink.traffic_filter(index as i32).get();
    let request = match direction {
        Direction::Ingress => request.ingress(),
        Direction::Egress => request.egress(),
    };
    let messages: Vec<TcMessage> = request.execute().try_collect().await.context("cannot list tc filters")?;
    Ok(messages.iter().filter_map(parse).collect())
}

fn parse(message: &TcMessage) -> Option<Filter> {
    let options = message.attributes.iter().find_map(|attribute| match attribute {
        TcAttribute::Options(options) => Some(options),
        _ => None,
    })?;
    let mut filter = Filter {
        priority: (message.header.info >> 16) as u16,
        handle: message.header.handle.into(),
        name: String::new(),
        program: 0,
    };
    for option in options {
        match option {
            TcOption::Bpf(TcFilterBpfOption::ProgName(name)) => filter.name.clone_from(name),
            TcOption::Bpf(TcFilterBpfOption::ProgId(id)) => filter.program = *id,
            _ => {}
        }
    }
    (filter.program != 0).then_some(filter)
}

fn has_vanished(interface: &Interface) -> bool {
    nix::net::if_::if_nametoindex(interface.name.as_str()) != Ok(interface.index)
}
