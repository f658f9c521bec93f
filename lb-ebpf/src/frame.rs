//! A socket buffer as `lb-common` reads and edits packets: [`Bytes`] and [`Editor`] over the kernel's helpers, which
//! know about non-linear buffers, shared headers and checksum offload.

use core::mem::MaybeUninit;

use aya_ebpf::{
    bindings::{__sk_buff, BPF_F_MARK_MANGLED_0, BPF_F_PSEUDO_HDR, BPF_F_RECOMPUTE_CSUM},
    helpers::{bpf_l3_csum_replace, bpf_l4_csum_replace, bpf_skb_load_bytes, bpf_skb_store_bytes},
    programs::TcContext,
};
use lb_common::{
    nat::{Editor, Field, Refused, Sum, checksum::Difference},
    packet::Bytes,
};

use crate::direct;

/// The note of [`Frame::finish`].
const FINISHED: u32 = 0x6276;

/// The packet of a tc program.
#[derive(Clone, Copy)]
pub struct Frame(*mut __sk_buff);

impl Frame {
    /// The packet of the program that this context belongs to.
    #[inline(always)]
    pub fn new(ctx: &TcContext) -> Self {
        Self(ctx.skb.skb)
    }

    /// The kernel's handle of the packet, for helpers.
    #[inline(always)]
    pub fn skb(self) -> *mut __sk_buff {
        self.0
    }

    /// Length of the frame in bytes.
    #[inline(always)]
    pub fn len(self) -> u32 {
        // SAFETY: the context is valid during the program.
        unsafe { (*self.0).len }
    }

    /// The firewall mark.
    #[inline(always)]
    pub fn mark(self) -> u32 {
        // SAFETY: the context is valid during the program.
        unsafe { (*self.0).mark }
    }

    /// Bytes of payload in each packet that this one is cut into; 0 if it is whole.
    #[inline(always)]
    pub fn segment(self) -> u32 {
        // SAFETY: the context is valid during the program.
        unsafe { (*self.0).gso_size }
    }

    /// Tells egress that nothing is left to do: most requests need the one translation.
    #[inline(always)]
    pub fn finish(self) {
        self.write_note(FINISHED);
    }

    /// Forgets what another network namespace wrote: a pod can write what it likes.
    #[inline(always)]
    pub fn begin(self) {
        if self.note() != 0 {
            self.write_note(0);
        }
    }

    /// True if ingress found that nothing is left to do for egress.
    #[inline(always)]
    pub fn is_finished(self) -> bool {
        self.note() == FINISHED
    }

    /// What ingress wrote for egress. In `tc_index`, which goes with the packet through the stack, also into its fragments, and
    /// means nothing to anybody else: the last queue that asked for it left Linux in 6.3. A classifier that ends with
    /// TC_ACT_OK writes over it; egress then looks for itself.
    #[inline(always)]
    pub fn note(self) -> u32 {
        // SAFETY: the context is valid during the program.
        unsafe { (*self.0).tc_index }
    }

    /// Writes a note of 16 bits.
    #[inline(always)]
    pub fn write_note(self, note: u32) {
        // SAFETY: as above.
        unsafe { (*self.0).tc_index = note }
    }

    /// True if the packet has a VLAN tag beside it.
    #[inline(always)]
    pub fn is_tagged(self) -> bool {
        // SAFETY: the context is valid during the program.
        unsafe { (*self.0).vlan_present != 0 }
    }

    /// Index of the interface that the packet arrived on or leaves by.
    #[inline(always)]
    pub fn interface(self) -> u32 {
        // SAFETY: the context is valid during the program.
        unsafe { (*self.0).ifindex }
    }
}

impl Frame {
    #[inline(always)]
    fn place(self, offset: u32, length: usize) -> Option<usize> {
        // SAFETY: the context is valid during the program.
        let (start, end) = unsafe { ((*self.0).data as usize, (*self.0).data_end as usize) };
        direct::place(start, end, offset, length)
    }

    /// Reads through the helper.
    ///
    /// # Safety
    /// Every pattern of bytes must be a `T`.
    #[inline(always)]
    unsafe fn load<T>(self, offset: u32) -> Option<T> {
        let mut value = MaybeUninit::<T>::uninit();
        // SAFETY: the helper writes at most that many bytes to `value`, and checks the packet's bounds itself.
        let result =
            unsafe { bpf_skb_load_bytes(self.0.cast(), offset, value.as_mut_ptr().cast(), size_of::<T>() as u32) };
        if result != 0 {
            return None;
        }
        // SAFETY: a helper that succeeds has written all of it, and the caller promises the rest.
        Some(unsafe { value.assume_init() })
    }

    /// Writes a value without padding.
    #[inline(always)]
    fn write<T>(self, offset: u32, value: &T, sum: Sum) -> Result<(), Refused> {
        let flags = match sum {
            Sum::Kept => 0,
            Sum::Changed => u64::from(BPF_F_RECOMPUTE_CSUM),
        };
        let bytes = core::ptr::from_ref(value).cast();
        // SAFETY: the helper reads the bytes of `value`, and checks the packet's bounds itself.
        check(unsafe { bpf_skb_store_bytes(self.0, offset, bytes, size_of::<T>() as u32, flags) })
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

/// The same packet, for what is read seldom as a whole.
pub struct Seldom(pub Frame);

impl Bytes for Seldom {
    #[inline(always)]
    fn read<const N: usize>(&self, offset: u32) -> Option<[u8; N]> {
        self.0.read_seldom(offset)
    }

    #[inline(always)]
    fn read_words<const N: usize>(&self, offset: u32) -> Option<[u32; N]> {
        // SAFETY: words.
        unsafe { self.0.load(offset) }
    }
}

impl Editor for Frame {
    #[inline(always)]
    fn store<const N: usize>(&mut self, offset: u32, bytes: [u8; N], sum: Sum) -> Result<(), Refused> {
        self.write(offset, &bytes, sum)
    }

    #[inline(always)]
    fn store_words<const N: usize>(&mut self, offset: u32, words: [u32; N], sum: Sum) -> Result<(), Refused> {
        self.write(offset, &words, sum)
    }

    #[inline(always)]
    fn fix_network(&mut self, offset: u32, difference: Difference) -> Result<(), Refused> {
        // SAFETY: the helper checks the packet's bounds; size 0 means that the last value is a difference.
        check(unsafe { bpf_l3_csum_replace(self.0, offset, 0, difference.0.into(), 0) })
    }

    #[inline(always)]
    fn fix_transport(&mut self, offset: u32, difference: Difference, field: Field) -> Result<(), Refused> {
        let mut flags = 0;
        if field.pseudo_header {
            flags |= u64::from(BPF_F_PSEUDO_HDR);
        }
        if field.zero_means_none {
            flags |= u64::from(BPF_F_MARK_MANGLED_0);
        }
        // SAFETY: as above.
        check(unsafe { bpf_l4_csum_replace(self.0, offset, 0, difference.0.into(), flags) })
    }
}

#[inline(always)]
fn check(result: i64) -> Result<(), Refused> {
    if result == 0 { Ok(()) } else { Err(Refused) }
}
