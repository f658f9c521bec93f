//! What an interface's driver can do with XDP, as the kernel says: generic netlink, family `netdev` (Linux 6.3).

use anyhow::{Context, Result, bail, ensure};
use netlink_packet_core::{
    DecodeError, DefaultNla, Emitable, NLM_F_ACK, NLM_F_REQUEST, NetlinkDeserializable, NetlinkMessage, NetlinkPayload,
    NetlinkSerializable, Nla, NlasIterator, ParseableParametrized,
};
use netlink_packet_generic::ctrl::nlas::GenlCtrlAttrs;
use netlink_packet_generic::ctrl::{GenlCtrl, GenlCtrlCmd};
use netlink_packet_generic::{GenlFamily, GenlHeader, GenlMessage};
use netlink_sys::protocols::NETLINK_GENERIC;
use netlink_sys::{Socket, SocketAddr};
use nix::libc;

/// `NETDEV_XDP_ACT_NDO_XMIT`: frames can be sent out of it from XDP.
pub const XDP_TRANSMIT: u64 = 1 << 2;

/// `NETDEV_CMD_DEV_GET`.
const GET: u8 = 1;
/// `NETDEV_A_DEV_IFINDEX`.
const INDEX: u16 = 1;
/// `NETDEV_A_DEV_XDP_FEATURES`.
const XDP_FEATURES: u16 = 3;

/// `NETDEV_XDP_ACT_*` of an interface; `None` if this kernel does not say.
///
/// # Errors
/// If the interface is gone, or the kernel answers anything but what it should.
pub fn xdp(interface: u32) -> Result<Option<u64>> {
    let mut socket = Socket::new(NETLINK_GENERIC)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    let nlas = vec![GenlCtrlAttrs::FamilyName("netdev".to_owned())];
    let request = GenlMessage::from_payload(GenlCtrl { cmd: GenlCtrlCmd::GetFamily, nlas });
    let family = match exchange(&socket, request)? {
        Ok(answer) => answer.payload.nlas.into_iter().find_map(|attribute| match attribute {
            GenlCtrlAttrs::FamilyId(number) => Some(number),
            _ => None,
        }),
        Err(libc::ENOENT) => return Ok(None),
        Err(errno) => bail!("netlink: {}", std::io::Error::from_raw_os_error(errno)),
    };
    let mut request = GenlMessage::from_payload(Device(vec![DefaultNla::new(INDEX, interface.to_ne_bytes().to_vec())]));
    request.set_resolved_family_id(family.context("netlink gave no number of the family `netdev`")?);
    let answer = match exchange(&socket, request)? {
        Ok(answer) => answer,
        Err(errno) => bail!("netlink: {}", std::io::Error::from_raw_os_error(errno)),
    };
    let features = answer.payload.0.iter().find(|attribute| attribute.kind() == XDP_FEATURES);
    let features = features.context("netlink tells no XDP features of it")?;
    let mut bytes = [0; 8];
    ensure!(features.value_len() == bytes.len(), "netlink tells XDP features in {} bytes", features.value_len());
    features.emit_value(&mut bytes);
    Ok(Some(u64::from_ne_bytes(bytes)))
}

/// A message of the family: its attributes.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Device(Vec<DefaultNla>);

impl GenlFamily for Device {
    fn family_name() -> &'static str {
        "netdev"
    }

    fn command(&self) -> u8 {
        GET
    }

    fn version(&self) -> u8 {
        1
    }
}

impl Emitable for Device {
    fn buffer_len(&self) -> usize {
        self.0.as_slice().buffer_len()
    }

    fn emit(&self, buffer: &mut [u8]) {
        self.0.as_slice().emit(buffer);
    }
}

impl ParseableParametrized<[u8], GenlHeader> for Device {
    fn parse_with_param(bytes: &[u8], _: GenlHeader) -> Result<Self, DecodeError> {
        let parse = |nla: Result<netlink_packet_core::NlaBuffer<&[u8]>, DecodeError>| {
            nla.map(|nla| DefaultNla::new(nla.kind(), nla.value().to_vec()))
        };
        NlasIterator::new(bytes).map(parse).collect::<Result<_, _>>().map(Self)
    }
}

/// Sends a request; its answer, or the error's number.
fn exchange<F>(socket: &Socket, request: GenlMessage<F>) -> Result<Result<GenlMessage<F>, i32>>
where
    GenlMessage<F>: NetlinkSerializable + NetlinkDeserializable + Into<NetlinkPayload<GenlMessage<F>>>,
{
    let mut message = NetlinkMessage::new(Default::default(), request.into());
    message.header.flags = NLM_F_REQUEST | NLM_F_ACK;
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    socket.send(&bytes, 0)?;
    let mut answer = None;
    loop {
        let (bytes, _) = socket.recv_from_full()?;
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            let message = NetlinkMessage::<GenlMessage<F>>::deserialize(rest).context("reading netlink's answer")?;
            let length = message.header.length as usize;
            match message.payload {
                NetlinkPayload::InnerMessage(message) => answer = Some(message),
                NetlinkPayload::Error(error) if error.code.is_none() => {
                    return answer.map(Ok).context("netlink gave no answer");
                }
                NetlinkPayload::Error(error) => return Ok(Err(error.raw_code().abs())),
                _ => bail!("netlink gave an answer of a kind that was not asked for"),
            }
            // Messages in a datagram begin at multiples of four bytes.
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_asked_and_sends_no_frames_from_xdp() {
        // Before Linux 6.3 the kernel says nothing.
        if let Some(features) = xdp(1).unwrap() {
            assert_eq!(features & XDP_TRANSMIT, 0);
        }
    }

    #[test]
    fn an_interface_that_is_not_there_is_an_error() {
        assert!(xdp(i32::MAX as u32).is_err() || xdp(1).unwrap().is_none());
    }
}
