//! Whose sockets are balanced: those of the node's own network namespace, or of all, but for cgroups that are left out.
//!
//! Sockets of other namespaces are those of pods. Their packets pass the node's interfaces, so that what cannot be decided
//! at the socket is left to packets: the address of a pod is not known before its route is, and a connected UDP socket
//! could not be moved when its server goes.

use aya_ebpf::{
    EbpfContext,
    helpers::generated::{bpf_get_current_ancestor_cgroup_id, bpf_get_current_cgroup_id, bpf_get_netns_cookie},
    programs::SockAddrContext,
};
use lb_common::{
    layout::{
        ACCESS_MASQUERADE, ACCESS_SOURCES, SERVICE_PERSISTENT, SETTING_ALL_SOCKETS, SETTING_EXCLUDED_CGROUPS, Service,
        Settings,
    },
    scheduler::Scheduler,
};

use crate::{maps::EXCLUDED_CGROUPS, settings::settings};

/// Levels of the hierarchy that are looked at from the root on, besides the process's own cgroup.
const LEVELS: i32 = 24;
/// `sk_state` of a connected socket.
const CONNECTED: u32 = 1;

/// The settings, if the socket is to be balanced.
#[inline(always)]
pub fn settings_for(ctx: &SockAddrContext) -> Option<&'static Settings> {
    let settings = settings()?;
    if is_foreign(ctx, settings) && settings.switches & SETTING_ALL_SOCKETS == 0 {
        return None;
    }
    if settings.switches & SETTING_EXCLUDED_CGROUPS != 0 && is_excluded() != 0 {
        return None;
    }
    Some(settings)
}

/// True if a socket is of another network namespace than the node's.
#[inline(always)]
pub fn is_foreign(ctx: &SockAddrContext, settings: &Settings) -> bool {
    // SAFETY: the helper takes this program's context.
    unsafe { bpf_get_netns_cookie(ctx.as_ptr()) != settings.namespace_cookie }
}

/// True if a socket is of the node's own network namespace.
#[inline(always)]
pub fn is_of_node(ctx: &SockAddrContext) -> bool {
    settings().is_some_and(|settings| !is_foreign(ctx, settings))
}

/// Not 0 if the process is in a cgroup that is left out, or below one.
#[inline(never)]
fn is_excluded() -> u32 {
    // SAFETY: presence alone is looked at.
    let is_listed = |id: u64| unsafe { EXCLUDED_CGROUPS.get(id) }.is_some();
    // SAFETY: the helper takes no arguments and has no preconditions.
    if is_listed(unsafe { bpf_get_current_cgroup_id() }) {
        return 1;
    }
    for level in 0..LEVELS {
        // SAFETY: the helper takes a plain number.
        let id = unsafe { bpf_get_current_ancestor_cgroup_id(level) };
        if id == 0 {
            return 0;
        }
        if is_listed(id) {
            return 1;
        }
    }
    0
}

/// The mark of a socket's packets, as they reach the node: what other namespaces mark is cleared on the way.
#[inline(always)]
pub fn mark(ctx: &SockAddrContext) -> u32 {
    let Some(settings) = settings() else { return 0 };
    if is_foreign(ctx, settings) {
        return 0;
    }
    // SAFETY: `sk` is the context's socket; the verifier demands the null check.
    unsafe {
        let socket = (*ctx.sock_addr).__bindgen_anon_1.sk;
        if socket.is_null() { 0 } else { (*socket).mark }
    }
}

/// Not 0 if a socket of another namespace is not balanced for this service. `connects`: a UDP socket that does.
#[inline(never)]
pub fn is_for_packets(ctx: &SockAddrContext, service: &Service, connects: bool) -> u32 {
    let Some(settings) = settings() else { return 1 };
    if !is_foreign(ctx, settings) {
        return 0;
    }
    // SAFETY: `sk` is the context's socket; the verifier demands the null check.
    let connected = unsafe {
        let socket = (*ctx.sock_addr).__bindgen_anon_1.sk;
        !socket.is_null() && (*socket).state == CONNECTED
    };
    let by_client = service.scheduler == Scheduler::SourceHash as u8 || service.scheduler == Scheduler::Maglev as u8;
    let needs_client = by_client
        || service.flags & SERVICE_PERSISTENT != 0
        || service.access & (ACCESS_MASQUERADE | ACCESS_SOURCES) != 0;
    (connects || connected || needs_client).into()
}
