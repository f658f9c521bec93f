//! A generic netlink socket: a request, and its answers.

use anyhow::{Context, Result, bail, ensure};
use netlink_packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkDeserializable, NetlinkMessage, NetlinkPayload, NetlinkSerializable,
};
use netlink_packet_generic::ctrl::nlas::GenlCtrlAttrs;
use netlink_packet_generic::ctrl::{GenlCtrl, GenlCtrlCmd};
use netlink_packet_generic::{GenlFamily, GenlMessage};
use netlink_sys::protocols::NETLINK_GENERIC;
use netlink_sys::{Socket as Netlink, SocketAddr};
use nix::errno::Errno;

use super::attributes::{Attribute, Attributes, Command, Message};
use super::refusal::Refusal;

/// A socket of the network namespace that it was opened in, whoever uses it.
#[derive(Debug)]
pub(super) struct Socket {
    netlink: Netlink,
    family: u16,
    sequence: u32,
}

impl Socket {
    /// Opens one in the caller's network namespace, and asks for the family.
    pub(super) fn open() -> Result<Self> {
        let mut netlink = Netlink::new(NETLINK_GENERIC).context("opening a netlink socket")?;
        netlink.bind_auto().context("binding a netlink socket")?;
        netlink.connect(&SocketAddr::new(0, 0)).context("connecting a netlink socket")?;
        let mut socket = Self { netlink, family: 0, sequence: 0 };
        socket.family = socket.find_family()?;
        Ok(socket)
    }

    /// Sends a command and waits until it is done.
    pub(super) fn tell(&mut self, command: Command, attributes: Vec<Attribute>) -> Result<()> {
        self.exchange(command, attributes, NLM_F_ACK).map(drop)
    }

    /// Sends a command that has one answer.
    pub(super) fn ask(&mut self, command: Command, attributes: Vec<Attribute>) -> Result<Attributes> {
        let mut answers = self.exchange(command, attributes, NLM_F_ACK)?;
        ensure!(answers.len() == 1, "{} answers to {command:?}, not 1", answers.len());
        Ok(answers.remove(0))
    }

    /// Sends a command that has any number of answers.
    pub(super) fn dump(&mut self, command: Command, attributes: Vec<Attribute>) -> Result<Vec<Attributes>> {
        self.exchange(command, attributes, NLM_F_DUMP)
    }

    fn exchange(&mut self, command: Command, attributes: Vec<Attribute>, flags: u16) -> Result<Vec<Attributes>> {
        let mut message = GenlMessage::from_payload(Message::new(command, attributes));
        message.set_resolved_family_id(self.family);
        let answers = self.request(message, flags).with_context(|| format!("sending {command:?} to IPVS"))?;
        match answers {
            Ok(answers) => Ok(answers.into_iter().map(|answer| answer.payload.attributes).collect()),
            Err(errno) => Err(Refusal { command, errno }.into()),
        }
    }

    /// The number that this kernel gave to the family.
    fn find_family(&mut self) -> Result<u16> {
        let name = Message::family_name();
        let nlas = vec![GenlCtrlAttrs::FamilyName(name.to_owned())];
        let request = GenlMessage::from_payload(GenlCtrl { cmd: GenlCtrlCmd::GetFamily, nlas });
        let answers = self.request(request, NLM_F_ACK).context("asking for a generic netlink family")?;
        let answers = match answers {
            Ok(answers) => answers,
            Err(Errno::ENOENT) => bail!("this kernel has no IPVS; `modprobe ip_vs` may bring it"),
            Err(errno) => bail!("the kernel does not say whether it has IPVS: {errno}"),
        };
        let attributes = answers.into_iter().flat_map(|answer| answer.payload.nlas);
        let number = attributes.into_iter().find_map(|attribute| match attribute {
            GenlCtrlAttrs::FamilyId(number) => Some(number),
            _ => None,
        });
        number.context("the kernel gave no number of the family IPVS")
    }

    /// Sends a message, and collects what comes before the acknowledgement or the end of the dump: or the error.
    fn request<F>(&mut self, message: GenlMessage<F>, flags: u16) -> Result<Result<Vec<GenlMessage<F>>, Errno>>
    where
        GenlMessage<F>: NetlinkSerializable + NetlinkDeserializable + Into<NetlinkPayload<GenlMessage<F>>>,
    {
        self.sequence += 1;
        let mut message = NetlinkMessage::new(Default::default(), message.into());
        message.header.flags = NLM_F_REQUEST | flags;
        message.header.sequence_number = self.sequence;
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.netlink.send(&bytes, 0).context("sending")?;
        let mut answers = Vec::new();
        loop {
            let (bytes, _) = self.netlink.recv_from_full().context("receiving")?;
            let mut rest = bytes.as_slice();
            while !rest.is_empty() {
                let answer = NetlinkMessage::<GenlMessage<F>>::deserialize(rest).context("reading an answer")?;
                let (length, sequence) = (answer.header.length as usize, answer.header.sequence_number);
                ensure!(sequence == self.sequence, "an answer to request {sequence}, not {}", self.sequence);
                match answer.payload {
                    NetlinkPayload::InnerMessage(answer) => answers.push(answer),
                    NetlinkPayload::Done(done) if done.code == 0 => return Ok(Ok(answers)),
                    NetlinkPayload::Done(done) => return Ok(Err(Errno::from_raw(done.code.abs()))),
                    NetlinkPayload::Error(error) if error.code.is_none() => return Ok(Ok(answers)),
                    NetlinkPayload::Error(error) => return Ok(Err(Errno::from_raw(error.raw_code().abs()))),
                    _ => bail!("an answer of a kind that was not asked for"),
                }
                // Messages in a datagram begin at multiples of four bytes.
                rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
            }
        }
    }
}
