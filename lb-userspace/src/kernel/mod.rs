//! What stands between this process and the kernel, apart from the values in the maps: load, pin, adopt, attach,
//! probe, clean up. Knows nothing of services.

pub mod attach;
pub mod bpf;
pub mod by_interface;
pub mod cleanup;
pub mod excluded;
pub mod features;
pub mod interfaces;
pub mod lock;
pub mod namespace;
pub mod object;
pub mod pins;
pub mod probe;
pub mod raw;
pub mod settings;
pub mod sizes;
pub mod sock_diag;
pub mod sources;
pub mod sweep;
