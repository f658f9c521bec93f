//! Rows -> text or JSON. Knows nothing of maps.

pub mod json;
pub mod number;
pub mod text;
