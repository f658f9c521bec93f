//! The same events for real IPVS and for bpvs, and what each answers.
//!
//! | module | what |
//! |---|---|
//! | [`control`] | what a director can be told, and what it says of itself |
//! | [`script`], [`text`] | a service and its history, as values and as text |
//! | [`generate`], [`random`] | scripts by scheduler, seed and number |
//! | [`subject`] | who can be asked |
//! | [`network`], [`signals`], [`marks`] | the packets of a script, and what becomes of them |
//! | [`played`] | a director that is asked with packets |
//! | [`ipvs`], `waiting` | Linux IPVS as a director |
//! | [`bpvs`] | bpvs as a director |
//! | [`modelled`], [`states`] | the model, asked without packets |
//! | [`recorded`] | answers of an earlier day |
//! | [`compare`](mod@compare) | two subjects and one script: the first difference |
//! | [`differences`] | where bpvs is meant to differ |

pub mod bpvs;
pub mod compare;
pub mod control;
pub mod differences;
pub mod generate;
pub mod ipvs;
pub mod marks;
pub mod modelled;
pub mod network;
pub mod played;
pub mod random;
pub mod recorded;
pub mod script;
pub mod signals;
pub mod states;
pub mod subject;
pub mod text;
mod waiting;
