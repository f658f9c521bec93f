//! stub
/// t
pub const TIMEOUTS_MS: [u32; 16] = [0; 16];
