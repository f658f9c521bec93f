//! Reading where a packet lies in one piece, as its headers mostly do: a compare instead of a helper call.

use core::arch::asm;

/// Reads behind this offset go through the helper: the verifier follows a pointer into a packet up to 64 KiB only.
const MAX_DIRECT: u32 = 4096;

/// The place of so many bytes at `offset` of a packet from `start` to `end`, its context's `data` and `data_end`. `length` is
/// a constant of the caller.
///
/// An odd number of bytes is left to the helper: one byte's compare takes a form that the verifier of Linux 6.18
/// learns nothing from.
#[inline(always)]
pub fn place(start: usize, end: usize, offset: u32, length: usize) -> Option<usize> {
    if !length.is_multiple_of(2) || offset > MAX_DIRECT {
        return None;
    }
    within(start, end, offset as usize, length)
}

/// [`place`] for who writes there, too. The program is refused where the verifier does not know that the offset is small, and
/// has no helper to fall back on: so the number that was compared and the one that is added are one register.
#[inline(always)]
pub fn place_to_write(start: usize, end: usize, offset: u32, length: usize) -> Option<usize> {
    if !length.is_multiple_of(2) || offset > MAX_DIRECT {
        return None;
    }
    let mut offset = offset as usize;
    // SAFETY: arithmetic. It changes nothing, as `offset` is less, and the compiler does not know that: it compares a sum by
    // one of its parts, or loads it anew, and verifiers before Linux 6.18 do not follow it there.
    unsafe { asm!("{offset} &= 8191", offset = inout(reg) offset, options(pure, nomem, nostack)) };
    within(start, end, offset, length)
}

#[inline(always)]
fn within(start: usize, end: usize, offset: usize, length: usize) -> Option<usize> {
    let start = start + offset;
    if start + length > end { None } else { Some(start) }
}

/// Reads `N` words of a packet.
///
/// # Safety
/// `place` must be a [`place`] of `4 * N` bytes.
#[inline(always)]
pub unsafe fn read_words<const N: usize>(place: usize) -> [u32; N] {
    let mut words = [0; N];
    let mut index = 0;
    while index < N {
        // SAFETY: as in `read`.
        words[index] = unsafe { ((place + 4 * index) as *const u32).read() };
        index += 1;
    }
    words
}

/// Writes `N` words of a packet.
///
/// # Safety
/// As for [`read_words`].
#[inline(always)]
pub unsafe fn write_words<const N: usize>(place: usize, words: &[u32; N]) {
    let mut index = 0;
    while index < N {
        // SAFETY: as in `read`.
        unsafe { ((place + 4 * index) as *mut u32).write(words[index]) };
        index += 1;
    }
}

/// Reads `N` bytes of a packet.
///
/// # Safety
/// `place` must be a [`place`] of `N` bytes.
#[inline(always)]
pub unsafe fn read<const N: usize>(place: usize) -> [u8; N] {
    let mut bytes = [0; N];
    let mut at = 0;
    // SAFETY: the compare, which the verifier insists on, has shown that N bytes of the packet are there. Fields of
    // headers lie at multiples of their size, counted from the IP header, which the kernel aligns unless the machine
    // loads words from anywhere (`NET_IP_ALIGN`); the verifier refuses the program where neither is so.
    unsafe {
        while at + 4 <= N {
            let word = ((place + at) as *const u32).read();
            bytes.as_mut_ptr().add(at).cast::<u32>().write_unaligned(word);
            at += 4;
        }
        if at < N {
            let half = ((place + at) as *const u16).read();
            bytes.as_mut_ptr().add(at).cast::<u16>().write_unaligned(half);
        }
    }
    bytes
}

/// Writes `N` bytes of a packet.
///
/// # Safety
/// As for [`read`].
#[inline(always)]
pub unsafe fn write<const N: usize>(place: usize, bytes: &[u8; N]) {
    let mut at = 0;
    // SAFETY: as in `read`.
    unsafe {
        while at + 4 <= N {
            let word = bytes.as_ptr().add(at).cast::<u32>().read_unaligned();
            ((place + at) as *mut u32).write(word);
            at += 4;
        }
        if at < N {
            let half = bytes.as_ptr().add(at).cast::<u16>().read_unaligned();
            ((place + at) as *mut u16).write(half);
        }
    }
}
