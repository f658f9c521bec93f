//! The test kit.

pub mod api_server;
