//! What messages of the generic netlink family "IPVS" are made of (`include/uapi/linux/ip_vs.h`).

use netlink_packet_core::{DecodeError, Emitable, Nla, NlasIterator, ParseableParametrized};
use netlink_packet_generic::{GenlFamily, GenlHeader};

/// The version of the family.
const VERSION: u8 = 1;

/// Commands (`IPVS_CMD_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Command {
    NewService = 1,
    SetService = 2,
    DeleteService = 3,
    GetService = 4,
    NewServer = 5,
    SetServer = 6,
    DeleteServer = 7,
    GetServer = 8,
    SetConfig = 12,
    GetInfo = 15,
    Zero = 16,
    Flush = 17,
}

/// Attributes of a command (`IPVS_CMD_ATTR_*`).
pub(super) mod command {
    pub(in super::super) const SERVICE: u16 = 1;
    pub(in super::super) const SERVER: u16 = 2;
    pub(in super::super) const TIMEOUT_TCP: u16 = 4;
    pub(in super::super) const TIMEOUT_TCP_FIN: u16 = 5;
    pub(in super::super) const TIMEOUT_UDP: u16 = 6;
}

/// Attributes of a virtual service (`IPVS_SVC_ATTR_*`).
pub(super) mod service {
    pub(in super::super) const FAMILY: u16 = 1;
    pub(in super::super) const PROTOCOL: u16 = 2;
    pub(in super::super) const ADDRESS: u16 = 3;
    pub(in super::super) const PORT: u16 = 4;
    pub(in super::super) const MARK: u16 = 5;
    pub(in super::super) const SCHEDULER: u16 = 6;
    pub(in super::super) const FLAGS: u16 = 7;
    pub(in super::super) const TIMEOUT: u16 = 8;
    pub(in super::super) const NETMASK: u16 = 9;
}

/// Attributes of a real server (`IPVS_DEST_ATTR_*`).
pub(super) mod server {
    pub(in super::super) const ADDRESS: u16 = 1;
    pub(in super::super) const PORT: u16 = 2;
    pub(in super::super) const METHOD: u16 = 3;
    pub(in super::super) const WEIGHT: u16 = 4;
    pub(in super::super) const UPPER: u16 = 5;
    pub(in super::super) const LOWER: u16 = 6;
    pub(in super::super) const ACTIVE: u16 = 7;
    pub(in super::super) const INACTIVE: u16 = 8;
    pub(in super::super) const PERSISTENT: u16 = 9;
    pub(in super::super) const FAMILY: u16 = 11;
}

/// Flags of a virtual service (`IP_VS_SVC_F_*`).
pub(super) mod flags {
    pub(in super::super) const PERSISTENT: u32 = 0x01;
    pub(in super::super) const ONE_PACKET: u32 = 0x04;
    /// The first flag of the scheduler's own: sh's and mh's fallback.
    pub(in super::super) const FALLBACK: u32 = 0x08;
    /// The second one: sh's and mh's port.
    pub(in super::super) const HASH_PORT: u32 = 0x10;
}

/// An attribute: its type, and its value as it is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Attribute {
    kind: u16,
    value: Vec<u8>,
}

impl Attribute {
    pub(super) fn bytes(kind: u16, value: &[u8]) -> Self {
        Self { kind, value: value.to_vec() }
    }

    /// 16 bits in the machine's order.
    pub(super) fn half(kind: u16, value: u16) -> Self {
        Self::bytes(kind, &value.to_ne_bytes())
    }

    /// 16 bits in network order: a port.
    pub(super) fn port(kind: u16, value: u16) -> Self {
        Self::bytes(kind, &value.to_be_bytes())
    }

    /// 32 bits in the machine's order.
    pub(super) fn word(kind: u16, value: u32) -> Self {
        Self::bytes(kind, &value.to_ne_bytes())
    }

    /// Text, ended by a zero byte.
    pub(super) fn text(kind: u16, value: &str) -> Self {
        Self::bytes(kind, &[value.as_bytes(), &[0]].concat())
    }

    /// Attributes in an attribute. The family is older than the rule that marks these as nested; it takes both.
    pub(super) fn nested(kind: u16, inner: &[Self]) -> Self {
        let mut value = vec![0; inner.buffer_len()];
        inner.emit(&mut value);
        Self { kind, value }
    }
}

impl Nla for Attribute {
    fn value_len(&self) -> usize {
        self.value.len()
    }

    fn kind(&self) -> u16 {
        self.kind
    }

