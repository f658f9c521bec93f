//! The editor over plain bytes: what tests and the host use, with the rules of the kernel's helpers.

use super::{Editor, Field, Refused, Sum, checksum::Difference};
use crate::packet::Bytes;

/// A frame in memory.
#[derive(Debug)]
pub struct SliceEditor<'a> {
    /// The frame, from its Ethernet header on.
    pub frame: &'a mut [u8],
}

impl Bytes for SliceEditor<'_> {
    fn read<const N: usize>(&self, offset: u32) -> Option<[u8; N]> {
        (*self.frame).read(offset)
    }

    fn read_words<const N: usize>(&self, offset: u32) -> Option<[u32; N]> {
        (*self.frame).read_words(offset)
    }
}

impl SliceEditor<'_> {
    fn half(&mut self, offset: u32) -> Result<&mut [u8; 2], Refused> {
        let start = offset as usize;
        self.frame.get_mut(start..start + 2).and_then(|bytes| bytes.try_into().ok()).ok_or(Refused)
    }
}

impl Editor for SliceEditor<'_> {
    fn store<const N: usize>(&mut self, offset: u32, bytes: [u8; N], _sum: Sum) -> Result<(), Refused> {
        let start = offset as usize;
        self.frame.get_mut(start..start + N).ok_or(Refused)?.copy_from_slice(&bytes);
        Ok(())
    }

    fn store_words<const N: usize>(&mut self, offset: u32, words: [u32; N], _sum: Sum) -> Result<(), Refused> {
        let start = offset as usize;
        let place = self.frame.get_mut(start..start + 4 * N).ok_or(Refused)?;
        place.copy_from_slice(bytemuck::cast_slice(&words));
        Ok(())
    }

    fn fix_network(&mut self, offset: u32, difference: Difference) -> Result<(), Refused> {
        let field = self.half(offset)?;
        *field = difference.update(u16::from_ne_bytes(*field)).to_ne_bytes();
        Ok(())
    }

    fn fix_transport(&mut self, offset: u32, difference: Difference, kind: Field) -> Result<(), Refused> {
        let field = self.half(offset)?;
        let old = u16::from_ne_bytes(*field);
        if kind.zero_means_none && old == 0 {
            return Ok(());
        }
        let new = match difference.update(old) {
            0 if kind.zero_means_none => 0xffff,
            new => new,
        };
        *field = new.to_ne_bytes();
        Ok(())
    }
}
