//! The same events for real IPVS and for bpvs, and what each answers.
//!
//! | module | what |
//! |---|---|
//! | [`control`] | what a director can be told, and what it says of itself |
//! | [`ipvs`] | Linux IPVS |

pub mod control;
pub mod ipvs;