    fn emit_value(&self, buffer: &mut [u8]) {
        buffer.copy_from_slice(&self.value);
    }
}

/// Attributes that were received.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Attributes(Vec<Attribute>);

impl Attributes {
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, DecodeError> {
        let attribute = |found: Result<netlink_packet_core::NlaBuffer<&[u8]>, _>| {
            found.map(|found| Attribute::bytes(found.kind(), found.value()))
        };
        NlasIterator::new(bytes).map(attribute).collect::<Result<_, _>>().map(Self)
    }

    /// The value of an attribute.
    pub(super) fn value(&self, kind: u16) -> Result<&[u8], DecodeError> {
        let found = self.0.iter().find(|attribute| attribute.kind == kind);
        found.map(|attribute| attribute.value.as_slice()).ok_or_else(|| format!("attribute {kind} is missing").into())
    }

    /// A value of a fixed length.
    pub(super) fn array<const N: usize>(&self, kind: u16) -> Result<[u8; N], DecodeError> {
        let value = self.value(kind)?;
        value.try_into().map_err(|_| format!("attribute {kind} has {} bytes, not {N}", value.len()).into())
    }

    /// 16 bits in the machine's order.
    pub(super) fn half(&self, kind: u16) -> Result<u16, DecodeError> {
        self.array(kind).map(u16::from_ne_bytes)
    }

    /// 16 bits in network order.
    pub(super) fn port(&self, kind: u16) -> Result<u16, DecodeError> {
        self.array(kind).map(u16::from_be_bytes)
    }

    /// 32 bits in the machine's order.
    pub(super) fn word(&self, kind: u16) -> Result<u32, DecodeError> {
        self.array(kind).map(u32::from_ne_bytes)
    }

    /// The attributes in an attribute.
    pub(super) fn nested(&self, kind: u16) -> Result<Self, DecodeError> {
        Self::parse(self.value(kind)?)
    }
}

/// A message of the family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) command: u8,
    pub(super) attributes: Attributes,
}

impl Message {
    pub(super) fn new(command: Command, attributes: Vec<Attribute>) -> Self {
        Self { command: command as u8, attributes: Attributes(attributes) }
    }
}

impl GenlFamily for Message {
    fn family_name() -> &'static str {
        "IPVS"
    }

    fn command(&self) -> u8 {
        self.command
    }

    fn version(&self) -> u8 {
        VERSION
    }
}

impl Emitable for Message {
    fn buffer_len(&self) -> usize {
        self.attributes.0.as_slice().buffer_len()
    }

    fn emit(&self, buffer: &mut [u8]) {
        self.attributes.0.as_slice().emit(buffer);
    }
}

impl ParseableParametrized<[u8], GenlHeader> for Message {
    fn parse_with_param(bytes: &[u8], header: GenlHeader) -> Result<Self, DecodeError> {
        Ok(Self { command: header.cmd, attributes: Attributes::parse(bytes)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_length_type_and_value_filled_to_four_bytes() {
        let inner = [Attribute::port(service::PORT, 80), Attribute::text(service::SCHEDULER, "wrr")];
        let message = Message::new(Command::NewService, vec![Attribute::nested(command::SERVICE, &inner)]);
        let mut bytes = vec![0; message.buffer_len()];
        message.emit(&mut bytes);
        let (length, kind) = (20_u16.to_ne_bytes(), 1_u16.to_ne_bytes());
        let port = [&6_u16.to_ne_bytes()[..], &4_u16.to_ne_bytes(), &[0, 80], &[0, 0]].concat();
        let scheduler = [&8_u16.to_ne_bytes()[..], &6_u16.to_ne_bytes(), b"wrr\0"].concat();
        assert_eq!(bytes, [&length[..], &kind, &port, &scheduler].concat());
        let header = GenlHeader { cmd: 1, version: 1 };
        assert_eq!(Message::parse_with_param(&bytes, header).unwrap(), message);
    }

    #[test]
    fn what_is_missing_or_of_another_length_is_named() {
        let attributes = Attributes(vec![Attribute::word(server::WEIGHT, 7)]);
        assert_eq!(attributes.word(server::WEIGHT).unwrap(), 7);
        assert_eq!(attributes.half(server::WEIGHT).unwrap_err().to_string(), "attribute 4 has 4 bytes, not 2");
        assert_eq!(attributes.word(server::UPPER).unwrap_err().to_string(), "attribute 5 is missing");
    }
}
