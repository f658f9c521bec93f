//! The test kit.

pub mod model;
