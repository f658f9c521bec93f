//! Programs that `cargo xtask bench` measures with: a driver that makes packets for the real programs, and micro-programs
//! that compare designs of the connection table. In an object of their own, which `bpvs` does not contain.
#![no_std]
#![no_main]

#[allow(dead_code, reason = "each side uses a part of what both share")]
mod control;
mod driver;
mod tables;

#[cfg(not(test))]
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo) -> ! {
    loop {}
}

#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
