//! Where bpvs is meant to differ from IPVS: the one list of what is not compared, and why.
//!
//! | what | IPVS | bpvs | how it is kept apart |
//! |---|---|---|---|
//! | packet of a connection whose server was removed, without `expire_nodest_conn` | dropped in silence until the connection times out | a TCP stream goes on, a SYN or datagram gets another server at once | not sent while the server is out of the list ([`is_not_compared`]) |
//! | server's answer to a datagram of a service with one-packet scheduling | leaves with the server's own address | is translated | not sent ([`is_not_answered`]) |
//! | template that is not valid any more (`ip_vs_check_template`: its server was removed, or has weight 0 with `expire_quiescent_template`) | counts for its server until its time is over | gone at once | templates are not compared once there may be one ([`invalidates_templates`]) |
//! | edit that changes nothing (`-e` with the same weight) | an edit all the same: wrr starts its pass again | there is no such thing: what is desired is there | never generated |
//! | one client port, two virtual services, one real server | replies come from the newer service | the second connection gets another source port | scripts use client ports of their own |
//!
//! A stray segment is no difference: IPVS leaves it to the host's stack, which answers with a reset, and bpvs does the
//! same itself. Nor is a stray SCTP packet: the stack answers that it does not know the protocol, bpvs that the port is
//! unreachable, and both count as an ICMP refusal here.

use lb_common::address::Protocol;

use super::script::{Event, Script};

/// True if a client's packet of a connection says nothing: the connection's server is not in the list.
pub fn is_not_compared(script: &Script, server_is_listed: bool) -> bool {
    !server_is_listed && !script.switches.expire_nodest_conn && !is_not_answered(script)
}

/// True if answers of servers say nothing: each datagram is a connection of its own, and over when it has been sent on.
pub fn is_not_answered(script: &Script) -> bool {
    script.choice.one_packet && script.protocol == Protocol::Udp
}

/// True if an event may make a template invalid: from then on servers' templates are not counted alike.
pub fn invalidates_templates(script: &Script, event: &Event) -> bool {
    match event {
        Event::Remove(_) | Event::Renew => true,
        Event::Edit(_, share) => script.switches.expire_quiescent_template && share.weight == 0,
        _ => false,
    }
}
