//! The test kit.

pub mod api_server;
pub mod model;
pub mod sequences;
