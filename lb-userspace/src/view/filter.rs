//! `bpvs list SERVICE`: which services are asked for.

use std::net::IpAddr;
use std::str::FromStr;

use lb_common::address::{Address, Protocol};

use crate::datapath::{Scope, Virtual};
use crate::model::place;

/// `[tcp/|udp/|sctp/]ADDRESS[/PREFIX][:PORT]` or `fwm/MARK`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Filter {
    /// By what is written in packets.
    Address {
        /// TCP, UDP or SCTP; none for all of them.
        protocol: Option<Protocol>,
        /// The address, or a network's first.
        address: IpAddr,
        /// Length of the network's prefix; none for whatever begins with the address.
        prefix: Option<u8>,
        /// The port; none for all of them.
        port: Option<u16>,
    },
    /// By firewall mark, in both families.
    Mark(u32),
}

impl Filter {
    /// True for a service that is asked for.
    pub fn matches(&self, service: &Virtual) -> bool {
        match (*self, service.scope) {
            (Self::Mark(wanted), scope) => scope == Scope::Mark(wanted),
            (Self::Address { .. }, Scope::Mark(_)) => false,
            (Self::Address { protocol, address, prefix, port }, scope) => {
                protocol.is_none_or(|protocol| service.protocol == protocol)
                    && port.is_none_or(|port| service.port == port)
                    && prefix.is_none_or(|prefix| scope == Scope::Prefix(prefix))
                    && Address::from(service.address) == address.into()
            }
        }
    }
}

impl FromStr for Filter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "`{text}` is no service: write [tcp/|udp/|sctp/]ADDRESS[:PORT], an IPv6 address with a port in brackets, \
                 a network as ADDRESS/PREFIX[:PORT], or fwm/MARK"
            )
        };
        let (name, rest) = text.split_once('/').unwrap_or(("", text));
        if name.eq_ignore_ascii_case("fwm") {
            return place::number(rest).map(Self::Mark).ok_or_else(wrong);
        }
        let protocol = Protocol::ALL.into_iter().find(|protocol| protocol.name().eq_ignore_ascii_case(name));
        let place = place::parse(if protocol.is_some() { rest } else { text }).map_err(|_| wrong())?;
        let prefix = if let Scope::Prefix(length) = place.scope { Some(length) } else { None };
        Ok(Self::Address { protocol, address: place.address, prefix, port: place.port })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datapath::Frontend;

    fn key(protocol: Protocol, address: &str, port: u16) -> Virtual {
        Virtual::from(&Frontend::new(address.parse().unwrap(), port, protocol))
    }

    #[test]
    fn a_filter_matches_what_it_names_and_leaves_open_what_it_does_not() {
        let web = key(Protocol::Tcp, "10.96.0.1", 80);
        for text in ["10.96.0.1", "10.96.0.1:80", "tcp/10.96.0.1:80", "TCP/10.96.0.1"] {
            assert!(text.parse::<Filter>().unwrap().matches(&web), "{text}");
        }
        for text in ["10.96.0.2", "10.96.0.1:81", "udp/10.96.0.1:80"] {
            assert!(!text.parse::<Filter>().unwrap().matches(&web), "{text}");
        }
        assert!("[fd00::1]:53".parse::<Filter>().unwrap().matches(&key(Protocol::Udp, "fd00::1", 53)));
        assert!("fd00::1".parse::<Filter>().unwrap().matches(&key(Protocol::Udp, "fd00::1", 53)));
    }

    #[test]
    fn networks_and_marks_are_asked_for_by_what_they_are() {
        let network =
            |bits| Frontend { scope: Scope::Prefix(bits), ..Frontend::new([10, 0, 0, 0].into(), 80, Protocol::Tcp) };
        let mark = Frontend { scope: Scope::Mark(7), ..Frontend::new([0; 4].into(), 0, Protocol::Tcp) };
        let asked = |text: &str, frontend: &Frontend| text.parse::<Filter>().unwrap().matches(&Virtual::from(frontend));
        for text in ["10.0.0.0/8", "10.0.0.0/8:80", "tcp/10.0.0.0/8:80", "10.0.0.0"] {
            assert!(asked(text, &network(8)), "{text}");
        }
        assert!(!asked("10.0.0.0/8", &network(16)));
        assert!(asked("fwm/7", &mark) && asked("FWM/7", &mark));
        assert!(!asked("fwm/8", &mark) && !asked("fwm/7", &network(8)));
    }

    #[test]
    fn no_address_is_a_mark() {
        let frontend = Frontend { scope: Scope::Mark(7), ..Frontend::new([0; 4].into(), 0, Protocol::Tcp) };
        for text in ["1.0.0.7", "0.0.0.0/0", "0.0.0.0/1:0"] {
            assert!(!text.parse::<Filter>().unwrap().matches(&Virtual::from(&frontend)), "{text}");
        }
    }

    #[test]
    fn what_is_no_service_is_refused_with_the_form_to_use() {
        for text in ["", "web", "10.96.0.1:99999", "icmp/10.96.0.1", "tcp/", "fwm/", "fwm/x", "10.0.0.0/33"] {
            assert!(text.parse::<Filter>().unwrap_err().contains("ADDRESS[:PORT]"), "{text}");
        }
    }
}
