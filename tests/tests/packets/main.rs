//! Packets in, packets out: the data path by `BPF_PROG_TEST_RUN`, as tables of (description, packet in, verdict, packet
//! out). What should come out is built anew, from the other addresses, by a builder that knows nothing of bpvs.
//!
//! | file | idea |
//! |---|---|
//! | `world` | a datapath with services, and the addresses around it |
//! | `rows` | a table's rows, and how one is checked |
//! | `shapes` | packets of every make: protocols, tags, options, extension headers |
//! | `mutations` | hostile frames |
//! | `reference` | the host's answer, from `lb-common` over plain memory |
//! | `director` | a node whose servers answer past it, or inside of packets |
//! | `twins` | a datapath and that host, which get the same frames |
//! | the rest | the tests, by what they are about |

mod addresses;
mod affinity;
mod busy;
mod complete;
mod director;
mod dsr;
mod errors;
mod fragments;
mod group;
mod hairpin;
mod hostile;
mod lifecycle;
mod masquerade;
mod mutations;
mod policy;
mod reference;
mod refusal;
mod rows;
mod semantics;
mod shapes;
mod sticky;
mod strays;
mod translation;
mod twins;
mod untouched;
mod unwrapping;
mod uplink;
mod world;
