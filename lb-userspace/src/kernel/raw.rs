//! Lets aya's typed maps hold the types of `lb-common`.

/// A map key or value as it is in the kernel.
///
/// aya asks for its own marker trait, which neither crate here may implement for the other's types.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(transparent)]
pub struct Raw<T>(pub T);

// SAFETY: `Raw<T>` is `repr(transparent)`, and `bytemuck::Pod` promises of `T` what aya's `Pod` asks for: any bytes
// are a value and every byte of a value is initialised.
unsafe impl<T: bytemuck::Pod> aya::Pod for Raw<T> {}
