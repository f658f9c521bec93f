//! `bpvs list SERVICE`: which services are asked for.

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use lb_common::address::{Address, Protocol};

use crate::datapath::{Scope, Virtual};

/// `[tcp/|udp/|sctp/]ADDRESS[:PORT]`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Filter {
    protocol: Option<Protocol>,
    address: IpAddr,
    port: Option<u16>,
}

impl Filter {
    /// True for a service that is asked for.
    pub fn matches(&self, service: &Virtual) -> bool {
        !matches!(service.scope, Scope::Mark(_))
            && self.protocol.is_none_or(|protocol| service.protocol == protocol)
            && self.port.is_none_or(|port| service.port == port)
            && Address::from(service.address) == self.address.into()
    }
}

impl FromStr for Filter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "`{text}` is no service: write [tcp/|udp/|sctp/]ADDRESS[:PORT], an IPv6 address with a port in brackets"
            )
        };
        let (protocol, place) = match text.split_once('/') {
            Some((name, place)) => {
                let known = Protocol::ALL.into_iter().find(|protocol| protocol.name().eq_ignore_ascii_case(name));
                (Some(known.ok_or_else(wrong)?), place)
            }
            None => (None, text),
        };
        let (address, port) = match place.parse::<SocketAddr>() {
            Ok(socket) => (socket.ip(), Some(socket.port())),
            Err(_) => {
                let bare = place.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(place);
                (bare.parse().map_err(|_| wrong())?, None)
            }
        };
        Ok(Self { protocol, address, port })
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
    fn no_address_is_a_mark() {
        let frontend = Frontend { scope: Scope::Mark(7), ..Frontend::new([0; 4].into(), 0, Protocol::Tcp) };
        for text in ["0.0.0.7", "0.0.0.0", "0.0.0.0:0"] {
            assert!(!text.parse::<Filter>().unwrap().matches(&Virtual::from(&frontend)), "{text}");
        }
    }

    #[test]
    fn what_is_no_service_is_refused_with_the_form_to_use() {
        for text in ["", "web", "10.96.0.1:99999", "icmp/10.96.0.1", "tcp/"] {
            assert!(text.parse::<Filter>().unwrap_err().contains("ADDRESS[:PORT]"), "{text}");
        }
    }
}
