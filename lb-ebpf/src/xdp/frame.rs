//! A packet as the driver received it: [`Bytes`] and [`Editor`] over its memory. No socket buffer, no offload: what is
//! written is what is sent.

use core::mem::MaybeUninit;

use aya_ebpf::{bindings::xdp_md, helpers::generated::bpf_xdp_load_bytes, programs::XdpContext};
use lb_common::{
    nat::{Editor, Field, Refused, Sum, checksum::Difference},
    packet::Bytes,
};

use crate::direct;

/// The packet of an XDP program.
#[derive(Clone, Copy)]
pub struct Frame(*mut xdp_md);

impl Frame {
    /// The packet of the program that this context belongs to.
    #[inline(always)]
    pub fn new(ctx: &XdpContext) -> Self {
        Self(ctx.ctx)
    }

    /// The kernel's handle of the packet, for helpers.
    #[inline(always)]
    pub fn context(self) -> *mut xdp_md {
        self.0
    }

    /// Index of the interface that the packet arrived on.
    #[inline(always)]
    pub fn interface(self) -> u32 {
        // SAFETY: the context is valid during the program.
        unsafe { (*self.0).ingress_ifindex }
    }

    #[inline(always)]
    fn place(self, offset: u32, length: usize) -> Option<usize> {
        // SAFETY: the context is valid during the program.
        let (start, end) = unsafe { ((*self.0).data as usize, (*self.0).data_end as usize) };
        direct::place_to_write(start, end, offset, length)
    }

    /// Reads through the helper.
    ///
    /// # Safety
    /// Every pattern of bytes must be a `T`.
    #[inline(always)]
    unsafe fn load<T>(self, offset: u32) -> Option<T> {
        let mut value = MaybeUninit::<T>::uninit();
        // SAFETY: the helper writes at most that many bytes to `value`, and checks the packet's bounds itself.
        let result = unsafe { bpf_xdp_load_bytes(self.0, offset, value.as_mut_ptr().cast(), size_of::<T>() as u32) };
        if result != 0 {
            return None;
        }
        // SAFETY: a helper that succeeds has written all of it, and the caller promises the rest.
        Some(unsafe { value.assume_init() })
    }
}

impl Bytes for Frame {
    #[inline(always)]
    fn read<const N: usize>(&self, offset: u32) -> Option<[u8; N]> {
        match self.place(offset, N) {
            // SAFETY: the place is of N bytes.
            Some(place) => Some(unsafe { direct::read(place) }),
            None => self.read_seldom(offset),
        }
    }

    #[inline(always)]
    fn read_words<const N: usize>(&self, offset: u32) -> Option<[u32; N]> {
        match self.place(offset, 4 * N) {
            // SAFETY: the place is of N words.
            Some(place) => Some(unsafe { direct::read_words(place) }),
            // SAFETY: words.
            None => unsafe { self.load(offset) },
        }
    }

    #[inline(always)]
    fn read_seldom<const N: usize>(&self, offset: u32) -> Option<[u8; N]> {
        // SAFETY: bytes.
        unsafe { self.load(offset) }
    }
}

impl Editor for Frame {
    #[inline(always)]
    fn store<const N: usize>(&mut self, offset: u32, bytes: [u8; N], _sum: Sum) -> Result<(), Refused> {
        let place = self.place(offset, N).ok_or(Refused)?;
        // SAFETY: the place is of N bytes.
        unsafe { direct::write(place, &bytes) };
        Ok(())
    }

    #[inline(always)]
    fn store_words<const N: usize>(&mut self, offset: u32, words: [u32; N], _sum: Sum) -> Result<(), Refused> {
        let place = self.place(offset, 4 * N).ok_or(Refused)?;
        // SAFETY: the place is of N words.
        unsafe { direct::write_words(place, &words) };
        Ok(())
    }

    #[inline(always)]
    fn fix_network(&mut self, offset: u32, difference: Difference) -> Result<(), Refused> {
        let place = self.place(offset, 2).ok_or(Refused)?;
        // SAFETY: the place is of two bytes.
        unsafe {
            let old = u16::from_ne_bytes(direct::read(place));
            direct::write(place, &difference.update(old).to_ne_bytes());
        }
        Ok(())
    }

    #[inline(always)]
    fn fix_transport(&mut self, offset: u32, difference: Difference, field: Field) -> Result<(), Refused> {
        let place = self.place(offset, 2).ok_or(Refused)?;
        // SAFETY: the place is of two bytes.
        let old = u16::from_ne_bytes(unsafe { direct::read(place) });
        if field.zero_means_none && old == 0 {
            return Ok(());
        }
        let new = match difference.update(old) {
            0 if field.zero_means_none => 0xffff,
            new => new,
        };
        // SAFETY: as above.
        unsafe { direct::write(place, &new.to_ne_bytes()) };
        Ok(())
    }
}
