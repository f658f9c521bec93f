//! Guests: Debian's kernels in virtual machines, with programs of this clone and of this machine.
//!
//! | module | what |
//! |---|---|
//! | [`packages`] | Debian's kernel packages: found, fetched, unpacked, kept |
//! | [`bzimage`] | the kernel inside a kernel's file |
//! | [`modules`] | a kernel's modules, and what each needs |
//! | [`archive`] | the cpio archive that a guest starts from |
//! | [`image`] | what is in it: programs with their libraries, modules, `init.sh` |
//! | [`emulator`] | QEMU: installed, or unpacked |
//! | [`machine`] | QEMU, and the lines of its console |
//! | [`steps`] | what `bpvs-guest` says of its steps |

mod archive;
mod bzimage;
mod emulator;
pub(crate) mod image;
pub(crate) mod machine;
mod modules;
pub(crate) mod packages;
pub(crate) mod steps;
