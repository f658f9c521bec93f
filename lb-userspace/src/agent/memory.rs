//! Memory that long lists took for a moment goes back to the system: the C library keeps it otherwise.

/// Gives back what is free. Takes milliseconds; with another C library than glibc it does nothing.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: it looks at the allocator's own lists, under the allocator's locks.
        unsafe { nix::libc::malloc_trim(0) };
    }
}
