//! A mapped BPF array: its values as atomics in this process's memory.

use std::{
    num::NonZeroUsize,
    os::fd::{AsFd, BorrowedFd},
    ptr::NonNull,
    sync::atomic::{AtomicU32, AtomicU64},
};

use nix::{
    errno::Errno,
    libc::{self, c_void},
};

/// The values of a `BPF_F_MMAPABLE` array, shared with the kernel for as long as this lives.
#[derive(Debug)]
pub(super) struct MappedArray {
    start: NonNull<c_void>,
    bytes: NonZeroUsize,
    value_size: usize,
    /// From one value to the next: the kernel begins each at a multiple of 8 bytes.
    stride: usize,
    entries: u32,
}

// SAFETY: the mapping belongs to the address space, not to the thread that made it, and all access to it goes through
// atomics.
unsafe impl Send for MappedArray {}
// SAFETY: shared access is through atomics only.
unsafe impl Sync for MappedArray {}

impl MappedArray {
    /// Maps the array behind `map`, which must have `entries` values of `value_size` bytes, a multiple of 4.
    pub(super) fn new(map: BorrowedFd<'_>, value_size: usize, entries: u32) -> Result<Self, Errno> {
        let stride = value_size.next_multiple_of(8);
        let bytes = stride.checked_mul(entries as usize).and_then(NonZeroUsize::new).ok_or(Errno::EINVAL)?;
        if !value_size.is_multiple_of(4) {
            return Err(Errno::EINVAL);
        }
        let fd = std::os::fd::AsRawFd::as_raw_fd(&map.as_fd());
        // SAFETY: a new shared mapping at an address of the kernel's choice touches no memory of this process. The
        // kernel refuses a length beyond the array (rounded up to pages), so every value lies inside the mapping.
        let start = unsafe {
            libc::mmap(std::ptr::null_mut(), bytes.get(), libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, fd, 0)
        };
        if start == libc::MAP_FAILED {
            return Err(Errno::last());
        }
        let start = NonNull::new(start).ok_or(Errno::ENOMEM)?;
        Ok(Self { start, bytes, value_size, stride, entries })
    }

    /// Number of values.
    pub(super) fn entries(&self) -> u32 {
        self.entries
    }

    /// The eight bytes at `offset` of the value `index`. `None` outside of the array.
    pub(super) fn u64(&self, index: u32, offset: usize) -> Option<&AtomicU64> {
        let at = self.at(index, offset, 8)?;
        // SAFETY: `at` checked that the eight bytes lie inside the mapping, which lives as long as `self`; it starts
        // at a page and `at` checked the offset, so they are aligned. BPF and other processes change them at the same
        // time, but only by aligned loads, stores and atomic operations, which is what an atomic allows for.
        Some(unsafe { AtomicU64::from_ptr(self.start.as_ptr().byte_add(at).cast()) })
    }

    /// The four bytes at `offset` of the value `index`. `None` outside of the array.
    pub(super) fn u32(&self, index: u32, offset: usize) -> Option<&AtomicU32> {
        let at = self.at(index, offset, 4)?;
        // SAFETY: as in `u64`, with four bytes.
        Some(unsafe { AtomicU32::from_ptr(self.start.as_ptr().byte_add(at).cast()) })
    }

    /// Where `size` bytes at `offset` of the value `index` are, from the start of the mapping.
    fn at(&self, index: u32, offset: usize, size: usize) -> Option<usize> {
        let inside = index < self.entries && offset.is_multiple_of(size) && offset + size <= self.value_size;
        inside.then(|| index as usize * self.stride + offset)
    }
}

impl Drop for MappedArray {
    fn drop(&mut self) {
        // SAFETY: exactly the range that `new` mapped; references into it borrow `self`, so none is left.
        unsafe { libc::munmap(self.start.as_ptr(), self.bytes.get()) };
    }
}
