//! The connections of IPVS, as `/proc/net/ip_vs_conn` lists them (`ip_vs_conn_seq_show`).

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use anyhow::{Context, Result, bail};
use lb_common::address::Protocol;

/// A connection, or a persistence template.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Connection {
    /// Protocol; none for a template of a service by mark, whose protocol is IP.
    pub protocol: Option<Protocol>,
    /// Client; of a template its network, and port 0.
    pub client: SocketAddr,
    /// Virtual address; of a template of a service by mark the mark.
    pub virtual_address: SocketAddr,
    /// Real server.
    pub server: SocketAddr,
    /// State: `ESTABLISHED`, `UDP`.
    pub state: String,
    /// Seconds until it ends if nothing more comes.
    pub expires: u64,
}

/// The listing, in its order, which is that of a hash table.
pub(super) fn parse(text: &str) -> Result<Vec<Connection>> {
    let lines = text.lines().skip(1).filter(|line| !line.trim().is_empty());
    lines.map(|line| connection(line).with_context(|| format!("a connection of IPVS: `{line}`"))).collect()
}

fn connection(line: &str) -> Result<Connection> {
    let mut words = line.split_whitespace();
    let mut word = |what: &str| words.next().with_context(|| format!("no {what}"));
    let protocol = match word("protocol")? {
        "TCP" => Some(Protocol::Tcp),
        "UDP" => Some(Protocol::Udp),
        "SCTP" => Some(Protocol::Sctp),
        "IP" => None,
        other => bail!("{other} is no protocol"),
    };
    let mut socket = || -> Result<SocketAddr> {
        let (host, port) = (word("address")?, word("port")?);
        let port = u16::from_str_radix(port, 16).with_context(|| format!("port {port}"))?;
        Ok(SocketAddr::new(address(host)?, port))
    };
    let (client, virtual_address, server) = (socket()?, socket()?, socket()?);
    let state = word("state")?.to_owned();
    let expires = word("time until it ends")?.parse().context("the time until it ends is no number")?;
    Ok(Connection { protocol, client, virtual_address, server, state, expires })
}

/// IPv4 as eight hexadecimal digits, IPv6 in eight groups.
fn address(text: &str) -> Result<IpAddr> {
    if text.contains(':') {
        return text.parse().with_context(|| format!("address {text}"));
    }
    let bits = u32::from_str_radix(text, 16).with_context(|| format!("address {text}"))?;
    Ok(Ipv4Addr::from_bits(bits).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_families_and_templates_are_read() {
        let text = "Pro FromIP   FPrt ToIP     TPrt DestIP   DPrt State       Expires PEName PEData\n\
            TCP 0A0A0002 9C40 0A600001 0050 0A010003 1F90 ESTABLISHED     899\n\
            UDP fd00:000a:0000:0000:0000:0000:0000:0002 9C40 fd00:0096:0000:0000:0000:0000:0000:0001 0035 \
            fd00:0001:0000:0000:0000:0000:0000:0003 14E9 UDP             300\n\
            IP  0A0A0000 0000 00000001 0000 0A010003 0000 NONE            359\n";
        let found = parse(text).unwrap();
        assert_eq!(found[0].protocol, Some(Protocol::Tcp));
        assert_eq!(found[0].client, "10.10.0.2:40000".parse().unwrap());
        assert_eq!(found[0].virtual_address, "10.96.0.1:80".parse().unwrap());
        assert_eq!(found[0].server, "10.1.0.3:8080".parse().unwrap());
        assert_eq!((found[0].state.as_str(), found[0].expires), ("ESTABLISHED", 899));
        assert_eq!(found[1].server, "[fd00:1::3]:5353".parse().unwrap());
        assert_eq!((found[2].protocol, found[2].virtual_address), (None, "0.0.0.1:0".parse().unwrap()));
        assert_eq!(parse("Pro FromIP\n").unwrap(), []);
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let error = parse("head\nTCP 0A0A0002 9C40 0A600001\n").unwrap_err();
        assert_eq!(format!("{error:#}"), "a connection of IPVS: `TCP 0A0A0002 9C40 0A600001`: no port");
    }
}
