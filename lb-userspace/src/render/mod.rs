//! Rows -> text or JSON. Knows nothing of maps.

mod address;
pub mod json;
pub mod list;
pub mod number;
pub mod save;
#[cfg(test)]
mod testing;
pub mod text;
