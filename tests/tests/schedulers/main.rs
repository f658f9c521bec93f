//! The schedulers three times over, on the same random events: the BPF programs by test run, `lb-common`'s code on the
//! host, and the kit's independent model (twos, which is random, by its distribution). Every decision and every count must agree after every event.
//!
//! | file | idea |
//! |---|---|
//! | `random` | numbers from a seed |
//! | `host` | a director made of `lb-common`'s schedulers |
//! | `event` | what can happen, in words |
//! | `world` | the three side by side |
//! | `packets` | what packets do in it |
//! | `edits` | what edits of the plan do in it |
//! | `histories` | the tests on random events |
//! | `recorded` | what Linux IPVS answered, replayed through the programs |
//! | `twos` | how often twos picks whom |
//! | `large` | services as large as can be |
//! | `sweep` | expiry, recount, a full table |
//! | `races` | two CPUs at one connection |

mod edits;
mod event;
mod histories;
mod host;
mod large;
mod packets;
mod races;
mod random;
mod recorded;
mod sweep;
mod twos;
mod world;
