//! The test kit.

pub mod model;
pub mod sequences;
